"""Brokers to avoid for some time. Pure: callers pass the time.

Three states are tracked for each broker:
- isolated: it answered slowly. RocketMQ's table says for how long it is avoided.
- suspect: it did not answer or cannot be reached (sdk/suspects.py). It is avoided until it answers a probe.
- resting: it failed or is busy. It rests for a pause that grows with its failures in a row.
Isolated and suspect brokers still get sends when there is no other broker; a resting one gets none.
"""

from collections.abc import Collection

from mqcommon.backoff import Backoff

# (latency in ms, isolation in ms), as RocketMQ's MQFaultStrategy has it.
LATENCY_TABLE = (
    (15_000, 30_000),
    (5_000, 10_000),
    (3_000, 6_000),
    (1_800, 5_000),
    (550, 2_000),
)


def isolation_ms(latency_ms: float) -> int:
    """How long a broker that took ``latency_ms`` to answer is avoided."""
    for latency, isolation in LATENCY_TABLE:
        if latency_ms >= latency:
            return isolation
    return 0


class Faults:
    """The failures and slow answers of brokers, by address. ``suspects`` is maintained by `Suspects`."""

    def __init__(self, backoff: Backoff, suspects: Collection[str]) -> None:
        self._backoff = backoff
        self._suspects = suspects
        self._isolated_until: dict[str, float] = {}
        self._failures: dict[str, int] = {}  # in a row
        self._rests_until: dict[str, float] = {}

    def answered(self, addr: str, latency_ms: float, now_ms: float) -> None:
        """The broker answered a send."""
        isolation = isolation_ms(latency_ms)
        if isolation:
            self._isolated_until[addr] = now_ms + isolation

    def stored(self, addr: str) -> bool:
        """The broker stored a send. Returns whether it had failed before."""
        if addr not in self._failures:
            return False
        self.cleared(addr)
        return True

    def failed(self, addr: str, now_ms: float) -> None:
        """The broker is busy, did not answer in time, or cannot be reached: let it rest."""
        if self._rests_until.get(addr, 0) > now_ms:
            # This send started before the broker began to rest: it does not count as another failure in a row.
            return
        failures = self._failures[addr] = self._failures.get(addr, 0) + 1
        self._rests_until[addr] = now_ms + self._backoff.pause_s(failures) * 1000

    def cleared(self, addr: str) -> None:
        """The broker accepts sends again: forget its failures."""
        self._isolated_until.pop(addr, None)
        self._failures.pop(addr, None)
        self._rests_until.pop(addr, None)

    def usable(self, addr: str, now_ms: float) -> bool:
        """Whether the broker is neither a suspect nor isolated nor resting."""
        return (
            addr not in self._suspects
            and self._isolated_until.get(addr, 0) <= now_ms
            and self._rests_until.get(addr, 0) <= now_ms
        )

    def rests_until(self, addr: str) -> float:
        """The end of the broker's rest (ms): from then on it may be tried if there is no usable broker."""
        return self._rests_until.get(addr, 0)

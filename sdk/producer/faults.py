"""Brokers to leave alone for a while. Pure: time comes in.

Slow answers isolate a broker by RocketMQ's table. A broker that did not answer, or cannot be reached, is suspect
(sdk/suspects.py): as long as there is another it gets no sends until it has answered a probe. A broker that failed or
is busy also rests, for a pause that grows with its failures in a row: until that is over nothing is sent there, even
when nobody else is left.
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
    """How long a broker that took ``latency_ms`` to answer is left alone."""
    for latency, isolation in LATENCY_TABLE:
        if latency_ms >= latency:
            return isolation
    return 0


class Faults:
    """What is known against brokers, by address. ``suspects`` are kept by whoever probes them."""

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
        """The broker stored a send; whether something spoke against it."""
        if addr not in self._failures:
            return False
        self.cleared(addr)
        return True

    def failed(self, addr: str, now_ms: float) -> None:
        """The broker is busy, did not answer in time, or cannot be reached: it rests."""
        if self._rests_until.get(addr, 0) > now_ms:
            # What was sent before it began to rest fails with it, and says nothing new.
            return
        failures = self._failures[addr] = self._failures.get(addr, 0) + 1
        self._rests_until[addr] = now_ms + self._backoff.pause_s(failures) * 1000

    def cleared(self, addr: str) -> None:
        """The broker takes sends again."""
        self._isolated_until.pop(addr, None)
        self._failures.pop(addr, None)
        self._rests_until.pop(addr, None)

    def usable(self, addr: str, now_ms: float) -> bool:
        """Whether nothing speaks against sending there."""
        return (
            addr not in self._suspects
            and self._isolated_until.get(addr, 0) <= now_ms
            and self._rests_until.get(addr, 0) <= now_ms
        )

    def rests_until(self, addr: str) -> float:
        """When the broker may be tried though something speaks against it (ms)."""
        return self._rests_until.get(addr, 0)

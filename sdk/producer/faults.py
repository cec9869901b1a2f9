"""Brokers to leave alone for a while. Pure: time comes in.

Slow answers isolate a broker by RocketMQ's table. A broker that did not answer, or cannot be reached, is suspect: it
gets no sends until it has answered a probe.
"""

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
    """What is known against brokers, by address."""

    def __init__(self) -> None:
        self._isolated_until: dict[str, float] = {}
        self._suspects: dict[str, float] = {}  # since when

    @property
    def suspects(self) -> list[str]:
        """Brokers that are to be probed."""
        return list(self._suspects)

    def answered(self, addr: str, latency_ms: float, now_ms: float) -> None:
        """The broker answered a send."""
        isolation = isolation_ms(latency_ms)
        if isolation:
            self._isolated_until[addr] = now_ms + isolation

    def suspect(self, addr: str, now_ms: float) -> None:
        """The broker did not answer in time, or cannot be reached."""
        self._suspects.setdefault(addr, now_ms)

    def suspect_for_ms(self, addr: str, now_ms: float) -> float:
        """How long the broker has been suspect."""
        return now_ms - self._suspects.get(addr, now_ms)

    def cleared(self, addr: str) -> None:
        """The broker answered a probe."""
        self._suspects.pop(addr, None)
        self._isolated_until.pop(addr, None)

    def usable(self, addr: str, now_ms: float) -> bool:
        """Whether nothing speaks against sending there."""
        return addr not in self._suspects and self._isolated_until.get(addr, 0) <= now_ms

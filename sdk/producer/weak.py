"""Brokers that store messages with less safety than they should, and the copies stored there. Pure.

A weak broker answers SLAVE_NOT_AVAILABLE, FLUSH_SLAVE_TIMEOUT or FLUSH_DISK_TIMEOUT: its slave is away, or a disk is
slow. It is avoided while another broker is usable. After a pause, which grows, one request tries it again; after
SEND_OK the broker is no longer weak. Neighbours: brokers.py (the other states of brokers), lane.py (makes the second
copies).
"""

from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.errors import SendFailed
from skylark.sdk.producer.result import StoredBatch

# Pauses between tries of a weak broker: a slave that restarts is back in seconds.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 5.0
# How long the answer to a try may take before another request is a try: longer than the default slaveTimeout.
TRY_MS = 5_000
# A broker that has answered weakly within this time would answer weakly again.
CERTAIN_MS = 250


class WeakCopy:
    """A message that is stored at ``addr``, as number ``number`` of ``batch``, with a status other than SEND_OK."""

    __slots__ = ("addr", "batch", "is_accepted", "number")

    def __init__(self, batch: StoredBatch, number: int, addr: str, *, is_accepted: bool) -> None:
        """``is_accepted``: the sender accepts this copy as a result, if there is no safer copy."""
        self.batch = batch
        self.number = number
        self.addr = addr
        self.is_accepted = is_accepted

    def error(self, reason: Exception | None = None) -> SendFailed:
        """The error for a sender that does not accept this copy. ``reason``: why no other broker stored the message."""
        status = self.batch.status.name
        text = f"stored, but with less safety than the broker requires ({status}): {self.batch}"
        if reason is None:
            return SendFailed(text)
        failed = SendFailed(f"{text}; and another broker did not store it: {reason}")
        failed.__cause__ = reason
        return failed


class WeakBrokers:
    """The weak brokers of one producer, by address. Empty means false in a condition. Times are milliseconds."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        # Consecutive weak answers to requests that were tries.
        self._answers: dict[str, int] = {}
        self._avoided_until: dict[str, float] = {}
        self._answered_at: dict[str, float] = {}
        # Brokers whose answer to a try has not come yet.
        self._trying: dict[str, None] = {}

    def __bool__(self) -> bool:
        return bool(self._avoided_until)

    def __contains__(self, addr: str) -> bool:
        return addr in self._avoided_until

    def answered_weakly(self, addr: str, now_ms: float) -> bool:
        """Avoid a broker that stored a send with less safety than it should; returns whether it is weak since now."""
        self._answered_at[addr] = now_ms
        if addr not in self._trying and self._avoided_until.get(addr, 0) > now_ms:
            # This request began before the broker was known to be weak: the pause does not grow.
            return False
        self._trying.pop(addr, None)
        answers = self._answers[addr] = self._answers.get(addr, 0) + 1
        self._avoided_until[addr] = now_ms + self._backoff.pause_s(answers) * 1000
        return answers == 1

    def forget(self, addr: str) -> bool:
        """Count the broker as weak no longer: it stored a send safely, or is gone. Returns whether it was weak."""
        if self._avoided_until.pop(addr, None) is None:
            return False
        del self._answers[addr], self._answered_at[addr]
        self._trying.pop(addr, None)
        return True

    def usable(self, addr: str, now_ms: float) -> bool:
        """Whether sends need not avoid the broker: it is not weak, or a try is due."""
        return self._avoided_until.get(addr, 0) <= now_ms

    def is_due(self, addr: str, now_ms: float) -> bool:
        """Whether the next request to the broker is a try, which should be a small request."""
        return addr in self._avoided_until and self._avoided_until[addr] <= now_ms

    def requested(self, addr: str, now_ms: float) -> None:
        """Note that a request to the broker begins.

        If it is a try, others avoid the broker until it answers, TRY_MS at most.
        """
        if self.is_due(addr, now_ms):
            self._trying[addr] = None
            self._avoided_until[addr] = now_ms + TRY_MS

    def is_certain(self, addr: str, now_ms: float) -> bool:
        """Whether the broker is weak without doubt, so that a second copy there would be as weak as the first."""
        return now_ms - self._answered_at.get(addr, -CERTAIN_MS) < CERTAIN_MS

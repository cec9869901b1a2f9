"""The counts of a `PushConsumer` for each topic: totals, and the rates in the answer to request 307. Pure.

As in RocketMQ's clients, a rate covers the last minute, and failures cover the last hour. Both are differences of
totals: the consumer's parts only count, and the totals are sampled every SAMPLE_S.
"""

from collections import deque
from dataclasses import replace

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.requests.clients import ConsumeStatus

# Time between two samples of the totals; how many samples are a minute, and an hour when only each sixtieth is kept.
SAMPLE_S = 10.0
_HOUR_EVERY = 60
_KEPT = 7


@lazy_dataclass(slots=True)
class Totals:
    """The totals of one topic. ``pulls``: pulls that found messages; ``calls``: calls of the handler that ended."""

    pulls: int = 0
    pull_s: float = 0.0
    pulled: int = 0
    calls: int = 0
    call_s: float = 0.0
    consumed: int = 0
    failed: int = 0

    def add_calls(self, calls: int, consumed: int, began_s: float, now_s: float) -> float:
        """Count ``calls`` of the handler, which ran one after another since ``began_s``. Returns ``now_s``.

        ``consumed``: how many messages these calls consumed, if the caller does not count them itself.
        """
        if calls:
            self.calls += calls
            self.consumed += consumed
            self.call_s += now_s - began_s
        return now_s


class _History:
    """The totals of one topic: now, and samples of the last minute and the last hour, the oldest first."""

    __slots__ = ("hour", "minute", "samples", "totals")

    def __init__(self, now_s: float) -> None:
        self.totals = Totals()
        first = (now_s, Totals())
        self.minute = deque([first], _KEPT)
        self.hour = deque([first], _KEPT)
        self.samples = 0


class Rates:
    """The totals of each topic and their samples. Times are of any clock that only goes forward."""

    def __init__(self) -> None:
        self._topics: dict[str, _History] = {}

    def of(self, topic: str, now_s: float) -> Totals:
        """The totals of ``topic``; the caller adds to them."""
        history = self._topics.get(topic)
        if history is None:
            history = self._topics[topic] = _History(now_s)
        return history.totals

    def sample(self, now_s: float) -> None:
        """Sample all totals; to be called every SAMPLE_S."""
        for history in self._topics.values():
            seen = (now_s, replace(history.totals))
            history.minute.append(seen)
            history.samples += 1
            if history.samples % _HOUR_EVERY == 0:
                history.hour.append(seen)

    def status(self, topic: str, now_s: float) -> ConsumeStatus:
        """The rates of ``topic`` now, zeros for an unknown one."""
        history = self._topics.get(topic)
        if history is None:
            return ConsumeStatus()
        now = history.totals
        (then_s, then), (_, hour_ago) = history.minute[0], history.hour[0]
        # RocketMQ's rule: without calls in the last minute, the mean of the last hour.
        base = then if now.calls > then.calls else hour_ago
        return ConsumeStatus(
            pull_rt=_mean_ms(now.pull_s - then.pull_s, now.pulls - then.pulls),
            pull_tps=_per_s(now.pulled - then.pulled, now_s - then_s),
            consume_rt=_mean_ms(now.call_s - base.call_s, now.calls - base.calls),
            consume_ok_tps=_per_s(now.consumed - then.consumed, now_s - then_s),
            consume_failed_tps=_per_s(now.failed - then.failed, now_s - then_s),
            consume_failed_msgs=now.failed - hour_ago.failed,
        )


def _mean_ms(total_s: float, count: int) -> float:
    return total_s * 1000 / count if count else 0.0


def _per_s(count: int, elapsed_s: float) -> float:
    return count / elapsed_s if elapsed_s > 0 else 0.0

"""What a `PushConsumer` did with the messages of each topic: totals, and the rates that request 307 tells. Pure.

As in RocketMQ's clients, a rate is that of the last minute, and failures are those of the last hour. Both are
differences of totals: parts count, and nothing but a look every SAMPLE_S costs more.
"""

from collections import deque
from dataclasses import replace

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.requests.clients import ConsumeStatus

# Time between two looks at the totals; how many looks are a minute, and an hour when only each sixtieth is kept.
SAMPLE_S = 10.0
_HOUR_EVERY = 60
_KEPT = 7


@lazy_dataclass(slots=True)
class Totals:
    """The totals of one topic. ``pulls`` found messages; ``calls`` are those of the handler, which ended."""

    pulls: int = 0
    pull_s: float = 0.0
    pulled: int = 0
    calls: int = 0
    call_s: float = 0.0
    consumed: int = 0
    failed: int = 0

    def note_calls(self, calls: int, consumed: int, began_s: float, now_s: float) -> float:
        """``calls`` of the handler, one after another, took the time since ``began_s``. Returns ``now_s``.

        ``consumed``: how many messages they consumed, if the caller does not count that by itself.
        """
        if calls:
            self.calls += calls
            self.consumed += consumed
            self.call_s += now_s - began_s
        return now_s


class _History:
    """Totals at some times, the oldest first, and at the beginning."""

    __slots__ = ("hour", "looks", "minute", "totals")

    def __init__(self, now_s: float) -> None:
        self.totals = Totals()
        first = (now_s, Totals())
        self.minute = deque([first], _KEPT)
        self.hour = deque([first], _KEPT)
        self.looks = 0


class Rates:
    """Totals and their past, by topic. Times are of any clock that only goes forward."""

    def __init__(self) -> None:
        self._topics: dict[str, _History] = {}

    def of(self, topic: str, now_s: float) -> Totals:
        """The totals of ``topic``, for those that count."""
        history = self._topics.get(topic)
        if history is None:
            history = self._topics[topic] = _History(now_s)
        return history.totals

    def sample(self, now_s: float) -> None:
        """Look at all totals; to be called every SAMPLE_S."""
        for history in self._topics.values():
            seen = (now_s, replace(history.totals))
            history.minute.append(seen)
            history.looks += 1
            if history.looks % _HOUR_EVERY == 0:
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

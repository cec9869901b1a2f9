"""The work that members of a group report: queues, messages in memory, rates, the time of a handler. Pure.

Rates are over the last minute, as RocketMQ's clients report them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import field

from skylark.mqcommon.lazy_dataclass import lazy_dataclass

#: Topic, broker name and number of a queue.
QueueKey = tuple[str, str, int]


@lazy_dataclass(frozen=True, slots=True)
class Work:
    """The work of one member, or of all. ``handler_ms``: the time of one call; None when no handler has ended."""

    consumed_per_s: float
    failed_per_s: float
    handler_ms: float | None
    queues: int
    #: Queue → messages in memory whose handler has not ended.
    cached: Mapping[QueueKey, int] = field(default_factory=dict)
    is_orderly: bool = False
    #: The number of concurrent handlers in one member; None when it is unknown.
    concurrency: int | None = None

    @property
    def cached_count(self) -> int:
        """Messages in memory."""
        return sum(self.cached.values())


def together(works: Iterable[Work]) -> Work | None:
    """The sum of the work of all members; None when there is no member."""
    every = list(works)
    if not every:
        return None
    cached: dict[QueueKey, int] = {}
    for one in every:
        for key, count in one.cached.items():
            cached[key] = cached.get(key, 0) + count
    return Work(
        consumed_per_s=sum(one.consumed_per_s for one in every),
        failed_per_s=sum(one.failed_per_s for one in every),
        handler_ms=mean_ms(
            [(one.handler_ms, one.consumed_per_s + one.failed_per_s) for one in every if one.handler_ms is not None]
        ),
        queues=sum(one.queues for one in every),
        cached=cached,
        is_orderly=any(one.is_orderly for one in every),
    )


def mean_ms(calls: Iterable[tuple[float, float]]) -> float | None:
    """The mean of (time, number of calls) pairs; without calls in the last minute the longest time."""
    known = [(took_ms, often) for took_ms, often in calls if took_ms > 0]
    if not known:
        return None
    total = sum(often for _, often in known)
    if total <= 0:
        return max(took_ms for took_ms, _ in known)
    return sum(took_ms * often for took_ms, often in known) / total

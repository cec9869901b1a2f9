"""What members of a group say that they do: queues, messages in memory, rates, the time that a handler takes. Pure.

Rows are members as `mqadmin consumerStatus` has them. Rates are of the last minute, as RocketMQ's clients tell them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from skylark.mqcommon.lazy_dataclass import lazy_dataclass

#: Topic, broker name and number of a queue.
QueueKey = tuple[str, str, int]


@lazy_dataclass(frozen=True, slots=True)
class Work:
    """What one member does, or all of them. ``handler_ms``: of one call; None when no handler has ended."""

    consumed_per_s: float
    failed_per_s: float
    handler_ms: float | None
    queues: int
    #: Messages in memory that no handler has ended with, by queue.
    cached: Mapping[QueueKey, int] = field(default_factory=dict)
    is_orderly: bool = False
    #: Handlers at once in one member; None when it is not told.
    concurrency: int | None = None

    @property
    def cached_count(self) -> int:
        """Messages in memory."""
        return sum(self.cached.values())


def work_of(row: Mapping[str, Any]) -> Work | None:
    """What one member does; None for one whose application pulls by itself, so that no handler is known."""
    properties = row["properties"]
    if properties.get("PROP_CONSUME_TYPE") == "CONSUME_ACTIVELY":
        return None
    calls = [(one["consumeRT"], one["consumeOKTPS"] + one["consumeFailedTPS"]) for one in row["rates"]]
    queues = [one for one in row["queues"] if not one["droped"]]
    popped = [one for one in row["popQueues"] if not one["droped"]]
    cached = {_key(one): one["cachedMsgCount"] for one in queues}
    cached |= {_key(one): one["waitAckCount"] for one in popped}
    threads = properties.get("PROP_THREADPOOL_CORE_SIZE", "")
    return Work(
        consumed_per_s=sum(one["consumeOKTPS"] for one in row["rates"]),
        failed_per_s=sum(one["consumeFailedTPS"] for one in row["rates"]),
        handler_ms=_mean_ms(calls),
        queues=len(queues) + len(popped),
        cached={key: count for key, count in cached.items() if count > 0},
        is_orderly=properties.get("PROP_CONSUMEORDERLY") == "true",
        concurrency=int(threads) if threads.isascii() and threads.isdigit() and len(threads) < 10 else None,
    )


def together(works: Iterable[Work]) -> Work | None:
    """All members as one; None when there is none."""
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
        handler_ms=_mean_ms(
            [(one.handler_ms, one.consumed_per_s + one.failed_per_s) for one in every if one.handler_ms is not None]
        ),
        queues=sum(one.queues for one in every),
        cached=cached,
        is_orderly=any(one.is_orderly for one in every),
    )


def _key(row: Mapping[str, Any]) -> QueueKey:
    return row["topic"], row["brokerName"], row["queueId"]


def _mean_ms(calls: Iterable[tuple[float, float]]) -> float | None:
    """The mean of times, each with how often it was taken; without calls in the last minute the longest."""
    known = [(took_ms, often) for took_ms, often in calls if took_ms > 0]
    if not known:
        return None
    total = sum(often for _, often in known)
    if total <= 0:
        return max(took_ms for took_ms, _ in known)
    return sum(took_ms * often for took_ms, often in known) / total

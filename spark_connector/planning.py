"""Plans the ranges to read: asks brokers for the offsets of their queues, and computes the ranges with offsets.py.

The ends of the ranges are fixed here: a message that arrives while the job runs is not read.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from mqcommon.message.queue import MessageQueue
from mqcommon.names import MASTER_ID
from spark_connector.offsets import (
    DataLost,
    LostRange,
    OffsetRange,
    QueueBounds,
    cut,
    lost_table,
    resolve,
    split,
    spread,
)
from spark_connector.options import ReadOptions
from spark_connector.pulling import Pulled, SlaveBehind

logger = logging.getLogger(__name__)

T = TypeVar("T")

_THREADS = 16  # requests at the same time: a topic may have hundreds of queues


class QueueDirectory(Protocol):
    """A source of queues and their offsets."""

    def message_queues(self, topic: str) -> list[MessageQueue]: ...
    def min_offset(self, mq: MessageQueue) -> int: ...
    def max_offset(self, mq: MessageQueue) -> int: ...
    def search_offset(self, mq: MessageQueue, timestamp_ms: int) -> int: ...
    def pull_bytes(self, mq: MessageQueue, offset: int, *, max_count: int, max_bytes: int, wait_ms: int) -> Pulled: ...


def plan(directory: QueueDirectory, options: ReadOptions) -> list[OffsetRange]:
    """The ranges to read, one per partition."""
    queues = [queue for topic in options.topics for queue in directory.message_queues(topic)]
    lows = _ask_all(directory.min_offset, queues)
    highs = _ask_all(directory.max_offset, queues)
    bounds = {queue: QueueBounds(low, max(low, high)) for queue, low, high in zip(queues, lows, highs, strict=True)}
    if options.starting_timestamp >= 0:
        found = _ask_all(lambda queue: directory.search_offset(queue, options.starting_timestamp), queues)
        starts = {queue: max(offset, bounds[queue].minimum) for queue, offset in zip(queues, found, strict=True)}
    else:
        starts = resolve(options.wanted_start, bounds, "startingOffsets")
    ends = resolve(options.wanted_end, bounds, "endingOffsets")
    ranges, lost = cut(starts, ends, bounds)
    if lost:
        _check_masters(directory, [one.queue for one in lost if one.end > bounds[one.queue].maximum], bounds)
        report_lost(lost, fail=options.fail_on_data_loss)
    return spread(split(ranges, options.min_partitions, options.max_records_per_partition))


def _check_masters(
    directory: QueueDirectory, queues: Iterable[MessageQueue], bounds: Mapping[MessageQueue, QueueBounds]
) -> None:
    """Raise SlaveBehind when the end of one of ``queues`` came from a slave: the master may have more messages."""
    for queue in queues:
        end = bounds[queue].maximum
        answer = directory.pull_bytes(queue, end, max_count=1, max_bytes=1, wait_ms=0)
        if answer.broker_id != MASTER_ID:
            raise SlaveBehind(
                f"topic {queue.topic}, broker {queue.broker_name}, queue {queue.queue_id}: the master is"
                f" unreachable, and the slave with id {answer.broker_id} has messages up to offset {end} only;"
                " run the job when the master is back"
            )


def report_lost(lost: Iterable[LostRange], *, fail: bool) -> None:
    """Raise `DataLost`, or log the same table."""
    if fail:
        raise DataLost(list(lost))
    logger.warning("messages that should be read do not exist:\n%s", lost_table(lost))


def _ask_all(ask: Callable[[MessageQueue], T], queues: list[MessageQueue]) -> list[T]:
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="rocketmq-plan") as threads:
        return list(threads.map(ask, queues))

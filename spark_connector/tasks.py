"""How the ranges of queues are grouped into tasks of Spark: pure arithmetic, without brokers or Spark.

Spark needs milliseconds to start a task, and each task writes a file of its own, so thousands of queues must not be
thousands of tasks. The number of tasks follows from the messages to read (`task_count`); `grouped` divides the ranges.
It needs only the count, so a micro-batch that is run again has the same tasks: stream/offsets.py keeps the count in the
checkpoint. Invariants (property-tested): each offset is in exactly one task; the offsets of a queue grow from task to
task and within each task; no task has more rows than `maxRecordsPerPartition`.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from skylark.mqcommon.message.queue import MessageQueue
from skylark.spark_connector.offsets import OffsetRange, split, spread

#: Tasks for each core by default: several, so that no core is idle for long when tasks differ in length.
TASKS_PER_CORE = 2


@dataclass(frozen=True, slots=True)
class ReadTask:
    """The ranges that one task reads, one after another."""

    ranges: tuple[OffsetRange, ...]

    @property
    def rows(self) -> int:
        """How many messages the ranges have."""
        return sum(one.end - one.start for one in self.ranges)


@dataclass(frozen=True, slots=True)
class Splitting:
    """When queues are split, besides the number of tasks. 0 means that a limit is not used."""

    #: There are at least this many tasks, given enough rows.
    min_partitions: int = 0
    #: No task has more rows.
    max_rows: int = 0
    #: A queue with more rows than a task's share is split, into parts of at least this many rows.
    min_rows: int = 0


def task_count(rows: int, mean_bytes: float, max_tasks: int, bytes_per_task: int) -> int:
    """How many tasks read ``rows`` messages: with `bytesPerTask` each, but at most ``max_tasks``."""
    wanted = -(-int(rows * mean_bytes) // bytes_per_task) if bytes_per_task else max_tasks
    return max(1, min(wanted, max_tasks))


def single(ranges: Sequence[OffsetRange], splitting: Splitting) -> list[ReadTask]:
    """A task for each range, or part of one, in an order that loads all brokers at once."""
    return [ReadTask((one,)) for one in spread(split(ranges, splitting.min_partitions, splitting.max_rows))]


def grouped(ranges: Sequence[OffsetRange], count: int, splitting: Splitting) -> list[ReadTask]:
    """Tasks of about equal numbers of rows: ``count``, or more if ``splitting`` needs more; fewer for few ranges."""
    count = max(count, splitting.min_partitions)
    parts = _shares(ranges, count, splitting.min_rows) if splitting.min_rows else ranges
    tasks = single(parts, splitting)
    if len(tasks) <= count:
        return tasks
    in_order = [one for task in tasks for one in task.ranges]
    return [_spread_from(number, found) for number, found in enumerate(_balanced(in_order, count, splitting.max_rows))]


def _shares(ranges: Sequence[OffsetRange], count: int, min_rows: int) -> list[OffsetRange]:
    """``ranges``, where ranges with more rows than a task's share are split."""
    share = max(-(-sum(one.end - one.start for one in ranges) // count), min_rows)
    parts = []
    for one in ranges:
        rows = one.end - one.start
        parts += split([one], min(-(-rows // share), rows // min_rows), 0)
    return parts


def _balanced(parts: Sequence[OffsetRange], count: int, max_rows: int) -> list[list[OffsetRange]]:
    """Divide ``parts`` among ``count`` tasks, the largest first, each to the task that has the fewest rows."""
    # The parts of a queue differ by a row or two. They count as equally large, and each task's parts are chosen at the
    # end: the first task that has parts of a queue gets the queue's first parts.
    sizes: dict[MessageQueue, int] = {}
    for one in parts:
        sizes[one.queue] = max(sizes.get(one.queue, 0), one.end - one.start)
    loads = [(0, number) for number in range(count)]
    places: dict[MessageQueue, list[int]] = {queue: [] for queue in sizes}
    for one in sorted(parts, key=lambda one: -sizes[one.queue]):
        rows, number = loads[0]
        if max_rows and rows and rows + sizes[one.queue] > max_rows:
            # The emptiest task has no room, so no task has.
            rows, number = 0, len(loads)
            heapq.heappush(loads, (sizes[one.queue], number))
        else:
            heapq.heapreplace(loads, (rows + sizes[one.queue], number))
        places[one.queue].append(number)
    found: list[list[OffsetRange]] = [[] for _ in loads]
    for at in places.values():
        at.sort(reverse=True)
    for one in parts:  # `spread` has kept the order within each queue
        found[places[one.queue].pop()].append(one)
    return [each for each in found if each]


def _spread_from(number: int, parts: Sequence[OffsetRange]) -> ReadTask:
    """A task that reads from its brokers in turn; tasks of different ``number`` begin at different brokers."""
    brokers = sorted({one.queue.broker_name for one in parts})
    first = {broker: (at - number) % len(brokers) for at, broker in enumerate(brokers)}
    turns = dict.fromkeys(brokers, 0)
    keyed = []
    for one in parts:
        broker = one.queue.broker_name
        keyed.append((turns[broker], first[broker], one))
        turns[broker] += 1
    return ReadTask(tuple(one for *_, one in sorted(keyed)))

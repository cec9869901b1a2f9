"""Divides the ranges of queues among tasks along the segments of the log. Pure.

A segment has records of all queues, and an index that a task must read to find them. If each task read some queues from
all segments, each index would be read by all tasks: for a small topic more bytes than its messages have. So a task
reads all queues of a run of segments. Only within a run that one task would be too few for, queues are divided.
Invariants (property-tested): as of tasks.py; and the result depends only on the arguments, so a micro-batch that is run
again has the same tasks.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from skylark.mqcommon.message.queue import MessageQueue
from skylark.spark_connector.offsets import OffsetRange
from skylark.spark_connector.tasks import ReadTask, Splitting, grouped


class Marks(Protocol):
    """The offsets of queues at the beginnings of consecutive segments."""

    def __len__(self) -> int:
        """How many segments there are."""

    def offset_at(self, segment: int, queue: MessageQueue) -> int:
        """The offset of the first message in this segment or a later one; does not fall as ``segment`` rises."""


def cut(ranges: Sequence[OffsetRange], count: int, splitting: Splitting, marks: Marks) -> list[ReadTask]:
    """Tasks of about equal numbers of rows, about ``count``, for ranges of one broker."""
    runs = _runs(ranges, 0, len(marks), max(count, splitting.min_partitions), marks)
    return [
        task
        for run, tasks in runs
        for task in grouped(run, tasks, replace(splitting, min_partitions=tasks if splitting.min_partitions else 0))
    ]


def _runs(
    ranges: Sequence[OffsetRange], low: int, high: int, count: int, marks: Marks
) -> list[tuple[Sequence[OffsetRange], int]]:
    """The parts of ``ranges`` in runs of segments, and how many tasks read each run.

    ``ranges`` lie in the segments from ``low`` up to, not including, ``high``.
    """
    rows = rows_of(ranges)
    if count <= 1 or high - low <= 1 or not rows:
        return [(ranges, count)] if rows else []
    middle = _middle(ranges, low, high, rows, marks)
    left, right = _halves(ranges, middle, marks)
    if not left or not right:
        return [(ranges, count)]  # all in one segment
    share = min(max(round(count * rows_of(left) / rows), 1), count - 1)
    return [*_runs(left, low, middle, share, marks), *_runs(right, middle, high, count - share, marks)]


def _middle(ranges: Sequence[OffsetRange], low: int, high: int, rows: int, marks: Marks) -> int:
    """The segment before which there is nearest to half of the rows."""

    def before(segment: int) -> int:
        return rows_of(_halves(ranges, segment, marks)[0])

    first, last = low + 1, high - 1
    while first < last:
        middle = (first + last) // 2
        if 2 * before(middle) < rows:
            first = middle + 1
        else:
            last = middle
    # `first` is the first segment with half of the rows before it; the segment before it may be nearer.
    return min((segment for segment in (first, first - 1) if segment > low), key=lambda at: abs(2 * before(at) - rows))


def _halves(ranges: Iterable[OffsetRange], segment: int, marks: Marks) -> tuple[list[OffsetRange], list[OffsetRange]]:
    """The parts of ``ranges`` before ``segment``, and from ``segment`` on; no part is empty."""
    left, right = [], []
    for one in ranges:
        edge = min(max(marks.offset_at(segment, one.queue), one.start), one.end)
        if one.start < edge:
            left.append(one._replace(end=edge))
        if edge < one.end:
            right.append(one._replace(start=edge))
    return left, right


def rows_of(ranges: Iterable[OffsetRange]) -> int:
    """How many messages ``ranges`` have."""
    return sum(one.end - one.start for one in ranges)


def ranges_in(ranges: Sequence[OffsetRange], low: int, high: int, marks: Marks) -> list[OffsetRange]:
    """The parts of ``ranges`` in the segments from ``low`` up to, not including, ``high``; no part is empty."""
    later = _halves(ranges, low, marks)[1] if low else list(ranges)
    return _halves(later, high, marks)[0] if high < len(marks) else later


def segments_of(ranges: Sequence[OffsetRange], marks: Marks) -> range:
    """The segments that may have messages of ``ranges``."""

    def is_before(segment: int) -> bool:
        return all(marks.offset_at(segment, one.queue) <= one.start for one in ranges)

    def is_after(segment: int) -> bool:
        return all(marks.offset_at(segment, one.queue) >= one.end for one in ranges)

    everything = range(len(marks))
    first = bisect_left(everything, True, key=lambda segment: not is_before(segment))
    return range(max(first - 1, 0), bisect_left(everything, True, key=is_after))

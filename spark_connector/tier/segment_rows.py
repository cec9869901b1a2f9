"""Where one segment has the messages of a task's queues: its table, and the stretches of these queues only.

An index has the stretches of queue after queue, sorted by topic. So one request reads the stretches of a task's queues.
"""

from collections.abc import Mapping, Sequence

from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.tier.bucket import Bucket
from skylark.mqcommon.tier.manifest import Segment
from skylark.mqcommon.tier.segment_index import QueueRow, QueueStretches, QueueTable, named
from skylark.spark_connector.offsets import OffsetRange
from skylark.spark_connector.tier.fetching import FETCH_BYTES, Run, Stored, StoredRun

#: A gap up to this size between the stretches of two queues is read, too: a second request would cost more.
_GAP_BYTES = 64 * 1024


class Unreadable:
    """A segment whose index is missing or damaged."""

    def __init__(self, problem: str) -> None:
        self.problem = problem

    def runs(self, wanted: OffsetRange) -> Sequence[StoredRun]:
        """Nothing: without the index nobody knows where messages are."""
        return []


class SegmentRows:
    """One segment; ``rows`` are the rows of the queues that are read, without queues that have no records in it."""

    problem = ""

    def __init__(
        self, bucket: Bucket, segment: Segment, table: QueueTable, rows: Mapping[MessageQueue, QueueRow]
    ) -> None:
        self._objects = {number: stored.name for number, stored in segment.classes}
        # Retention removes the objects of a class, and leaves the rows of the index.
        self._rows = {queue: row for queue, row in rows.items() if row.records and row.retention_class in self._objects}
        self._stretches = _stretches(bucket, segment, table, list(self._rows.values()))

    def runs(self, wanted: OffsetRange) -> Sequence[StoredRun]:
        """The messages of ``wanted`` that the segment has, in their order, at most FETCH_BYTES in a run."""
        row = self._rows.get(wanted.queue)
        if row is None:
            return []
        found: list[StoredRun] = []
        some: list[Stored] = []
        stretches = self._stretches[row.first_row].between(wanted.start, wanted.end)
        # A stretch ends where the next one begins; after the last stretch come no messages of ``wanted``.
        ends = [*(one.first_offset for one in stretches[1:]), min(wanted.end, row.next_offset)]
        for one, end in zip(stretches, ends, strict=False):
            if some and one.position + one.size - some[0].position > FETCH_BYTES:
                found.append(self._run(wanted, row, some))
                some = []
            some.append(Stored(one.position, one.size, one.crc, one.first_offset, end))
        return [*found, self._run(wanted, row, some)] if some else found

    def _run(self, wanted: OffsetRange, row: QueueRow, some: list[Stored]) -> StoredRun:
        low, high = max(wanted.start, some[0].first), min(wanted.end, some[-1].end)
        return StoredRun(self._objects[row.retention_class], Run(wanted._replace(start=low, end=high), some))


def _stretches(
    bucket: Bucket, segment: Segment, table: QueueTable, rows: Sequence[QueueRow]
) -> dict[int, QueueStretches]:
    """The stretches of ``rows``, by `QueueRow.first_row`."""
    found: dict[int, QueueStretches] = {}
    head, waiting = table.head, sorted(rows, key=lambda row: row.first_row)
    while waiting:
        start, size = head.rows_at(waiting[0])
        end, count = start + size, 1
        for row in waiting[1:]:
            at, size = head.rows_at(row)
            if at - end > _GAP_BYTES:
                break
            end, count = at + size, count + 1
        data = bucket.get_range(segment.index.name, start, end - start)
        with named(segment.index.name):
            for row in waiting[:count]:
                at, size = head.rows_at(row)
                found[row.first_row] = QueueStretches.decode(head, row, data[at - start : at - start + size])
        del waiting[:count]
    return found

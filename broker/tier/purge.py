"""Makes a segment again without the records of deleted topics: `mqadmin tierPurge`.

The records that stay are put where they were in their file, and are uploaded as the file was. The segment keeps the
CRC and the number of records of the whole file, so a restore knows that it cannot make that file any more.
Blocks, and needs the memory of a file of the log: it runs in worker.py.
Neighbours: repair.py (makes a segment again, too).
"""

import mmap
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from skylark.broker.tier.tasks import UploadTask
from skylark.broker.tier.upload import upload_rows
from skylark.mqcommon.tier.bucket import Bucket
from skylark.mqcommon.tier.file_rows import Ints, file_rows
from skylark.mqcommon.tier.gather import Gathered, gather
from skylark.mqcommon.tier.manifest import Segment
from skylark.mqcommon.tier.restore import located, put_back, read_pieces
from skylark.mqcommon.tier.segment_index import QueueRow, SegmentIndex, named


def purge(bucket: Bucket, segment: Segment, task: UploadTask) -> Segment | None:
    """``segment`` without the records that ``task.tombstones`` cover, or None if it has no such record.

    ``task``: as for an upload of the segment's file; its ``classes`` and ``crcs`` are not used. Raises BucketError.
    """
    with named(segment.index.name):
        index = SegmentIndex.decode(bucket.get(segment.index.name))
    rows = index.queues()
    if not _may_have_some(rows, segment, task.tombstones):
        return None
    found = stored_file(bucket, segment, index.begins)
    kept = found.gathered(task.tombstones)
    if len(kept.physical) == len(found.starts):
        return None
    there = dict(segment.classes)
    former = [row for row in rows if not row.records or row.retention_class not in there]
    return remade(segment, upload_rows(bucket, replace(kept, rest=tuple(index.rest)), task, former))


def remade(segment: Segment, made: Segment) -> Segment:
    """``made``, which has records of ``segment``, in its place: with the CRC and the number of records of the file."""
    return replace(
        made,
        crc=segment.crc,
        records=segment.records,
        first_ms=made.first_ms or segment.first_ms,
        last_ms=made.last_ms or segment.last_ms,
    )


class StoredFile(NamedTuple):
    """What the bucket has of a file of the log: the records where they were in ``file``, and zeros.

    A row for each record, in the order of the log: where it begins in ``file``, and its retention class.
    ``start``: where in the log the file begins.
    """

    start: int
    file: mmap.mmap
    starts: Ints
    classes: Ints

    def gathered(self, tombstones: Mapping[str, int]) -> Gathered:
        """The records, sorted, without records that ``tombstones`` cover. Topics stay in their retention classes."""
        rows = file_rows(self.file, self.start, [], self.starts)
        ends = np.array([tombstones.get(queue.topic, 0) for queue in rows.queues], np.int64)
        is_kept = rows.starts + self.start >= ends[rows.queue]
        queues, firsts = np.unique(rows.queue, return_index=True)
        classes = self.classes[np.searchsorted(self.starts, rows.starts[firsts])]
        by_topic = {
            rows.queues[queue].topic: number for queue, number in zip(queues.tolist(), classes.tolist(), strict=True)
        }
        return gather(self.file, self.start, by_topic.__getitem__, [], rows.starts[is_kept])


def stored_file(bucket: Bucket, segment: Segment, begins: Callable[[int], Ints]) -> StoredFile:
    """Read all records of ``segment``. Raises BucketError.

    ``begins``: by retention class, places in its object where records begin; the more, the faster.
    """
    file = mmap.mmap(-1, segment.end - segment.start)
    starts, classes = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for number, stored in segment.classes:
        for piece in located(read_pieces(bucket, stored), stored, segment, begins(number)):
            put_back(piece, segment.start, file)
            starts.append(piece.physical - segment.start)
            classes.append(np.full(len(piece.physical), number))
    all_starts = np.concatenate(starts)
    order = np.argsort(all_starts)
    return StoredFile(segment.start, file, all_starts[order], np.concatenate(classes)[order])


def _may_have_some(rows: list[QueueRow], segment: Segment, tombstones: Mapping[str, int]) -> bool:
    """Whether the segment may have records that are covered.

    The index does not know the older records of a topic that was made again in the same file.
    """
    return any(row.records and row.first_physical < tombstones.get(row.topic, 0) for row in rows) or any(
        segment.start < offset <= segment.end for offset in tombstones.values()
    )

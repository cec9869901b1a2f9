"""Makes a segment again without the records of deleted topics: `mqadmin tierPurge`.

The records that stay are put where they were in their file, and are uploaded as the file was. The segment keeps the
CRC and the number of records of the whole file, so a restore knows that it cannot make that file any more.
Blocks, and needs the memory of a file of the log: it runs in worker.py.
"""

import mmap
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from skylark.broker.tier.tasks import UploadTask
from skylark.broker.tier.upload import upload_rows
from skylark.mqcommon.message.record import decode_record
from skylark.mqcommon.tier.bucket import Bucket
from skylark.mqcommon.tier.gather import gather
from skylark.mqcommon.tier.manifest import Segment
from skylark.mqcommon.tier.restore import located, read_pieces
from skylark.mqcommon.tier.segment_index import QueueRow, SegmentIndex, named


def purge(bucket: Bucket, segment: Segment, task: UploadTask) -> Segment | None:
    """``segment`` without the records that ``task.tombstones`` cover, or None if it has no such record.

    ``task``: as for an upload of the segment's file; its ``classes`` and ``crcs`` are not used. Raises BucketError.
    """
    with named(segment.index.name):
        index = SegmentIndex.decode(bucket.get(segment.index.name))
    rows = [row for row in index.queues() if row.records]
    if not _may_have_some(rows, segment, task.tombstones):
        return None
    file = mmap.mmap(-1, task.size)
    starts: list[int] = []
    classes: dict[str, int] = {}
    gone = 0
    for number, stored in segment.classes:
        of_class = sorted([row for row in rows if row.retention_class == number], key=lambda row: row.position)
        topic_at = _topics_at(of_class)
        for piece in located(read_pieces(bucket, stored), stored, segment, index.begins(number)):
            rows_of_piece = zip(piece.starts.tolist(), piece.sizes.tolist(), piece.physical.tolist(), strict=True)
            for at, size, physical in rows_of_piece:
                record = bytes(piece.data[at : at + size])
                topic = topic_at(piece.start + at) or decode_record(record, check_crc=False).topic
                if physical < task.tombstones.get(topic, 0):
                    gone += 1
                    continue
                classes[topic] = number
                start = physical - segment.start
                file[start : start + size] = record
                starts.append(start)
    if not gone:
        return None
    in_order = np.sort(np.array(starts, np.int64))
    kept = gather(file, segment.start, classes.__getitem__, [], in_order)
    made = upload_rows(bucket, replace(kept, rest=tuple(index.rest)), task)
    return replace(
        made,
        crc=segment.crc,
        records=segment.records,
        first_ms=made.first_ms or segment.first_ms,
        last_ms=made.last_ms or segment.last_ms,
    )


def _may_have_some(rows: list[QueueRow], segment: Segment, tombstones: Mapping[str, int]) -> bool:
    """Whether the segment may have records that are covered.

    The index does not know the older records of a topic that was made again in the same file.
    """
    return any(row.first_physical < tombstones.get(row.topic, 0) for row in rows) or any(
        segment.start < offset <= segment.end for offset in tombstones.values()
    )


def _topics_at(rows: list[QueueRow]) -> Callable[[int], str]:
    """A function of rising positions in an object of a class: the topic there, or "" where the index has no queue."""
    left = iter(rows)
    row = next(left, None)

    def topic_at(position: int) -> str:
        nonlocal row
        while row is not None and position >= row.position + row.size:
            row = next(left, None)
        return row.topic if row is not None and position >= row.position else ""

    return topic_at

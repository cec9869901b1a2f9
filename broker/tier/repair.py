"""Makes a segment again whose index is damaged or missing: from its file, or from the records in the bucket.

Each index carries on the queues of the index before it, so without the newest index nothing more can be uploaded.
Blocks, and needs the memory of a file of the log: it runs in worker.py.
Neighbours: upload.py (finds the damage), purge.py (makes a segment again, too).
"""

import logging
import mmap
from contextlib import suppress
from dataclasses import replace

import numpy as np

from skylark.broker.tier.purge import remade, stored_file
from skylark.broker.tier.tasks import DamagedFile, DamagedIndex, UploadTask
from skylark.broker.tier.upload import file_records, table_of, upload_of_file, upload_rows
from skylark.mqcommon.crc import large_crc32
from skylark.mqcommon.message.layout import BLANK_BYTES, BLANK_MAGIC, SIZE_MAGIC
from skylark.mqcommon.tier.bucket import Bucket, DamagedObject, NoSuchObject
from skylark.mqcommon.tier.file_rows import TooDamaged
from skylark.mqcommon.tier.gather import Gathered, gather
from skylark.mqcommon.tier.index_builder import DisorderedQueue
from skylark.mqcommon.tier.manifest import Segment
from skylark.mqcommon.tier.segment_index import decode_rest

logger = logging.getLogger(__name__)

Rest = tuple[tuple[int, bytes], ...]


def repair(bucket: Bucket, segment: Segment, view: bytes | mmap.mmap | None, task: UploadTask) -> Segment | None:
    """``segment`` with new objects; None if its index can be read after all.

    ``view``: the bytes of its file on this disk; None if the file is gone. ``task``: as for an upload of the file.
    Raises BucketError: DamagedIndex if the index before is damaged, too; ChangedFile.
    """
    # What is between the broker and the bucket may have changed the bytes once.
    with suppress(DamagedIndex):
        table_of(bucket, segment.index)
        return None
    # A damaged index before this one is found before the file, or hundreds of MB of the bucket, are read in vain.
    if task.before is not None:
        table_of(bucket, task.before)
    if view is not None and large_crc32(view) == segment.crc:
        # A block that had no sum may have bytes that are no sound message: they were uploaded as they are.
        with suppress(DamagedFile, TooDamaged, DisorderedQueue):
            rows = _of_file(view, segment, replace(task, takes_damage=True))
            return remade(segment, upload_of_file(bucket, view, segment.crc, rows, task))
    found = stored_file(bucket, segment, lambda number: np.empty(0, np.int64))
    # The queues of records that retention has removed are not found. As the log does not have these records either,
    # the copy of the metadata tells where such queues go on.
    rows = found.gathered({})
    end = int(found.starts[-1] + rows.sizes[np.argmax(rows.physical)]) if len(found.starts) else 0
    rest = _saved_rest(bucket, segment) or _filler(segment, end)
    for at, data in rest:
        found.file[at - segment.start : at - segment.start + len(data)] = data
    if large_crc32(found.file) != segment.crc:
        # Retention or a purge has taken records; or the file had bytes that were no messages, and they are lost.
        logger.warning("tier: of %s a restore will not make the same file again", segment.folder)
    return remade(segment, upload_rows(bucket, replace(rows, rest=rest), task))


def _of_file(view: bytes | mmap.mmap, segment: Segment, task: UploadTask) -> Gathered:
    """The records of the file; without the records of deleted topics if ``segment`` may have been purged of them."""
    rows = file_records(view, task)
    if int(rows.sizes.sum()) == sum(stored.size for _, stored in segment.classes):
        return rows
    # A purge or retention has removed records, so a restore cannot make the file of the segment in any case.
    is_kept = np.ones(len(rows.physical), np.bool_)
    for queue in rows.queues:
        of_queue = slice(queue.first, queue.end)
        is_kept[of_queue] = rows.physical[of_queue] >= task.tombstones.get(queue.topic, 0)
    starts = np.sort(rows.physical[is_kept]) - task.start
    return replace(gather(view, task.start, task.class_of, [], starts), rest=rows.rest)


def _saved_rest(bucket: Bucket, segment: Segment) -> Rest:
    """The bytes of the file that are in no record, if this part of the index is sound."""
    with suppress(DamagedObject, NoSuchObject):
        return tuple(decode_rest(bucket.get(segment.index.name)))
    return ()


def _filler(segment: Segment, end: int) -> Rest:
    """What a broker writes after the last record of a file, which ends at byte ``end``."""
    left = segment.end - segment.start - end
    return ((segment.start + end, SIZE_MAGIC.pack(left, BLANK_MAGIC)),) if left >= BLANK_BYTES else ()

"""Makes a segment again whose index is damaged or missing: of its file, or of the records in the bucket.

Each index carries on the queues of the index before it, so without the newest one nothing more can be uploaded.
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
from skylark.broker.tier.upload import table_of, upload, upload_rows
from skylark.mqcommon.crc import large_crc32
from skylark.mqcommon.message.layout import BLANK_BYTES, BLANK_MAGIC, SIZE_MAGIC
from skylark.mqcommon.tier.bucket import Bucket, DamagedObject, NoSuchObject
from skylark.mqcommon.tier.manifest import Segment
from skylark.mqcommon.tier.segment_index import decode_rest

logger = logging.getLogger(__name__)

Rest = tuple[tuple[int, bytes], ...]


def repair(bucket: Bucket, segment: Segment, view: bytes | mmap.mmap | None, task: UploadTask) -> Segment | None:
    """``segment`` with new objects; None if its index can be read after all.

    ``view``: the bytes of its file on this disk; None if the file is gone. ``task``: as for an upload of the file.
    Raises BucketError; DamagedIndex if the index before is damaged, too.
    """
    # What is between the broker and the bucket may have changed the bytes once.
    with suppress(DamagedIndex):
        table_of(bucket, segment.index)
        return None
    # The file, or hundreds of MB of the bucket, are not read in vain.
    if task.before is not None:
        table_of(bucket, task.before)
    if view is not None and large_crc32(view) == segment.crc:
        # A block that had no sum may have bytes that are no sound message: they were uploaded as they are.
        with suppress(DamagedFile):
            return upload(bucket, view, replace(task, takes_damage=True))
    found = stored_file(bucket, segment, lambda number: np.empty(0, np.int64))
    rows = found.gathered({})
    end = int(found.starts[-1] + rows.sizes[np.argmax(rows.physical)]) if len(found.starts) else 0
    rest = _saved_rest(bucket, segment) or _filler(segment, end)
    for at, data in rest:
        found.file[at - segment.start : at - segment.start + len(data)] = data
    if large_crc32(found.file) != segment.crc:
        # Retention or a purge has taken records; or the file had bytes that were no messages, and they are lost.
        logger.warning("tier: of %s a restore will not make the same file again", segment.folder)
    return remade(segment, upload_rows(bucket, replace(rows, rest=rest), task))


def _saved_rest(bucket: Bucket, segment: Segment) -> Rest:
    """What is in no record, if that part of the index is sound."""
    with suppress(DamagedObject, NoSuchObject):
        return tuple(decode_rest(bucket.get(segment.index.name)))
    return ()


def _filler(segment: Segment, end: int) -> Rest:
    """What a broker writes after the last record of a file, which ends at byte ``end``."""
    left = segment.end - segment.start - end
    return ((segment.start + end, SIZE_MAGIC.pack(left, BLANK_MAGIC)),) if left >= BLANK_BYTES else ()

"""Makes the objects of one file of the log: reads, compares, sorts, writes them to the bucket, and reads them back.

Blocks, and takes some seconds of processor time a gigabyte: it runs in a process of its own (worker.py). No reader sees
the objects until the caller lists the segment in a manifest. Needs the extra ``tier``.
"""

import mmap
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress

from isal.isal_zlib import crc32_combine

from skylark.broker.tier.tasks import ChangedFile, DamagedFile, DamagedIndex, UploadTask
from skylark.mqcommon.crc import large_crc32
from skylark.mqcommon.message.layout import BLANK_BYTES, BLANK_MAGIC, SIZE_MAGIC
from skylark.mqcommon.tier.bucket import Bucket, BucketError, DamagedObject, NewerFormat, NoSuchObject
from skylark.mqcommon.tier.file_rows import TooDamaged
from skylark.mqcommon.tier.gather import Gathered, gather
from skylark.mqcommon.tier.index_builder import DisorderedQueue, IndexBuilder, SortedRecords
from skylark.mqcommon.tier.layout import INDEX, KEYS, class_name, segment_folder
from skylark.mqcommon.tier.manifest import Segment, StoredObject
from skylark.mqcommon.tier.segment_index import (
    HEAD_BYTES,
    IndexHead,
    QueueRow,
    QueueTable,
    SegmentIndex,
    Stretch,
    named,
)

# Queues of which stretches of records are read back. `mqadmin tierVerify --full` reads all bytes.
_STRETCHES_READ = 16


def upload(bucket: Bucket, view: bytes | mmap.mmap, task: UploadTask) -> Segment:
    """Write the objects of the file whose bytes ``view`` are. Raises DamagedFile and BucketError."""
    try:
        rows = file_records(view, task)
        return upload_of_file(bucket, view, rows.crc, rows, task)
    except (TooDamaged, DisorderedQueue) as error:
        raise DamagedFile(str(error)) from error


def upload_of_file(bucket: Bucket, view: bytes | mmap.mmap, crc: int, rows: Gathered, task: UploadTask) -> Segment:
    """As `upload_rows`, of records of the file with the bytes ``view``. ChangedFile unless it still has this CRC-32."""
    segment = upload_rows(bucket, rows, task)
    # When memory is short, pages that were compared are read from the disk once more before they are sent.
    if large_crc32(view) != crc:
        _delete(bucket, segment.folder, rows)
        raise ChangedFile(f"{segment.folder}: bytes of the log have changed after they were compared with their sums")
    return segment


def file_records(view: bytes | mmap.mmap, task: UploadTask) -> Gathered:
    """The records of the file whose bytes ``view`` are. Raises DamagedFile, TooDamaged and DisorderedQueue."""
    crc, unproved = _compared(view, task)
    rows = gather(view, task.start, task.class_of, unproved, crc=crc)
    if not task.takes_damage and (blocks := _doubtful(view, rows, unproved, task)):
        raise DamagedFile(f"bytes of the log are no sound messages, the first near offset {blocks[0]}", blocks)
    return rows


def upload_rows(bucket: Bucket, rows: Gathered, task: UploadTask, former: Sequence[QueueRow] = ()) -> Segment:
    """Write the objects of the records ``rows``, as `upload` does. ``former``: see `IndexBuilder`.

    Raises BucketError and DisorderedQueue.
    """
    folder = segment_folder(task.broker_set, task.start, task.epoch, task.unique)
    try:
        return _uploaded(bucket, rows, task, folder, former)
    except Exception:
        _delete(bucket, folder, rows)
        raise


def _delete(bucket: Bucket, folder: str, rows: Gathered) -> None:
    """Delete what was written; the next try has another folder. Objects that stay are swept after days."""
    names = [f"{folder}/{INDEX}", f"{folder}/{KEYS}", *(class_name(folder, number) for number in rows.classes)]
    with suppress(BucketError):
        bucket.delete(names)


def _uploaded(bucket: Bucket, rows: Gathered, task: UploadTask, folder: str, former: Sequence[QueueRow]) -> Segment:
    builder = _builder(bucket, rows, task, former)
    classes = []
    for number in rows.classes:

        def pieces(number: int = number) -> Iterator[memoryview]:
            for piece in rows.pieces(number):
                builder.feed(number, piece)
                yield piece

        name = class_name(folder, number)
        bucket.put(name, pieces())
        classes.append((number, StoredObject(name, *builder.fed(number))))
    index, keys = builder.encode(rows.rest, rows.key_hashes, rows.key_classes, rows.key_positions)
    stored_keys = _put(bucket, f"{folder}/{KEYS}", keys)
    stored_index = _put(bucket, f"{folder}/{INDEX}", index)
    segment = Segment(
        task.start,
        task.start + task.size,
        rows.crc,
        task.epoch,
        int(rows.stored_ms.min()) if len(rows.stored_ms) else 0,
        int(rows.stored_ms.max()) if len(rows.stored_ms) else 0,
        len(rows.physical),
        folder,
        tuple(classes),
        stored_index,
        stored_keys,
    )
    read_back(bucket, segment)
    return segment


def read_back(bucket: Bucket, segment: Segment) -> None:
    """Compare what is in the bucket with ``segment``. Raises DamagedObject.

    Index and keys are read whole, and of the records some stretches; the bucket is asked for the size of all objects.
    """
    for _, stored in segment.classes:
        size = _size(bucket, stored)
        if size != stored.size:
            raise DamagedObject(f"{stored.name} has {size} bytes, and {stored.size} were written")
    if large_crc32(bucket.get(segment.keys.name)) != segment.keys.crc:
        raise DamagedObject(f"{segment.keys.name} is not what was written")
    data = bucket.get(segment.index.name)
    if large_crc32(data) != segment.index.crc:
        raise DamagedObject(f"{segment.index.name} is not what was written")
    index = SegmentIndex.decode(data)
    names = {number: stored.name for number, stored in segment.classes}
    some: list[tuple[str, Stretch]] = []
    queues = [row for row in index.queues() if row.rows]
    for row in [*queues[:1], *random.sample(queues, min(len(queues), _STRETCHES_READ)), *queues[-1:]]:
        stretches = index.stretches(row, row.first_offset, row.next_offset)
        some += ((names[row.retention_class], each) for each in (stretches[0], random.choice(stretches), stretches[-1]))
    # Of a file with few queues a stretch was chosen several times.
    for name, stretch in dict.fromkeys(some):
        if large_crc32(bucket.get_range(name, stretch.position, stretch.size)) != stretch.crc:
            raise DamagedObject(f"{name} is not what was written, at byte {stretch.position}")


def _size(bucket: Bucket, stored: StoredObject) -> int:
    try:
        return bucket.head(stored.name).size
    except NoSuchObject:
        raise DamagedObject(f"{stored.name} is not there, and was written") from None


def _compared(view: bytes | mmap.mmap, task: UploadTask) -> tuple[int, list[tuple[int, int]]]:
    """(CRC-32 of the file, its parts that have no sum). Raises DamagedFile if a part differs from its sum."""
    whole, end = 0, 0
    damaged, unproved = [], []
    with memoryview(view) as data:
        for number, crc in enumerate(task.crcs):
            at = number * task.block_bytes
            end = min(at + task.block_bytes, task.size)
            found = large_crc32(data[at:end])
            whole = crc32_combine(whole, found, end - at)
            if crc < 0:
                unproved.append((at, end))
            elif found != crc:
                damaged.append(task.start + at)
        whole = large_crc32(data[end:], whole)
    if damaged:
        text = f"{len(damaged)} blocks of the log are damaged on disk, the first at offset {damaged[0]}"
        raise DamagedFile(text, damaged)
    return whole, unproved


def _doubtful(
    view: bytes | mmap.mmap, rows: Gathered, unproved: Sequence[tuple[int, int]], task: UploadTask
) -> list[int]:
    """The blocks without a sum that have bytes, before the filler, of no sound message: others may have sound bytes."""
    end = int((rows.physical + rows.sizes).max()) - task.start if len(rows.physical) else 0
    if end + BLANK_BYTES <= task.size and SIZE_MAGIC.unpack_from(view, end) == (task.size - end, BLANK_MAGIC):
        most = end
    else:
        most = task.size
    blocks: set[int] = set()
    for start, data in rows.rest:
        first, last = start - task.start, min(start - task.start + len(data), most)
        for low, high in unproved:
            if max(first, low) < min(last, high):
                blocks.add(task.start + max(first, low) // task.block_bytes * task.block_bytes)
    return sorted(blocks)


def table_of(bucket: Bucket, index: StoredObject) -> QueueTable:
    """The queues in an index. Raises DamagedIndex."""
    name = index.name
    try:
        with named(name):
            head = IndexHead.decode(bucket.get_range(name, 0, HEAD_BYTES))
            return QueueTable.decode(head, bucket.get_range(name, HEAD_BYTES, head.queues_bytes))
    except NewerFormat:
        raise
    except NoSuchObject:
        raise DamagedIndex(f"{name} is not there") from None
    except DamagedObject as error:
        raise DamagedIndex(str(error)) from None


def _builder(bucket: Bucket, rows: Gathered, task: UploadTask, former: Sequence[QueueRow]) -> IndexBuilder:
    columns = SortedRecords(rows.physical, rows.sizes, rows.offsets, rows.stored_ms, rows.positions)
    return IndexBuilder(
        task.start,
        task.start + task.size,
        columns,
        rows.queues,
        before=None if task.before is None else table_of(bucket, task.before),
        former=former,
        tombstones=task.tombstones,
    )


def _put(bucket: Bucket, name: str, data: bytes) -> StoredObject:
    bucket.put(name, [data])
    return StoredObject(name, len(data), large_crc32(data))

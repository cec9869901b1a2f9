"""Makes the objects of one file of the log: reads, compares, sorts, writes them to the bucket, and reads them back.

Blocks, and takes some seconds of processor time a gigabyte: it runs in a process of its own (worker.py). Nothing here is
visible to readers: the caller lists the segment in a manifest. Needs the extra ``tier``.
"""

import mmap
import random
from collections.abc import Iterator, Mapping, Sequence
from zlib import crc32

import numpy as np

from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.tier.bucket import Bucket, DamagedObject, NoSuchObject
from skylark.mqcommon.tier.gather import Gathered, gather
from skylark.mqcommon.tier.keys import class_places, encode_keys
from skylark.mqcommon.tier.layout import INDEX, KEYS, class_name, segment_folder
from skylark.mqcommon.tier.manifest import Segment, StoredObject
from skylark.mqcommon.tier.segment_index import (
    HEAD_BYTES,
    IndexBuilder,
    IndexHead,
    QueueRecords,
    QueueTable,
    SegmentIndex,
    SortedRecords,
    Stretch,
)

# Stretches of records that are read back, besides the first and the last one of each object. All of an object is read by
# `mqadmin tierVerify --full`.
_STRETCHES_READ = 16


class DamagedBlocks(SkylarkError):
    """Blocks of the file are not what was sealed: ``starts`` are their physical offsets."""

    def __init__(self, starts: Sequence[int]) -> None:
        super().__init__(starts)
        self.starts = starts

    def __str__(self) -> str:
        return f"{len(self.starts)} blocks of the log are damaged on disk, the first at offset {self.starts[0]}"


@lazy_dataclass(frozen=True, slots=True)
class UploadTask:
    """One file of the log: ``size`` bytes from the physical offset ``start`` on.

    ``epoch``: of the owner. ``unique``: random text. ``classes``: the retention class of each topic that has another one
    than 0. ``before``: the index of the segment before. ``tombstones``: topic -> physical offset. ``kept_from``: where
    the bucket begins. ``crcs``: (CRC-32, or -1 if it is not sealed) of each block of ``block_bytes``.
    """

    broker_set: str
    start: int
    size: int
    epoch: int
    unique: str
    classes: Mapping[str, int]
    before: StoredObject | None
    tombstones: Mapping[str, int]
    kept_from: int
    block_bytes: int
    crcs: Sequence[int]


def upload(bucket: Bucket, view: bytes | mmap.mmap, task: UploadTask) -> Segment:
    """Write the objects of the file whose bytes ``view`` are. Raises DamagedBlocks, TooDamaged and BucketError."""
    rows = gather(view, task.start, lambda topic: task.classes.get(topic, 0), _unproved(view, task))
    folder = segment_folder(task.broker_set, task.start, task.epoch, task.unique)
    builder = _builder(bucket, rows, task)
    classes = []
    for number in rows.classes:
        crc, size = 0, 0

        def pieces(number: int = number) -> Iterator[memoryview]:
            nonlocal crc, size
            for piece in rows.pieces(number):
                crc, size = crc32(piece, crc), size + len(piece)
                builder.feed(number, piece)
                yield piece

        name = class_name(folder, number)
        bucket.put(name, pieces())
        classes.append((number, StoredObject(name, size, crc)))
    pages, keys = _keys(rows, builder, [(number, stored.size) for number, stored in classes])
    stored_keys = _put(bucket, f"{folder}/{KEYS}", keys)
    stored_index = _put(bucket, f"{folder}/{INDEX}", builder.encode(rows.rest, pages))
    segment = Segment(
        task.start,
        task.start + task.size,
        rows.crc,
        task.epoch,
        int(rows.stored_ms.min(initial=np.iinfo(np.int64).max)) if len(rows.stored_ms) else 0,
        int(rows.stored_ms.max(initial=0)),
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
    if crc32(bucket.get(segment.keys.name)) != segment.keys.crc:
        raise DamagedObject(f"{segment.keys.name} is not what was written")
    data = bucket.get(segment.index.name)
    if crc32(data) != segment.index.crc:
        raise DamagedObject(f"{segment.index.name} is not what was written")
    index = SegmentIndex.decode(data)
    names = {number: stored.name for number, stored in segment.classes}
    some: list[tuple[str, Stretch]] = []
    queues = [row for row in index.queues() if row.rows]
    for row in [*queues[:1], *random.sample(queues, min(len(queues), _STRETCHES_READ)), *queues[-1:]]:
        stretches = index.stretches(row, row.first_offset, row.next_offset)
        some += ((names[row.retention_class], each) for each in (stretches[0], random.choice(stretches), stretches[-1]))
    for name, stretch in some:
        if crc32(bucket.get_range(name, stretch.position, stretch.size)) != stretch.crc:
            raise DamagedObject(f"{name} is not what was written, at byte {stretch.position}")


def _size(bucket: Bucket, stored: StoredObject) -> int:
    try:
        return bucket.head(stored.name).size
    except NoSuchObject:
        raise DamagedObject(f"{stored.name} is not there, and was written") from None


def _unproved(view: bytes | mmap.mmap, task: UploadTask) -> list[tuple[int, int]]:
    """The parts of the file that have no sum. Raises DamagedBlocks if the others differ from theirs."""
    damaged, unproved = [], []
    with memoryview(view) as data:
        for number, crc in enumerate(task.crcs):
            at = number * task.block_bytes
            end = min(at + task.block_bytes, task.size)
            if crc < 0:
                unproved.append((at, end))
            elif crc32(data[at:end]) != crc:
                damaged.append(task.start + at)
    if damaged:
        raise DamagedBlocks(damaged)
    return unproved


def _builder(bucket: Bucket, rows: Gathered, task: UploadTask) -> IndexBuilder:
    before = None
    if task.before is not None:
        head = IndexHead.decode(bucket.get_range(task.before.name, 0, HEAD_BYTES))
        before = QueueTable.decode(head, bucket.get_range(task.before.name, HEAD_BYTES, head.queues_bytes))
    queues = [
        QueueRecords(each.topic, each.queue_id, each.retention_class, each.first, each.end, each.next_offset)
        for each in rows.queues
        if not each.hidden
    ]
    columns = SortedRecords(rows.physical, rows.sizes, rows.offsets, rows.stored_ms, rows.positions)
    return IndexBuilder(
        task.start,
        task.start + task.size,
        columns,
        queues,
        before=before,
        tombstones=task.tombstones,
        kept_from=task.kept_from,
    )


def _put(bucket: Bucket, name: str, data: bytes) -> StoredObject:
    bucket.put(name, [data])
    return StoredObject(name, len(data), crc32(data))

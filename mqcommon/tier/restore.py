"""Makes a file of the log again from a segment in the bucket, byte for byte.

A segment has the records of its file in another order. Each record says where it was (its physical offset), and the
index has whatever else was in the file but zeros. Neighbours: gather.py (the way there), segment_index.py.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from zlib import crc32

from skylark.mqcommon.message.layout import HEAD_V4, MIN_RECORD
from skylark.mqcommon.tier.bucket import Bucket, DamagedObject
from skylark.mqcommon.tier.manifest import Segment, StoredObject

#: How much of an object is asked for at once, and by how many threads.
PIECE_BYTES = 8 * 1024 * 1024
THREADS = 8
# The size and the physical offset of a record with hosts of any kind: the fields before the hosts are the same.
_PLACE = HEAD_V4.reader("size", "physical_offset")
_HEAD_BYTES = _PLACE.size


class NotWhole(DamagedObject):
    """The bucket has only a part of a file's records: the time of some is over, or their topics were purged."""


def restore_segment(
    bucket: Bucket,
    segment: Segment,
    rest: Iterable[tuple[int, bytes]],
    out: memoryview,
    progress: Callable[[int], None] = lambda done: None,
) -> None:
    """Write the bytes of ``segment``'s file into ``out``, which has as many zeros.

    ``rest``: what the segment's index has as its rest, (physical offset, bytes). ``progress`` gets the bytes read so
    far. NotWhole, or DamagedObject when an object or the file is not what was written: ``out`` is of no use then.
    """
    found = done = 0
    for _, stored in segment.classes:
        for records, placed in _placed(read_pieces(bucket, stored), stored, segment, out):
            found += records
            progress(done + placed)
        done += stored.size
    if found < segment.records:
        raise NotWhole(
            f"{segment.folder}: {found:,} of {segment.records:,} records are in the bucket: the time of the others is"
            " over, or their topics were purged"
        )
    for start, data in rest:
        at = start - segment.start
        out[at : at + len(data)] = data
    if crc32(out) != segment.crc:
        raise DamagedObject(f"{segment.folder}: the file that was made of it is not the one that was uploaded (CRC)")


def read_pieces(bucket: Bucket, stored: StoredObject) -> Iterator[bytes]:
    """The bytes of an object in pieces, several of which are asked for at once. DamagedObject if its CRC differs."""
    starts = range(0, stored.size, PIECE_BYTES)
    crc = 0
    with ThreadPoolExecutor(THREADS, "bucket") as pool:

        def ask(at: int) -> Future[bytes]:
            return pool.submit(bucket.get_range, stored.name, at, min(PIECE_BYTES, stored.size - at))

        waiting = [ask(at) for at in starts[:THREADS]]
        try:
            for number in range(len(starts)):
                piece = waiting.pop(0).result()
                if number + THREADS < len(starts):
                    waiting.append(ask(starts[number + THREADS]))
                crc = crc32(piece, crc)
                yield piece
        finally:
            for each in waiting:
                each.cancel()
    if crc != stored.crc:
        raise DamagedObject(f"{stored.name}: its bytes are not those that were written (CRC)")


def _placed(
    pieces: Iterator[bytes], stored: StoredObject, segment: Segment, out: memoryview
) -> Iterator[tuple[int, int]]:
    """Put all records of an object where they belong; yields (records, bytes of the object so far) for each piece."""
    start, end, place = segment.start, segment.end, _PLACE.unpack_from
    left, done = b"", 0
    for piece in pieces:
        data = left + piece if left else piece
        view, limit, at, records = memoryview(data), len(data), 0, 0
        # Neighbours in the object that were neighbours in the file are copied together.
        run_at, run_to = 0, -1
        while at + _HEAD_BYTES <= limit:
            size, physical = place(data, at)
            if size < MIN_RECORD or not start <= physical <= end - size:
                raise DamagedObject(f"{stored.name}: there is no record of this segment at byte {done + at}")
            if at + size > limit:
                break
            if physical != run_to:
                _copy(out, run_to - (at - run_at) - start, view[run_at:at])
                run_at, run_to = at, physical
            run_to += size
            at += size
            records += 1
        _copy(out, run_to - (at - run_at) - start, view[run_at:at])
        left = data[at:]
        done += at
        yield records, done
    if left:
        raise DamagedObject(f"{stored.name} ends amid a record")


def _copy(out: memoryview, at: int, data: memoryview) -> None:
    if data:
        out[at : at + len(data)] = data

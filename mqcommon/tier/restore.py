"""Makes a file of the log again from a segment in the bucket, byte for byte.

A segment has the records of its file in another order. Each record says where it was (its physical offset), and the
index has whatever else was in the file but zeros. Neighbours: gather.py (the way there), segment_index.py.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple
from zlib import crc32

from skylark.mqcommon.message.layout import HEAD_V4, MIN_RECORD
from skylark.mqcommon.tier.bucket import Bucket, BucketError, DamagedObject
from skylark.mqcommon.tier.manifest import Segment, StoredObject

#: How much of an object is asked for at once, and by how many threads.
PIECE_BYTES = 8 * 1024 * 1024
THREADS = 8
# The size and the physical offset of a record with hosts of any kind: the fields before the hosts are the same.
_PLACE = HEAD_V4.reader("size", "physical_offset")
_HEAD_BYTES = _PLACE.size


class NotWhole(BucketError):
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
        for piece in located(read_pieces(bucket, stored), stored, segment):
            _put(piece, segment.start, out)
            found += len(piece.places)
            progress(done + piece.start)
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


class Piece(NamedTuple):
    """Whole records of an object: ``data`` begins at byte ``start`` of it. ``places``: (at, size, physical offset)."""

    start: int
    data: bytes
    places: list[tuple[int, int, int]]


def located(pieces: Iterator[bytes], stored: StoredObject, segment: Segment) -> Iterator[Piece]:
    """The records of an object of ``segment``, and where in the log they were. DamagedObject if there are others."""
    start, end, place = segment.start, segment.end, _PLACE.unpack_from
    left, done = b"", 0
    for piece in pieces:
        data = left + piece if left else piece
        limit, at = len(data), 0
        places: list[tuple[int, int, int]] = []
        while at + _HEAD_BYTES <= limit:
            size, physical = place(data, at)
            if size < MIN_RECORD or not start <= physical <= end - size:
                raise DamagedObject(f"{stored.name}: there is no record of this segment at byte {done + at}")
            if at + size > limit:
                break
            places.append((at, size, physical))
            at += size
        yield Piece(done, data, places)
        left = data[at:]
        done += at
    if left:
        raise DamagedObject(f"{stored.name} ends amid a record")


def _put(piece: Piece, start: int, out: memoryview) -> None:
    """Copy the records to their places in ``out``, which begins at ``start`` of the log."""
    view = memoryview(piece.data)
    # Neighbours in the object that were neighbours in the file are copied together.
    run_at = run_end = 0
    run_to = -1
    for at, size, physical in piece.places:
        if physical - run_to != at - run_at:
            if run_end > run_at:
                out[run_to - start : run_to - start + run_end - run_at] = view[run_at:run_end]
            run_at, run_to = at, physical
        run_end = at + size
    if run_end > run_at:
        out[run_to - start : run_to - start + run_end - run_at] = view[run_at:run_end]

"""Makes a file of the log again from a segment in the bucket, byte for byte.

A segment has the records of its file in another order. Each record says where it was (its physical offset), and the
index has whatever else was in the file but zeros. Neighbours: gather.py (the way there), segment_index.py.
"""

import mmap
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from skylark.mqcommon.crc import large_crc32
from skylark.mqcommon.message.layout import HEAD_V4, MIN_RECORD
from skylark.mqcommon.message.overlapping import overlapping
from skylark.mqcommon.tier.bucket import Bucket, BucketError, DamagedObject
from skylark.mqcommon.tier.manifest import Segment, StoredObject
from skylark.mqcommon.tier.record_places import Ints, record_places
from skylark.mqcommon.tier.segment_index import SegmentIndex

#: How much of an object is asked for at once, and by how many threads.
PIECE_BYTES = 8 * 1024 * 1024
THREADS = 8
# The fields before the hosts are at the same place in all records.
_PHYSICAL_AT = HEAD_V4.starts["physical_offset"]
_SIZE_BYTES = 4


class NotWhole(BucketError):
    """The bucket has only a part of a file's records: the time of some is over, or their topics were purged."""


def restore_segment(
    bucket: Bucket,
    segment: Segment,
    index: SegmentIndex,
    out: memoryview,
    progress: Callable[[int], None] = lambda done: None,
) -> None:
    """Write the bytes of ``segment``'s file into ``out``, which has as many zeros.

    ``index``: the segment's index. ``progress`` gets the bytes read so far. NotWhole, or DamagedObject when an object
    or the file is not what was written: ``out`` is of no use then.
    """
    found = done = 0
    for number, stored in segment.classes:
        for piece in located(read_pieces(bucket, stored), stored, segment, index.begins(number)):
            put_back(piece, segment.start, out)
            found += len(piece.starts)
            progress(done + piece.start)
        done += stored.size
    if found < segment.records:
        raise NotWhole(
            f"{segment.folder}: {found:,} of {segment.records:,} records are in the bucket: the time of the others is"
            " over, or their topics were purged"
        )
    for start, data in index.rest:
        at = start - segment.start
        out[at : at + len(data)] = data
    if large_crc32(out) != segment.crc:
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
                crc = large_crc32(piece, crc)
                yield piece
        finally:
            for each in waiting:
                each.cancel()
    if crc != stored.crc:
        raise DamagedObject(f"{stored.name}: its bytes are not those that were written (CRC)")


class Piece(NamedTuple):
    """Whole records of an object: ``data`` begins at byte ``start`` of it, and perhaps goes on after the last record.

    A row for each record: ``starts`` and ``sizes`` in ``data``, ``physical``: where in the log it was.
    """

    start: int
    data: memoryview
    starts: Ints
    sizes: Ints
    physical: Ints


def located(pieces: Iterator[bytes], stored: StoredObject, segment: Segment, begins: Ints) -> Iterator[Piece]:
    """The records of an object of ``segment``, and where in the log they were.

    DamagedObject if the object has anything but records of ``segment``.
    ``begins``: where in the object records begin, among other places; see `SegmentIndex.begins`.
    """
    # A record that begins in one piece and ends in another is a piece of its own.
    left, done = b"", 0
    for each in pieces:
        piece = memoryview(each)
        if left:
            head = (left + piece[:_SIZE_BYTES])[:_SIZE_BYTES]
            lacking = max(int.from_bytes(head, "big"), _SIZE_BYTES) - len(left)
            left += piece[:lacking]
            if lacking > len(piece):
                continue
            if len(left) > _SIZE_BYTES:
                yield _piece(done, memoryview(left), np.empty(0, np.int64), stored, segment)
                done += len(left)
                left = b""
            piece = piece[lacking:]
        first, last = np.searchsorted(begins, (done, done + len(piece)))
        found = _piece(done, piece, begins[first:last] - done, stored, segment)
        if len(found.starts):
            yield found
        end = int(found.starts[-1] + found.sizes[-1]) if len(found.starts) else 0
        left = bytes(piece[end:])
        done += end
    if left:
        raise DamagedObject(f"{stored.name} ends amid a record")


def _piece(start: int, data: memoryview, begins: Ints, stored: StoredObject, segment: Segment) -> Piece:
    starts, sizes = record_places(data, begins)
    end = int(starts[-1] + sizes[-1]) if len(starts) else 0
    if not _is_begun(data[end:]):
        raise DamagedObject(f"{stored.name}: at byte {start + end} there is no record of this segment")
    physical = overlapping(data, ">i8")[starts + _PHYSICAL_AT].astype(np.int64)
    is_wrong = (physical < segment.start) | (physical + sizes > segment.end)
    if is_wrong.any():
        at = start + int(starts[np.argmax(is_wrong)])
        raise DamagedObject(f"{stored.name}: there is no record of this segment at byte {at}")
    return Piece(start, data, starts, sizes, physical)


def put_back(piece: Piece, start: int, out: memoryview | mmap.mmap) -> None:
    """Copy the records to their places in ``out``, which begins at ``start`` of the log."""
    data, starts, sizes, physical = piece.data, piece.starts, piece.sizes, piece.physical
    # Neighbours in the object that were neighbours in the file are copied together.
    is_first = np.append(True, physical[1:] != physical[:-1] + sizes[:-1])
    begins = starts[is_first]
    ends = np.append(begins[1:], starts[-1] + sizes[-1])
    places = physical[is_first] - start
    stops = places + (ends - begins)
    for at, end, place, stop in zip(begins.tolist(), ends.tolist(), places.tolist(), stops.tolist(), strict=True):
        out[place:stop] = data[at:end]


def _is_begun(data: memoryview) -> bool:
    """Whether ``data`` may be the beginning of a record, or is empty."""
    if len(data) < _SIZE_BYTES:
        return True
    size = int.from_bytes(data[:_SIZE_BYTES], "big")
    return size >= MIN_RECORD and size > len(data)

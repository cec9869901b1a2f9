"""The keys of a segment's messages, and which queue has the record at a place of the log. Needs numpy.

    pages of keys | more rows | blocks of places | (start 4, CRC 4) of each block, end 4 | number of blocks 4, CRC 4

A page: its keys 4, where their other rows are 4, CRC of all else in the page 4, then rows of `KEY` up to the page's
size, sorted by hash. Pages have one size. Many messages may have one key: the rows that a page has no room for are
among "more rows", with a CRC 4 after them. The upper half of a key's hash says the page, the row has the lower half: a
lookup is one ranged read of some 5 KB. How many pages there are, and of which size, is in the index (`KeyPages`).
A row's ``place`` is a position in the objects of all classes, one after the other in the order of the classes.
A block (zlib) is about `BLOCK_BYTES` of the log: for each record there, in the order of the log, the bytes from where
the record before begins (or the block), and the number of its queue in the index.
Neighbours: key_hash.py, index_builder.py (makes them), view.py (reads).
"""

import struct
import zlib
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from skylark.mqcommon.crc import large_crc32
from skylark.mqcommon.tier.bucket import DamagedObject
from skylark.mqcommon.tier.segment_index import Columns, KeyPages

BLOCK_BYTES: Final = 1024 * 1024
KEY: Final = np.dtype([("tail", "<u4"), ("place", "<u4")])
# Keys in a page: on average, and the most for which a page has room.
_PAGE_KEYS: Final = 512
_MAX_PAGE_KEYS: Final = 768
_PAGE_HEAD = struct.Struct("<III")
_CRC = struct.Struct("<I")
_BLOCK = struct.Struct("<II")
_END = struct.Struct("<II")
_LEVEL: Final = 1
_LOW: Final = np.uint64(0xFFFFFFFF)


def encode_keys(
    hashes: Columns, places: Columns, start: int, physical: Columns, queue_numbers: Columns
) -> tuple[KeyPages, bytes]:
    """(how the pages are divided, the bytes of the object).

    ``hashes`` (uint64) and ``places``: a row for each key. ``physical`` and ``queue_numbers``: a row for each record,
    in any order; ``queue_numbers``: rows of the `QueueTable`. ``start``: where the segment begins.
    """
    pages, content = _key_pages(hashes, places)
    return pages, content + _record_blocks(start, physical, queue_numbers)


def _key_pages(hashes: Columns, places: Columns) -> tuple[KeyPages, bytes]:
    count = len(hashes)
    if not count:
        return KeyPages(0, 0), b""
    pages = -(-count // _PAGE_KEYS)
    # The page and the lower half of the hash, by which the rows of a page are sorted.
    wanted = (hashes >> np.uint64(32)) * np.uint64(pages) & ~_LOW | hashes & _LOW
    order = _ascending(wanted, pages)
    wanted = wanted[order]
    bounds = np.searchsorted(wanted, np.arange(pages, dtype=np.uint64) << np.uint64(32))
    counts = np.diff(bounds, append=count)
    page_rows = min(max(int(np.quantile(counts, 0.999, method="lower")), 1), _MAX_PAGE_KEYS)
    rows = np.empty(count, KEY)
    rows["tail"] = wanted & _LOW
    rows["place"] = places[order]
    content = rows.view(np.uint8).data
    room = page_rows * KEY.itemsize
    parts: list[bytes] = []
    more: list[bytes] = []
    at = pages * (_PAGE_HEAD.size + room)
    for keys, begin in zip(counts.tolist(), (bounds * KEY.itemsize).tolist(), strict=True):
        end, page_end = begin + keys * KEY.itemsize, begin + min(keys, page_rows) * KEY.itemsize
        page = bytes(content[begin:page_end]).ljust(room, b"\0")
        more_at = at if keys > page_rows else 0
        parts += [_PAGE_HEAD.pack(keys, more_at, _page_crc(keys, more_at, page)), page]
        if more_at:
            more += [bytes(content[page_end:end]), _CRC.pack(large_crc32(content[page_end:end]))]
            at += end - page_end + _CRC.size
    return KeyPages(page_rows, pages), b"".join((*parts, *more))


def _ascending(wanted: Columns, pages: int) -> Columns:
    """The order in which ``wanted``, numbers of pages and 32 bits more, ascend.

    Numbers are sorted four times as fast as their places: so each number gets its place in the bits that are left.
    """
    count = len(wanted)
    place_bits = max(count - 1, 1).bit_length()
    dropped = max(32 + (pages - 1).bit_length() + place_bits - 64, 0)
    packed = wanted >> np.uint64(dropped) << np.uint64(place_bits)
    packed |= np.arange(count, dtype=np.uint64)
    packed.sort()
    order = (packed & np.uint64((1 << place_bits) - 1)).astype(np.int64)
    if dropped:
        # Few numbers differ only in the bits that were dropped.
        order = order[np.argsort(wanted[order], kind="stable")]
    return order


def page_range(pages: KeyPages, hash_: int) -> tuple[int, int] | None:
    """(start, bytes) of the page that has the keys with this hash; None if the segment has no keys."""
    if not pages.pages:
        return None
    size = _PAGE_HEAD.size + pages.page_rows * KEY.itemsize
    return ((hash_ >> 32) * pages.pages >> 32) * size, size


class FoundPlaces(NamedTuple):
    """The places of the keys with a hash in a page, in no order.

    ``more``: (start, bytes) of the page's other rows, for `places_of_more`; None if these rows have no such key.
    """

    places: Columns
    more: tuple[int, int] | None


def places_of(page: bytes, hash_: int) -> FoundPlaces:
    """The places that a page has for the keys with this hash. Raises DamagedObject."""
    if len(page) < _PAGE_HEAD.size:
        raise DamagedObject(f"a page of keys has {len(page)} bytes only")
    content = page[_PAGE_HEAD.size :]
    count, more_at, crc = _PAGE_HEAD.unpack_from(page)
    if _page_crc(count, more_at, content) != crc:
        raise DamagedObject("a page of keys is damaged")
    room = len(content) // KEY.itemsize
    rows = np.frombuffer(content, KEY, min(count, room))
    # Rows are sorted, so the page's other rows may have the hash only if the last row here is not after the hash.
    has_more = count > room and int(rows["tail"][-1]) <= hash_ & 0xFFFFFFFF
    return FoundPlaces(_places(rows, hash_), (more_at, (count - room) * KEY.itemsize + _CRC.size) if has_more else None)


def places_of_more(data: bytes, hash_: int) -> Columns:
    """The places that the bytes at `FoundPlaces.more` have for the keys with this hash. Raises DamagedObject."""
    content = data[: -_CRC.size]
    if large_crc32(content) != _CRC.unpack(data[-_CRC.size :])[0]:
        raise DamagedObject("more rows of a page of keys are damaged")
    return _places(np.frombuffer(content, KEY), hash_)


def _places(rows: Columns, hash_: int) -> Columns:
    tails, tail = rows["tail"], hash_ & 0xFFFFFFFF
    places: Columns = rows["place"][np.searchsorted(tails, tail) : np.searchsorted(tails, tail, "right")]
    return places.astype(np.int64)


def _page_crc(count: int, more_at: int, content: bytes) -> int:
    return large_crc32(content, large_crc32(struct.pack("<II", count, more_at)))


def _record_blocks(start: int, physical: Columns, queue_numbers: Columns) -> bytes:
    # Readers need no isal, whose zlib takes a fifth of the time here, for as many bytes.
    from isal.isal_zlib import compress

    # Both numbers in one: such numbers are sorted four times as fast as their places.
    both = (physical - start).astype(np.uint64) << np.uint64(32) | queue_numbers.astype(np.uint64)
    both.sort()
    places, numbers = (both >> np.uint64(32)).astype(np.int64), both & _LOW
    count = int(places[-1]) // BLOCK_BYTES + 1 if len(places) else 0
    bounds = np.searchsorted(places, np.arange(count + 1) * BLOCK_BYTES).tolist()
    blocks: list[bytes] = []
    directory: list[bytes] = []
    at = 0
    for block, (first, end) in enumerate(pairwise(bounds)):
        steps = np.diff(places[first:end], prepend=block * BLOCK_BYTES)
        packed = compress(_by_bytes(steps) + _by_bytes(numbers[first:end]), _LEVEL)
        directory.append(_BLOCK.pack(at, large_crc32(packed)))
        blocks.append(packed)
        at += len(packed)
    listed = b"".join(directory) + at.to_bytes(4, "little")
    return b"".join(blocks) + listed + _END.pack(count, large_crc32(listed))


def _by_bytes(column: Columns) -> bytes:
    """The lowest bytes of all numbers, then the second bytes and so on: zlib makes this order smaller."""
    return column.astype("<u4").view(np.uint8).reshape(-1, 4).T.tobytes()


def _numbers(data: bytes, count: int) -> Columns:
    return np.ascontiguousarray(np.frombuffer(data, np.uint8).reshape(4, count).T).view("<u4").reshape(count)


def directory_size(start: int, end: int) -> int:
    """How many bytes at the end of the object hold the directory of a segment of these bytes of the log, at most."""
    return _END.size + 4 + _BLOCK.size * -(-(end - start) // BLOCK_BYTES)


class Directory:
    """Where the blocks of places are in the object of the keys.

    ``size``: bytes of the object; ``tail``: its last bytes (`directory_size`). Raises DamagedObject.
    """

    def __init__(self, size: int, tail: bytes) -> None:
        if len(tail) < _END.size + 4:
            raise DamagedObject("the keys of a segment have no directory")
        count, crc = _END.unpack_from(tail, len(tail) - _END.size)
        listed = tail[-_END.size - 4 - count * _BLOCK.size : -_END.size]
        if len(listed) != count * _BLOCK.size + 4 or large_crc32(listed) != crc:
            raise DamagedObject("the directory in the keys of a segment is damaged")
        self._blocks = list(_BLOCK.iter_unpack(listed[:-4]))
        end = int.from_bytes(listed[-4:], "little")
        self._first = size - _END.size - len(listed) - end
        self._ends = [*[start for start, _ in self._blocks[1:]], end]

    @property
    def nbytes(self) -> int:
        """Some bytes of memory that the directory takes."""
        return 500 + 200 * len(self._blocks)

    def block_range(self, place: int) -> tuple[int, int] | None:
        """(start, bytes) of the block about the byte ``place`` of the segment; None if all records are before it."""
        number = place // BLOCK_BYTES
        if number >= len(self._blocks):
            return None
        start = self._blocks[number][0]
        return self._first + start, self._ends[number] - start

    def queue_number(self, place: int, block: bytes) -> int | None:
        """The number of the queue whose record begins at the byte ``place``; None if none begins there."""
        number = place // BLOCK_BYTES
        if large_crc32(block) != self._blocks[number][1]:
            raise DamagedObject("a block of places in the keys of a segment is damaged")
        data = zlib.decompress(block)
        count = len(data) // 8
        places = np.cumsum(_numbers(data[: 4 * count], count), dtype=np.int64) + number * BLOCK_BYTES
        row = int(np.searchsorted(places, place))
        if row == count or places[row] != place:
            return None
        return int(_numbers(data[4 * count :], count)[row])

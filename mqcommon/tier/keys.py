"""The keys of a segment's messages, and which queue has the record at a place of the log. Needs numpy.

    pages of keys | blocks of places | (start 4, CRC 4) of each block, end of the blocks 4 | number of blocks 4, CRC 4

A page: keys 4, CRC of all else in the page 4, then rows of `KEY` up to the page's size, sorted by hash. Pages have one
size. The upper half of a key's hash says the page, the row has the lower half: a lookup is one ranged read of some
5 KB. How many pages there are, and of which size, is in the index (`KeyPages`), which a reader has already.
A row's ``place`` is a position in the objects of all classes, one after the other in the order of the classes.
A block (zlib) is about `BLOCK_BYTES` of the log: for each record there, in the order of the log, the bytes from where
the record before begins (or the block), and the number of its queue in the index.
Neighbours: key_hash.py, index_builder.py (makes them), view.py (reads).
"""

import struct
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from skylark.mqcommon.tier.bucket import DamagedObject
from skylark.mqcommon.tier.segment_index import KeyPages

Columns = NDArray[Any]
BLOCK_BYTES: Final = 1024 * 1024
KEY: Final = np.dtype([("tail", "<u4"), ("place", "<u4")])
_PAGE_KEYS: Final = 512
_PAGE_HEAD = struct.Struct("<II")
_BLOCK = struct.Struct("<II")
_END = struct.Struct("<II")
_LEVEL: Final = 1
_LOW: Final = np.uint64(0xFFFFFFFF)


def encode_keys(
    hashes: Columns, places: Columns, start: int, physical: Columns, queue_numbers: Columns
) -> tuple[KeyPages, bytes]:
    """(how the pages are divided, the bytes of the object).

    ``hashes`` (uint64) and ``places``: a row for each key. ``physical`` and ``queue_numbers``: a row for each record,
    in any order; ``queue_numbers`` are those of rows in the `QueueTable`. ``start``: where the segment begins.
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
    order = np.argsort(wanted)
    wanted = wanted[order]
    bounds = np.searchsorted(wanted, np.arange(pages, dtype=np.uint64) << np.uint64(32))
    counts = np.diff(bounds, append=count)
    page_rows = int(counts.max())
    rows = np.zeros((pages, page_rows), KEY)
    numbers = np.repeat(np.arange(pages), counts)
    at = numbers, np.arange(count) - bounds[numbers]
    rows["tail"][at] = wanted & _LOW
    rows["place"][at] = places[order]
    parts: list[bytes] = []
    for number, page in enumerate(rows):
        content = page.tobytes()
        parts += [_PAGE_HEAD.pack(counts[number], _page_crc(int(counts[number]), content)), content]
    data = b"".join(parts)
    return KeyPages(page_rows, pages), data


def page_range(pages: KeyPages, hash_: int) -> tuple[int, int] | None:
    """(start, bytes) of the page that has the keys with this hash; None if the segment has no keys."""
    if not pages.pages:
        return None
    size = _PAGE_HEAD.size + pages.page_rows * KEY.itemsize
    return ((hash_ >> 32) * pages.pages >> 32) * size, size


def places_of(page: bytes, hash_: int) -> list[int]:
    """The places of the keys with this hash in its page. Raises DamagedObject."""
    if len(page) < _PAGE_HEAD.size:
        raise DamagedObject(f"a page of keys has {len(page)} bytes only")
    content = page[_PAGE_HEAD.size :]
    count, crc = _PAGE_HEAD.unpack_from(page)
    if _page_crc(count, content) != crc or count * KEY.itemsize > len(content):
        raise DamagedObject("a page of keys is damaged")
    rows = np.frombuffer(content, KEY, count)
    tails, tail = rows["tail"], hash_ & 0xFFFFFFFF
    first, end = np.searchsorted(tails, tail), np.searchsorted(tails, tail, "right")
    return [int(place) for place in rows["place"][first:end]]


def _page_crc(count: int, content: bytes) -> int:
    return zlib.crc32(content, count)


def _record_blocks(start: int, physical: Columns, queue_numbers: Columns) -> bytes:
    order = np.argsort(physical)
    places = physical[order] - start
    numbers = queue_numbers[order]
    count = int(places[-1]) // BLOCK_BYTES + 1 if len(places) else 0
    bounds = np.searchsorted(places, np.arange(count + 1) * BLOCK_BYTES).tolist()
    blocks: list[bytes] = []
    directory: list[bytes] = []
    at = 0
    for block, (first, end) in enumerate(pairwise(bounds)):
        steps = np.diff(places[first:end], prepend=block * BLOCK_BYTES)
        packed = zlib.compress(_by_bytes(steps) + _by_bytes(numbers[first:end]), _LEVEL)
        directory.append(_BLOCK.pack(at, zlib.crc32(packed)))
        blocks.append(packed)
        at += len(packed)
    listed = b"".join(directory) + at.to_bytes(4, "little")
    return b"".join(blocks) + listed + _END.pack(count, zlib.crc32(listed))


def _by_bytes(column: Columns) -> bytes:
    """The lowest bytes of all numbers, then the second ones and so on, which zlib makes smaller."""
    return column.astype("<u4").view(np.uint8).reshape(-1, 4).T.tobytes()


def _numbers(data: bytes, count: int) -> Columns:
    return np.ascontiguousarray(np.frombuffer(data, np.uint8).reshape(4, count).T).view("<u4").reshape(count)


def directory_size(start: int, end: int) -> int:
    """How many bytes at the end of the object hold the directory of a segment of these bytes of the log, at most."""
    return _END.size + 4 + _BLOCK.size * -(-(end - start) // BLOCK_BYTES)


class Directory:
    """Where the blocks are. ``size``: of the object; ``tail``: its last bytes. Raises DamagedObject."""

    def __init__(self, size: int, tail: bytes) -> None:
        if len(tail) < _END.size + 4:
            raise DamagedObject("the keys of a segment have no directory")
        count, crc = _END.unpack_from(tail, len(tail) - _END.size)
        listed = tail[-_END.size - 4 - count * _BLOCK.size : -_END.size]
        if len(listed) != count * _BLOCK.size + 4 or zlib.crc32(listed) != crc:
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
        """(start, bytes) of the block about the byte ``place`` of the segment; None if there are no records so late."""
        number = place // BLOCK_BYTES
        if number >= len(self._blocks):
            return None
        start = self._blocks[number][0]
        return self._first + start, self._ends[number] - start

    def queue_number(self, place: int, block: bytes) -> int | None:
        """The number of the queue whose record begins at the byte ``place``; None if none begins there."""
        number = place // BLOCK_BYTES
        if zlib.crc32(block) != self._blocks[number][1]:
            raise DamagedObject("a block of places in the keys of a segment is damaged")
        data = zlib.decompress(block)
        count = len(data) // 8
        places = np.cumsum(_numbers(data[: 4 * count], count), dtype=np.int64) + number * BLOCK_BYTES
        row = int(np.searchsorted(places, place))
        if row == count or places[row] != place:
            return None
        return int(_numbers(data[4 * count :], count)[row])


def class_places(class_bytes: Sequence[tuple[int, int]]) -> dict[int, int]:
    """By class, where its object begins among all objects' bytes; ``class_bytes`` in the order of the classes."""
    found: dict[int, int] = {}
    at = 0
    for number, size in class_bytes:
        found[number] = at
        at += size
    return found

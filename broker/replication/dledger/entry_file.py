"""A file of Raft entries and its slots: what each entry is, and where its bytes are. No thread, no loop.

Files of equal size, named by the index of their first entry. Each has a head of 64 bytes and slots of 32 bytes:

    magic 8 | first index 8 | position 8 | term before 8 | chain before 4 | CRC 4 | zeros
    start 8 | term 8 | size 4 | crc 4 | chain 4 | kind 1 | place 1 | zeros 2

``place`` is IN_LOG for an entry whose bytes are the ``size`` bytes at ``start`` of the commit log. It is INLINE for an
entry whose bytes are in the slots after its own; ``start`` is then where the log ended. ``crc`` is the CRC of the
bytes. ``chain`` is the CRC of the slot and the index, continued from the entry before: two logs with the same chain at
an index have the same entries up to that index. A file has no entry after the first slot whose chain is wrong, so torn
writes and remains of a cut do not count as entries.

Neighbours: entry_index.py (all files of a member); healing/entry_files.py (checks the files on the medium).
"""

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from skylark.mqcommon.disk.files import FileSystem, MappedFile
from skylark.mqcommon.disk.loading import LOST_ERRNOS, load

logger = logging.getLogger(__name__)

MAGIC = b"SKYRAFT1"
HEAD = Struct(">8sQQQII")
SLOT = Struct(">QQIIIBBxx")
SLOT_BYTES = 32
HEAD_SLOTS = 2
# A sector that cannot be read is made readable by writing this much.
PAGE_BYTES = 4096
IN_LOG, INLINE = 1, 2
_INDEX = Struct(">Q")
_CHAIN_AT, _CHAIN_END = 24, 28
_PADDING = bytes(2)


class IndexedEntry(NamedTuple):
    """The slot of one entry."""

    start: int
    term: int
    size: int
    crc: int
    chain: int
    kind: int
    place: int

    @property
    def end(self) -> int:
        """Where the commit log goes on after this entry."""
        return self.start + self.size if self.place == IN_LOG else self.start


class EntryFile:
    """One file. ``first``: the index of its first entry; the other arguments describe the entry before ``first``.

    The newest file is read through its map: its slots were written, or read, a moment ago. All others are read by
    reads, as an access to a page that the disk has lost would end the process (SIGBUS). Lost slots read as zeros, which
    are damaged slots.
    """

    def __init__(self, file: MappedFile, path: str, first: int, position: int, term: int, chain: int) -> None:
        self.file = file
        self.path = path
        self.first = first
        self.position = position
        self.term = term
        self.chain = chain
        self.slots = len(file.view) // SLOT_BYTES
        self.count = 0
        self.used = HEAD_SLOTS
        # Indexes of the INLINE entries, and for each the number of data slots up to its end.
        self._inline: list[int] = []
        self._extra: list[int] = []
        #: Whether entries were added or removed since the last `EntryIndex.sync`.
        self.is_dirty = False
        #: Whether entries were written once more since the last `EntryIndex.sync_rewritten`.
        self.is_rewritten = False
        #: Whether this process has written or read all slots a moment ago, so that the map can be read.
        self.is_in_memory = False
        #: Where the pages begin that the disk has lost, as far as known.
        self.lost: set[int] = set()

    @classmethod
    def open(cls, fs: FileSystem, path: str) -> "EntryFile | None":
        """The file at ``path``, with no entry counted; None if its head is damaged. Unreadable if its head is lost."""
        if fs.size(path) < (HEAD_SLOTS + 1) * SLOT_BYTES:
            return None
        mapped = fs.open_map(path, create=False)
        load(mapped, 0, HEAD.size)
        magic, first, position, term, chain, crc = HEAD.unpack_from(mapped.view)
        if magic != MAGIC or crc != crc32(mapped.view[: HEAD.size - 4]):
            mapped.close()
            return None
        return cls(mapped, path, first, position, term, chain)

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    @property
    def head(self) -> bytes:
        """The head as it was written."""
        head = HEAD.pack(MAGIC, self.first, self.position, self.term, self.chain, 0)[:-4]
        return head + crc32(head).to_bytes(4, "big")

    def slot_of(self, index: int) -> int:
        at = bisect_left(self._inline, index)
        return HEAD_SLOTS + index - self.first + (self._extra[at - 1] if at else 0)

    def span(self, first: int, count: int, cuts: int) -> "EntrySpan | None":
        """Up to ``count`` entries from ``first`` on; None if there are none. ``cuts``: `EntryIndex.cuts`."""
        if first > self.last:
            return None
        last = min(first + count - 1, self.last)
        is_start = first == self.first
        at = 0 if is_start else self.slot_of(first - 1) * SLOT_BYTES
        low, high = bisect_left(self._inline, first - 1), bisect_right(self._inline, last)
        extra = pairwise([self._extra[low - 1] if low else 0, *self._extra[low:high]])
        inline = {index: to - start for index, (start, to) in zip(self._inline[low:high], extra, strict=True)}
        return EntrySpan(first, last, at, self.slot_of(last + 1) * SLOT_BYTES - at, self.chain, inline, cuts)

    def entry(self, index: int) -> IndexedEntry:
        at = self.slot_of(index) * SLOT_BYTES
        if self.is_in_memory:
            return IndexedEntry(*SLOT.unpack_from(self.file.view, at))
        return IndexedEntry(*SLOT.unpack(self.read(at, SLOT_BYTES)))

    def data(self, index: int, size: int) -> bytes:
        """The bytes of an INLINE entry."""
        return self.data_after(self.slot_of(index), size)

    def data_after(self, slot: int, size: int) -> bytes:
        """The bytes of the INLINE entry in ``slot``."""
        return self.read((slot + 1) * SLOT_BYTES, size)

    def read(self, at: int, size: int) -> bytes:
        """``size`` bytes from ``at`` on, as `pread`."""
        return bytes(self.file.view[at : at + size]) if self.is_in_memory else self.pread(at, size)

    def pread(self, at: int, size: int) -> bytes:
        """``size`` bytes from ``at`` on, with zeros for pages that the disk has lost: an ERROR names each once.

        For any thread; FileClosed if the file was closed.
        """
        # A damaged slot may name any size.
        size = min(size, self.file.size - at)
        try:
            return self.file.pread(at, size)
        except OSError as error:
            if error.errno not in LOST_ERRNOS:
                raise
            reason = error.strerror
        parts: list[bytes] = []
        for page, start, stop in _pages(at, at + size):
            data = _read_or_none(self.file, start, stop - start)
            parts.append(bytes(stop - start) if data is None else data)
            if data is None and page not in self.lost:
                self.lost.add(page)
                logger.error(
                    "%s: the disk cannot read the page at offset %d (%s): it is failing. The entries there count as"
                    " damaged, and other members are asked for them",
                    self.path, page, reason,
                )  # fmt: skip
        return b"".join(parts)

    def write(self, at: int, data: bytes) -> None:
        """Write ``data`` at ``at``, and zeros around it in pages that the disk has lost. OSError if it cannot."""
        if not self.is_in_memory:
            # Bring the pages into memory: an access to a lost page of the map would end the process.
            for page, start, stop in _pages(at, at + len(data)):
                if _read_or_none(self.file, start, stop - start) is None:
                    self.file.pwrite(page, memoryview(bytes(min(PAGE_BYTES, self.file.size - page))))
                    self.lost.discard(page)
        self.file.view[at : at + len(data)] = data

    def write_pages(self, at: int, data: bytes) -> None:
        """Write ``data`` at ``at`` by one write of whole pages, for `EntryIndex.sync_rewritten`.

        OSError if the file cannot be read or written. The pages with ``data`` should be in memory.
        """
        # Whole pages: the kernel would first read the rest of a page that is written in part, and may be unable to.
        start = at // PAGE_BYTES * PAGE_BYTES
        end = min(-(-(at + len(data)) // PAGE_BYTES) * PAGE_BYTES, self.file.size)
        pages = bytearray()
        for page in range(start, end, PAGE_BYTES):
            size = min(PAGE_BYTES, end - page)
            is_inside = at <= page and page + size <= at + len(data)
            pages += bytes(size) if is_inside else _read_or_zeros(self.file, page, size)
        pages[at - start : at - start + len(data)] = data
        self.file.pwrite(start, memoryview(pages))
        self.is_rewritten = True
        self.lost.difference_update(range(start, end, PAGE_BYTES))

    def add(self, entry: IndexedEntry) -> None:
        """Count the entry, whose slots are written."""
        more = data_slots(entry)
        if more:
            self._inline.append(self.first + self.count)
            self._extra.append((self._extra[-1] if self._extra else 0) + more)
        self.count += 1
        self.used += 1 + more

    def forget_after(self, index: int) -> None:
        """Remove the slots after entry ``index``, which is in this file, or is the entry before its first."""
        if index >= self.last:
            return
        keep = self.slot_of(index + 1)
        # Write zeros: an old slot could by chance fit the chain of a new slot before it; zeros never fit.
        self.write(keep * SLOT_BYTES, bytes((self.used - keep) * SLOT_BYTES))
        self.count, self.used = index + 1 - self.first, keep
        at = bisect_right(self._inline, index)
        del self._inline[at:], self._extra[at:]
        self.is_dirty = True


class EntrySpan(NamedTuple):
    """Entries ``first`` to ``last`` of a file: its ``size`` bytes from ``at`` on, with what they are judged by.

    The first span of a file begins with the head. A later one begins with the slot of the entry before ``first``.
    ``chain``: the chain before a file's first entry. ``inline``: how many slots follow the slots of INLINE entries.
    ``cuts``: `EntryIndex.cuts`: while that is the same, nobody changes these bytes.
    """

    first: int
    last: int
    at: int
    size: int
    chain: int
    inline: Mapping[int, int]
    cuts: int

    def damaged(self, data: bytes) -> list[int]:
        """The entries that are not as they were written, in ``data``, the bytes of the span. Pure; for any thread."""
        damaged: list[int] = []
        if self.at:
            at, before = SLOT_BYTES * (1 + self.inline.get(self.first - 1, 0)), data[_CHAIN_AT:_CHAIN_END]
        else:
            at, before = HEAD_SLOTS * SLOT_BYTES, self.chain.to_bytes(4, "big")
        for index in range(self.first, self.last + 1):
            slot = data[at : at + SLOT_BYTES]
            # As `chained`, but of bytes: this is done for each entry of a store in each cycle of a scrub.
            rest = crc32(_PADDING, crc32(slot[_CHAIN_END:-2], crc32(slot[:_CHAIN_AT], int.from_bytes(before, "big"))))
            chain, before = crc32(_INDEX.pack(index), rest), slot[_CHAIN_AT:_CHAIN_END]
            at += SLOT_BYTES
            is_sound = chain == int.from_bytes(before, "big")
            if (slots := self.inline.get(index)) is not None:
                entry = IndexedEntry(*SLOT.unpack(slot))
                is_sound = is_sound and crc32(data[at : at + entry.size]) == entry.crc
                at += SLOT_BYTES * slots
            if not is_sound:
                damaged.append(index)
        return damaged

    def mended(self, data: bytes, other: bytes) -> bytes:
        """``data``, with the entries that are damaged there as they are in ``other``, where these are right.

        Both are bytes of the span. Pure; for any thread.
        """
        right, damaged = bytearray(data), set(self.damaged(data))
        right_there = damaged.difference(self.damaged(other))
        before, at = 0, SLOT_BYTES * (1 + self.inline.get(self.first - 1, 0)) if self.at else HEAD_SLOTS * SLOT_BYTES
        for index in range(self.first, self.last + 1):
            end = at + SLOT_BYTES * (1 + self.inline.get(index, 0))
            if index in damaged:
                alone = self._replace(first=index, last=index, at=self.at if index == self.first else at)
                # In ``other`` an entry may look damaged only because the chain of the slot before it is.
                if index in right_there or not alone.damaged(bytes(right[before:at]) + other[at:end]):
                    right[at:end] = other[at:end]
            before, at = at, end
        return bytes(right)


class SlotRun(NamedTuple):
    """Entries that follow each other, as another member has them, proven by their chains up to ``last``.

    ``before``: the chain before the entry ``first``. ``slots``: for each entry its slot, and its bytes if INLINE.
    ``inline``: how many slots follow the slots of INLINE entries.
    """

    first: int
    before: int
    last: IndexedEntry
    slots: Sequence[bytes]
    inline: Mapping[int, int]

    @classmethod
    def of(cls, first: int, before: int, found: Sequence[tuple[IndexedEntry, bytes]]) -> "SlotRun | None":
        """None unless all of ``found``, each with its bytes if INLINE, fit. Pure; for any thread: there may be many."""
        chain, slots, inline = before, list[bytes](), dict[int, int]()
        for index, (entry, data) in enumerate(found, first):
            if entry.chain != chained(entry, index, chain):
                return None
            slot = SLOT.pack(*entry)
            if entry.place == INLINE:
                if len(data) != entry.size or crc32(data) != entry.crc:
                    return None
                if more := data_slots(entry):
                    inline[index] = more
                    slot += data.ljust(more * SLOT_BYTES, b"\0")
            slots.append(slot)
            chain = entry.chain
        return cls(first, before, found[-1][0], slots, inline)


def data_slots(entry: IndexedEntry) -> int:
    """How many slots the bytes of ``entry`` take."""
    return -(-entry.size // SLOT_BYTES) if entry.place == INLINE else 0


def chained(entry: IndexedEntry, index: int, before: int) -> int:
    """The chain of ``entry`` at ``index``; ``before``: the chain of entry ``index`` - 1."""
    packed = SLOT.pack(*entry)
    return crc32(_INDEX.pack(index), crc32(packed[_CHAIN_END:], crc32(packed[:_CHAIN_AT], before)))


def _pages(at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(start of the page, start and end of what is in it) of each page with bytes ``at`` to ``end``."""
    for page in range(at // PAGE_BYTES * PAGE_BYTES, end, PAGE_BYTES):
        yield page, max(at, page), min(end, page + PAGE_BYTES)


def _read_or_none(file: MappedFile, at: int, size: int) -> bytes | None:
    """The bytes; None where the disk has lost them."""
    try:
        return file.pread(at, size)
    except OSError as error:
        if error.errno not in LOST_ERRNOS:
            raise
        return None


def _read_or_zeros(file: MappedFile, at: int, size: int) -> bytes:
    """The bytes; zeros, which are no entry, where the disk has lost them."""
    data = _read_or_none(file, at, size)
    return bytes(size) if data is None else data

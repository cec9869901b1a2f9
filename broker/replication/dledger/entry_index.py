"""The side file of the commit log: what each Raft entry is, and where its bytes are. No thread, no loop.

Files of equal size, named by the index of their first entry. Each has a head of 64 bytes and slots of 32 bytes:

    magic 8 | first index 8 | position 8 | term before 8 | chain before 4 | CRC 4 | zeros
    start 8 | term 8 | size 4 | crc 4 | chain 4 | kind 1 | place 1 | zeros 2

``place`` is IN_LOG for an entry whose bytes are the ``size`` bytes at ``start`` of the commit log. It is INLINE for an
entry whose bytes are in the slots after its own; ``start`` is then where the log ended. ``crc`` is the CRC of the
bytes. ``chain`` is the CRC of the slot and the index, continued from the entry before: two logs with the same chain at
an index have the same entries up to that index. A file has no entry after the first slot whose chain is wrong, so torn
writes and remains of a cut do not count as entries.

Invariant: entries that are IN_LOG follow each other in the commit log without gaps, and none lies in two of its files.
"""

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from skylark.broker.store.log.valid_record import may_lack_sectors
from skylark.mqcommon.disk.files import FileSystem, MappedFile
from skylark.mqcommon.disk.loading import LOST_ERRNOS, load
from skylark.mqcommon.disk.write_again import sync_apart, write_again
from skylark.mqcommon.errors import FileClosed, OutOfDescriptors, StoreCorrupt, StoreError

logger = logging.getLogger(__name__)

MAGIC = b"SKYRAFT1"
HEAD = Struct(">8sQQQII")
SLOT = Struct(">QQIIIBBxx")
SLOT_BYTES = 32
HEAD_SLOTS = 2
# A sector that cannot be read is made readable by writing this much.
PAGE_BYTES = 4096
# 4 MiB.
SLOTS = 131_072
IN_LOG, INLINE = 1, 2
_INDEX = Struct(">Q")
_CHAIN_AT, _CHAIN_END = 24, 28
_PADDING = bytes(2)
# How many damaged slots are looked at between two turns of the event loop: some 4 ms.
LOOK_ENTRIES = 512
# How many damaged slots a search in one turn of the event loop passes: some 16 ms.
MOST_LOOKS = 2048


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
        self.inline: list[int] = []
        self.extra: list[int] = []
        #: Whether entries were added or removed since the last `EntryIndex.sync`.
        self.is_dirty = False
        #: Whether entries were written once more since the last `EntryIndex.sync_rewritten`.
        self.is_rewritten = False
        #: Whether this process has written or read all slots a moment ago, so that the map can be read.
        self.is_in_memory = False
        #: Where the pages begin that the disk has lost, as far as known.
        self.lost: set[int] = set()

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    @property
    def head(self) -> bytes:
        """The head as it was written."""
        head = HEAD.pack(MAGIC, self.first, self.position, self.term, self.chain, 0)[:-4]
        return head + crc32(head).to_bytes(4, "big")

    def slot_of(self, index: int) -> int:
        at = bisect_left(self.inline, index)
        return HEAD_SLOTS + index - self.first + (self.extra[at - 1] if at else 0)

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

    def add(self, entry: IndexedEntry) -> None:
        """Count the entry, whose slots are written."""
        more = data_slots(entry)
        if more:
            self.inline.append(self.first + self.count)
            self.extra.append((self.extra[-1] if self.extra else 0) + more)
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
        at = bisect_right(self.inline, index)
        del self.inline[at:], self.extra[at:]
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


class Stray(NamedTuple):
    """Bytes ``data`` at ``at`` of the file ``path``, where the next entry goes, that are no entry."""

    path: str
    at: int
    data: bytes


def data_slots(entry: IndexedEntry) -> int:
    """How many slots the bytes of ``entry`` take."""
    return -(-entry.size // SLOT_BYTES) if entry.place == INLINE else 0


class EntryIndex:
    """All files of the index. Call `load` or `begin` first. ``slots``: the number of slots in each new file."""

    def __init__(self, fs: FileSystem, directory: str, slots: int = SLOTS) -> None:
        self._fs = fs
        self._directory = directory
        self._slots = slots
        self._files: list[EntryFile] = []
        self._firsts: list[int] = []
        # The names in the directory changed since it was synced.
        self._renamed = False
        self._last: IndexedEntry | None = None
        #: Why what follows the last entry that `load` found is damaged; "" if a power loss may have left it so.
        self.damage = ""
        # Files after the last entry that `load` found and that do not fit the chain.
        self._left_over: list[str] = []
        #: What `load` found in place of the next entry, though it is no entry, nor a torn one; `accept` removes it.
        self.stray: Stray | None = None
        #: How many times entries were removed from the end, so that others may have their slots.
        self.cuts = 0
        #: How many times slots were written once more.
        self.rewrites = 0

    # --- what there is

    @property
    def exists(self) -> bool:
        """Whether there are files."""
        return bool(self._names())

    @property
    def first(self) -> int:
        """The index of the first entry, or of the next one."""
        return self._files[0].first

    @property
    def last(self) -> int:
        return self._files[-1].last

    @property
    def position(self) -> int:
        """Where the commit log ends after the last entry."""
        return self._files[-1].position if self._last is None else self._last.end

    @property
    def chain(self) -> int:
        """The chain at the last entry."""
        return self._files[-1].chain if self._last is None else self._last.chain

    def chain_at(self, index: int) -> int:
        """The chain at entry ``index``, which may be the one before the first."""
        return self.entry(index).chain if index >= self.first else self._files[0].chain

    def term(self, index: int) -> int | None:
        """The term of entry ``index``, which may be the one before the first; None when there is no such entry."""
        if index == self.first - 1:
            return self._files[0].term
        # The last term decides elections, so it is kept in memory: the file may have been damaged since.
        if index == self.last and self._last is not None:
            return self._last.term
        return self.entry(index).term if self.first <= index <= self.last else None

    def is_sound(self, index: int) -> bool:
        """Whether the slot of entry ``index`` is as it was written, as its chain shows."""
        file = self._file_of(index)
        entry = file.entry(index)
        # The head of a file, which was compared at the start, is in memory.
        before = file.chain if index == file.first else file.entry(index - 1).chain
        return entry.chain == chained(entry, index, before)

    def entry(self, index: int) -> IndexedEntry:
        return self._file_of(index).entry(index)

    def end(self, index: int) -> int:
        """Where the commit log goes on after entry ``index``, which may be the one before the first."""
        return self.entry(index).end if index >= self.first else self._files[0].position

    def in_log(self, start: int, end: int) -> list[IndexedEntry]:
        """The entries with bytes ``start`` to ``end`` of the commit log; none if a slot is not as it was written."""
        found: list[IndexedEntry] = []
        index = max(self.last_lost(start), self.first - 1) + 1
        while index <= self.last and (entry := self.entry(index)).start < end:
            if not self.is_sound(index):
                return []
            if entry.place == IN_LOG:
                found.append(entry)
            index += 1
        return found

    def data(self, index: int, size: int) -> bytes:
        """The bytes of an INLINE entry."""
        return self._file_of(index).data(index, size)

    @property
    def files(self) -> Sequence[EntryFile]:
        """The files that there are now, the oldest first."""
        return tuple(self._files)

    def span(self, file: EntryFile, first: int, count: int) -> EntrySpan | None:
        """Up to ``count`` entries of ``file`` from ``first`` on; None if there are none, or the file was removed."""
        if file not in self._files or first > file.last:
            return None
        last = min(first + count - 1, file.last)
        is_start = first == file.first
        at = 0 if is_start else file.slot_of(first - 1) * SLOT_BYTES
        low, high = bisect_left(file.inline, first - 1), bisect_right(file.inline, last)
        extra = pairwise([file.extra[low - 1] if low else 0, *file.extra[low:high]])
        inline = {index: to - start for index, (start, to) in zip(file.inline[low:high], extra, strict=True)}
        return EntrySpan(first, last, at, file.slot_of(last + 1) * SLOT_BYTES - at, file.chain, inline, self.cuts)

    def damaged_around(self, index: int) -> Iterator[range]:
        """The entries around ``index`` whose slots are not as they were written, one after another; or none.

        Yields after each few entries what was found so far, so that others have their turn, and at last all of them.
        Ends with none if entries were removed meanwhile.
        """
        before = self.cuts, self._firsts[0]
        first = end = index
        while first > self.first:
            low = max(first - LOOK_ENTRIES, self.first)
            sound = self._first_sound(range(first - 1, low - 1, -1))
            first = low if sound is None else sound + 1
            if sound is not None:
                break
            yield range(first, end)
            if (self.cuts, self._firsts[0]) != before:
                first = end = index
                break
        while end <= self.last and (self.cuts, self._firsts[0]) == before:
            high = min(end + LOOK_ENTRIES, self.last + 1)
            sound = self._first_sound(range(end, high))
            end = high if sound is None else sound
            if sound is not None:
                break
            yield range(first, end)
        yield range(first, end) if (self.cuts, self._firsts[0]) == before else range(0)

    def last_lost(self, log_start: int) -> int:
        """The last entry whose bytes are before ``log_start``; the one before the first entry if there is none.

        Only entries whose slots are as they were written count: what a damaged slot says is not known.
        """
        low = self.last_sound(self.last_ending_by(log_start))
        # Entries without bytes in the commit log may end there, too, and are not lost.
        while low >= self.first and self.entry(low).place == INLINE:
            low = self.last_sound(low - 1)
        return low

    def last_sound(self, index: int) -> int:
        """The last entry up to ``index`` whose slot is as it was written; the one before the first if there is none."""
        found = self._first_sound(range(index, self.first - 1, -1))
        return self.first - 1 if found is None else found

    def last_ending_by(self, position: int) -> int:
        """The last entry that is known to end at or before ``position`` of the commit log; or the one before the first.

        The heads of files know it, and the slots that are as they were written. Beside much damage it may be too early.
        """
        number = bisect_right(self._files, position, key=lambda file: file.position) - 1
        if number < 0:
            return self.first - 1
        low, high = self._files[number].first - 1, self._files[number].last
        while low < high:
            middle = (low + high + 1) // 2
            sound = self._first_sound(range(middle, low, -1))
            if sound is None:
                sound = self._first_sound(range(middle + 1, high + 1))
            if sound is None:
                break
            if self.entry(sound).end <= position:
                low = sound
            else:
                high = sound - 1
        return low

    def _first_sound(self, indexes: range) -> int | None:
        """The first of ``indexes`` whose slot is as it was written; None if none is found among the first ones.

        Zeros, as a lost file has, are passed at once. Of other damage `MOST_LOOKS` are looked at.
        """
        looks = 0
        for at in range(0, len(indexes), LOOK_ENTRIES):
            part = indexes[at : at + LOOK_ENTRIES]
            if self.is_sound(part[0]):
                return part[0]
            if self._is_blank(min(part), max(part)):
                continue
            for index in part[1:]:
                if self.is_sound(index):
                    return index
            looks += len(part)
            if looks >= MOST_LOOKS:
                break
        return None

    def _is_blank(self, first: int, last: int) -> bool:
        """Whether the slots of these entries, in one file, have nothing but zeros."""
        file = self._file_of(first)
        at = file.slot_of(first) * SLOT_BYTES
        return last <= file.last and not file.read(at, file.slot_of(last + 1) * SLOT_BYTES - at).strip(b"\0")

    def _file_of(self, index: int) -> EntryFile:
        return self._files[bisect_right(self._firsts, index) - 1]

    # --- changes

    def begin(self, base: int, base_term: int, position: int) -> None:
        """Remove all entries; the next one follows ``base`` and begins at ``position`` of the commit log. Durable.

        Blocks: it is called once or twice in the life of a member.
        """
        self._forget_files()
        # Make the new file first: otherwise a crash in between would leave no file. Until the old files are removed the
        # new file is ignored, as it does not fit them. Only a file of the same name must be removed before.
        new, old = f"{base + 1:020d}", self._names()
        if new in old:
            self._fs.remove(f"{self._directory}/{new}")
            old.remove(new)
        self._add_file(base + 1, position, base_term, 0)
        self.sync()
        for name in old:
            self._fs.remove(f"{self._directory}/{name}")
        if old:
            self._fs.fsync_dir(self._directory)

    def append(self, term: int, kind: int, place: int, size: int, crc: int, data: bytes = b"") -> None:
        """Add an entry of ``size`` bytes with the CRC ``crc``: those at `position` of the commit log, or ``data``.

        ``kind``: the kind of Raft's entry. ``place``: IN_LOG, or INLINE with ``data``.
        """
        file = self._files[-1]
        entry = IndexedEntry(self.position, term, size, crc, 0, kind, place)
        if file.used + 1 + data_slots(entry) > file.slots:
            last = self._last
            assert last is not None
            file = self._add_file(file.last + 1, last.end, last.term, last.chain)
        entry = entry._replace(chain=chained(entry, file.last + 1, self.chain))
        at = file.used * SLOT_BYTES
        if data:
            file.write(at + SLOT_BYTES, data)
        # Write the slot last: until it is written the bytes after it have no meaning.
        file.write(at, SLOT.pack(*entry))
        file.add(entry)
        file.is_dirty = True
        self._last = entry

    def mend(self, run: SlotRun) -> bool:
        """Rewrite the slots of the entries of ``run``, and their bytes if INLINE; returns whether they fit.

        The chains prove that these are the original entries: they cover all fields, up to the entry after the last one.
        OSError if they cannot be written.
        """
        after = run.first + len(run.slots)
        if not self.first <= run.first or after - 1 > self.last or run.before != self.chain_at(run.first - 1):
            return False
        if after <= self.last:
            following = self.entry(after)
            if following.chain != chained(following, after, run.last.chain):
                return False
        elif run.last.chain != self.chain or self._last not in (None, run.last):
            return False
        parts = [
            (file, span)
            for file in self._files
            if file.last >= run.first and (first := max(file.first, run.first)) < after
            and (span := self.span(file, first, after - first)) is not None
        ]  # fmt: skip
        known: dict[int, int] = {}
        for _, span in parts:
            known.update(span.inline)
        known.pop(run.first - 1, None)
        if known != run.inline:
            return False
        for file, span in parts:
            slots = run.slots[span.first - run.first : span.last + 1 - run.first]
            file.write(file.slot_of(span.first) * SLOT_BYTES, b"".join(slots))
            file.is_rewritten = True
        self.rewrites += 1
        return True

    def forget_after(self, index: int) -> None:
        """Remove the entries after ``index``."""
        self.cuts += 1
        for path in self._left_over:
            self._fs.remove(path)
            self._renamed = True
        self._left_over.clear()
        while len(self._files) > 1 and self._files[-1].first > index:
            file = self._files.pop()
            self._firsts.pop()
            file.file.close()
            with suppress(FileNotFoundError):  # somebody has removed the file, and no scrub has made it again
                self._fs.remove(file.path)
            self._renamed = True
        file = self._files[-1]
        file.forget_after(index)
        self._last = file.entry(file.last) if file.count else None

    def forget_before(self, index: int) -> list[str]:
        """Forget files whose entries are all before ``index``; returns their paths, which the caller removes."""
        gone = []
        while len(self._files) > 1 and self._firsts[1] <= index:
            file = self._files.pop(0)
            self._firsts.pop(0)
            file.file.close()
            gone.append(file.path)
        return gone

    def write_again(self, file: EntryFile, span: EntrySpan, data: bytes) -> None:
        """Write ``data`` as the bytes of ``span``, for `sync_rewritten`, unless entries were cut since `span`.

        OSError if the file cannot be read or written. The pages of ``span`` should be in memory.
        """
        if self.cuts != span.cuts or file not in self._files:
            return
        # Whole pages: the kernel would first read the rest of a page that is written in part, and may be unable to.
        start = span.at // PAGE_BYTES * PAGE_BYTES
        end = min(-(-(span.at + span.size) // PAGE_BYTES) * PAGE_BYTES, file.file.size)
        pages = bytearray()
        for at in range(start, end, PAGE_BYTES):
            size = min(PAGE_BYTES, end - at)
            is_inside = span.at <= at and at + size <= span.at + span.size
            pages += bytes(size) if is_inside else _read_or_zeros(file.file, at, size)
        pages[span.at - start : span.at - start + span.size] = data
        file.file.pwrite(start, memoryview(pages))
        file.is_rewritten = True
        file.lost.difference_update(range(start, end, PAGE_BYTES))
        self.rewrites += 1

    def use_copy(self, file: EntryFile, copy: MappedFile) -> None:
        """Go on in ``copy``, a new file at the path of ``file``, whose name was removed.

        All pages of ``file`` should be in memory. If ``file`` was forgotten, ``copy`` is closed and removed.
        """
        if file not in self._files:
            copy.close()
            # The entries were forgotten meanwhile. Others may have a file of the same name by now.
            if all(each.path != file.path for each in self._files):
                with suppress(FileNotFoundError):
                    self._fs.remove(file.path)
            return
        copy.view[:] = file.file.view[:]
        file.file.close()
        file.file = copy
        file.is_dirty = self._renamed = True

    def sync(self) -> None:
        """Make all entries survive power loss. Blocks; for any thread, one at a time.

        After OutOfDescriptors the next call does the same.
        """
        for file in self._files[:]:
            if file.is_dirty:
                file.is_dirty = False
                try:
                    file.file.sync()
                except FileClosed:
                    continue  # its entries are gone, or began anew
                except OutOfDescriptors:
                    file.is_dirty = True
                    raise
        if self._renamed:
            self._renamed = False
            try:
                self._fs.fsync_dir(self._directory)
            except OutOfDescriptors:
                self._renamed = True
                raise

    def sync_rewritten(self) -> str:
        """Make what was written once more survive power loss; returns why it may not, "" if it does. As `sync`."""
        problem = ""
        for file in self._files[:]:
            if not file.is_rewritten:
                continue
            file.is_rewritten = False
            try:
                sync_apart(self._fs, file.path)
            except FileNotFoundError:
                continue  # the entries are gone; a name that somebody has removed is missed by the scrub
            except OutOfDescriptors:
                file.is_rewritten = True
                raise
            except (OSError, StoreError) as error:
                problem = f"{file.path} cannot be written: {error}"
        return problem

    def close(self) -> None:
        for file in self._files:
            file.file.close()

    def _forget_files(self) -> None:
        self.cuts += 1
        self.close()
        self._files.clear()
        self._firsts.clear()
        self._left_over.clear()
        self._last = None

    def _add_file(self, first: int, position: int, term: int, chain: int) -> EntryFile:
        path = f"{self._directory}/{first:020d}"
        self._fs.mkdirs(self._directory)
        mapped = self._fs.open_map(path, self._slots * SLOT_BYTES, create=True)
        file = EntryFile(mapped, path, first, position, term, chain)
        mapped.view[: HEAD.size] = file.head
        file.is_dirty = self._renamed = file.is_in_memory = True
        self._append_file(file)
        return file

    def _append_file(self, file: EntryFile) -> None:
        if self._files:
            # Sooner or later its pages leave the memory.
            self._files[-1].is_in_memory = False
        self._files.append(file)
        self._firsts.append(file.first)

    # --- the start

    def load(self, trusted: int = 0) -> None:
        """Read the files. Blocks; changes none. StoreCorrupt when the first one is missing or damaged.

        ``trusted``: entries up to this index are known to be on disk. Later entries may have holes after a power loss:
        the entries end at the first hole, and the owner knows whether more were promised to another member. If not, the
        owner calls `accept` before it adds entries.
        """
        self._forget_files()
        self.damage, self.stray = "", None
        names = self._names()
        if not names:
            raise StoreCorrupt(self._directory, 0, "the files of the entries are gone")
        for number, name in enumerate(names):
            path = f"{self._directory}/{name}"
            follows = int(names[number + 1]) if number + 1 < len(names) else None
            file = self._open(path)
            if file is None and self._files and any(self._fs.read_part(path, 0, HEAD.size)):
                self.damage = self.damage or f"the head of {path} is damaged"
            if file is None and not self._files:
                raise StoreCorrupt(path, 0, "the head of the file is damaged")
            if file is not None and self._files:
                before = self._files[-1]
                if (file.first, file.position, file.chain) != (before.last + 1, self.position, self.chain):
                    file.file.close()
                    file = None
            if file is None:
                self._left_over = [f"{self._directory}/{left}" for left in names[number:]]
                return
            # Nothing lies between the last entry of the file before and this file.
            self.damage, self.stray = "", None
            self._append_file(file)
            self._scan(file, follows if follows is not None and follows - 1 <= trusted else None)

    def accept(self, last: int, synced: int) -> None:
        """Continue after entry ``last`` of the entries that `load` found; remove all bytes behind it. Blocks.

        Entries after ``synced`` may not be on disk: a killed process has written them, perhaps without a sync.
        """
        self.forget_after(last)
        file = self._files[-1]
        # Else what is left of torn entries is behind other ones after the next power loss, and looks damaged there.
        at = file.used * SLOT_BYTES
        if left := file.read(at, file.file.size - at).rstrip(b"\0"):
            file.write(at, bytes(len(left)))
            file.is_dirty = True
        for file in self._files:
            if file.last > synced:
                write_again(file.file, 0, file.used * SLOT_BYTES)
                file.is_dirty = self._renamed = True

    def _open(self, path: str) -> EntryFile | None:
        if self._fs.size(path) < (HEAD_SLOTS + 1) * SLOT_BYTES:
            return None
        mapped = self._fs.open_map(path, create=False)
        load(mapped, 0, HEAD.size)
        magic, first, position, term, chain, crc = HEAD.unpack_from(mapped.view)
        if magic != MAGIC or crc != crc32(mapped.view[: HEAD.size - 4]):
            mapped.close()
            return None
        return EntryFile(mapped, path, first, position, term, chain)

    def _scan(self, file: EntryFile, follows: int | None) -> None:
        """Count the entries that ``file`` has, up to the first slot that is not a whole entry.

        ``follows``: the first index of the next file, given only if all entries before it are known to be on disk. A
        file full of entries without bytes of their own is then not read.
        """
        if follows is not None and follows - file.first == file.slots - HEAD_SLOTS:
            # Full of entries without bytes of their own: the head of the next file says what the last chain is.
            file.count, file.used = file.slots - HEAD_SLOTS, file.slots
            load(file.file, (file.slots - 1) * SLOT_BYTES, SLOT_BYTES)
            self._last = file.entry(file.last)
            return
        self._last = None
        load(file.file, 0, file.file.size)
        file.is_in_memory = True
        while file.used < file.slots:
            index = file.first + file.count
            entry = IndexedEntry(*SLOT.unpack_from(file.file.view, file.used * SLOT_BYTES))
            if (
                entry.place not in (IN_LOG, INLINE)
                or entry.chain != chained(entry, index, self.chain)
                or file.used + 1 + data_slots(entry) > file.slots
                or (entry.place == INLINE and crc32(file.data_after(file.used, entry.size)) != entry.crc)
            ):
                self._note_end(file, entry, index)
                break
            file.add(entry)
            self._last = entry

    def _note_end(self, file: EntryFile, entry: IndexedEntry, index: int) -> None:
        """Note what is in place of entry ``index``, after the last whole one of ``file``; ``entry``: its bytes."""
        at = file.used * SLOT_BYTES
        slot = file.read(at, SLOT_BYTES)
        # A slot lies in one sector, so after a power loss it is there, or it has the zeros of before.
        if not any(slot):
            return
        fits = entry.place == INLINE and data_slots(entry) < file.slots - file.used
        is_whole = fits and entry.chain == chained(entry, index, self.chain)
        if is_whole and may_lack_sectors(file.file.view, at + SLOT_BYTES, at + SLOT_BYTES + entry.size):
            return
        # The slot of an entry has a term, a place and a chain. So one byte in place of it was never an entry, and two
        # may be what the disk has left of one.
        if sum(map(bool, slot)) > 1:
            self.damage = f"entry {index} in {file.path} is damaged"
        self.stray = Stray(file.path, at, slot)

    def _names(self) -> list[str]:
        return [name for name in self._fs.listdir(self._directory) if name.isdecimal()]


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


def chained(entry: IndexedEntry, index: int, before: int) -> int:
    """The chain of ``entry`` at ``index``; ``before``: the chain of entry ``index`` - 1."""
    packed = SLOT.pack(*entry)
    return crc32(_INDEX.pack(index), crc32(packed[_CHAIN_END:], crc32(packed[:_CHAIN_AT], before)))

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

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
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
    """One file. ``first``: the index of its first entry; the other arguments describe the entry before ``first``."""

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
        return IndexedEntry(*SLOT.unpack_from(self.file.view, self.slot_of(index) * SLOT_BYTES))

    def data(self, index: int, size: int) -> bytes:
        """The bytes of an INLINE entry."""
        return self.data_after(self.slot_of(index), size)

    def data_after(self, slot: int, size: int) -> bytes:
        """The bytes of the INLINE entry in ``slot``."""
        at = (slot + 1) * SLOT_BYTES
        return bytes(self.file.view[at : at + size])

    def data_slots_of(self, index: int) -> int:
        """How many slots the bytes of entry ``index`` take; 0 for one whose bytes are in the log."""
        return self.slot_of(index + 1) - self.slot_of(index) - 1

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
        self.file.view[keep * SLOT_BYTES : self.used * SLOT_BYTES] = bytes((self.used - keep) * SLOT_BYTES)
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
        #: How many times entries were removed from the end, so that others may have their slots.
        self.cuts = 0

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
        entry = self.entry(index)
        return entry.chain == chained(entry, index, self.chain_at(index - 1))

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

    def damaged_around(self, index: int) -> range:
        """The entries around ``index`` whose slots are not as they were written, one after another; or none."""
        first, end = index, index
        while first > self.first and not self.is_sound(first - 1):
            first -= 1
        while end <= self.last and not self.is_sound(end):
            end += 1
        return range(first, end)

    def last_lost(self, log_start: int) -> int:
        """The last entry whose bytes are before ``log_start``; the one before the first entry if there is none."""
        low, high = self.first - 1, self.last
        while low < high:
            middle = (low + high + 1) // 2
            if self.end(middle) <= log_start:
                low = middle
            else:
                high = middle - 1
        # Entries without bytes in the commit log may end there, too, and are not lost.
        while low >= self.first and self.entry(low).place == INLINE:
            low -= 1
        return low

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
            file.file.view[at + SLOT_BYTES : at + SLOT_BYTES + size] = data
        # Write the slot last: until it is written the bytes after it have no meaning.
        SLOT.pack_into(file.file.view, at, *entry)
        file.add(entry)
        file.is_dirty = True
        self._last = entry

    def mend(self, first: int, found: Sequence[tuple[IndexedEntry, bytes]]) -> bool:
        """Rewrite the slots of the entries from ``first`` on, and their data if INLINE; returns whether they fit.

        The chains prove that these are the original entries: they cover all fields, up to the entry after the last one.
        """
        chain, after = self.chain_at(first - 1), first + len(found)
        for index, (entry, data) in enumerate(found, first):
            is_inline = entry.place == INLINE
            if (
                index > self.last
                or entry.chain != chained(entry, index, chain)
                or data_slots(entry) != self._file_of(index).data_slots_of(index)
                or (is_inline and (len(data) != entry.size or crc32(data) != entry.crc))
            ):
                return False
            chain = entry.chain
        if after <= self.last:
            following = self.entry(after)
            if following.chain != chained(following, after, chain):
                return False
        elif self._last is not None and found[-1][0] != self._last:
            return False
        for index, (entry, data) in enumerate(found, first):
            file = self._file_of(index)
            at = file.slot_of(index) * SLOT_BYTES
            if entry.place == INLINE:
                file.file.view[at + SLOT_BYTES : at + SLOT_BYTES + entry.size] = data
            SLOT.pack_into(file.file.view, at, *entry)
            file.is_rewritten = True
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

    def readable(self, file: EntryFile, span: EntrySpan) -> bytes:
        """The bytes of ``span``, with zeros for pages that the disk has lost. Blocks; FileClosed."""
        end = span.at + span.size
        starts = [span.at, *range(span.at // PAGE_BYTES * PAGE_BYTES + PAGE_BYTES, end, PAGE_BYTES), end]
        return b"".join(_read_or_zeros(file.file, at, to - at) for at, to in pairwise(starts))

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

    def use_copy(self, file: EntryFile, copy: MappedFile) -> bool:
        """Go on in ``copy``, a new file at the path of ``file``, whose name was removed; returns whether it is used.

        All pages of ``file`` should be in memory. A copy that is not used is closed, and removed.
        """
        if file not in self._files:
            copy.close()
            # The entries were forgotten meanwhile. Others may have a file of the same name by now.
            if all(each.path != file.path for each in self._files):
                with suppress(FileNotFoundError):
                    self._fs.remove(file.path)
            return False
        copy.view[:] = file.file.view[:]
        file.file.close()
        file.file = copy
        file.is_dirty = self._renamed = True
        return True

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
        file.is_dirty = self._renamed = True
        self._files.append(file)
        self._firsts.append(first)
        return file

    # --- the start

    def load(self, trusted: int = 0) -> None:
        """Read the files. Blocks; changes none. StoreCorrupt when the first one is missing or damaged.

        ``trusted``: entries up to this index are known to be on disk. Later entries may have holes after a power loss:
        the entries end at the first hole, and the owner knows whether more were promised to another member. If not, the
        owner calls `accept` before it adds entries.
        """
        self._forget_files()
        self.damage = ""
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
            self._files.append(file)
            self._firsts.append(file.first)
            self._scan(file, follows if follows is not None and follows - 1 <= trusted else None)

    def accept(self, last: int, synced: int) -> None:
        """Continue after entry ``last`` of the entries that `load` found; remove later ones. Blocks.

        Entries after ``synced`` may not be on disk: a killed process has written them, perhaps without a sync.
        """
        self.forget_after(last)
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
        while file.used < file.slots:
            index = file.first + file.count
            entry = IndexedEntry(*SLOT.unpack_from(file.file.view, file.used * SLOT_BYTES))
            if (
                entry.place not in (IN_LOG, INLINE)
                or entry.chain != chained(entry, index, self.chain)
                or file.used + 1 + data_slots(entry) > file.slots
                or (entry.place == INLINE and crc32(file.data_after(file.used, entry.size)) != entry.crc)
            ):
                self.damage = _damage_of(file, entry, index)
                break
            file.add(entry)
            self._last = entry

    def _names(self) -> list[str]:
        return [name for name in self._fs.listdir(self._directory) if name.isdecimal()]


def _read_or_zeros(file: MappedFile, at: int, size: int) -> bytes:
    """The bytes; zeros, which are no entry, where the disk has lost them."""
    try:
        return file.pread(at, size)
    except OSError as error:
        if error.errno not in LOST_ERRNOS:
            raise
        return bytes(size)


def _damage_of(file: EntryFile, entry: IndexedEntry, index: int) -> str:
    """Why ``entry``, which follows the last whole one in ``file``, is damaged; "" if a power loss may have torn it.

    A slot lies in one sector, so after a power loss it is there, or it has the zeros of before.
    """
    at = file.used * SLOT_BYTES
    view = file.file.view
    if not any(view[at : at + SLOT_BYTES]):
        return ""
    if entry.place == INLINE and data_slots(entry) < file.slots - file.used:
        end = at + SLOT_BYTES + entry.size
        if may_lack_sectors(view, at + SLOT_BYTES, end):
            return ""
    return f"entry {index} in {file.path} is damaged"


def chained(entry: IndexedEntry, index: int, before: int) -> int:
    """The chain of ``entry`` at ``index``; ``before``: the chain of entry ``index`` - 1."""
    packed = SLOT.pack(*entry)
    return crc32(_INDEX.pack(index), crc32(packed[_CHAIN_END:], crc32(packed[:_CHAIN_AT], before)))

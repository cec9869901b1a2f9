"""The side file of the commit log: the files of a member's Raft entries (entry_file.py) as one. No thread, no loop.

`EntryIndex` loads the files, adds entries, cuts entries off at both ends, mends damaged entries, and syncs.

Invariant: entries that are IN_LOG follow each other in the commit log without gaps, and none lies in two of its files.
Neighbours: log_entries.py (what Raft sees of the entries); log_disk.py (keeps the index and the log in step).
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple
from zlib import crc32

from skylark.broker.replication.dledger.entry_file import (
    HEAD,
    HEAD_SLOTS,
    IN_LOG,
    INLINE,
    SLOT,
    SLOT_BYTES,
    EntryFile,
    EntrySpan,
    IndexedEntry,
    SlotRun,
    chained,
    data_slots,
)
from skylark.broker.store.log.valid_record import may_lack_sectors
from skylark.mqcommon.disk.files import FileSystem, MappedFile
from skylark.mqcommon.disk.loading import load, used_size
from skylark.mqcommon.disk.write_again import sync_apart, write_again
from skylark.mqcommon.errors import FileClosed, OutOfDescriptors, StoreCorrupt, StoreError

# 4 MiB.
SLOTS = 131_072
# How many damaged slots are looked at between two turns of the event loop: some 4 ms.
LOOK_ENTRIES = 512
# How many damaged slots a search in one turn of the event loop passes: some 16 ms.
MOST_LOOKS = 2048


class Stray(NamedTuple):
    """Bytes ``data`` at ``at`` of the file ``path``, where the next entry goes, that are no entry."""

    path: str
    at: int
    data: bytes


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
        return file.span(first, count, self.cuts) if file in self._files else None

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
        return last <= file.last and not used_size(file.read(at, file.slot_of(last + 1) * SLOT_BYTES - at))

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
        file.write_pages(span.at, data)
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
            file = EntryFile.open(self._fs, path)
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
        if left := used_size(file.read(at, file.file.size - at)):
            file.write(at, bytes(left))
            file.is_dirty = True
        for file in self._files:
            if file.last > synced:
                write_again(file.file, 0, file.used * SLOT_BYTES)
                file.is_dirty = self._renamed = True

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

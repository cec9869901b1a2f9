"""An append-only journal of metadata changes, and its recovery.

Files in one directory: ``metadata.snapshot.N`` (the state when journal N was begun; none for N = 0) and the chain
``metadata.journal.N``, N+1, ... of later changes. ``append`` hands a change to the kernel (it survives the death of
this process); ``sync`` makes all appended changes survive power loss, and only then are they acknowledged.

Invariants: all of journal N is on disk before a sync of journal N+1 counts; all of a snapshot is on disk before the
files that it replaces are removed. So only changes after the last acknowledged change can be torn: recovery cuts and
reports them. Earlier damage raises StoreCorrupt. After a failed fsync no change is accepted: it is unknown which bytes
the kernel kept.
Threads: ``sync``, ``Compaction.write`` and ``close`` block and run in a worker thread, the rest on the loop.
Neighbours: journal_format.py (bytes), metadata.py (the tables), tasks/persist.py (the threads).
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from typing import Any, NamedTuple
from zlib import crc32

from skylark.broker.meta.journal_format import (
    HEADER_BYTES,
    JournalPaths,
    JournalRecord,
    Scan,
    encode_header,
    encode_record,
    scan,
)
from skylark.mqcommon.crc import large_crc32
from skylark.mqcommon.disk.files import AppendFile, FileSystem
from skylark.mqcommon.disk.write_again import write_again
from skylark.mqcommon.errors import NewerVersion, OutOfDescriptors, ProtocolError, StoreCorrupt, StoreError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass

OnRecord = Callable[[str, Any], None]

MARK = "mark"
COMPACT_MIN_BYTES = 1024 * 1024
COMPACT_FACTOR = 4

END = "end"


class UnknownKind(ValueError):
    """A record has a kind that nobody in this version reads."""


class LostJournal(StoreCorrupt):
    """There must be a journal, and there is none."""


@lazy_dataclass(frozen=True, slots=True)
class TornTail:
    """A torn tail that was cut: the bytes after ``offset``, which were never acknowledged."""

    file: str
    offset: int
    lost_bytes: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: {self.lost_bytes} unacknowledged bytes cut at offset {self.offset}: {self.reason}"


class JournalPosition(NamedTuple):
    """The first ``bytes`` of journal ``number``, and all earlier changes."""

    number: int
    bytes: int


class JournalDamage(NamedTuple):
    """Damage in a file. ``rotten``: the bytes were on disk, and the next start fails. Else it cuts the torn tail."""

    file: str
    offset: int
    reason: str
    rotten: bool


@lazy_dataclass(slots=True)
class JournalReport:
    """The result of a recovery. ``fresh``: there was no record of any change."""

    fresh: bool = False
    records: int = 0
    cuts: list[TornTail] = field(default_factory=list)
    #: Half-written snapshots, and files that an interrupted compaction had not removed yet.
    removed: list[str] = field(default_factory=list)


class KnownFile(NamedTuple):
    """A file whose first ``size`` bytes have this CRC-32, as they were written or read."""

    path: str
    size: int
    crc: int


class Compaction:
    """One attempt to replace a long chain of journals by a snapshot; ``snapshot_bytes`` stays 0 when it fails.

    The order of steps makes a crash at any point lose nothing: write ``.tmp``, fsync, rename, fsync the directory, and
    only then remove the files that it replaces. A snapshot ends with a record that counts the other records, so a part
    of a snapshot is never taken for a whole one. `Journal.begin_compaction` begins a new journal first, which gets the
    changes that come meanwhile.
    """

    def __init__(self, fs: FileSystem, paths: JournalPaths, number: int) -> None:
        self._fs = fs
        self._paths = paths
        self._number = number
        self.snapshot_bytes = 0
        self.snapshot_crc = 0

    def write(self, state: Iterable[tuple[str, Any]]) -> None:
        """Write ``state``, then remove the files that it replaces. Blocks: call it in a thread."""
        fs, half, path = self._fs, self._paths.half_snapshot(self._number), self._paths.snapshot(self._number)
        try:
            size = self._write_half(half, state)
            # A snapshot without its journal counts as damage: the journal's name must be on disk first.
            fs.fsync_dir(self._paths.directory)
            fs.rename(half, path)
            fs.fsync_dir(self._paths.directory)
        except (OSError, StoreError) as error:
            with contextlib.suppress(OSError):
                if fs.exists(half):
                    fs.remove(half)
            raise StoreError(f"{path} cannot be written: {error}") from error
        self.snapshot_bytes = size
        for old in self._paths.older(self._paths.listing(fs), self._number):
            with contextlib.suppress(OSError):  # recovery removes a file that stays
                fs.remove(old)

    def _write_half(self, half: str, state: Iterable[tuple[str, Any]]) -> int:
        if self._fs.exists(half):
            self._fs.remove(half)
        file = self._fs.open_append(half)
        try:
            crc = 0
            for data in self._pieces(state):
                file.write(data)
                crc = crc32(data, crc)
            file.sync()
            self.snapshot_crc = crc
            return file.size()
        finally:
            file.close()

    def _pieces(self, state: Iterable[tuple[str, Any]]) -> Iterator[bytes]:
        yield encode_header(self._number, 0)
        count = 0
        for kind, payload in state:
            yield encode_record(kind, payload, 0)
            count += 1
        yield encode_record(END, count, 0)


class Journal:
    """The journal of one directory: call `replay` once, then `append` and `sync`."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._paths = JournalPaths(directory)
        self._files_lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._file: AppendFile | None = None
        self._retired: list[AppendFile] = []
        self._number = 0
        self._bytes = 0
        self._durable_bytes = 0
        self._earlier_bytes = 0
        self._snapshot_bytes = 0
        # CRCs of the present journal's `_bytes`, and of the earlier files.
        self._crc = 0
        self._earlier: dict[str, KnownFile] = {}
        self._compact_at = COMPACT_MIN_BYTES
        self._failure = ""
        #: Called after each append, on the event loop; the caller starts a sync.
        self.on_append: Callable[[], None] = _no_sync

    # --- recovery

    def replay(self, on_record: OnRecord, *, must_exist: bool = False) -> JournalReport:
        """Read all records from disk, oldest first. Blocks; runs before the broker serves.

        StoreCorrupt if bytes are damaged that were on disk, and, without any change, if a journal ``must_exist`` but is
        missing or empty.
        """
        try:
            return self._replay(on_record, must_exist=must_exist)
        except (NewerVersion, LostJournal):
            raise
        except StoreCorrupt as error:
            text = f"{error.reason}. Put the files of {self._paths.directory} back from a copy, or {self._remedy}"
            raise StoreCorrupt(error.file, error.offset, text) from error

    @property
    def _remedy(self) -> str:
        root = self._paths.directory.rpartition("/")[0]
        return (
            f"make topics and groups anew from the messages: broker rebuildMetadata {root} (a slave then gets the rest "
            "from its master)"
        )

    def _replay(self, on_record: OnRecord, *, must_exist: bool) -> JournalReport:
        report = JournalReport()
        paths = self._paths
        self._fs.mkdirs(paths.directory)
        listing = paths.listing(self._fs)
        base = max(listing.snapshots, default=0)
        if must_exist and not base:
            self._refuse_lost(paths.journal(0))
        if base:
            path = paths.snapshot(base)
            records, self._snapshot_bytes, crc = snapshot_records(self._fs, path, base)
            self._earlier[path] = KnownFile(path, self._snapshot_bytes, crc)
            report.records += _apply(records, paths.snapshot(base), on_record)
        chain = self._read_chain([n for n in listing.journals if n >= base], base, report)
        kept = {paths.snapshot(base), *(paths.journal(number) for number, _ in chain)}
        self._earlier = {path: known for path, known in self._earlier.items() if path in kept}
        for number, found in chain:
            report.records += _apply(found.records, paths.journal(number), on_record)
        # A record of the last journal counts as durable only if everything before it is on disk. After a crash the
        # earlier journals may still be in the page cache only.
        for number, found in chain[:-1]:
            self._sync_earlier(number, found)
        report.fresh = not base and not report.records
        self._open_last(*chain[-1], chain[-2][1].good_bytes if len(chain) > 1 else 0)
        self._earlier_bytes = sum(found.good_bytes for _, found in chain[:-1])
        self._compact_at = self._compaction_threshold()
        # Remove files last: after a crash before this the next start removes them.
        for path in [*listing.half_written, *paths.older(listing, base)]:
            self._fs.remove(path)
            report.removed.append(path)
        self._fs.fsync_dir(paths.directory)
        return report

    def _refuse_lost(self, first: str) -> None:
        if self._fs.exists(first) and self._fs.size(first) >= HEADER_BYTES:
            return
        raise LostJournal(
            first,
            0,
            f"the file is {'empty' if self._fs.exists(first) else 'missing'}, so all topics, groups, offsets, users "
            f"and policies are gone. Put the files of {self._paths.directory} back from a copy, or {self._remedy}",
        )

    def _read_chain(self, numbers: list[int], base: int, report: JournalReport) -> list[tuple[int, Scan]]:
        """The journals to replay. The last one may be cut here; journals after the cut are removed."""
        if not numbers:
            if base:
                raise StoreCorrupt(self._paths.journal(base), 0, "the file is missing")
            return [(0, scan(b"", 0))]
        if numbers[0] != base:
            raise StoreCorrupt(self._paths.journal(base), 0, "the file is missing")
        chain = []
        for number in numbers:
            path = self._paths.journal(number)
            data = self._fs.read(path)
            found = scan(data, number)
            chain.append((number, found))
            self._earlier[path] = KnownFile(path, found.good_bytes, large_crc32(data[: found.good_bytes]))
        for index, (number, found) in enumerate(chain):
            later = chain[index + 1 :]
            # A file that ends between two records looks whole. The header of the next journal has the full length of
            # this file, and so shows whether records are missing.
            reason = found.damage or _lost_tail(number, found, later)
            if reason:
                self._cut(chain[index], later, reason, report)
                return chain[: index + 1]
        return chain

    def _cut(self, torn: tuple[int, Scan], later: list[tuple[int, Scan]], reason: str, report: JournalReport) -> None:
        number, found = torn
        path = self._paths.journal(number)
        # A later journal that was synced proves that this journal was whole on disk.
        if found.rotten or any(after.durable_bytes > 0 for _, after in later):
            raise StoreCorrupt(path, found.good_bytes, reason)
        report.cuts.append(TornTail(path, found.good_bytes, self._fs.size(path) - found.good_bytes, reason))
        # Remove the newest first: a crash in between leaves a chain without gaps, which the next start cuts at the same
        # place.
        for later_number, _ in reversed(later):
            later_path = self._paths.journal(later_number)
            report.cuts.append(TornTail(later_path, 0, self._fs.size(later_path), "it follows a cut journal"))
            self._fs.remove(later_path)

    def _sync_earlier(self, number: int, found: Scan) -> None:
        self._write_again(number, found)
        file = self._fs.open_append(self._paths.journal(number))
        try:
            file.sync()
        finally:
            file.close()

    def _write_again(self, number: int, found: Scan) -> None:
        """Rewrite the bytes after those that records call durable: an earlier process may have failed to sync them."""
        if found.durable_bytes >= found.good_bytes:
            return
        file = self._fs.open_map(self._paths.journal(number), create=False)
        try:
            write_again(file, found.durable_bytes, found.good_bytes)
        finally:
            file.close()

    def _open_last(self, number: int, found: Scan, previous_bytes: int) -> None:
        self._number = number
        self._file = file = self._fs.open_append(self._paths.journal(number))
        good = found.good_bytes
        if file.size() > good:
            file.truncate(good)
        if good < HEADER_BYTES:
            file.truncate(0)
            file.write(encode_header(number, previous_bytes))
            good = HEADER_BYTES
            self._crc = crc32(encode_header(number, previous_bytes))
            self._earlier.pop(self._paths.journal(number), None)
        else:
            self._crc = self._earlier.pop(self._paths.journal(number)).crc
        # From here on the broker acts on the replayed changes, so they must not be lost.
        self._write_again(number, found)
        file.sync()
        self._bytes = self._durable_bytes = good

    # --- changes

    def append(self, kind: str, payload: Any) -> None:
        """Hand one change to the kernel: a record of ``kind``, see `Journalled`.

        If that fails, OSError or StoreError is raised, and the file is as before.
        """
        file = self._writable()
        # A record carries the durable length that is known when the record is written: `sync` raises this length when
        # its fsync has returned. So no record claims more than was on disk when it was written.
        data = encode_record(kind, payload, self._durable_bytes)
        try:
            file.write(data)
        except (OSError, StoreError) as error:
            self._repair(file)
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"{file.path} cannot be written: {error}") from error
        self._bytes += len(data)
        self._crc = crc32(data, self._crc)
        self.on_append()

    def sync(self) -> None:
        """Make everything appended before this call survive power loss. Blocks: call it in a thread."""
        # `_sync_lock`: one fsync at a time. The other lock is only held for moments, because the event loop takes it,
        # too, to begin a compaction, and must never wait for a disk.
        with self._sync_lock:
            with self._files_lock:
                file = self._writable()
                retired = list(self._retired)
                number, size = self._number, self._bytes
            try:
                # Oldest first: no journal may count as durable before all earlier journals are.
                for old in retired:
                    old.sync()
                file.sync()
            except OutOfDescriptors:
                raise  # nothing was synced; the next call can do it
            except (OSError, StoreError) as error:
                self._failure = f"fsync of {file.path} failed ({error}): metadata is read-only until a restart"
                raise StoreError(self._failure) from error
            with self._files_lock:
                # Bytes appended while the fsync ran do not count. If a compaction has begun another journal meanwhile,
                # no record will mention this length, which belongs to the former journal.
                if number == self._number:
                    self._durable_bytes = max(self._durable_bytes, size)
                self._retired = [old for old in self._retired if old not in retired]
            for old in retired:
                old.close()

    def close(self) -> None:
        """Sync, append a record with the durable length, and close. Blocks: call it in a thread."""
        if self._file is None:
            return
        try:
            if not self._failure:
                self.sync()
                self.append(MARK, None)
                self.sync()
        finally:
            for file in [*self._retired, self._file]:
                file.close()
            self._retired, self._file = [], None

    def _writable(self) -> AppendFile:
        if self._failure:
            raise StoreError(self._failure)
        if self._file is None:
            raise StoreError(f"the metadata journal in {self._paths.directory} is closed")
        return self._file

    def _repair(self, file: AppendFile) -> None:
        """Remove bytes of a failed write: a torn record before other records would count as damage at recovery."""
        try:
            file.truncate(self._bytes)
        except OSError as error:
            self._failure = f"{file.path} cannot be written ({error}): metadata is read-only until a restart"

    # --- backup, and checks of the files

    def known_files(self) -> list[KnownFile]:
        """The snapshot and the journals as they must be on disk now. A compaction removes them."""
        current = [] if self._file is None else [KnownFile(self._file.path, self._bytes, self._crc)]
        return [*self._earlier.values(), *current]

    @property
    def position(self) -> JournalPosition:
        """How far the changes have been appended."""
        return JournalPosition(self._number, self._bytes)

    def files_to(self, position: JournalPosition) -> list[tuple[str, int | None]]:
        """The files that restore the state at ``position``: path, and how many of their bytes; None: all, for ever.

        Blocks. No compaction may have run since, nor run until the caller has the files.
        """
        paths = self._paths
        listing = paths.listing(self._fs)
        base = max(listing.snapshots, default=0)
        files: list[tuple[str, int | None]] = [(paths.snapshot(base), None)] if base else []
        for number in listing.journals:
            if base <= number <= position.number:
                path = paths.journal(number)
                files.append((path, position.bytes if number == position.number else self._fs.size(path)))
        return files

    # --- compaction

    @property
    def wants_compaction(self) -> bool:
        """Whether the chain is so long that a snapshot is worth its cost."""
        return self._earlier_bytes + self._bytes > self._compact_at

    def begin_compaction(self) -> Compaction:
        """Begin the next journal. Take the state in the same turn of the loop and give it to ``Compaction.write``."""
        current, number = self._writable(), self._number + 1
        path = self._paths.journal(number)
        file: AppendFile | None = None
        try:
            file = self._fs.open_append(path)
            # The header has the length of the present journal, so that recovery notices if its tail is lost.
            file.write(encode_header(number, self._bytes))
        except (OSError, StoreError) as error:
            if file is not None:
                file.close()
                with contextlib.suppress(OSError):
                    self._fs.remove(path)
            self._compact_at = 2 * (self._earlier_bytes + self._bytes)
            raise StoreError(f"{path} cannot be made: {error}") from error
        self._earlier[current.path] = KnownFile(current.path, self._bytes, self._crc)
        with self._files_lock:
            self._retired.append(current)
            self._file, self._number = file, number
            self._earlier_bytes += self._bytes
            self._crc = crc32(encode_header(number, self._bytes))
            self._bytes, self._durable_bytes = HEADER_BYTES, 0
        return Compaction(self._fs, self._paths, number)

    def replace(self, state: Iterable[tuple[str, Any]]) -> None:
        """Replace everything by a snapshot of ``state``, atomically. Blocks."""
        compaction = self.begin_compaction()
        try:
            compaction.write(state)
        finally:
            self.end_compaction(compaction)

    def end_compaction(self, compaction: Compaction) -> None:
        """Record how ``compaction`` ended."""
        if compaction.snapshot_bytes:
            self._snapshot_bytes = compaction.snapshot_bytes
            path = self._paths.snapshot(self._number)
            self._earlier = {path: KnownFile(path, compaction.snapshot_bytes, compaction.snapshot_crc)}
            self._earlier_bytes = 0
            self._compact_at = self._compaction_threshold()
        else:  # the compaction failed, perhaps on a full disk: wait until the chain has grown before the next try
            self._compact_at = 2 * (self._earlier_bytes + self._bytes)

    def _compaction_threshold(self) -> int:
        return max(COMPACT_MIN_BYTES, COMPACT_FACTOR * self._snapshot_bytes)


def _lost_tail(number: int, found: Scan, later: list[tuple[int, Scan]]) -> str:
    """Why this journal must have lost its tail, by the header of the next journal; "" if it has not."""
    if not later:
        return ""
    next_number, following = later[0]
    if next_number != number + 1:
        return f"journal {number + 1}, which follows it, is missing"
    if following.previous_bytes in (None, found.good_bytes):
        return ""
    return f"it had {following.previous_bytes} bytes when the next journal was begun"


def _apply(records: list[JournalRecord], path: str, on_record: OnRecord) -> int:
    changes = [record for record in records if record.kind != MARK]
    for offset, kind, payload in changes:
        try:
            on_record(kind, payload)
        except UnknownKind:
            raise NewerVersion(path, offset, f"it has records {kind!r}") from None
        except (KeyError, ValueError, TypeError, AttributeError, ProtocolError) as error:
            reason = f"the record {kind!r} cannot be used ({type(error).__name__}: {error})"
            raise StoreCorrupt(path, offset, reason) from error
    return len(changes)


def set_aside(fs: FileSystem, directory: str) -> list[str]:
    """Give all journals and snapshots in ``directory`` names that no start reads; returns these. Blocks."""
    paths = JournalPaths(directory)
    listing, moved = paths.listing(fs), []
    for path in [*map(paths.journal, listing.journals), *map(paths.snapshot, listing.snapshots)]:
        fs.rename(path, f"{path}.damaged")
        moved.append(f"{path}.damaged")
    fs.fsync_dir(directory)
    return moved


def _no_sync() -> None:
    pass


def snapshot_records(fs: FileSystem, path: str, number: int) -> tuple[list[JournalRecord], int, int]:
    """The records of snapshot ``number`` at ``path``, its size, and its CRC; StoreCorrupt if it is not whole."""
    data = fs.read(path)
    found = scan(data, number)
    # The last record counts the other records. The repair of a file system may leave zeros after it.
    if (found.damage and any(data[found.good_bytes :])) or not data:
        raise StoreCorrupt(path, found.good_bytes, found.damage or "the file is empty")
    if not found.records or found.records[-1][1:] != (END, len(found.records) - 1):
        raise StoreCorrupt(path, found.good_bytes, "its end is missing")
    return found.records[:-1], len(data), large_crc32(data)


def check_journal(fs: FileSystem, directory: str) -> Iterator[JournalDamage]:
    """All damage in the newest snapshot and the journals after it."""
    paths = JournalPaths(directory)
    listing = paths.listing(fs)
    base = max(listing.snapshots, default=0)
    if base:
        path = paths.snapshot(base)
        data = fs.read(path)
        found = scan(data, base)
        if found.damage and (any(data[found.good_bytes :]) or not found.records):
            yield JournalDamage(path, found.good_bytes, found.damage, rotten=True)
    numbers = [number for number in listing.journals if number >= base]
    for number in numbers:
        path = paths.journal(number)
        found = scan(fs.read(path), number)
        if found.damage:
            rotten = found.rotten or number != numbers[-1]
            note = "" if rotten else "; a torn tail, which the next start cuts"
            yield JournalDamage(path, found.good_bytes, found.damage + note, rotten)

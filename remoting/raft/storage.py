"""What a node keeps on its disk: its identity, a snapshot, and a log of records.

The log is a file of records, each with a length and a CRC; one record holds what one fsync made safe: a hard state, and
entries that replace all entries from their first index on. It is rewritten as a whole when a snapshot makes it shorter.
An incomplete record at the end of the file was never acknowledged and is cut off. A damaged record that another record
follows means that the disk has lost data: such a node must not go on, since it does not know what it promised.

A file that ends with a whole record may still have lost later records. So ``mark`` says, in two copies, how long the
log was: after each fsync of the log the mark is written through a map, without an fsync of its own. A killed process
leaves the latest mark. A power loss may leave an older mark, which claims less. The first record is written with the
file, so it always exists. It says that there is a mark, which is on disk before the first record and again before the
second record.
"""

import os
import zlib
from collections.abc import Sequence
from struct import Struct
from typing import Any, Protocol

from skylark.mqcommon.disk.atomic import write_atomic
from skylark.mqcommon.disk.files import AppendFile, FileSystem, MappedFile
from skylark.mqcommon.disk.write_again import write_again
from skylark.mqcommon.errors import NewerVersion, ProtocolError, StoreCorrupt
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.raft.log import MemoryEntries
from skylark.mqcommon.raft.messages import RaftEntry, Snapshot
from skylark.mqcommon.raft.ready import HardState, Persist
from skylark.remoting.protocol.strict_cbor import dumps, loads
from skylark.remoting.raft.codec import entries_of, entry_fields, snapshot_fields, snapshot_of

HEAD = Struct(">II")  # bytes of the record, their CRC
# The head of the log's first record, the bytes of the log, and the CRC of both. It stands on two pages.
MARK = Struct(">8sQI")
MARKS_AT = (0, 4096)
MARK_FILE_BYTES = MARKS_AT[-1] + MARK.size
# After the index and the term of the entry before the first: a mark was on disk before this log.
_IS_MARKED = 1
# Of a record: vote, base and entries. Of its base: index, term, and that there is a mark.
RECORD_FIELDS, BASE_FIELDS = 3, 3


@lazy_dataclass(frozen=True, slots=True)
class Stored:
    """The stored state of a node. ``base``: the index and the term of the entry before the first."""

    hard_state: HardState
    snapshot: Snapshot
    base: tuple[int, int]
    entries: Sequence[RaftEntry]


class Storage(Protocol):
    """Where a node stores its state.

    Methods block until their data survives power loss; the node calls them in a thread, one at a time.
    """

    def load(self) -> Stored | None:
        """Read the stored state. None: nothing is stored, so the node has promised nothing, or has lost its disk."""

    def begin(self, node: str, snapshot: Snapshot) -> None:
        """Write down that this node is ``node`` from now on, with ``snapshot`` and an empty log."""

    @property
    def node(self) -> str:
        """The id of ``begin``; known after ``load``."""

    def write(self, persist: Persist) -> None: ...

    def compact(self, snapshot: Snapshot, base: tuple[int, int], entries: Sequence[RaftEntry]) -> None:
        """Let ``snapshot`` replace the log, of which ``entries`` remain."""

    def close(self) -> None: ...


class FileStorage:
    """Storage in a locked directory of its own."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self.node = ""
        self._fs = fs
        self._snapshot_path = os.path.join(directory, "snapshot")
        self._log_path = os.path.join(directory, "log")
        self._directory = directory
        self._mark_path = os.path.join(directory, "mark")
        self._mark: MappedFile | None = None
        self._log_head = b""
        self._hard_state = HardState()
        self._log: AppendFile | None = None
        fs.mkdirs(directory)
        self._lock = fs.lock(os.path.join(directory, "lock"))

    def load(self) -> Stored | None:
        if not self._fs.exists(self._snapshot_path):
            self._refuse_without_snapshot()
            return None
        self.node, snapshot = self._read_snapshot()
        records, whole = self._read_log()
        # Checked before anything is used: a node that goes on with less than it promised could elect a leader that
        # lacks committed entries, or vote twice in a term.
        self._refuse_lost(records, whole)
        base, entries = (snapshot.index, snapshot.term), MemoryEntries(snapshot.index, snapshot.term)
        for record in records:
            if len(record) != RECORD_FIELDS or len(record[1] or ()) > BASE_FIELDS:
                raise NewerVersion(self._log_path, 0, "its records have more fields")
            vote, found_base, fields = record
            if vote is not None:
                self._hard_state = HardState(*vote)
            if found_base is not None:
                base = found_base[0], found_base[1]
                entries = MemoryEntries(*base)
            if fields:
                entries.append(entries_of(fields))
        kept = entries.read(base[0] + 1, entries.last + 1, 1 << 62)
        if base[0] > snapshot.index or entries.term(snapshot.index) != snapshot.term:
            # The node ended after it had stored a snapshot of the leader, and before it had rewritten the log.
            base, kept = (snapshot.index, snapshot.term), ()
            self._rewrite(base, kept)
        elif not _is_marked(records):
            self._rewrite(base, kept)  # an older version wrote this log
        else:
            self._open_whole(whole)
        return Stored(self._hard_state, snapshot, base, kept)

    def _refuse_without_snapshot(self) -> None:
        """StoreCorrupt if the log has more than `begin` has written before the first snapshot."""
        records, _ = self._read_log()
        begun = len(records) == 1 and records[0][0] == [0, ""] and not records[0][2]
        if records and not begun:
            raise self._lost(self._snapshot_path, 0, "the file is gone, and the log that follows it is there")

    def _refuse_lost(self, records: list[Any], whole: int) -> None:
        """StoreCorrupt if the log had more records than these, which take ``whole`` bytes."""
        lost = ""
        if not records or records[0][1] is None:
            lost = "it has lost its first records"
        else:
            marks = self._read_marks()
            own = [size for head, size in marks if head == self._log_head]
            if own and max(own) > whole:
                lost = f"it ends here, and had {max(own)} bytes"
            elif _is_marked(records) and not marks:
                lost = f"it is not known how long it was, as {self._mark_path} is missing or damaged"
            elif _is_marked(records) and not own and (len(records) > 1 or self._fs.size(self._log_path) > whole):
                # The mark may belong to the log before only between the first record and the mark that counts this
                # record.
                lost = f"it is not known how long it was, as {self._mark_path} is about another log"
        if lost:
            raise self._lost(self._log_path, whole, lost)

    def _lost(self, path: str, offset: int, reason: str) -> StoreCorrupt:
        return StoreCorrupt(
            path,
            offset,
            f"{reason}: {f'node {self.node}' if self.node else 'this node'} has forgotten what it promised, and must "
            "not go on. While the other nodes are a majority and whole, move the directory "
            f"{self._directory} away: the node joins them anew. Otherwise put a copy of the directory back "
            "(docs/how/raft.md)",
        )

    def _read_marks(self) -> list[tuple[bytes, int]]:
        """The copies of the mark that are sound."""
        data = self._fs.read(self._mark_path) if self._fs.exists(self._mark_path) else b""
        found = []
        for at in MARKS_AT:
            copy = data[at : at + MARK.size]
            if len(copy) == MARK.size and copy[-4:] == zlib.crc32(copy[:-4]).to_bytes(4, "big"):
                head, size, _ = MARK.unpack(copy)
                found.append((head, size))
        return found

    def _write_mark(self, *, sync: bool = False) -> None:
        """Write the length of the log, all of which is on disk, to the mark."""
        if self._mark is None:
            self._mark = self._fs.open_map(self._mark_path, MARK_FILE_BYTES, create=True)
        # Not synced: after a power loss an old mark claims less than is there. The log's head tells whether the mark
        # belongs to this log, or to a log that was replaced since.
        size = 0 if self._log is None else self._log.size()
        known = MARK.pack(self._log_head, size, 0)[: MARK.size - 4]
        for at in MARKS_AT:
            self._mark.view[at : at + MARK.size] = known + zlib.crc32(known).to_bytes(4, "big")
        if sync:
            self._mark.sync()

    def _open_whole(self, size: int) -> None:
        self._log = self._fs.open_append(self._log_path)
        if self._log.size() > size:
            self._log.truncate(size)
        # A killed process may have left records that only the kernel has, perhaps because a sync failed. This node
        # promises them from now on.
        file = self._fs.open_map(self._log_path, create=False)
        try:
            write_again(file, 0, size)
            file.sync()
        finally:
            file.close()
        self._write_mark(sync=True)

    def begin(self, node: str, snapshot: Snapshot) -> None:
        # The snapshot last: its file means that the node has begun, and then there must be a log.
        self.node = node
        self._rewrite((snapshot.index, snapshot.term), ())
        self._write_snapshot(snapshot)

    def write(self, persist: Persist) -> None:
        if persist.hard_state is not None:
            self._hard_state = persist.hard_state
        if persist.snapshot is not None:
            # The snapshot first: at a start, a snapshot that does not fit to the log counts as the newer of the two.
            self._write_snapshot(persist.snapshot)
            self._rewrite((persist.snapshot.index, persist.snapshot.term), persist.entries)
            return
        assert self._log is not None
        # Vote and entries in one record and one fsync: a node must not answer with one of the two and lose the other.
        vote = None if persist.hard_state is None else [persist.hard_state.term, persist.hard_state.vote]
        self._log.write(_record([vote, None, entry_fields(persist.entries)]))
        self._log.sync()
        # After the sync: the mark must never claim what is not on disk.
        self._write_mark()

    def compact(self, snapshot: Snapshot, base: tuple[int, int], entries: Sequence[RaftEntry]) -> None:
        # The snapshot first: a crash then leaves entries that it covers, and never a gap between it and the log.
        self._write_snapshot(snapshot)
        self._rewrite(base, entries)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
        if self._mark is not None:
            self._mark.close()
        self._lock.close()

    def _write_snapshot(self, snapshot: Snapshot) -> None:
        write_atomic(self._fs, self._snapshot_path, _record([self.node, snapshot_fields(snapshot)]))

    def _read_snapshot(self) -> tuple[str, Snapshot]:
        data = self._fs.read(self._snapshot_path)
        payload, _ = _read_record(data, 0)
        if payload is None:
            raise self._lost(self._snapshot_path, 0, "the snapshot is damaged")
        node, fields = payload
        return node, snapshot_of(fields)

    def _rewrite(self, base: tuple[int, int], entries: Sequence[RaftEntry]) -> None:
        vote = [self._hard_state.term, self._hard_state.vote]
        if self._mark is None:
            # The new log says that there is a mark.
            self._write_mark(sync=True)
        if self._log is not None:
            self._log.close()
        first = _record([vote, [*base, _IS_MARKED], entry_fields(entries)])
        write_atomic(self._fs, self._log_path, first)
        self._log_head = first[: HEAD.size]
        self._log = self._fs.open_append(self._log_path)
        # Synced, so that only a log of one record may have the mark of another log.
        self._write_mark(sync=True)

    def _read_log(self) -> tuple[list[Any], int]:
        """The records, and how many bytes of the file they take."""
        data = self._fs.read(self._log_path) if self._fs.exists(self._log_path) else b""
        self._log_head = data[: HEAD.size]
        records, at = [], 0
        while at < len(data):
            record, end = _read_record(data, at)
            if record is None:
                # The last write may be torn: no answer depended on it. A whole record after a damaged one means that
                # records are lost that were synced, and perhaps promised.
                if end < len(data) and _read_record(data, end)[0] is not None:
                    raise self._lost(self._log_path, at, "damaged, and what follows is not")
                break
            records.append(record)
            at = end
        return records, at


def _is_marked(records: list[Any]) -> bool:
    """Whether the log was begun by a version that always has a mark on disk."""
    return len(records[0][1]) > 2


def _record(content: Any) -> bytes:
    payload = dumps(content)
    return HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def _read_record(data: bytes, at: int) -> tuple[Any, int]:
    """The content of the record at ``at``, None when it is damaged or incomplete; and where the next record begins."""
    if len(data) - at < HEAD.size:
        return None, len(data)
    size, crc = HEAD.unpack_from(data, at)
    end = at + HEAD.size + size
    payload = data[at + HEAD.size : end]
    if len(payload) < size or zlib.crc32(payload) != crc:
        return None, end
    try:
        return loads(payload), end
    except ProtocolError:
        return None, end

"""What a node keeps on its disk: its identity, a snapshot, and a log of records.

The log is a file of records, each with a length and a CRC; one record holds what one fsync made safe: a hard state, and
entries that replace what stands from their first index on. It is rewritten as a whole when a snapshot makes it shorter.
A record that is not whole at the end of the file was never acknowledged and is cut off. A damaged record
that another one follows is rot: such a node must not go on, since it does not know what it promised.

A file that ends with a whole record may still have lost others. So ``mark`` says how long the log was: after each
fsync of the log it is written through a map, without an fsync of its own. A killed process leaves the latest one. A
power loss may leave an older mark, which claims less. The first record is written with the file, so it is always there.
"""

import os
import zlib
from collections.abc import Sequence
from struct import Struct
from typing import Any, Protocol

from mqcommon.disk.atomic import write_atomic
from mqcommon.disk.files import AppendFile, FileSystem, MappedFile
from mqcommon.disk.write_again import write_again
from mqcommon.errors import ProtocolError, StoreCorrupt
from mqcommon.lazy_dataclass import lazy_dataclass
from mqcommon.raft.log import MemoryEntries
from mqcommon.raft.messages import RaftEntry, Snapshot
from mqcommon.raft.ready import HardState, Persist
from remoting.protocol.strict_cbor import dumps, loads
from remoting.raft.codec import entries_of, entry_fields, snapshot_fields, snapshot_of

HEAD = Struct(">II")  # bytes of the record, their CRC
# The head of the log's first record, the bytes of the log, and the CRC of both.
MARK = Struct(">8sQI")


@lazy_dataclass(frozen=True, slots=True)
class Stored:
    """What a node knew when it ended. ``base``: the index and the term of the entry before the first."""

    hard_state: HardState
    snapshot: Snapshot
    base: tuple[int, int]
    entries: Sequence[RaftEntry]


class Storage(Protocol):
    """Its methods block until what they write survives power loss; the node calls them in a thread, one at a time."""

    def load(self) -> Stored | None:
        """None: nothing is stored, so the node has promised nothing, or has lost its disk."""

    def begin(self, node: str, snapshot: Snapshot) -> None:
        """The node is ``node`` from now on, with ``snapshot`` and an empty log."""

    @property
    def node(self) -> str:
        """The id of ``begin``; known after ``load``."""

    def write(self, persist: Persist) -> None: ...

    def compact(self, snapshot: Snapshot, base: tuple[int, int], entries: Sequence[RaftEntry]) -> None:
        """``snapshot`` stands for the log, of which ``entries`` remain."""

    def close(self) -> None: ...


class FileStorage:
    """A directory of its own, locked."""

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
            return None
        self.node, snapshot = self._read_snapshot()
        records, whole = self._read_log()
        # Before anything is used: a node that goes on with less than it promised could elect a leader that lacks
        # committed entries, or vote twice in a term.
        self._refuse_lost(records, whole)
        base, entries = (snapshot.index, snapshot.term), MemoryEntries(snapshot.index, snapshot.term)
        for vote, found_base, fields in records:
            if vote is not None:
                self._hard_state = HardState(*vote)
            if found_base is not None:
                base, entries = tuple(found_base), MemoryEntries(*found_base)
            if fields:
                entries.append(entries_of(fields))
        if base[0] > snapshot.index or entries.term(snapshot.index) != snapshot.term:
            # A snapshot of the leader came, and the log that it replaces was not rewritten any more.
            base, entries = (snapshot.index, snapshot.term), MemoryEntries(snapshot.index, snapshot.term)
            self._rewrite(base, ())
        else:
            self._open_whole(whole)
        return Stored(self._hard_state, snapshot, base, entries.read(base[0] + 1, entries.last + 1, 1 << 62))

    def _refuse_lost(self, records: list[Any], whole: int) -> None:
        """StoreCorrupt if the log had more records than these, which take ``whole`` bytes."""
        lost = ""
        if not records or records[0][1] is None:
            lost = "it has lost its first records"
        else:
            data = self._fs.read(self._mark_path) if self._fs.exists(self._mark_path) else b""
            head, size, crc = MARK.unpack(data[: MARK.size].ljust(MARK.size, b"\0"))
            is_true = crc == zlib.crc32(data[: MARK.size - 4]) and head == self._log_head
            if is_true and size > whole:
                lost = f"it ends here, and had {size} bytes"
        if lost:
            raise StoreCorrupt(
                self._log_path,
                whole,
                f"{lost}: node {self.node} has forgotten what it promised, and must not go on. While the other nodes "
                f"are a majority and whole, remove the directory {self._directory}: the node joins them anew. "
                "Otherwise put a copy of the directory back (docs/raft.md)",
            )

    def _note_size(self) -> None:
        """Note how long the log is; all of it is on disk."""
        if self._log is None:
            return
        if self._mark is None:
            self._mark = self._fs.open_map(self._mark_path, MARK.size, create=True)
        # Not synced: after a power loss an old mark claims less than is there, and a torn one fails its CRC. The log's
        # head tells whether the mark is about this log, or about one that was replaced since.
        known = MARK.pack(self._log_head, self._log.size(), 0)[: MARK.size - 4]
        self._mark.view[: MARK.size] = known + zlib.crc32(known).to_bytes(4, "big")

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
        self._note_size()

    def begin(self, node: str, snapshot: Snapshot) -> None:
        # The snapshot last: its file says that the node has begun, and then there must be a log.
        self.node = node
        self._rewrite((snapshot.index, snapshot.term), ())
        self._write_snapshot(snapshot)

    def write(self, persist: Persist) -> None:
        if persist.hard_state is not None:
            self._hard_state = persist.hard_state
        if persist.snapshot is not None:
            # First the snapshot: it is known to be newer than a log that does not fit to it.
            self._write_snapshot(persist.snapshot)
            self._rewrite((persist.snapshot.index, persist.snapshot.term), persist.entries)
            return
        assert self._log is not None
        # Vote and entries in one record and one fsync: a node must not answer with one of them and lose the other.
        vote = None if persist.hard_state is None else [persist.hard_state.term, persist.hard_state.vote]
        self._log.write(_record([vote, None, entry_fields(persist.entries)]))
        self._log.sync()
        # After the sync: the mark must never claim what is not on disk.
        self._note_size()

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
        payload, _ = _take(data, 0)
        if payload is None:
            raise StoreCorrupt(self._snapshot_path, 0, "the snapshot is damaged")
        node, fields = payload
        return node, snapshot_of(fields)

    def _rewrite(self, base: tuple[int, int], entries: Sequence[RaftEntry]) -> None:
        vote = [self._hard_state.term, self._hard_state.vote]
        if self._log is not None:
            self._log.close()
        first = _record([vote, list(base), entry_fields(entries)])
        write_atomic(self._fs, self._log_path, first)
        self._log_head = first[: HEAD.size]
        self._log = self._fs.open_append(self._log_path)
        self._note_size()

    def _read_log(self) -> tuple[list[Any], int]:
        """The records, and how many bytes of the file they take."""
        data = self._fs.read(self._log_path) if self._fs.exists(self._log_path) else b""
        self._log_head = data[: HEAD.size]
        records, at = [], 0
        while at < len(data):
            record, end = _take(data, at)
            if record is None:
                # The last write may be torn: nobody was told of it. A whole record behind a damaged one means that what
                # was synced, and perhaps promised, is gone.
                if end < len(data) and _take(data, end)[0] is not None:
                    raise StoreCorrupt(self._log_path, at, "damaged, and what follows is not: this node's disk lies")
                break
            records.append(record)
            at = end
        return records, at


def _record(content: Any) -> bytes:
    payload = dumps(content)
    return HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def _take(data: bytes, at: int) -> tuple[Any, int]:
    """The content of the record at ``at``, None when it is not whole; and where the next one is."""
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

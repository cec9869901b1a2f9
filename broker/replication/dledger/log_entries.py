"""The entries of a member as mqcommon/raft sees them. The bytes of messages stand in the commit log only.

The data of an application's entry is one of

    "L" 1 | start 8 | size 4 | crc 4            bytes of the commit log: whole records, and fillers of its files
    "M" 1 | CBOR [[kind, payload], ...]         changes of tables, which the side file keeps

An "L" entry that travels has its bytes after that. `LogEntries.append` writes them to the commit log, so neither Raft
nor anything else keeps them in memory. The leader's own are in the log before the entry is made.
"""

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple, Protocol
from zlib import crc32

from skylark.broker.replication.dledger.entry_file import IN_LOG, INLINE
from skylark.broker.replication.dledger.entry_index import EntryIndex
from skylark.broker.store.log.commitlog import CommitLog
from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.raft.errors import RaftError
from skylark.mqcommon.raft.messages import APPLICATION, RaftEntry

IN_LOG_MARK, TABLES_MARK = b"L", b"M"
REFERENCE = Struct(">cQII")


class Reference(NamedTuple):
    """The bytes of an entry in the commit log."""

    start: int
    size: int
    crc: int

    def pack(self) -> bytes:
        return REFERENCE.pack(IN_LOG_MARK, *self)


def reference_of(data: bytes) -> Reference | None:
    """What the data of an application's entry names; None when it has its bytes itself."""
    if data[:1] != IN_LOG_MARK:
        return None
    return Reference(*REFERENCE.unpack_from(data)[1:])


def travelling_bytes(data: bytes) -> int:
    """How many bytes an entry with this data has when it travels."""
    found = reference_of(data)
    return len(data) if found is None else REFERENCE.size + found.size


def check_travelled(entry: RaftEntry) -> None:
    """ProtocolError unless the entry is whole."""
    if entry.kind != APPLICATION or entry.data[:1] == TABLES_MARK:
        return
    if len(entry.data) < REFERENCE.size or entry.data[:1] != IN_LOG_MARK:
        raise ProtocolError(f"entry {entry.index} is of no known kind")
    found = reference_of(entry.data)
    assert found is not None
    payload = memoryview(entry.data)[REFERENCE.size :]
    if len(payload) != found.size or crc32(payload) != found.crc:
        raise ProtocolError(f"the bytes of entry {entry.index} do not match their CRC")


def has_travelled_whole(entry: RaftEntry) -> bool:
    """Whether the entry, with its bytes, is as `check_travelled` wants it."""
    try:
        check_travelled(entry)
    except ProtocolError:
        return False
    return True


class LogWriter(Protocol):
    """Where a follower's bytes go."""

    def append(self, data: memoryview) -> int:
        """Write bytes at the end of the log; returns how many fit into its file."""


class LogEntries:
    """See `skylark.mqcommon.raft.log.Entries`. ``writer`` is set while this member may get entries of a leader."""

    def __init__(self, index: EntryIndex, log: CommitLog) -> None:
        self.index = index
        self._log = log
        self.writer: LogWriter | None = None
        # Where the log begins, and the last entry before that.
        self._known_start = -1
        self._known_rewrites = 0
        self._base = 0
        #: Where the commit log begins after `restart`.
        self.restart_position = 0

    @property
    def base(self) -> int:
        # Cleaning removes files from the start of the log; which entries went with them is looked up once for each
        # start, and when slots are mended: more entries may prove themselves then.
        start, index = self._log.start, self.index
        if start != self._known_start or index.rewrites != self._known_rewrites or self._base < index.first - 1:
            self._known_start, self._known_rewrites = start, index.rewrites
            self._base = index.last_lost(start)
        return self._base

    @property
    def last(self) -> int:
        return self.index.last

    @property
    def position(self) -> int:
        """Where the commit log ends after the last entry."""
        return self.index.position

    def term(self, index: int) -> int | None:
        return self.index.term(index) if index >= self.base else None

    def read(self, first: int, end: int, max_bytes: int) -> tuple[RaftEntry, ...]:
        entries: list[RaftEntry] = []
        size = 0
        for index in range(first, end):
            entry = self.at(index)
            size += travelling_bytes(entry.data)
            if entries and size > max_bytes:
                break
            entries.append(entry)
        return tuple(entries)

    def at(self, index: int) -> RaftEntry:
        found = self.index.entry(index)
        if found.place == IN_LOG:
            data = Reference(found.start, found.size, found.crc).pack()
        else:
            data = self.index.data(index, found.size)
        return RaftEntry(index, found.term, found.kind, data)

    def append(self, entries: Sequence[RaftEntry]) -> None:
        """Append ``entries``; RaftError unless they follow the last entry.

        Entries that differ from a leader's are removed before, see log_disk.py.
        """
        for entry in entries:
            if entry.index != self.last + 1:
                raise RaftError(f"entry {entry.index} came where {self.last + 1} was expected")
            found = reference_of(entry.data) if entry.kind == APPLICATION else None
            if found is None:
                data = entry.data
                self.index.append(entry.term, entry.kind, INLINE, len(data), crc32(data), data)
                continue
            if found.start != self.position:
                raise RaftError(f"entry {entry.index} begins at {found.start} of the log, not at {self.position}")
            # A leader's own entries have no bytes with them: these are in the log.
            if len(entry.data) > REFERENCE.size:
                self._write(memoryview(entry.data)[REFERENCE.size :])
            self.index.append(entry.term, entry.kind, IN_LOG, found.size, found.crc)

    def _write(self, payload: memoryview) -> None:
        if self.writer is None or self._log.raw_end != self.position:
            raise RaftError(f"the log ends at {self._log.raw_end}, and its entries at {self.position}")
        while payload:
            written = self.writer.append(payload)
            if not written:
                raise RaftError("the log has no room for an entry")
            payload = payload[written:]

    def forget_after(self, index: int) -> None:
        self.index.forget_after(index)

    def restart(self, base: int, base_term: int) -> None:
        self.index.begin(base, base_term, self.restart_position)
        self._known_start = -1

    def drop_through(self, index: int) -> None:
        """Do nothing: entries go with the files of the commit log, see `base`."""

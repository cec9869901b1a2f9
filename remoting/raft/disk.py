"""What a node keeps on its disk, and how its entries travel: `Disk`. `FileDisk` has the log in files of its own.

An application whose entries stand in a store of its own has its own `Disk`: then the data of an entry only names bytes
of that store, which are read when the entry is sent.
"""

from collections.abc import Sequence
from typing import Protocol

import trio

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.raft.log import Entries, MemoryEntries, RaftLog
from skylark.mqcommon.raft.messages import RaftMessage, Snapshot
from skylark.mqcommon.raft.raft import Raft
from skylark.mqcommon.raft.ready import HardState, Persist
from skylark.remoting.raft.codec import check_snapshots, decode_messages, encode_messages
from skylark.remoting.raft.storage import Storage


@lazy_dataclass(frozen=True, slots=True)
class Loaded:
    """The state of a node when it ended."""

    hard_state: HardState
    snapshot: Snapshot
    entries: Entries


class Disk(Protocol):
    """Where a node keeps its state. What is written survives power loss, unless the application says otherwise.

    One write runs at a time.
    """

    @property
    def node(self) -> str:
        """The id of `begin`; known after `load`."""

    async def load(self) -> Loaded | None:
        """Read the stored state. None: nothing is stored, so the node has promised nothing, or has lost its disk."""

    async def begin(self, node: str, snapshot: Snapshot) -> None:
        """Write down that this node is ``node`` from now on, with ``snapshot`` and an empty log."""

    def write_now(self, persist: Persist) -> bool:
        """Make ``persist`` safe if that needs no wait; False: `write` must do it."""

    async def write(self, persist: Persist) -> None: ...

    async def compact(self, log: RaftLog, snapshot: Snapshot, keep: int) -> None:
        """Let ``snapshot`` replace the entries up to its index; the last ``keep`` of these entries remain."""

    def travelling_bytes(self, data: bytes) -> int:
        """How many bytes an entry with this data has when it is sent."""

    def encode_now(self, messages: Sequence[RaftMessage]) -> bytes | None:
        """The body that carries ``messages``; None if making it needs a wait, as `encode` does."""

    async def encode(self, messages: Sequence[RaftMessage]) -> bytes: ...

    def decode(self, data: bytes) -> list[RaftMessage]:
        """The messages in ``data``. Raises ProtocolError when ``data`` is not what `encode` makes."""

    def is_ready(self, raft: Raft, message: RaftMessage) -> bool:
        """Whether ``raft`` may take ``message`` now; if not, `prepare` comes first, and later messages wait."""

    async def prepare(self, raft: Raft, message: RaftMessage) -> bool:
        """Returns whether ``raft`` may take ``message`` now; False: the message is dropped, as if it had been lost."""


class FileDisk:
    """`Storage` in a thread; entries are in memory, too, and travel as they are."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    @property
    def node(self) -> str:
        return self._storage.node

    async def load(self) -> Loaded | None:
        stored = await trio.to_thread.run_sync(self._storage.load)
        if stored is None:
            return None
        return Loaded(stored.hard_state, stored.snapshot, MemoryEntries(*stored.base, stored.entries))

    async def begin(self, node: str, snapshot: Snapshot) -> None:
        await trio.to_thread.run_sync(self._storage.begin, node, snapshot)

    def write_now(self, persist: Persist) -> bool:
        return False

    async def write(self, persist: Persist) -> None:
        await trio.to_thread.run_sync(self._storage.write, persist)

    async def compact(self, log: RaftLog, snapshot: Snapshot, keep: int) -> None:
        base = max(snapshot.index - keep, log.entries.base)
        entries = log.entries.read(base + 1, log.persisted + 1, 1 << 62)
        await trio.to_thread.run_sync(self._storage.compact, snapshot, (base, log.term(base) or 0), entries)

    def travelling_bytes(self, data: bytes) -> int:
        return len(data)

    def encode_now(self, messages: Sequence[RaftMessage]) -> bytes | None:
        return encode_messages(messages)

    async def encode(self, messages: Sequence[RaftMessage]) -> bytes:
        """Unreachable: `encode_now` never needs a wait."""
        return encode_messages(messages)

    def decode(self, data: bytes) -> list[RaftMessage]:
        messages = decode_messages(data)
        check_snapshots(messages)
        return messages

    def is_ready(self, raft: Raft, message: RaftMessage) -> bool:
        return True

    async def prepare(self, raft: Raft, message: RaftMessage) -> bool:
        """Unreachable: every message may be taken at once."""
        return True

"""Makes entries of the messages that the leader's broker has stored: all messages of a turn together.

The broker appends to its commit log like a broker without a group, without extra cost for a message. At the end of the
turn the new bytes are proposed as entries. They count as stored when a majority has them (`Elected.confirmed`).
"""

from collections.abc import Callable, Iterator
from typing import Protocol
from zlib import crc32

import trio

from skylark.broker.replication.dledger.log_entries import Reference
from skylark.broker.store.log.commitlog import CommitLog
from skylark.mqcommon.errors import StoreCorrupt
from skylark.mqcommon.message.layout import BLANK_BYTES, SIZE_MAGIC
from skylark.mqcommon.polling import poll_until
from skylark.mqcommon.raft.errors import RaftError
from skylark.remoting.raft.group import Done

# An entry has at least one record, and no more than fit into this.
MAX_ENTRY_BYTES = 512 * 1024


class GroupNode(Protocol):
    """The member's node of the Raft group, as this module needs it."""

    @property
    def is_leader(self) -> bool: ...

    def submit(self, data: bytes, done: Done) -> None: ...

    def turn(self) -> None: ...


class Changes(Protocol):
    """Changes of tables (agreed_tables.py), as this module needs them."""

    @property
    def has_pending(self) -> bool: ...

    def propose(self, node: GroupNode) -> None: ...


def pieces(log: CommitLog, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Start and end of the entries for the bytes from ``start`` to ``end``: whole records, in one file each."""
    while start < end:
        segment = log.chain.at(start)
        assert segment is not None
        # An entry lies in one file of the log, as a follower writes it in one piece.
        stop = min(end, segment.end)
        if stop - start > MAX_ENTRY_BYTES:
            stop = _whole_records(log, start, stop)
        yield start, stop
        start = stop


def _whole_records(log: CommitLog, start: int, end: int) -> int:
    """The end of the last record from ``start`` on with which the entry is not too large."""
    at = start
    while at < end:
        # A filler that is too short to say how long it is ends with the file.
        size = SIZE_MAGIC.unpack(log.copy(at, BLANK_BYTES))[0] if end - at >= BLANK_BYTES else end - at
        if not 0 < size <= end - at:
            raise StoreCorrupt(log.chain.directory, at, f"a record of {size} bytes where an entry of the group begins")
        if at > start and at + size - start > MAX_ENTRY_BYTES:
            break
        at += size
    return at


class Proposing:
    """The `LogServer` of a group's leader.

    ``position`` is where the last entry ends, ``confirmed`` where the last committed one does. ``leads``: whether this
    broker accepts messages. ``strangers``: requests of others than members.
    """

    def __init__(
        self,
        log: CommitLog,
        node: Callable[[], GroupNode | None],
        leads: Callable[[], bool],
        position: Callable[[], int],
        confirmed: Callable[[], int],
        strangers: Callable[[], int],
        tables: Changes,
    ) -> None:
        self._log = log
        self._node = node
        self._leads = leads
        self._position = position
        self._confirmed = confirmed
        self._strangers = strangers
        self._tables = tables

    @property
    def strangers(self) -> int:
        return self._strangers()

    def wake(self) -> None:
        if self._leads() and (self._log.end > self._position() or self._tables.has_pending):
            self._propose()

    def beat(self) -> None:
        """As `wake`, for messages that were stored in no turn of a connection."""
        self.wake()

    def _propose(self) -> None:
        node, log = self._node(), self._log
        assert node is not None
        try:
            # First the topics that sends have made.
            if self._tables.has_pending:
                self._tables.propose(node)
            for start, end in pieces(log, self._position(), log.end):
                data = Reference(start, end - start, crc32(log.copy(start, end - start))).pack()
                node.submit(data, _ignore)
        except RaftError:
            # It is being deposed, or hands the leadership over: the rest is proposed later, or cut by the next leader.
            return
        # The entries leave now: the next turn of the node might come only with the next request.
        node.turn()

    async def open(self) -> None:
        """Do nothing: the group's port is always open."""

    async def serve(self) -> None:
        """Sleep until cancelled: members are always served (member.py)."""
        await trio.sleep_forever()

    async def drain(self, timeout_s: float) -> None:
        """Wait until a majority has all of the log, as long as this member leads."""

        def is_done() -> bool:
            node = self._node()
            return node is None or not node.is_leader or self._confirmed() >= self._log.end

        await poll_until(is_done, timeout_s)

    async def close(self) -> None:
        """Do nothing: nothing is open here."""


def _ignore(result: object) -> None:
    """Waits end by the confirm offset, or with the role."""

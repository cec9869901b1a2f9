"""Changes of topics, groups, users and policies go through the group's log: an acknowledged one survives the leader.

The leader changes its table first, as any master does; at the end of the turn the records of the change become an
entry, before the messages of that turn, and the administrator is answered when it is committed (`wait`). Members make
the same change when they learn that it is committed. Tables are copied from the leader as a whole, too (slave_sync.py):
so a deposed leader loses what was not committed, and a new member gets what it missed.
A deletion of a topic is known by its end of the log (meta/topic_deletions.py), which each member's removal waits for.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import cbor2
import trio

from skylark.broker.meta.metadata import Metadata
from skylark.broker.meta.table import Change, JournalledTable
from skylark.broker.meta.topic_deletions import FORMAT as DELETION
from skylark.broker.meta.topic_deletions import TopicDeletion
from skylark.broker.replication.dledger.log_entries import TABLES_MARK
from skylark.broker.replication.dledger.proposing import GroupNode
from skylark.mqcommon.errors import StoreError
from skylark.mqcommon.raft.errors import RaftError

WAIT_S = 5.0
# Rows are small; an entry must fit into a file of entries (entry_index.py).
MAX_CHANGES = 500


class _Round:
    """The next end of changes, and the event of those who wait for it."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.failure = ""


class AgreedTables:
    """Has changes of topics and groups agreed on by the group, as entries of its log.

    ``is_master``: whether the tables are changed here. ``deleted`` gets a topic and the end of its deletion.

    ``is_leased``: whether this member leads, so that the tables have what is committed already.
    """

    def __init__(
        self,
        metadata: Metadata,
        is_master: Callable[[], bool],
        is_leased: Callable[[], bool],
        deleted: Callable[[str, int], None],
    ) -> None:
        self._is_master = is_master
        self._is_leased = is_leased
        self._deleted = deleted
        self._tables: dict[str, JournalledTable[Any]] = {}
        # Changes that are no entry yet, and how many changes are neither committed nor given up.
        self._pending: list[Change] = []
        self._open = 0
        # How often this broker stopped to be the master.
        self._reign = 0
        self._round = _Round()
        tables: tuple[JournalledTable[Any], ...] = (
            metadata.topics,
            metadata.topics.static,
            metadata.groups,
            metadata.request_modes,
            metadata.users,
            metadata.acls,
        )
        for table in tables:
            self._tables.update(dict.fromkeys(table.change_kinds, table))
            table.on_record.append(self._recorded)
        metadata.topics.deletions.on_record.append(self._deletion_recorded)

    def _recorded(self, kind: str, payload: Any) -> None:
        # A member that follows records what it has learned from the log or the leader: that is no change of its own.
        if self._is_master():
            self._pending.append((kind, payload))
            self._open += 1

    def _deletion_recorded(self, kind: str, payload: Any) -> None:
        if kind == DELETION.put and TopicDeletion.from_wire(payload).is_finished:
            self._recorded(kind, payload)

    @property
    def has_pending(self) -> bool:
        """Whether there is something to propose."""
        return bool(self._pending)

    def propose(self, node: GroupNode) -> None:
        """Make entries of the changes. Raises RaftError."""
        while self._pending:
            changes, self._pending = self._pending[:MAX_CHANGES], self._pending[MAX_CHANGES:]
            ended = partial(self._ended, self._reign, len(changes))
            try:
                node.submit(TABLES_MARK + cbor2.dumps(changes), ended)
            except RaftError as error:
                ended(error)
                raise

    def _ended(self, reign: int, changes: int, result: Any) -> None:
        # Entries of an earlier reign were discounted by `give_up`. Counted again, they would end waits of this reign.
        if reign == self._reign:
            self._end(changes, str(result) if isinstance(result, RaftError) else "")

    def give_up(self) -> None:
        """Fail all waits: this broker is not the master any more, and the new master's tables replace these."""
        # This member may learn too late, or never, whether entries in flight are committed.
        self._reign += 1
        self._pending = []
        if self._open:
            self._end(self._open, "another member leads the group")

    def _end(self, changes: int, failure: str) -> None:
        # Wake all waiters: each waits again unless no change is open any more, or this end was a failure.
        self._open -= changes
        ended, self._round = self._round, _Round()
        ended.failure = failure
        ended.done.set()

    async def wait(self) -> None:
        """Return when all changes so far are committed. StoreError when that is not known."""
        with trio.move_on_after(WAIT_S):
            while self._open:
                current = self._round
                await current.done.wait()
                if current.failure:
                    raise StoreError(f"the change may be lost: {current.failure}")
            return
        raise StoreError(f"the change may be lost: no majority of the group has it after {WAIT_S:g} s")

    def apply(self, data: bytes) -> None:
        """Apply the changes in ``data``, a committed entry, unless this leader's tables have had them since before."""
        if self._is_leased():
            return  # the tables have had it since before the entry was made
        for kind, payload in cbor2.loads(data[len(TABLES_MARK) :]):
            if kind == DELETION.put:
                mark = TopicDeletion.from_wire(payload)
                self._deleted(mark.name, mark.log_end)
            else:
                self._tables[kind].follow(kind, payload)

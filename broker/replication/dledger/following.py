"""What a member of a DLedger group does while it does not lead: it takes the leader's entries and builds queues.

Entries arrive at the group's port at any time (member.py). `LogDisk` writes them into the log of messages, but only
between `run` and `finish`: while this member leads, its broker writes the log itself.
"""

import logging
from collections.abc import Callable

from skylark.broker.replication.copying import CopiedLog, QueueBuilding
from skylark.broker.replication.dledger.log_disk import CopyingTo, LogDisk
from skylark.mqcommon.errors import DiskFull

logger = logging.getLogger(__name__)


class Following:
    """The `LogCopier` (copying.py) of DLedger mode. ``leader`` returns the id of the leader, "" if none is known."""

    def __init__(self, log: CopiedLog, disk: LogDisk, leader: Callable[[], str]) -> None:
        self._queues = QueueBuilding(log)
        self._target = CopyingTo(log.replica, self._queues, log.guard)
        self._disk = disk
        self._leader = leader
        self._is_open = False

    @property
    def following(self) -> str:
        """The id of the leader whose entries this member copies; "" when there is none."""
        return self._leader() if self._is_open else ""

    @property
    def problem(self) -> str:
        """The damaged record that keeps the messages after it from being shown; "" if there is none."""
        return self._queues.problem

    async def run(self) -> None:
        """Copy until cancelled. The caller then calls `finish`, which must not be cancelled."""
        await self._disk.follow(self._target)
        self._is_open = True
        while True:
            try:
                await self._queues.run()
            except DiskFull as error:
                # `LogDisk` takes no entries until there is room, and then lets the queues go on.
                logger.error("the queues of this member are not complete: %s", error)

    async def leave(self) -> None:
        """Do nothing: a majority is enough for the leader."""

    async def finish(self) -> None:
        """Take no more entries; returns when the queues have the entries of all copied messages.

        StoreCorrupt and DiskFull as in `Replica.finish`.
        """
        self._is_open = False
        await self._disk.end_following(self._target)

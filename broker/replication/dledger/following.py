"""A member of a group that does not lead: it is ready for entries of a leader, and builds queues of them.

The entries come to the group's port, whatever this broker is (member.py); `LogDisk` writes them. Here is when it may.
"""

from collections.abc import Callable

from broker.replication.copying import CopiedLog, QueueBuilding
from broker.replication.dledger.log_disk import CopyingTo, LogDisk


class Following:
    """A `LogCopier`. ``leader``: the id of the leader, "" while none is known."""

    def __init__(self, log: CopiedLog, disk: LogDisk, leader: Callable[[], str]) -> None:
        self._queues = QueueBuilding(log)
        self._to = CopyingTo(log.replica, self._queues, log.guard)
        self._disk = disk
        self._leader = leader
        self._is_open = False

    @property
    def following(self) -> str:
        """The leader whose entries are taken; "" when there is none."""
        return self._leader() if self._is_open else ""

    async def run(self) -> None:
        """Run until cancelled; then call `finish`."""
        await self._disk.follow(self._to)
        self._is_open = True
        await self._queues.run()

    async def finish(self) -> None:
        """Take no more entries, and complete the queues."""
        self._is_open = False
        await self._disk.end_following(self._to)

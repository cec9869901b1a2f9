"""How an acting slave hands over: the master gets the offsets that groups committed here while it was away.

Invariant: no group's offset goes back. A master that starts fetches the offsets before it registers (pre_online.py).
That is not enough: a master that was only cut off does not fetch them, and groups still commit here until this slave
learns that the master is back. So the slave compares its offsets with the master's, and commits (15) its own higher
offsets to the master. Until that is done, and while no master is alive, the slave copies no metadata: the master's
older offsets would overwrite the offsets committed here.
Neighbours: members.py (who is alive), slave_sync.py (waits here before it copies).
"""

import logging
from collections.abc import Callable

import trio

from skylark.broker.meta.consumer_offsets import KEYS, ConsumerOffsets
from skylark.broker.part import Part
from skylark.broker.replication.master_api import MasterClient
from skylark.broker.replication.members import Members
from skylark.mqcommon.errors import BrokerError, ProtocolError, RemotingError
from skylark.remoting.net.client import OpenClient, RemotingClient, open_client
from skylark.remoting.protocol.requests.replication import FIRST_PAGE, PageRequestHeader

logger = logging.getLogger(__name__)

RETRY_S = 1.0


class OffsetHandOver(Part):
    """Hands over the offsets of one slave. Call `changed` when the members change."""

    def __init__(self, members: Members, offsets: ConsumerOffsets, open_client: OpenClient = open_client) -> None:
        self._members = members
        self._offsets = offsets
        self._open_client = open_client
        self._done_terms = 0
        self._changed = trio.lowlevel.ParkingLot()
        self._failing = False

    async def master_is_online(self) -> None:
        """Return when the master is alive and has the offsets that were committed here for it."""
        await self._until(lambda: self._members.master_addr is not None and not self._owes)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled."""
        task_status.started()
        async with self._open_client() as client:
            while True:
                await self._until(lambda: self._members.master_addr is not None and self._owes)
                # The terms are read first: if this slave acts once more during the hand-over, it owes another one.
                terms, addr = self._members.terms, self._members.master_addr
                assert addr is not None
                try:
                    count = await self._hand_over(client, addr)
                except Exception as error:
                    if not self._failing:
                        is_bug = not isinstance(error, RemotingError | BrokerError | ProtocolError)
                        text = "offsets not handed over to master %s, still trying: %s"
                        logger.warning(text, addr, error, exc_info=error if is_bug else None)
                    self._failing = True
                    await trio.sleep(RETRY_S)
                    continue
                logger.info("%d consumer offsets handed over to master %s", count, addr)
                self._failing = False
                self._done_terms = terms
                self.changed()

    @property
    def _owes(self) -> bool:
        return self._done_terms < self._members.terms

    async def _hand_over(self, client: RemotingClient, addr: str) -> int:
        master = MasterClient(client, addr)
        theirs: dict[str, dict[int, int]] = {}
        page: PageRequestHeader | None = FIRST_PAGE
        while page is not None:
            got = await master.consumer_offsets(None, page)
            theirs |= got.table.offset_table
            page = got.next_page
        count = refused = 0
        for number, (key, queues) in enumerate(list(self._offsets.table().items()), 1):
            if number % KEYS == 0:
                await trio.lowlevel.checkpoint()
            topic, _, group = key.partition("@")
            known = theirs.get(key, {})
            for queue_id, offset in list(queues.items()):
                # Never back: the group may have gone on at the master since it is online, and would get messages again.
                if offset <= known.get(queue_id, -1):
                    continue
                try:
                    await master.commit(group, topic, queue_id, offset)
                    count += 1
                except BrokerError:
                    refused += 1  # the topic or group is gone there
        if refused:
            logger.warning("%d consumer offsets refused by master %s", refused, addr)
        return count

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.park()

    def changed(self) -> None:
        """Recheck all waits: other members are alive now, or offsets were handed over."""
        self._changed.unpark_all()

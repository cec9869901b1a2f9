"""Entries that are damaged in this member's log are written again, as another member has them.

The leader finds one when a member needs it: its slot does not fit into the chain of entries, or its bytes do not match
their CRC. Such an entry is not sent. Another member that has it whole is asked for it; the chain proves that it is the
same entry. If none answers with it, this leader steps aside once, since another member may have it.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping

import trio

from skylark.broker.replication.dledger.entry_index import IndexedEntry
from skylark.broker.replication.dledger.log_disk import LogDisk
from skylark.mqcommon.errors import BrokerError, ProtocolError, RemotingError, RequestRefused
from skylark.mqcommon.signal import Signal
from skylark.remoting.net.call import Remote, call
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.client import RemotingClient
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.raft import DLEDGER_ENTRY, DledgerEntryHeader, DledgerEntryRequestHeader

logger = logging.getLogger(__name__)

ASK_TIMEOUT_MS = 3_000
# Pause after an entry that no member could give.
RETRY_S = 1.0
# More are found again, when they are needed again.
MAX_DAMAGED = 1_000


class Mending:
    """Replaces damaged entries by the copies of other members: `run` it.

    ``others``: the addresses of the other members. ``step_aside`` hands the leadership over.
    """

    def __init__(
        self,
        group: str,
        disk: LogDisk,
        client: RemotingClient,
        others: Callable[[], Mapping[str, str]],
        step_aside: Callable[[], Awaitable[None]],
    ) -> None:
        self._group = group
        self._disk = disk
        self._client = client
        self._others = others
        self._step_aside = step_aside
        # In the order in which they were found; and those for which this member has stepped aside already.
        self._damaged: dict[int, None] = {}
        self._stepped_aside: set[int] = set()
        self._found = Signal()
        #: A text about damaged entries that could not be mended yet; "" if there are none.
        self.problem = ""
        disk.on_damaged = self.found

    def found(self, index: int) -> None:
        """Have `run` mend entry ``index``, which is damaged here."""
        if len(self._damaged) < MAX_DAMAGED:
            self._damaged[index] = None
            self._found.set()

    async def run(self) -> None:
        """Mend the damaged entries that are found, until cancelled."""
        while True:
            await self._found.wait()
            while self._damaged:
                index = next(iter(self._damaged))
                reason = await self._mend_with_those_before(index)
                if reason:
                    if reason != self.problem:
                        logger.error("%s", reason)
                    self.problem = reason
                    if index not in self._stepped_aside:
                        self._stepped_aside.add(index)
                        await self._step_aside()
                    await trio.sleep(RETRY_S)
                else:
                    self.problem = ""
                del self._damaged[index]  # found again if it is needed again

    async def _mend_with_those_before(self, index: int) -> str:
        """Mend the entry, and damaged entries before it; returns why it is not whole, "" when it is."""
        # A slot is judged by the chain of the slot before it, so the first damaged entry must be mended first.
        first = index
        while first > self._disk.entries.base + 1 and not self._disk.index.is_sound(first - 1):
            first -= 1
        for each in range(first, index + 1):
            if reason := await self._mend(each):
                return reason
        return ""

    async def _mend(self, index: int) -> str:
        reason = await self._disk.damage_of(index)
        if not reason:
            return ""
        if reason not in self.problem:  # log a reason once, however often mending is tried
            logger.error("%s: the other members are asked for it", reason)
        for name, addr in self._others().items():
            try:
                entry, data = await self._ask(addr, index)
            except (RemotingError, BrokerError, ProtocolError) as error:
                logger.info("%s does not give entry %d: %s", name, index, error)
                continue
            if await self._disk.mend(index, entry, data):
                logger.warning("entry %d is whole again: it was written again as %s has it", index, name)
                return ""
            logger.warning("entry %d of %s is not the original entry", index, name)
        return f"{reason}, and no other member has given it: members that need it cannot catch up"

    async def _ask(self, addr: str, index: int) -> tuple[IndexedEntry, bytes]:
        header = DledgerEntryRequestHeader(self._group, index)
        answer = await call(Remote(self._client, addr, ASK_TIMEOUT_MS), DLEDGER_ENTRY, header)
        found = answer.header()
        fields = found.start, found.term, found.size, found.crc, found.chain, found.kind, found.place
        return IndexedEntry(*fields), answer.body()

    async def asked(self, channel: Channel, request: Command) -> Command:
        """7113: answer with an entry that is damaged in another member's log."""
        header = DLEDGER_ENTRY.header(request)
        if header.group != self._group:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"group {header.group} is not served here")
        found = await self._disk.whole(header.index)
        if found is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"entry {header.index} is not here, or not whole")
        entry, data = found
        fields = entry.start, entry.term, entry.size, entry.crc, entry.chain, entry.kind, entry.place
        return DLEDGER_ENTRY.answer(request, DledgerEntryHeader(*fields), body=data)

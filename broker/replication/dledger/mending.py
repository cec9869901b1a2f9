"""Entries that are damaged in this member's log are written again, as another member has them.

The leader finds a damaged entry when a member needs the entry: its slot does not fit into the chain of entries, or its
bytes do not match their CRC. Such an entry is not sent. Another member that has the entry whole is asked for it; the
chain proves that it is the same entry. If no member answers with the entry, this leader steps aside once, since another
member may have it.
The scrub finds damaged slots on any member (healing/entry_files.py), and a start finds bytes that have changed since
the last checkpoint. No member need have the entry at once then, so nobody steps aside, and the other members are asked
again and again.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import trio

from skylark.broker.replication.dledger.entry_file import INLINE, IndexedEntry
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
# How often the other members are asked again for an entry that the scrub, or the start, has found.
RETRY_UNMENDED_S = 10.0
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
        # Why the entry that a member needs is not whole yet.
        self._blocking = ""
        # Entries that the scrub or the start has found damaged, and why they are not whole yet.
        self._unmended: dict[int, str] = {}
        self._has_unmended = Signal()
        # Held while entries are mended: two at a time would ask twice.
        self._mending = trio.Lock()
        disk.on_damaged = self.found
        disk.on_damaged_at_start = self._found_at_start

    @property
    def problem(self) -> str:
        """A text about damaged entries that could not be mended yet; "" if there are none."""
        return self._blocking or next(iter(self._unmended.values()), "")

    def found(self, index: int) -> None:
        """Have `run` mend entry ``index``, which is damaged here."""
        if len(self._damaged) < MAX_DAMAGED:
            self._damaged[index] = None
            self._found.set()

    async def run(self) -> None:
        """Mend the damaged entries that are found, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._mend_needed)
            nursery.start_soon(self._retry_unmended)

    async def mend_all(self, indexes: Iterable[int]) -> str:
        """Mend these entries, which no member waits for; returns why one is not whole, "" when all are.

        ``indexes`` ascend. Entries that stay damaged are tried again until they are whole.
        """
        first_reason, reason, alike = "", "", range(0)
        for index in indexes:
            # Damaged slots in a row are mended together, or none of them is: the other members are asked once.
            if index not in alike:
                # The lock is free between two entries, for an entry that a member needs.
                async with self._mending:
                    reason, alike = await self._mend_with_those_around(index)
            if reason:
                first_reason = first_reason or reason
                if len(self._unmended) < MAX_DAMAGED:
                    self._unmended[index] = reason
            else:
                self._unmended.pop(index, None)
        unsynced = await self._disk.sync_entries()
        return first_reason or unsynced

    def _found_at_start(self, indexes: Sequence[int]) -> None:
        for index in indexes[:MAX_DAMAGED]:
            self._unmended[index] = f"the disk has changed the bytes of entry {index} since the last checkpoint"
        more = f", and of {len(indexes) - 1} more" if len(indexes) > 1 else ""
        logger.error("%s%s", self._unmended[indexes[0]], more)
        self._has_unmended.set()

    async def _retry_unmended(self) -> None:
        while True:
            with trio.move_on_after(RETRY_UNMENDED_S):
                await self._has_unmended.wait()
            reason = await self.mend_all(sorted(self._unmended)) if self._unmended else ""
            if reason and not self._is_logged(reason):
                logger.error("entries were mended, but %s", reason)

    async def _mend_needed(self) -> None:
        while True:
            await self._found.wait()
            while self._damaged:
                index = next(iter(self._damaged))
                async with self._mending:
                    reason, _ = await self._mend_with_those_around(index)
                reason = reason or await self._disk.sync_entries()
                if reason:
                    if reason != self._blocking:
                        logger.error("%s", reason)
                    self._blocking = reason
                    if index not in self._stepped_aside:
                        self._stepped_aside.add(index)
                        await self._step_aside()
                    await trio.sleep(RETRY_S)
                else:
                    self._blocking = ""
                del self._damaged[index]  # found again if it is needed again

    async def _mend_with_those_around(self, index: int) -> tuple[str, range]:
        """Mend the entry, and entries around it whose slots are damaged.

        Returns why the entry is not whole, "" when it is, and the entries of which the same is known.
        """
        if not self._disk.entries.base < index <= self._disk.index.last:
            return "", range(0)  # not here any more
        # A slot is judged by the chain of the slot before it: what a lost sector had is proven, and written, at once.
        damaged = range(0)
        for found in self._disk.index.damaged_around(index):
            damaged = found
            await trio.lowlevel.checkpoint()
        if len(damaged) > 1 and (reason := await self._mend_slots(damaged)):
            return reason, damaged
        for each in dict.fromkeys([*damaged, index]):
            # There may be as many as a file has, and entries without bytes in the log wait for no thread.
            await trio.lowlevel.checkpoint()
            if reason := await self._mend(each):
                return reason, range(each, each + 1)
        return "", damaged

    def _is_logged(self, text: str) -> bool:
        """Whether ``text`` is part of a known problem: a reason is logged once, however often mending is tried."""
        return any(text in known for known in (self._blocking, *self._unmended.values()))

    async def _mend_slots(self, damaged: range) -> str:
        text = f"the slots of entries {damaged[0]} to {damaged[-1]} are damaged"
        if not self._is_logged(text):
            logger.error("%s: the other members are asked for them", text)
        for name, addr in self._others().items():
            found: list[tuple[IndexedEntry, bytes]] = []
            try:
                for index in damaged:
                    entry, data = await self._ask(addr, index)
                    # The bytes in the log have their own CRC: `_mend` looks at them.
                    found.append((entry, data if entry.place == INLINE else b""))
            except (RemotingError, BrokerError, ProtocolError) as error:
                logger.info("%s does not give entry %d: %s", name, damaged[len(found)], error)
                continue
            try:
                is_whole = await self._disk.mend_slots(damaged[0], found)
            except OSError as error:
                return f"{text}, and the disk cannot write them again: {error}"
            if is_whole:
                text = "entries %d to %d: their slots are whole again, as %s has them"
                logger.warning(text, damaged[0], damaged[-1], name)
                return ""
            logger.warning("entries %d to %d of %s are not the original entries", damaged[0], damaged[-1], name)
        return f"{text}, and no other member has given all of them: members that need them cannot catch up"

    async def _mend(self, index: int) -> str:
        reason = await self._disk.damage_of(index)
        if not reason:
            return ""
        if not self._is_logged(reason):
            logger.error("%s: the other members are asked for it", reason)
        for name, addr in self._others().items():
            try:
                entry, data = await self._ask(addr, index)
            except (RemotingError, BrokerError, ProtocolError) as error:
                logger.info("%s does not give entry %d: %s", name, index, error)
                continue
            try:
                is_whole = await self._disk.mend(index, entry, data)
            except OSError as error:
                return f"{reason}, and the disk cannot write them again: {error}"
            if is_whole:
                logger.warning("entry %d is whole again: it was written again as %s has it", index, name)
                return ""
            logger.warning("entry %d of %s is not the original entry, or has lost its bytes there", index, name)
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

"""A master with enableSlaveActingMaster fetches the offsets that were committed while it was away, then registers.

The master asks NameServers which members are alive (901), and sends each slave its own address (906), so that the slave
copies the log at once. Then it takes over the slave's consumer offsets (43) and delay offsets (45) where they are
higher than its own, so no offset goes back. (RocketMQ takes a slave's whole table if its version is higher, else
nothing.) A SYNC_MASTER also waits up to COPYING_S until the slave copies its log: otherwise the first sends would find
no slave. If a slave is alive but does not answer, the master waits until the NameServers expire it, at most LIMIT_S.
Neighbours: registrar.py waits for `prepare`; replication/set_requests.py handles 906 in the slave;
replication/offset_hand_over.py sends later offsets.
"""

import logging
from collections.abc import Callable

import trio

from skylark.broker.identity import Identity
from skylark.broker.meta.metadata import Metadata
from skylark.broker.options import BrokerOptions
from skylark.broker.registration.heartbeats import TIMEOUT_MS
from skylark.broker.registration.namesrv_list import NameServerList
from skylark.broker.registration.outer_api import OuterApi
from skylark.broker.replication.master_api import MasterClient
from skylark.broker.replication.members import Members
from skylark.broker.tasks.persist import Persister
from skylark.broker.writing.durability import Durability
from skylark.broker.writing.waits import AckLedger
from skylark.mqcommon.errors import BrokerError, ProtocolError, RemotingError, StoreError
from skylark.mqcommon.names import MASTER_ID
from skylark.mqcommon.polling import poll_until
from skylark.remoting.net.client import RemotingClient
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.replication import FIRST_PAGE, PageRequestHeader

logger = logging.getLogger(__name__)

RETRY_S = 1.0
# As long as a NameServer without light heartbeats remembers a silent broker.
LIMIT_S = 120.0
# A slave looks for its master at least every 6 s.
COPYING_S = 10.0
COPYING_POLL_S = 0.05


class PreOnline:
    """Brings a master online: at once if it has no slaves (totalReplicas=1) or with ``skipPreOnline``."""

    def __init__(
        self,
        identity: Identity,
        options: BrokerOptions,
        namesrvs: NameServerList,
        metadata: Metadata,
        persister: Persister,
        members: Members,
        acks: AckLedger,
        durability: Durability,
        end_of: Callable[[str, int], int],
    ) -> None:
        """``end_of`` is the end of a queue here."""
        self._end_of = end_of
        self._identity = identity
        self._options = options
        self._namesrvs = namesrvs
        self._metadata = metadata
        self._persister = persister
        self._members = members
        self._acks = acks
        self._durability = durability

    async def prepare(self, client: RemotingClient) -> None:
        """Return when this master may register."""
        options = self._options
        if options.has_namesrvs and options.total_replicas > 1 and not options.skip_pre_online:
            await self._take_over_from_all(client)
        self._members.came_online()

    async def _take_over_from_all(self, client: RemotingClient) -> None:
        done: dict[str, None] = {}
        failed: dict[str, None] = {}
        with trio.move_on_after(LIMIT_S) as limit:
            while True:
                # Ask again in each round: slaves that died meanwhile are no longer waited for, new slaves are added.
                slaves = await self._slaves(client)
                for addr in slaves:
                    if addr in done:
                        continue
                    try:
                        await self._take_over(client, addr)
                    except Exception as error:
                        if addr not in failed:
                            is_bug = not isinstance(error, RemotingError | BrokerError | ProtocolError | StoreError)
                            text = "not online yet: slave %s did not give its offsets: %s"
                            logger.warning(text, addr, error, exc_info=error if is_bug else None)
                        failed[addr] = None
                    else:
                        done[addr] = None
                        failed.pop(addr, None)
                if all(addr in done for addr in slaves):
                    return
                await trio.sleep(RETRY_S)
        if limit.cancelled_caught:
            missing = " ".join(failed) or "its slaves"
            logger.error("online without the offsets of %s: consumers may see messages twice", missing)

    async def _slaves(self, client: RemotingClient) -> list[str]:
        """The addresses of the living slaves, ordered by id; waits until a NameServer answers."""
        logged = False
        while True:
            found: dict[int, str] = {}
            answered = False
            for addr in self._namesrvs.addrs:
                try:
                    found |= await OuterApi(client, addr, self._identity, self._options, TIMEOUT_MS).members(TIMEOUT_MS)
                    answered = True
                except BrokerError as error:
                    # a NameServer of version 4 does not know acting masters
                    answered = answered or error.is_unknown_request
                except (RemotingError, ProtocolError):
                    continue
            if answered:
                return [found[broker_id] for broker_id in sorted(found) if broker_id != MASTER_ID]
            if not logged:
                logger.warning("not online yet: no NameServer says which slaves are alive")
                logged = True
            await trio.sleep(RETRY_S)

    async def _take_over(self, client: RemotingClient, addr: str) -> None:
        slave = MasterClient(client, addr)  # the slave acts as the master, and answers like a master
        try:
            await slave.announce_master(self._identity.addr, self._identity.ha_addr)
        except BrokerError as error:
            if not error.is_unknown_request:
                raise
            return  # without acting masters a slave has no offsets of its own
        if self._durability.needs_slaves:
            await self._is_copied_to(addr.rpartition(":")[0])
        offsets = self._metadata.consumer_offsets
        before = offsets.changes
        page: PageRequestHeader | None = FIRST_PAGE
        while page is not None:
            got = await slave.consumer_offsets(None, page)
            offsets.advance(got.table.offset_table, self._end_of)
            page = got.next_page
        try:
            self._metadata.delay_offsets.advance((await slave.delay_offsets()).table)
        except BrokerError as error:
            if error.code != ResponseCode.SYSTEM_ERROR:
                raise  # a Java slave that never saw a delayed message has no delay offsets
        # The offsets are in the journal before this master registers: from then on consumers commit newer offsets.
        await self._persister.append_offsets()
        logger.info("%d consumer offsets taken over from slave %s", offsets.changes - before, addr)

    async def _is_copied_to(self, host: str) -> None:
        """Return when a slave at ``host`` reports, or when that takes too long."""

        def copies() -> bool:
            return any(slave.acked >= 0 and slave.addr.rpartition(":")[0] == host for slave in self._acks.slaves())

        if not await poll_until(copies, COPYING_S, COPYING_POLL_S):
            logger.warning("the slave at %s does not copy the log; sends may find no slave at first", host)

"""The group of Controllers, and a broker's requests to it, except the requests for the broker's id.

The leader is searched for (1005), and searched for again when it changes. The requests: 904, 1001 to 1004, 1006.
"""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson
import trio

from skylark.broker.identity import Identity
from skylark.broker.options import BrokerOptions
from skylark.broker.replication.autoswitch.decisions import News
from skylark.broker.writing.elected import Elected
from skylark.mqcommon.errors import BrokerError, NoController, ProtocolError, RemotingError, RequestTimeout
from skylark.remoting.net.call import Remote, call
from skylark.remoting.net.client import RemotingClient
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.request import AB, AH, Answer, Request
from skylark.remoting.protocol.requests.controller import (
    CONTROLLER_ALTER_SYNC_STATE_SET,
    CONTROLLER_ELECT_MASTER,
    CONTROLLER_GET_METADATA_INFO,
    CONTROLLER_GET_REPLICA_INFO,
    CONTROLLER_GET_SYNC_STATE_DATA,
    CONTROLLER_REGISTER_BROKER,
    AlterSyncStateSetRequestHeader,
    ElectMasterRequestHeader,
    GetMetaDataResponseHeader,
    GetReplicaInfoRequestHeader,
    MasterHeader,
    RegisterBrokerToControllerRequestHeader,
    SyncStateSet,
)
from skylark.remoting.protocol.requests.registrations import BROKER_HEARTBEAT, BrokerHeartbeatRequestHeader

logger = logging.getLogger(__name__)

TIMEOUT_MS = 3_000
# How long to wait for Controllers that have not answered whether they lead, while no Controller claims leadership.
FIND_MS = 500


class Controllers:
    """Sends requests to the leader of the Controllers, and finds it.

    ``addrs``: the addresses in ``controllerAddr``; ``leader``: one of them if possible, "" while it is unknown.
    """

    def __init__(self, client: RemotingClient, addrs: Sequence[str]) -> None:
        self._client = client
        self.addrs = tuple(addrs)
        self.leader = ""
        # The last leader that did not answer as the leader: other Controllers are preferred.
        self._failed = ""

    async def ask(self, what: Request[Any, Any, AH, AB], header: Any, body: Any = None) -> Answer[AH, AB]:
        """The leader's answer. Raises NoController, RemotingError or BrokerError; then the leader is searched anew."""
        leader = self.leader or await self._find()
        try:
            return await call(Remote(self._client, leader, TIMEOUT_MS), what, header, body)
        except RemotingError as error:
            if isinstance(error, RequestTimeout):  # the connection may be dead without an error
                self._client.close_connection(leader, "no answer in time")
            self.lost(leader)
            raise
        except BrokerError as error:
            if error.code == ResponseCode.CONTROLLER_NOT_LEADER:
                self.lost(leader)
            raise

    def lost(self, leader: str) -> None:
        """Forget ``leader``, which does not answer, or does not answer as the leader."""
        if self.leader == leader:
            self.leader, self._failed = "", leader

    def leads(self, addr: str) -> None:
        """Note that the Controller at ``addr`` has answered as the leader."""
        if self.leader != addr:
            logger.info("Controller %s leads", addr)
            self.leader, self._failed = addr, ""

    async def _find(self) -> str:
        """Ask all Controllers who leads: the first that claims leadership, else a leader that others name."""
        named: list[str] = []
        leads: list[str] = []

        async def ask(addr: str) -> None:
            try:
                remote = Remote(self._client, addr, FIND_MS)
                found: GetMetaDataResponseHeader = (await call(remote, CONTROLLER_GET_METADATA_INFO)).header()
            except (RemotingError, BrokerError, ProtocolError):
                return
            if found.is_leader:
                leads.append(addr)
                if addr != self._failed:
                    nursery.cancel_scope.cancel()
            # Second-hand information: the named leader may be down, so a Controller that claims leadership itself is
            # preferred.
            elif found.controller_leader_address:
                named.append(found.controller_leader_address)

        async with trio.open_nursery() as nursery:
            for addr in self.addrs:
                nursery.start_soon(ask, addr)
        found = sorted([*leads, *named], key=lambda addr: addr == self._failed)
        if not found:
            raise NoController(self.addrs)
        if found[0] != self._failed:
            logger.info("Controller %s leads", found[0])
        self.leader, self._failed = found[0], ""
        return self.leader


BEAT_TIMEOUT_MS = 1_000
# The beginning of a Skylark Controller's text when it grants no lease.
NO_LEASE = "no lease"
# Answers of Controllers when no broker can be elected now.
NOT_ELECTABLE = (ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE)


class ReplicaInfo(NamedTuple):
    """The Controllers' view: who is the master, and the SyncStateSet with its epoch.

    ``replicas``: how many brokers of the set are registered; None when the answer did not have it.
    """

    news: News
    members: tuple[int, ...]
    set_epoch: int
    replicas: int | None


class Beat(NamedTuple):
    """A leader's answer to a heartbeat. RocketMQ's does not name the master. ``no_lease``: why no lease is granted.

    ``is_unknown``: the leader does not know the broker.
    """

    master_id: int | None
    epoch: int | None
    no_lease: str
    is_unknown: bool = False

    def grants(self, broker_id: int, epoch: int) -> bool:
        """Whether the master ``broker_id`` of ``epoch`` may go on."""
        if self.no_lease or self.is_unknown:
            return False
        return self.epoch is None or (self.master_id, self.epoch) == (broker_id, epoch)


class ControllerRequests:
    """The requests of this broker to its Controllers. Each raises the errors of `Controllers.ask`."""

    def __init__(self, client: RemotingClient, options: BrokerOptions, identity: Identity) -> None:
        self.controllers = Controllers(client, options.controller_addrs)
        self._client = client
        self._options = options
        self._identity = identity

    async def register(self, broker_id: int) -> None:
        """1003: register the address of this broker."""
        who = self._identity
        header = RegisterBrokerToControllerRequestHeader(who.cluster_name, who.broker_name, broker_id, who.addr)
        await self.controllers.ask(CONTROLLER_REGISTER_BROKER, header)

    async def replica_info(self) -> ReplicaInfo:
        """1004: who is the master."""
        header = GetReplicaInfoRequestHeader(self._identity.broker_name)
        answer = await self.controllers.ask(CONTROLLER_GET_REPLICA_INFO, header)
        return _replica_info(answer.header(), answer.body())

    async def replicas(self) -> dict[int, str]:
        """1006: the registered brokers of this set, by id, with their addresses for clients."""
        name = self._identity.broker_name
        answer = await self.controllers.ask(CONTROLLER_GET_SYNC_STATE_DATA, None, orjson.dumps([name]))
        known = answer.body().replicas_info_table.get(name)
        rows = [] if known is None else [*known.in_sync_replicas, *known.not_in_sync_replicas]
        return {row.broker_id: row.broker_address for row in rows}

    async def elect(self, broker_id: int) -> ReplicaInfo | None:
        """1002: ask for an election; the master afterwards, None when no broker can be elected now."""
        who = self._identity
        header = ElectMasterRequestHeader(who.broker_name, who.cluster_name, broker_id)
        try:
            answer = await self.controllers.ask(CONTROLLER_ELECT_MASTER, header)
        except BrokerError as error:
            if error.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST:
                return await self.replica_info()
            if error.code in NOT_ELECTABLE:
                return None
            raise
        master = answer.header()
        return _replica_info(master, SyncStateSet(answer.body().sync_state_set, master.sync_state_set_epoch or 0))

    async def alter(self, broker_id: int, epoch: int, wanted: SyncStateSet) -> SyncStateSet:
        """1001: this master, of ``epoch``, asks for another SyncStateSet; returns the set afterwards."""
        header = AlterSyncStateSetRequestHeader(self._identity.broker_name, broker_id, epoch)
        return (await self.controllers.ask(CONTROLLER_ALTER_SYNC_STATE_SET, header, wanted)).body()

    async def beat(self, addr: str, broker_id: int, epoch: int, log_end: int, elected: Elected) -> Beat | None:
        """904 to one Controller; None when it did not answer as the leader. A Skylark Controller answers only then."""
        who, options = self._identity, self._options
        header = BrokerHeartbeatRequestHeader(
            who.cluster_name,
            who.addr,
            who.broker_name,
            broker_id,
            epoch,
            log_end,
            elected.confirm_offset,
            options.controller_heart_beat_timeout_mills,
            options.broker_election_priority,
            not options.async_learner and elected.has_sound_disk(),
        )
        try:
            answer = await call(Remote(self._client, addr, BEAT_TIMEOUT_MS), BROKER_HEARTBEAT, header)
        except RequestTimeout:
            # The connection may be dead without an error.
            self._client.close_connection(addr, "no answer in time")
            return None
        except BrokerError as error:
            is_unknown = error.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
            return Beat(None, None, "", True) if is_unknown and addr == self.controllers.leader else None
        except RemotingError:
            return None
        master, remark = answer.header(), answer.command.remark or ""
        if addr != self.controllers.leader:
            if master.master_epoch is None:
                return None
            # A Skylark Controller: it leads, or it would not have named a master. The leader before it may be gone.
            self.controllers.leads(addr)
        return Beat(master.master_broker_id, master.master_epoch, remark if remark.startswith(NO_LEASE) else "")


def _replica_info(master: MasterHeader, known: SyncStateSet) -> ReplicaInfo:
    news = News(master.master_broker_id, master.master_address or "", master.master_epoch or 0)
    return ReplicaInfo(news, tuple(known.sync_state_set), known.sync_state_set_epoch, master.registered_replicas)

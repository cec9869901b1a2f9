"""The requests that a Controller answers: requests of brokers, and requests of administrators.

Brokers: heartbeats (904), ids (1012, 1013), registration (1003), masters (1002, 1004), SyncStateSets (1001). Only the
leader answers these. A request that changes the state is answered when the change is committed; a request that reads
it, when the leader has made sure that it still leads. Administrators: the leader (1005), sets (1006), options (1009,
1010), replicas that are gone for good (1011), and the members of the group of Controllers (7120).
Neighbours: view.py (the state), replicas.py (decides), leases.py (answers heartbeats).
"""

import logging
from collections.abc import Mapping

import orjson

from skylark.mqcommon.addresses import is_address
from skylark.mqcommon.errors import BrokerError, ProtocolError, RemotingError, RequestRefused
from skylark.mqcommon.options.conf_file import to_properties
from skylark.namesrv.config_handlers import OptionsHolder, update_options
from skylark.namesrv.controller.commands import (
    DEFAULT_PRIORITY,
    AlterSyncStateSet,
    ApplyBrokerId,
    Candidate,
    CleanBrokerData,
    RegisterBroker,
)
from skylark.namesrv.controller.elections import Elections
from skylark.namesrv.controller.leases import Leases
from skylark.namesrv.controller.liveness import LiveReplica
from skylark.namesrv.controller.replicas import BrokerSet, ChangeOutcome, why_not_registered
from skylark.namesrv.controller.view import TIMEOUT_MS, View
from skylark.remoting.net.answers import answer_with
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler, SlowHandler
from skylark.remoting.protocol.body import Body
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import dialect_for, encode_body
from skylark.remoting.protocol.requests.controller import (
    CLEAN_BROKER_DATA,
    CONTROLLER_ALTER_SYNC_STATE_SET,
    CONTROLLER_APPLY_BROKER_ID,
    CONTROLLER_ELECT_MASTER,
    CONTROLLER_GET_METADATA_INFO,
    CONTROLLER_GET_NEXT_BROKER_ID,
    CONTROLLER_GET_REPLICA_INFO,
    CONTROLLER_GET_SYNC_STATE_DATA,
    CONTROLLER_REGISTER_BROKER,
    GET_CONTROLLER_CONFIG,
    UPDATE_CONTROLLER_CONFIG,
    AlterSyncStateSetResponseHeader,
    ApplyBrokerIdResponseHeader,
    BrokerReplicasInfo,
    ElectMasterAnswer,
    GetMetaDataResponseHeader,
    GetNextBrokerIdResponseHeader,
    InSyncStateData,
    MasterHeader,
    RegisterBrokerToControllerResponseHeader,
    ReplicaIdentity,
)
from skylark.remoting.protocol.requests.raft import RAFT_MEMBERS
from skylark.remoting.protocol.requests.registrations import BROKER_HEARTBEAT, BrokerHeartbeatRequestHeader
from skylark.remoting.protocol.requests.routes import BrokerMemberGroup
from skylark.remoting.raft.members_request import do_members_request

logger = logging.getLogger(__name__)

MIN_TIMEOUT_MS, MAX_TIMEOUT_MS = 100, 600_000
# Names are kept on disk.
MAX_NAME = 255


class BrokerHandlers:
    """Requests of brokers, by code."""

    def __init__(self, view: View, elections: Elections, leases: Leases) -> None:
        self._view = view
        self._elections = elections
        self._leases = leases

    def handlers(self) -> Mapping[int, Handler]:
        """Handlers that need not wait."""
        return {BROKER_HEARTBEAT.code: self.heartbeat}

    def slow_handlers(self) -> Mapping[int, SlowHandler]:
        """Handlers that wait for the group."""
        return {
            CONTROLLER_GET_NEXT_BROKER_ID.code: self.next_id,
            CONTROLLER_APPLY_BROKER_ID.code: self.apply_id,
            CONTROLLER_REGISTER_BROKER.code: self.register,
            CONTROLLER_ELECT_MASTER.code: self.elect,
            CONTROLLER_GET_REPLICA_INFO.code: self.replica_info,
            CONTROLLER_ALTER_SYNC_STATE_SET.code: self.alter,
        }

    def heartbeat(self, channel: Channel, request: Command) -> Command | None:
        """904: a broker is alive. RocketMQ's brokers want no answer; leases.py answers others."""
        header = BROKER_HEARTBEAT.header(request)
        if header.broker_id is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "a heartbeat to a Controller needs the field brokerId")
        known = self._view.replicas.sets.get(header.broker_name)
        refusal = why_not_registered(known, header.broker_name, header.broker_id)
        registered = None if known is None else known.address(header.broker_id)
        if registered is not None and registered != header.broker_addr:
            refusal = f"BrokerId: {header.broker_id} of {header.broker_name} is registered at {registered}"
        # A Controller that does not lead records who is alive, too, for the time when it leads. A broker at another
        # address than the registered address has a copied identity, and must not count as the registered broker.
        if refusal is None:
            self._hear(channel, request, header, header.broker_id)
        if not self._view.group.is_leader:
            raise self._view.not_leader()
        if refusal is not None:
            raise RequestRefused(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, refusal)
        return None

    def _hear(self, channel: Channel, request: Command, header: BrokerHeartbeatRequestHeader, broker_id: int) -> None:
        # The broker says after what silence it counts as dead. The bounds keep a wrong option of one broker from making
        # elections all the time, or none for hours.
        timeout_ms = header.heartbeat_timeout_mills or self._view.options.broker_heartbeat_timeout
        timeout_ms = min(max(timeout_ms, MIN_TIMEOUT_MS), MAX_TIMEOUT_MS)
        now_ms = self._view.clock.monotonic_ms()
        candidate = Candidate(
            broker_id,
            -1 if header.epoch is None else header.epoch,
            header.max_offset or 0,
            DEFAULT_PRIORITY if header.election_priority is None else header.election_priority,
        )
        self._elections.take_heartbeat(
            LiveReplica(
                (header.broker_name, broker_id),
                channel,
                now_ms,
                timeout_ms,
                candidate,
                header.is_electable is not False,
            )
        )
        # The answer is a lease, which only a leader that a majority still follows may grant. RocketMQ's brokers send
        # heartbeats oneway, and have no leases.
        if self._view.group.is_leader and not request.is_oneway:
            self._leases.answer_later(channel, request, (header.broker_name, broker_id), now_ms, timeout_ms)

    async def next_id(self, channel: Channel, request: Command) -> Command:
        """1012: the id that the next new broker of a set gets."""
        header = CONTROLLER_GET_NEXT_BROKER_ID.header(request)
        # The id is not reserved: of two brokers that get the same id, `apply_id` gives it to the first.
        await self._view.read()
        known = self._view.replicas.sets.get(header.broker_name)
        answer = GetNextBrokerIdResponseHeader(known.next_id if known else 1, header.cluster_name, header.broker_name)
        return CONTROLLER_GET_NEXT_BROKER_ID.answer(request, answer)

    async def apply_id(self, channel: Channel, request: Command) -> Command:
        """1013: give a new broker the id that it asks for."""
        header = CONTROLLER_APPLY_BROKER_ID.header(request)
        if not header.broker_name or max(map(len, (header.broker_name, header.cluster_name))) > MAX_NAME:
            raise RequestRefused(
                ResponseCode.CONTROLLER_BROKER_ID_INVALID, f"names of brokers have 1 to {MAX_NAME} characters"
            )
        change = ApplyBrokerId(
            header.cluster_name, header.broker_name, header.applied_broker_id, header.register_check_code[:MAX_NAME]
        )
        _check(await self._view.change(change))
        answer = ApplyBrokerIdResponseHeader(header.cluster_name, header.broker_name)
        return CONTROLLER_APPLY_BROKER_ID.answer(request, answer)

    async def register(self, channel: Channel, request: Command) -> Command:
        """1003: record the address of a broker. A broker that returns with its old address changes nothing."""
        header = CONTROLLER_REGISTER_BROKER.header(request)
        # A read first: a deposed leader would answer from an old state, and name a master that another has replaced.
        await self._view.read()
        known = self._view.replicas.sets.get(header.broker_name)
        refusal = why_not_registered(known, header.broker_name, header.broker_id)
        if known is None or refusal is not None:
            raise RequestRefused(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, refusal or "")
        if known.address(header.broker_id) != header.broker_address:
            if not is_address(header.broker_address):
                text = f"brokerAddress {header.broker_address[:MAX_NAME]!r} is not HOST:PORT"
                raise RequestRefused(ResponseCode.INVALID_PARAMETER, text)
            self._check_moved(known, header.broker_id, header.broker_address)
            change = RegisterBroker(header.broker_name, header.broker_id, header.broker_address)
            known = _check(await self._view.change(change))
        answer = RegisterBrokerToControllerResponseHeader(header.cluster_name, header.broker_name)
        # A dead master is not named: the broker would follow it, and not ask for an election.
        if known.master is not None and self._view.is_alive((known.name, known.master)):
            answer.master_broker_id, answer.master_address = known.master, known.address(known.master)
            answer.master_epoch, answer.sync_state_set_epoch = known.master_epoch, known.sync_state_set_epoch
        return CONTROLLER_REGISTER_BROKER.answer(request, answer, body=_encoded(request, known.in_sync))

    def _check_moved(self, known: BrokerSet, broker_id: int, address: str) -> None:
        """Refuse another address for a broker whose heartbeats come from the registered address.

        Heartbeats from other addresses are refused, so only one of two brokers with one id can become the master.
        """
        registered = known.address(broker_id)
        if registered is not None and self._view.liveness.get((known.name, broker_id)) is not None:
            raise RequestRefused(
                ResponseCode.CONTROLLER_BROKER_ID_INVALID,
                f"broker {broker_id} of {known.name} is alive at {registered}, so it cannot be at {address}, too. If"
                " brokerIdentity was copied to this store, stop this broker and remove the file; if the broker has"
                " moved, it is registered as soon as the other address is silent",
            )

    async def elect(self, channel: Channel, request: Command) -> Command:
        """1002: from a broker that found no master, or from an administrator who designates a master."""
        header = CONTROLLER_ELECT_MASTER.header(request)
        outcome = await self._elections.elect_on_request(
            header.broker_name, header.broker_id, designated=header.designate_elect
        )
        # A master that still exists is no failure for the broker that asks: the answer says which master to follow.
        known = outcome.broker_set
        if outcome.code not in (ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST) or known is None:
            raise RequestRefused(outcome.code, outcome.remark or "")
        group = BrokerMemberGroup(known.addresses, known.name, known.cluster)
        body = _encoded(request, ElectMasterAnswer(group, sorted(known.sync_state_set)))
        return CONTROLLER_ELECT_MASTER.answer(
            request, known.master_header, code=outcome.code, remark=outcome.remark, body=body
        )

    async def replica_info(self, channel: Channel, request: Command) -> Command:
        """1004: the master of a set, its epochs, and its SyncStateSet."""
        header = CONTROLLER_GET_REPLICA_INFO.header(request)
        await self._view.read()
        known = self._view.replicas.sets.get(header.broker_name)
        if known is None:
            raise RequestRefused(ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST, "Broker metadata is not existed")
        answer = MasterHeader(
            known.master, known.address(known.master), known.master_epoch, registered_replicas=len(known.addresses)
        )
        return CONTROLLER_GET_REPLICA_INFO.answer(request, answer, body=_encoded(request, known.in_sync))

    async def alter(self, channel: Channel, request: Command) -> Command:
        """1001: a master changes its SyncStateSet."""
        header, body = CONTROLLER_ALTER_SYNC_STATE_SET.header(request), CONTROLLER_ALTER_SYNC_STATE_SET.body(request)
        # Only the leader knows which brokers are alive, so the entry carries them: all Controllers must decide the
        # same.
        alive = self._view.live_ids(self._view.replicas.sets.get(header.broker_name))
        change = AlterSyncStateSet(
            header.broker_name,
            header.master_broker_id,
            header.master_epoch,
            tuple(sorted(set(body.sync_state_set))),
            body.sync_state_set_epoch,
            tuple(alive),
        )
        outcome = await self._view.change(change)
        known = outcome.broker_set
        if outcome.code != ResponseCode.SUCCESS or known is None:
            refused = AlterSyncStateSetResponseHeader(0)
            return CONTROLLER_ALTER_SYNC_STATE_SET.answer(request, refused, code=outcome.code, remark=outcome.remark)
        answer = AlterSyncStateSetResponseHeader(known.sync_state_set_epoch)
        return CONTROLLER_ALTER_SYNC_STATE_SET.answer(request, answer, body=_encoded(request, known.in_sync))


def _check(outcome: ChangeOutcome) -> BrokerSet:
    if outcome.code != ResponseCode.SUCCESS or outcome.broker_set is None:
        raise RequestRefused(outcome.code, outcome.remark or "")
    return outcome.broker_set


def _encoded(request: Command, body: Body) -> bytes:
    return encode_body(body, dialect_for(request))


class AdminHandlers:
    """Requests of administrators, by code."""

    def __init__(self, view: View, holder: OptionsHolder) -> None:
        self._view = view
        self._holder = holder

    def handlers(self) -> Mapping[int, Handler]:
        """Handlers that every Controller answers at once."""
        return {
            CONTROLLER_GET_METADATA_INFO.code: self.metadata,
            GET_CONTROLLER_CONFIG.code: self.get_config,
        }

    def slow_handlers(self) -> Mapping[int, SlowHandler]:
        """Handlers that wait for the group, or for the disk."""
        return {
            CONTROLLER_GET_SYNC_STATE_DATA.code: self.sync_state_data,
            UPDATE_CONTROLLER_CONFIG.code: self.update_config,
            CLEAN_BROKER_DATA.code: self.clean,
            RAFT_MEMBERS.code: self.members,
        }

    def metadata(self, channel: Channel, request: Command) -> Command:
        """1005: who leads the Controllers, and where they are."""
        group = self._view.group
        peers = "".join(f"{node}:{addr};" for node, addr in sorted(group.members.all.items()))
        answer = GetMetaDataResponseHeader(
            self._view.options.controller_d_leger_group, group.leader, group.leader_addr, group.is_leader, peers
        )
        return CONTROLLER_GET_METADATA_INFO.answer(request, answer)

    def get_config(self, channel: Channel, request: Command) -> Command:
        """1010: the options of this Controller, as a conf file has them."""
        return request.respond(body=to_properties(self._holder.options).encode())

    async def update_config(self, channel: Channel, request: Command) -> Command:
        """1009: change options of this Controller, and write them to its conf file."""
        return await update_options(self._holder, channel, request)

    async def sync_state_data(self, channel: Channel, request: Command) -> Command:
        """1006: the replicas of sets. Unknown names are left out."""
        names = _names(CONTROLLER_GET_SYNC_STATE_DATA.body(request))
        await self._view.read()
        sets = self._view.replicas.sets
        answer = BrokerReplicasInfo({name: self._shown(sets[name]) for name in names if name in sets})
        return answer_with(CONTROLLER_GET_SYNC_STATE_DATA, request, answer, channel.max_frame_bytes)

    def _shown(self, known: BrokerSet) -> InSyncStateData:
        heard = set(self._view.live_ids(known))
        rows = [ReplicaIdentity(known.name, each, address, each in heard) for each, address in known.addresses.items()]
        return InSyncStateData(
            known.master,
            known.address(known.master),
            known.master_epoch,
            known.sync_state_set_epoch,
            [row for row in rows if row.broker_id in known.sync_state_set],
            [row for row in rows if row.broker_id not in known.sync_state_set],
        )

    async def clean(self, channel: Channel, request: Command) -> Command:
        """1011: forget brokers of a set."""
        header = CLEAN_BROKER_DATA.header(request)
        try:
            ids = tuple(int(each) for each in (header.broker_controller_ids_to_clean or "").split(";") if each.strip())
        except ValueError:
            raise RequestRefused(
                ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA,
                f"please set the option <brokerControllerIdsToClean> according to the format 1;2;3,"
                f" not {header.broker_controller_ids_to_clean}",
            ) from None
        known = self._view.replicas.sets.get(header.broker_name)
        if known is not None and header.cluster_name not in (None, "", known.cluster):
            text = f"{known.name} belongs to cluster {known.cluster}, not {header.cluster_name}"
            raise RequestRefused(ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, text)
        alive = tuple(self._view.live_ids(known))
        change = CleanBrokerData(header.broker_name, ids, alive, header.is_clean_living_broker)
        outcome = await self._view.change(change)
        if outcome.code != ResponseCode.SUCCESS:  # after a success the set may be gone, so not `_check`
            raise RequestRefused(outcome.code, outcome.remark or "")
        logger.info("replicas forgotten: %s %s by=%s", header.broker_name, ids or "all", channel.remote)
        return request.respond()

    async def members(self, channel: Channel, request: Command) -> Command:
        """7120: list the Controllers, add or remove one, or make one the leader."""
        header = RAFT_MEMBERS.header(request)
        with self._view.refusing(RemotingError, BrokerError, ProtocolError):
            members = await do_members_request(self._view.group, header, TIMEOUT_MS)
        return answer_with(RAFT_MEMBERS, request, members, channel.max_frame_bytes)


def _names(body: bytes) -> list[str]:
    try:
        names = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the body cannot be read: {error}") from None
    if type(names) is not list or not all(type(each) is str for each in names):
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "the body cannot be read: it is not an array of broker names")
    return names

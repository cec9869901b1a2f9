"""Handlers for the requests of administrators: the leader (1005), sets (1006), options (1009, 1010), replicas that are
gone for good (1011), and the members of the group of Controllers (7120).
"""

import logging
from collections.abc import Mapping

import orjson

from mqcommon.addresses import is_address
from mqcommon.errors import BrokerError, ProtocolError, RemotingError, RequestRefused
from mqcommon.options.conf_file import to_properties
from mqcommon.raft.errors import NotLeader, RaftError
from mqcommon.raft.membership import Remove
from namesrv.config_handlers import OptionsHolder, update_options
from namesrv.controller.commands import CleanBrokerData
from namesrv.controller.sets import BrokerSet
from namesrv.controller.view import TIMEOUT_MS, View
from remoting.net.answers import answer_with
from remoting.net.channel import Channel
from remoting.net.server import Handler, SlowHandler
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.requests.controller import (
    CLEAN_BROKER_DATA,
    CONTROLLER_GET_METADATA_INFO,
    CONTROLLER_GET_SYNC_STATE_DATA,
    CONTROLLER_MEMBERS,
    GET_CONTROLLER_CONFIG,
    UPDATE_CONTROLLER_CONFIG,
    BrokerReplicasInfo,
    ControllerMembers,
    ControllerMembersRequestHeader,
    GetMetaDataResponseHeader,
    InSyncStateData,
    ReplicaIdentity,
)

logger = logging.getLogger(__name__)


class AdminHandlers:
    """Requests of administrators, by code."""

    def __init__(self, view: View, holder: OptionsHolder) -> None:
        self._view = view
        self._holder = holder

    def handlers(self) -> Mapping[int, Handler]:
        """Those that every Controller answers at once."""
        return {
            CONTROLLER_GET_METADATA_INFO.code: self.metadata,
            GET_CONTROLLER_CONFIG.code: self.get_config,
        }

    def slow_handlers(self) -> Mapping[int, SlowHandler]:
        """Those that wait for the group, or for the disk."""
        return {
            CONTROLLER_GET_SYNC_STATE_DATA.code: self.sync_state_data,
            UPDATE_CONTROLLER_CONFIG.code: self.update_config,
            CLEAN_BROKER_DATA.code: self.clean,
            CONTROLLER_MEMBERS.code: self.members,
        }

    def metadata(self, channel: Channel, request: Command) -> Command:
        """1005."""
        group = self._view.group
        peers = "".join(f"{node}:{addr};" for node, addr in sorted(group.members.all.items()))
        answer = GetMetaDataResponseHeader(
            self._view.options.controller_d_leger_group, group.leader, group.leader_addr, group.is_leader, peers
        )
        return CONTROLLER_GET_METADATA_INFO.answer(request, answer)

    def get_config(self, channel: Channel, request: Command) -> Command:
        """1010."""
        return request.respond(body=to_properties(self._holder.options).encode())

    async def update_config(self, channel: Channel, request: Command) -> Command:
        """1009."""
        return await update_options(self._holder, channel, request)

    async def sync_state_data(self, channel: Channel, request: Command) -> Command:
        """1006. Names that are not known are left out."""
        names = _names(CONTROLLER_GET_SYNC_STATE_DATA.body(request))
        await self._view.read()
        sets = self._view.replicas.sets
        answer = BrokerReplicasInfo({name: self._shown(sets[name]) for name in names if name in sets})
        return answer_with(CONTROLLER_GET_SYNC_STATE_DATA, request, answer, channel.max_frame_bytes)

    def _shown(self, known: BrokerSet) -> InSyncStateData:
        heard = set(self._view.heard(known))
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
        """1011."""
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
        alive = tuple(self._view.heard(known))
        change = CleanBrokerData(header.broker_name, ids, alive, header.is_clean_living_broker)
        outcome = await self._view.change(change)
        if outcome.code != ResponseCode.SUCCESS:
            raise RequestRefused(outcome.code, outcome.remark or "")
        logger.info("replicas forgotten: %s %s by=%s", header.broker_name, ids or "all", channel.remote)
        return request.respond()

    async def members(self, channel: Channel, request: Command) -> Command:
        """7120."""
        header = CONTROLLER_MEMBERS.header(request)
        try:
            await self._change_members(header)
        except NotLeader as error:
            raise self._view.not_leader(error.leader) from None
        except (RaftError, RemotingError, BrokerError, ProtocolError) as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from None
        group = self._view.group
        shown = ControllerMembers(group.leader, dict(group.members.voters), dict(group.members.learners))
        return answer_with(CONTROLLER_MEMBERS, request, shown, channel.max_frame_bytes)

    async def _change_members(self, header: ControllerMembersRequestHeader) -> None:
        group = self._view.group
        match header.action:
            case "list":
                await group.read(TIMEOUT_MS)
            case "add":
                if not is_address(header.address or ""):
                    raise _wrong(f"address {header.address!r} is not HOST:PORT")
                await group.add(header.address or "", TIMEOUT_MS)
            case "remove":
                await group.change(Remove(header.node or ""), TIMEOUT_MS)
            case "transfer" if header.node != group.leader:
                await group.transfer(header.node or "", TIMEOUT_MS)
            case "transfer":
                await group.read(TIMEOUT_MS)  # it leads already
            case _:
                raise _wrong(f"action {header.action!r} is none of list, add, remove, transfer")


def _wrong(text: str) -> RequestRefused:
    return RequestRefused(ResponseCode.INVALID_PARAMETER, text)


def _names(body: bytes) -> list[str]:
    try:
        names = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the body cannot be read: {error}") from None
    if type(names) is not list or not all(type(each) is str for each in names):
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "the body cannot be read: it is not an array of broker names")
    return names

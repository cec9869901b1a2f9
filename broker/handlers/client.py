"""Clients: heartbeats (34), leaving (35), who is in a group (38, 203, 204), what is handed on to a client (307, 309).

When the members of a consumer group change, those who are left are told (member_notices.py).
Neighbours: meta/clients.py; broker.py calls `closed` for each connection that ends, and `expire` every 10 seconds.
"""

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress

from broker.handlers.bodies import answer_with, read_body, refused_when_not_stored
from broker.handlers.member_notices import MemberNotices
from broker.meta.clients import Clients, Member
from broker.meta.groups import Groups
from broker.meta.topics import Topics
from broker.options import BrokerOptions
from mqcommon.clock import Clock
from mqcommon.errors import DiskFull, ProtocolError, RemotingError, RequestRefused, RequestTimeout
from mqcommon.message.ids import split_offset_msg_id
from remoting.net.answers import answer_steps
from remoting.net.channel import Channel
from remoting.net.server import Handler, SlowHandler
from remoting.net.steps import StepHandler, Steps, slices
from remoting.protocol.bodies import Body, decode_body
from remoting.protocol.bodies.connections import Connection, ConsumerConnection, ProducerConnection
from remoting.protocol.bodies.consume_result import ConsumeMessageDirectlyResult
from remoting.protocol.bodies.group import ConsumerIdList, SubscriptionGroupConfig
from remoting.protocol.bodies.heartbeat import ConsumerData, HeartbeatData
from remoting.protocol.bodies.limited import BodyLimits
from remoting.protocol.bodies.running_info import ConsumerRunningInfo
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import CBOR, LANGUAGES, OTHER_LANGUAGE, Command
from remoting.protocol.headers.client import (
    ConsumeMessageDirectlyRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    HeartbeatResponseHeader,
    UnregisterClientRequestHeader,
)
from remoting.protocol.headers.groups import ConsumerGroupRequestHeader, ProducerGroupRequestHeader

logger = logging.getLogger(__name__)

# V3_1_8_SNAPSHOT: older clients do not know what is handed on to them.
OLDEST_FORWARD_VERSION = 62
UNIT_SUB_FLAG = 2
# What one heartbeat may say: to take it over is one piece of work, of some 20 ms at the most.
HEARTBEAT = BodyLimits(max_bytes=512 * 1024, max_entries=20_000)
MAX_GROUPS = 1_000
MAX_EXPRESSIONS = 65_536
# To make a group and its retry topic takes some 100 µs.
MAX_NEW_GROUPS = 50
# Members that are listed in one step.
MEMBERS = 1_000


class ClientHandlers:
    """See the module. ``find_record``: the stored message at a physical offset."""

    def __init__(
        self,
        clients: Clients,
        topics: Topics,
        groups: Groups,
        options: BrokerOptions,
        clock: Clock,
        find_record: Callable[[int], bytes | None],
    ) -> None:
        self._clients = clients
        self._topics = topics
        self._groups = groups
        self._options = options
        self._clock = clock
        self._find_record = find_record
        #: To be run.
        self.notices = MemberNotices(clients, groups, options)

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_ids,
        }

    def step_handlers(self) -> dict[int, StepHandler]:
        return {
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumer_connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producer_connections,
        }

    def slow_handlers(self) -> dict[int, SlowHandler]:
        return {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
        }

    # --- coming and going

    def heartbeat(self, channel: Channel, request: Command) -> Command:
        """34: the groups that a client is in; unknown ones are created where that is allowed."""
        data = read_body(HeartbeatData, request, HEARTBEAT)
        _check_heartbeat(data)
        now_ms = self._clock.monotonic_ms()
        language = request.language if request.language in LANGUAGES else OTHER_LANGUAGE
        known_otherwise = False
        changed = []
        new_groups = 0
        try:
            for consumer in data.consumer_data_set:
                name = consumer.group_name
                if self._groups.get(name) is None and not self._options.is_slave:
                    new_groups += 1
                    if new_groups > MAX_NEW_GROUPS:
                        continue  # the next heartbeat makes more of them
                if self._prepared_group(consumer) is None:
                    continue
                if self._clients.consume(channel, data, consumer, language, request.version, now_ms):
                    changed.append(name)
                if data.heartbeat_fingerprint:
                    known_otherwise |= self._clients.fingerprint_changed(name, data.heartbeat_fingerprint)
        finally:
            self.notices.changed(changed)
        for producer in data.producer_data_set:
            self._clients.produce(channel, data, producer.group_name, language, request.version, now_ms)
        # A client whose heartbeats have no fingerprint always sends its subscriptions.
        sub_change = known_otherwise if data.heartbeat_fingerprint else True
        return request.respond(ext=HeartbeatResponseHeader(True, sub_change).to_ext())

    def unregister(self, channel: Channel, request: Command) -> Command:
        """35: leave a producer group, a consumer group, or both; names may be empty."""
        header = UnregisterClientRequestHeader.from_ext(request.ext)
        if header.producer_group:
            self._clients.leave_producer_group(channel, header.producer_group)
        if header.consumer_group and self._clients.leave_consumer_group(channel, header.consumer_group):
            self.notices.changed([header.consumer_group])
        return request.respond(ext={})

    def closed(self, channel: Channel) -> None:
        """The connection ended."""
        self.notices.changed(self._clients.close(channel))

    def expire(self) -> None:
        """Close the connections of clients that have fallen silent."""
        for channel in self._clients.silent(self._clock.monotonic_ms(), self._options.channel_expired_timeout):
            logger.info("client at %s is silent, its connection is closed", channel.remote)
            channel.close("no heartbeat in time")
            self.closed(channel)

    # --- who is there

    def consumer_ids(self, channel: Channel, request: Command) -> Command:
        """38."""
        name = ConsumerGroupRequestHeader.from_ext(request.ext).consumer_group
        group = self._clients.consumer_group(name)
        if group is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
        return answer_with(request, ConsumerIdList(group.client_ids()))

    def consumer_connections(self, channel: Channel, request: Command) -> Steps[Command]:
        """203."""
        name = ConsumerGroupRequestHeader.from_ext(request.ext).consumer_group
        group = self._clients.consumer_group(name)
        if group is None:
            raise RequestRefused(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
        body = ConsumerConnection(
            (yield from _connections(group.members.values())),
            group.subscriptions,
            group.consume_type,
            group.message_model,
            group.consume_from_where,
        )
        return (yield from answer_steps(request, body, channel.max_frame_bytes))

    def producer_connections(self, channel: Channel, request: Command) -> Steps[Command]:
        """204."""
        name = ProducerGroupRequestHeader.from_ext(request.ext).producer_group
        members = self._clients.producers(name)
        if not members:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        body = ProducerConnection((yield from _connections(members)))
        return (yield from answer_steps(request, body, channel.max_frame_bytes))

    async def running_info(self, channel: Channel, request: Command) -> Command:
        """307: the consumer answers, not the broker."""
        header = GetConsumerRunningInfoRequestHeader.from_ext(request.ext)
        handed_on = Command(request.code, dict(request.ext or {}), request.body)
        return await self._hand_on(request, handed_on, header.consumer_group, header.client_id, ConsumerRunningInfo)

    async def consume_directly(self, channel: Channel, request: Command) -> Command:
        """309: a consumer is given one message, whatever its group's offset is, and answers how that went."""
        header = ConsumeMessageDirectlyRequestHeader.from_ext(request.ext)
        body = request.body or self._message(header.msg_id or "")
        handed_on = Command(request.code, {**(request.ext or {}), "brokerName": self._options.broker_name}, body)
        return await self._hand_on(
            request, handed_on, header.consumer_group, header.client_id, ConsumeMessageDirectlyResult
        )

    def _message(self, msg_id: str) -> bytes:
        try:
            _, offset = split_offset_msg_id(msg_id)
        except ValueError as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from None
        record = self._find_record(offset)
        if record is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        return record

    async def _hand_on(
        self, request: Command, handed_on: Command, group: str, client_id: str, answer_body: type[Body]
    ) -> Command:
        member = self._clients.find(group, client_id)
        if member is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
        if member.version < OLDEST_FORWARD_VERSION:
            text = f"The Consumer <{client_id}> Version <{member.version}> too low to finish, please upgrade it"
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{text} to V3_1_8_SNAPSHOT")
        try:
            answer = await member.channel.invoke(handed_on, self._options.forward_timeout)
        except RequestTimeout as error:
            text = f"consumer <{group}> <{client_id}> Timeout: {error}"
            raise RequestRefused(ResponseCode.CONSUME_MSG_TIMEOUT, text) from None
        except RemotingError as error:
            text = f"invoke consumer <{group}> <{client_id}> Exception: {error}"
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, text) from None
        if request.codec == CBOR and answer.code == ResponseCode.SUCCESS:
            return answer_with(request, _readable(answer, answer_body))
        return request.respond(answer.code, answer.remark, answer.ext, answer.body)

    # --- inside

    def _prepared_group(self, consumer: ConsumerData) -> SubscriptionGroupConfig | None:
        """The group of a consumer, with its retry topic; None when there is none and none may be made."""
        with refused_when_not_stored():
            config = self._groups.get_or_create(consumer.group_name)
            if config is not None and consumer.message_model != "BROADCASTING" and config.retry_queue_nums > 0:
                sys_flag = UNIT_SUB_FLAG if consumer.unit_mode else 0
                with suppress(DiskFull):  # the group can read without it; a later heartbeat makes it
                    self._topics.create_retry_topic(consumer.group_name, config.retry_queue_nums, sys_flag)
        return config


def _check_heartbeat(data: HeartbeatData) -> None:
    """RequestRefused when it says not who it is from, or so much that taking it over would hold up others."""
    if not data.client_id:
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, "the heartbeat has no clientID")
    groups = len(data.consumer_data_set) + len(data.producer_data_set)
    if groups > MAX_GROUPS:
        text = f"the heartbeat names {groups} groups, at most {MAX_GROUPS} are taken"
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, text)
    subscriptions = [one for consumer in data.consumer_data_set for one in consumer.subscription_data_set]
    length = sum(len(one.sub_string) or sum(map(len, one.tags_set)) for one in subscriptions)
    if length > MAX_EXPRESSIONS:
        text = f"the heartbeat's subscriptions have {length} characters, at most {MAX_EXPRESSIONS} are taken"
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, text)


def _readable(answer: Command, kind: type[Body]) -> Body:
    try:
        return decode_body(kind, answer.body, answer.codec)
    except ProtocolError as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the consumer's answer cannot be read: {error}") from None


def _connections(members: Iterable[Member]) -> Steps[list[Connection]]:
    found: list[Connection] = []
    for part in slices(list(members), MEMBERS):
        found += [Connection(one.client_id, one.channel.remote, one.language, one.version) for one in part]
        yield None
    return found

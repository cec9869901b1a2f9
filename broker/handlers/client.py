"""Clients: heartbeats (34), leaving (35), members of a group (38, 203, 204), requests forwarded to a client (307, 309).

When the members of a consumer group change, the others get a notice (member_notices.py).
Neighbours: meta/clients.py; member_notices.py.
"""

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import trio

from broker.handlers.member_notices import MemberNotices
from broker.meta.clients import Clients, Member
from broker.meta.groups import Groups
from broker.meta.topics import Topics
from broker.options import BrokerOptions
from broker.part import Part
from broker.stored_changes import refused_when_not_stored
from mqcommon.clock import Clock
from mqcommon.errors import DiskFull, ProtocolError, RemotingError, RequestRefused, RequestTimeout
from mqcommon.message.ids import split_offset_msg_id
from remoting.net.answers import answer_steps, answer_with
from remoting.net.channel import Channel
from remoting.net.server import Handler, SlowHandler
from remoting.net.steps import StepHandler, Steps, slices
from remoting.protocol.bodies import Body
from remoting.protocol.bodies.connections import Connection, ConsumerConnection, ProducerConnection
from remoting.protocol.bodies.group import ConsumerIdList, SubscriptionGroupConfig
from remoting.protocol.bodies.heartbeat import ConsumerData, HeartbeatData
from remoting.protocol.bodies.limited import BodyLimits
from remoting.protocol.bodies.topic import TOPIC_UNIT_SUB
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import CBOR, LANGUAGES, OTHER_LANGUAGE, Command
from remoting.protocol.headers.client import (
    HeartbeatResponseHeader,
)
from remoting.protocol.requests.clients import (
    CONSUME_MESSAGE_DIRECTLY,
    GET_CONSUMER_CONNECTION_LIST,
    GET_CONSUMER_LIST_BY_GROUP,
    GET_CONSUMER_RUNNING_INFO,
    GET_PRODUCER_CONNECTION_LIST,
    HEART_BEAT,
    UNREGISTER_CLIENT,
)
from remoting.protocol.requests.request import Answer, Request

logger = logging.getLogger(__name__)

B = TypeVar("B", bound=Body)

# V3_1_8_SNAPSHOT: older clients do not know the forwarded requests.
OLDEST_FORWARD_VERSION = 62
# Limits of one heartbeat, which is handled in one piece: about 20 ms at most.
HEARTBEAT = BodyLimits(max_bytes=512 * 1024, max_entries=20_000)
MAX_GROUPS = 1_000
MAX_EXPRESSIONS = 65_536
# Creating a group and its retry topic takes about 100 µs.
MAX_NEW_GROUPS = 50
# Members that are listed in one step.
MEMBERS = 1_000


class ClientHandlers(Part):
    """See the module. ``find_record``: the stored message at a physical offset."""

    tick_interval_ms = 10_000

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
        data = HEART_BEAT.body(request, HEARTBEAT)
        _check_heartbeat(data)
        now_ms = self._clock.monotonic_ms()
        language = request.language if request.language in LANGUAGES else OTHER_LANGUAGE
        known_otherwise = False
        changed = []
        new_groups = 0
        try:
            for consumer in data.consumer_data_set:
                name = consumer.group_name
                if self._groups.get(name) is None and not self._groups.is_mirror:
                    new_groups += 1
                    if new_groups > MAX_NEW_GROUPS:
                        continue  # the next heartbeat creates more of them
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
        return HEART_BEAT.answer(request, HeartbeatResponseHeader(True, sub_change))

    def unregister(self, channel: Channel, request: Command) -> Command:
        """35: leave a producer group, a consumer group, or both; names may be empty."""
        header = UNREGISTER_CLIENT.header(request)
        if header.producer_group:
            self._clients.leave_producer_group(channel, header.producer_group)
        if header.consumer_group and self._clients.leave_consumer_group(channel, header.consumer_group):
            self.notices.changed([header.consumer_group])
        return request.respond(ext={})

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send waiting notices, until cancelled."""
        task_status.started()
        await self.notices.run()

    def channel_closed(self, channel: Channel) -> None:
        """The client has left its groups."""
        self.notices.changed(self._clients.close(channel))

    def tick(self) -> None:
        """Close the connections of clients that have fallen silent."""
        for channel in self._clients.silent(self._clock.monotonic_ms(), self._options.channel_expired_timeout):
            logger.info("connection of client %s closed: no heartbeat in time", channel.remote)
            channel.close("no heartbeat in time")
            self.channel_closed(channel)

    # --- members of groups

    def consumer_ids(self, channel: Channel, request: Command) -> Command:
        """38."""
        name = GET_CONSUMER_LIST_BY_GROUP.header(request).consumer_group
        group = self._clients.consumer_group(name)
        if group is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
        return answer_with(GET_CONSUMER_LIST_BY_GROUP, request, ConsumerIdList(group.client_ids()))

    def consumer_connections(self, channel: Channel, request: Command) -> Steps[Command]:
        """203."""
        name = GET_CONSUMER_CONNECTION_LIST.header(request).consumer_group
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
        return (yield from answer_steps(GET_CONSUMER_CONNECTION_LIST, request, body, channel.max_frame_bytes))

    def producer_connections(self, channel: Channel, request: Command) -> Steps[Command]:
        """204."""
        name = GET_PRODUCER_CONNECTION_LIST.header(request).producer_group
        members = self._clients.producers(name)
        if not members:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        body = ProducerConnection((yield from _connections(members)))
        return (yield from answer_steps(GET_PRODUCER_CONNECTION_LIST, request, body, channel.max_frame_bytes))

    async def running_info(self, channel: Channel, request: Command) -> Command:
        """307: forwarded to the consumer, whose answer is returned."""
        what = GET_CONSUMER_RUNNING_INFO
        header = what.header(request)
        handed_on = Command(what.code, dict(request.ext or {}), request.body)
        return await self._hand_on(what, request, handed_on, header.consumer_group, header.client_id)

    async def consume_directly(self, channel: Channel, request: Command) -> Command:
        """309: give a consumer one message, whatever its group's offset is, and return its result."""
        what = CONSUME_MESSAGE_DIRECTLY
        header = what.header(request)
        body = request.body or self._message(header.msg_id or "")
        named = replace(header, broker_name=self._options.broker_name)
        handed_on = Command(what.code, {**(request.ext or {}), **named.to_ext()}, body)
        return await self._hand_on(what, request, handed_on, header.consumer_group, header.client_id)

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
        self, what: Request[Any, Any, None, B], request: Command, handed_on: Command, group: str, client_id: str
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
            return answer_with(what, request, _readable(Answer(what, answer)))
        return request.respond(answer.code, answer.remark, answer.ext, answer.body)

    # --- inside

    def _prepared_group(self, consumer: ConsumerData) -> SubscriptionGroupConfig | None:
        """The group of a consumer, with its retry topic; None when it does not exist and may not be created."""
        with refused_when_not_stored():
            config = self._groups.get_or_create(consumer.group_name)
            if config is not None and consumer.message_model != "BROADCASTING" and config.retry_queue_nums > 0:
                sys_flag = TOPIC_UNIT_SUB if consumer.unit_mode else 0
                with suppress(DiskFull):  # the group can read without it; a later heartbeat creates it
                    self._topics.create_retry_topic(consumer.group_name, config.retry_queue_nums, sys_flag)
        return config


def _check_heartbeat(data: HeartbeatData) -> None:
    """RequestRefused when the client id is missing, or the heartbeat is so large that it would hold up others."""
    if not data.client_id:
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, "the heartbeat has no clientID")
    groups = len(data.consumer_data_set) + len(data.producer_data_set)
    if groups > MAX_GROUPS:
        text = f"the heartbeat names {groups} groups, at most {MAX_GROUPS} are allowed"
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, text)
    subscriptions = [one for consumer in data.consumer_data_set for one in consumer.subscription_data_set]
    length = sum(len(one.sub_string) or sum(map(len, one.tags_set)) for one in subscriptions)
    if length > MAX_EXPRESSIONS:
        text = f"the heartbeat's subscriptions have {length} characters, at most {MAX_EXPRESSIONS} are allowed"
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, text)


def _readable(answer: Answer[None, B]) -> B:
    try:
        return answer.body()
    except ProtocolError as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the consumer's answer cannot be read: {error}") from None


def _connections(members: Iterable[Member]) -> Steps[list[Connection]]:
    found: list[Connection] = []
    for part in slices(list(members), MEMBERS):
        found += [Connection(one.client_id, one.channel.remote, one.language, one.version) for one in part]
        yield None
    return found

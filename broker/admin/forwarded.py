"""Requests that this broker hands on to a group's clients: 307, 309, and 223, which asks them with 221.

A request to a client is a row of its connection (remoting/net/channel.py), with ``forwardTimeout`` as its deadline.
Bounds: the server's slow requests, the rows of a connection, and `MAX_CLIENTS_ASKED` clients for one request.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import trio

from skylark.broker.cold_reads import from_disk
from skylark.broker.meta.clients import Clients, Member
from skylark.broker.meta.proxied_clients import ProxiedClients
from skylark.broker.options import BrokerOptions
from skylark.broker.part import Part
from skylark.mqcommon.errors import ProtocolError, RemotingError, RequestRefused, RequestTimeout
from skylark.mqcommon.message.ids import split_offset_msg_id
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import check_group, check_topic
from skylark.remoting.net.answers import answer_with
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import SlowHandler
from skylark.remoting.protocol.body import Body
from skylark.remoting.protocol.bounded_body import BodyLimits, decode_limited
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import CBOR, Command
from skylark.remoting.protocol.request import Answer, Request
from skylark.remoting.protocol.requests.clients import (
    CONSUME_MESSAGE_DIRECTLY,
    GET_CONSUMER_RUNNING_INFO,
    GET_CONSUMER_STATUS_FROM_CLIENT,
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
)
from skylark.remoting.protocol.requests.offsets import GetConsumerStatusBody, GetConsumerStatusRequestHeader

logger = logging.getLogger(__name__)

B = TypeVar("B", bound=Body)

# V3_1_8_SNAPSHOT: older clients do not know 307 and 309.
OLDEST_FORWARD_VERSION = 62
# V3_0_7_SNAPSHOT: older clients do not know 221.
OLDEST_STATUS_VERSION = 28
MAX_CLIENTS_ASKED = 500
# The offsets of one client, decoded in one piece: some 20 ms for Java's JSON with objects as keys.
STATUS = BodyLimits(max_bytes=512 * 1024, relaxed_bytes=256 * 1024)


class ForwardedHandlers(Part):
    """Forwards requests to clients of a group. ``find_record`` returns the stored message at a physical offset."""

    def __init__(
        self,
        clients: Clients,
        proxied: ProxiedClients,
        options: BrokerOptions,
        find_record: Callable[[int], bytes | None],
    ) -> None:
        self._clients = clients
        self._proxied = proxied
        self._options = options
        self._find_record = find_record

    def slow_handlers(self) -> dict[int, SlowHandler]:
        return {
            INVOKE_BROKER_TO_GET_CONSUMER_STATUS.code: self.consumer_status,
            GET_CONSUMER_RUNNING_INFO.code: self.running_info,
            CONSUME_MESSAGE_DIRECTLY.code: self.consume_directly,
        }

    async def consumer_status(self, channel: Channel, request: Command) -> Command:
        """223: how far each client of a group has consumed; a client that does not answer is left out."""
        header = INVOKE_BROKER_TO_GET_CONSUMER_STATUS.header(request)
        check_group(header.group)
        check_topic(header.topic)
        wanted = self._wanted(header.group, (header.client_addr or "").strip())
        status_of: dict[str, dict[MessageQueue, int]] = {}
        async with trio.open_nursery() as nursery:
            for member in wanted:
                nursery.start_soon(self._ask_status, member, header.group, header.topic, status_of)
        body = GetConsumerStatusBody(consumer_table=dict(sorted(status_of.items())))
        return answer_with(INVOKE_BROKER_TO_GET_CONSUMER_STATUS, request, body, channel.max_frame_bytes)

    async def _ask_status(
        self, member: Member, group: str, topic: str, status_of: dict[str, dict[MessageQueue, int]]
    ) -> None:
        """Ask one client for its offsets, and add them to ``status_of``."""
        question = GET_CONSUMER_STATUS_FROM_CLIENT.command(GetConsumerStatusRequestHeader(topic, group))
        try:
            answer = await member.channel.invoke(question, self._options.forward_timeout)
            if answer.code != ResponseCode.SUCCESS:
                raise ProtocolError(f"code {answer.code}: {answer.remark}")
            status = decode_limited(GetConsumerStatusBody, answer.body, answer.codec, STATUS)
        except (RemotingError, ProtocolError) as error:
            logger.warning("client %s of group %s does not tell its offsets: %s", member.client_id, group, error)
        else:
            status_of[member.client_id] = status.message_queue_table or {}

    def _wanted(self, group: str, client_id: str) -> list[Member]:
        """One connection of each client of the group, or of the named one."""
        members = self._clients.consumer_group(group)
        if members is None:
            text = f"No Any Consumer online in the consumer group: [{group}]"
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, text)
        if client_id and client_id not in members.clients:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
        names = [client_id] if client_id else members.client_ids()
        if len(names) > MAX_CLIENTS_ASKED:
            text = f"the group has {len(names)} consumers, at most {MAX_CLIENTS_ASKED} are asked: name one"
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, text)
        wanted = [next(iter(members.clients[name].values())) for name in names]
        for one in wanted:
            if one.version < OLDEST_STATUS_VERSION:
                text = f"the client {one.client_id} does not support this feature. version={one.version}"
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, text)
        return wanted

    async def running_info(self, channel: Channel, request: Command) -> Command:
        """307: ask a consumer for its status, and return its answer."""
        what = GET_CONSUMER_RUNNING_INFO
        header = what.header(request)
        handed_on = Command(what.code, dict(request.ext or {}), request.body)
        return await self._hand_on(what, request, handed_on, header.consumer_group, header.client_id)

    async def consume_directly(self, channel: Channel, request: Command) -> Command:
        """309: give a consumer one message, whatever its group's offset is, and return its result."""
        what = CONSUME_MESSAGE_DIRECTLY
        header = what.header(request)
        body = request.body or await self._message(header.msg_id or "")
        named = replace(header, broker_name=self._options.broker_name)
        handed_on = Command(what.code, {**(request.ext or {}), **named.to_ext()}, body)
        return await self._hand_on(what, request, handed_on, header.consumer_group, header.client_id)

    async def _message(self, msg_id: str) -> bytes:
        try:
            _, offset = split_offset_msg_id(msg_id)
        except ValueError as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from None
        record = await from_disk(partial(self._find_record, offset))
        if record is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        return record

    async def _hand_on(
        self, what: Request[Any, Any, None, B], request: Command, handed_on: Command, group: str, client_id: str
    ) -> Command:
        try:
            answer = await self._channel(group, client_id).invoke(handed_on, self._options.forward_timeout)
        except RequestTimeout as error:
            text = f"consumer <{group}> <{client_id}> Timeout: {error}"
            raise RequestRefused(ResponseCode.CONSUME_MSG_TIMEOUT, text) from None
        except RemotingError as error:
            text = f"invoke consumer <{group}> <{client_id}> Exception: {error}"
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, text) from None
        # The body is in the consumer's encoding. A caller that speaks CBOR expects CBOR, so the body is encoded again.
        if request.codec == CBOR and answer.code == ResponseCode.SUCCESS:
            return answer_with(what, request, _readable(Answer(what, answer)))
        return request.respond(answer.code, answer.remark, answer.ext, answer.body)

    def _channel(self, group: str, client_id: str) -> Channel:
        """The connection to a consumer, or to the proxy that it uses."""
        member = self._clients.find(group, client_id)
        if member is None:
            proxied = self._proxied.find(group, client_id)
            if proxied is None:
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
            return proxied.channel
        if member.version < OLDEST_FORWARD_VERSION:
            text = f"The Consumer <{client_id}> Version <{member.version}> too low to finish, please upgrade it"
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{text} to V3_1_8_SNAPSHOT")
        return member.channel


def _readable(answer: Answer[None, B]) -> B:
    try:
        return answer.body()
    except ProtocolError as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the consumer's answer cannot be read: {error}") from None

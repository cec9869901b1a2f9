"""Replies: 324 and 325. The broker pushes a reply to the client that sent the request (326).

A request is a plain message whose properties name the waiting client: REPLY_TO_CLIENT and CORRELATION_ID. This broker
must know that client by a heartbeat. Replies may only go to the reply topic of the cluster. RocketMQ's clients with a
namespace put the namespace before its name; no topic of that name needs to exist. Replies are also stored in the reply
topic (``storeReplyMessageEnable``); no answer waits for that.
Neighbours: meta/clients.py (where clients are), sdk/producer/requests.py (the other end).
"""

import logging
from collections.abc import Callable
from typing import Any

from skylark.broker.meta.clients import Clients
from skylark.broker.meta.topics import Topics, no_such_topic
from skylark.broker.options import BrokerOptions
from skylark.broker.part import Part
from skylark.broker.writing.writer import Writer
from skylark.mqcommon.addresses import format_address, split_address
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import RemotingError, RequestRefused
from skylark.mqcommon.message.ids import decode_host, encode_host, offset_msg_id
from skylark.mqcommon.message.properties import PUSH_REPLY_TIME, REPLY_TO_CLIENT, find_property, replace_properties
from skylark.mqcommon.names import PERM_WRITE, RETRY_TOPIC_MAX_LENGTH, reply_topic
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import SlowHandler
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.request import Request
from skylark.remoting.protocol.requests.sends import (
    PUSH_REPLY_MESSAGE_TO_CLIENT,
    SEND_REPLY_MESSAGE,
    SEND_REPLY_MESSAGE_V2,
    ReplyMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageResponseHeader,
)

logger = logging.getLogger(__name__)

#: Between a namespace and the name of a topic.
_SEPARATOR = "%"

Described = Request[SendMessageRequestHeader, Any, SendMessageResponseHeader, Any]


class Replies(Part):
    """Handles replies (324, 325): pushes and stores them."""

    def __init__(
        self,
        clients: Clients,
        topics: Topics,
        writer: Writer,
        options: BrokerOptions,
        store_host: bytes,
        clock: Clock,
        turned: Callable[[], None],
    ) -> None:
        """``turned`` is called after messages were stored outside of a turn."""
        self._clients = clients
        self._topics = topics
        self._writer = writer
        self._options = options
        self._store_host = store_host
        self._clock = clock
        self._turned = turned

    @property
    def _topic(self) -> str:
        return reply_topic(self._options.broker_cluster_name)

    def slow_handlers(self) -> dict[int, SlowHandler]:
        return {
            SEND_REPLY_MESSAGE.code: lambda channel, request: self._reply(channel, request, SEND_REPLY_MESSAGE),
            SEND_REPLY_MESSAGE_V2.code: lambda channel, request: self._reply(channel, request, SEND_REPLY_MESSAGE_V2),
        }

    async def _reply(self, channel: Channel, request: Command, what: Described) -> Command:
        header = what.header(request)
        self._check(header, request.body)
        properties = (header.properties or "").encode()
        # Serve the waiting client first; the stored reply is only for tools.
        failure = await self._push(channel, header, properties, request.body)
        answer = SendMessageResponseHeader("0", header.queue_id, 0)
        if self._options.store_reply_message_enable:
            self._store(channel, header, properties, request.body, answer)
        if failure:
            logger.warning("a reply was not delivered: %s", failure)
            return request.respond(ResponseCode.SYSTEM_ERROR, failure)
        return what.answer(request, answer)

    def _check(self, header: SendMessageRequestHeader, body: bytes) -> None:
        # Only the reply topic is allowed: the right to send to some topic must not be enough to reach any client.
        replies = self._topic
        namespace, separator, name = header.topic.rpartition(_SEPARATOR)
        if name != replies or (separator and (not namespace or _SEPARATOR in namespace)):
            text = f"replies go to the topic {replies}, not to {header.topic[:RETRY_TOPIC_MAX_LENGTH]}"
            raise RequestRefused(ResponseCode.NO_PERMISSION, text)
        config = self._topics.get(replies)
        if config is None:
            raise no_such_topic(replies)
        if not config.perm & PERM_WRITE:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"the topic[{header.topic}] sending message is forbidden")
        if header.queue_id < 0 < config.write_queue_nums:
            header.queue_id = 0
        if not 0 <= header.queue_id < config.write_queue_nums:
            text = f"request queueId[{header.queue_id}] is illegal, {config}"
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, text)
        self._writer.check(header.sys_flag, len(body))

    async def _push(self, channel: Channel, header: SendMessageRequestHeader, properties: bytes, body: bytes) -> str:
        """Push the reply; returns why the push failed, "" if it did not."""
        wanted = (find_property(properties, REPLY_TO_CLIENT.encode()) or b"").decode(errors="replace")
        if not wanted:
            return f"reply message properties[{REPLY_TO_CLIENT}] is null"
        client = self._clients.producer_channel(wanted)
        if client is None:
            return f"push reply message fail, channel of <{wanted}> not found."
        now_ms = self._clock.now_ms()
        stamped = replace_properties(properties, {PUSH_REPLY_TIME.encode(): b"%d" % now_ms})
        pushed = ReplyMessageRequestHeader(
            header.producer_group,
            header.topic,
            header.default_topic,
            header.default_topic_queue_nums,
            header.queue_id,
            header.sys_flag,
            header.born_timestamp,
            header.flag,
            f"/{channel.remote}",
            f"/{format_address(*decode_host(self._store_host))}",
            now_ms,
            stamped.decode(),
            header.reconsume_times,
            header.unit_mode,
        )
        command = PUSH_REPLY_MESSAGE_TO_CLIENT.command(pushed)
        command.body = body
        try:
            answer = await client.invoke(command, self._options.forward_timeout)
        except RemotingError as error:
            return f"push reply message to {wanted} fail: {error}"
        if answer.code != ResponseCode.SUCCESS:
            return f"push reply message to {wanted} fail: {answer.remark}"
        return ""

    def _store(
        self,
        channel: Channel,
        header: SendMessageRequestHeader,
        properties: bytes,
        body: bytes,
        answer: SendMessageResponseHeader,
    ) -> None:
        """Store the reply, if this broker can; ``answer`` then has its place."""
        born_host = encode_host(*split_address(channel.remote))
        try:
            put = self._writer.put(
                self._topic,
                header.queue_id,
                body,
                properties,
                header.flag,
                header.sys_flag,
                header.born_timestamp,
                born_host,
                header.reconsume_times or 0,
            )
        except RequestRefused as refused:
            logger.warning("a reply was not stored: %s", refused)
            return
        answer.msg_id = offset_msg_id(self._store_host, put.physical_offset)
        answer.queue_offset = put.queue_offset
        self._turned()

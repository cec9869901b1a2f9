"""`Requests`: messages that are answered with a reply, and the replies. See `Producer.request`.

A request is a plain message with three more properties: which client waits (REPLY_TO_CLIENT), for which reply
(CORRELATION_ID), and for how long (TTL). The handler's consumer sends the reply to a broker of the cluster (325), which
pushes the reply to the client (326). So before a request is sent, the brokers that may store it must know the client.
Neighbours: sdk/broker_requests.py (where replies arrive), broker/delivery/replies.py.
"""

from collections.abc import Mapping
from typing import Protocol
from uuid import uuid4

import trio

from skylark.mqcommon.errors import BrokerError, InvalidArgument, RemotingError, ReplyTimeout, SendFailed, SkylarkError
from skylark.mqcommon.message.message import Message, MessageExt
from skylark.mqcommon.message.properties import (
    CLUSTER,
    CORRELATION_ID,
    MSG_TYPE,
    REPLY_TO_CLIENT,
    TTL,
    encode_properties,
)
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import reply_topic
from skylark.remoting.net.call import call
from skylark.remoting.protocol.requests.sends import SEND_REPLY_MESSAGE_V2, SendMessageRequestHeader
from skylark.sdk.client import ClientHandle
from skylark.sdk.producer.brokers import Brokers
from skylark.sdk.producer.packing import PackedMessage, Packing, check_body
from skylark.sdk.producer.result import SendResult
from skylark.sdk.producer.wire import AUTO_CREATE_TOPIC_QUEUES, DEFAULT_TOPIC
from skylark.sdk.suspects import PROBE_TIMEOUT_MS

REQUEST_TIMEOUT_MS = 3_000
# The share of a request's time within which brokers that do not know this client yet must answer its heartbeat.
INTRODUCTION_SHARE = 1 / 3
_COPIED = (CORRELATION_ID, REPLY_TO_CLIENT, TTL)


class Sender(Protocol):
    """The producer as requests and replies see it."""

    wire_group: str
    brokers: Brokers

    def now_ms(self) -> int: ...

    def new_keys(self, count: int) -> list[bytes]: ...

    async def send(self, message: Message, *, timeout_ms: float | None = None) -> SendResult: ...

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]: ...


class Requests:
    """Requests and replies of one producer."""

    def __init__(self, sender: Sender, client: ClientHandle, packing: Packing, max_message_bytes: int) -> None:
        self._sender = sender
        self._packing = packing
        self._client = client
        self._max_message_bytes = max_message_bytes

    async def request(self, message: Message, timeout_ms: float) -> MessageExt:
        """See `Producer.request`."""
        check_body("message.body", message.body, self._max_message_bytes)
        self._client.check_open()
        instance = self._client.instance
        correlation_id = str(uuid4())
        asked = Message(message.topic, message.body, flag=message.flag)
        asked.properties = {
            **(message.properties or {}),
            CORRELATION_ID: correlation_id,
            REPLY_TO_CLIENT: instance.client_id,
            TTL: str(int(timeout_ms)),
        }
        sent: SendResult | None = None
        deadline = trio.current_time() + timeout_ms / 1000
        with instance.replies.expected(correlation_id) as reply, trio.move_on_at(deadline):
            await self._sender.queues(message.topic)
            route = instance.routes.get(self._client.names.topic(message.topic))
            # The broker that stores the request delivers the reply: it must know this client before, by a heartbeat.
            await self._introduce(list(route.writable_at) if route is not None else [], timeout_ms)
            left_ms = max((deadline - trio.current_time()) * 1000, 1)
            sent = await self._sender.send(asked, timeout_ms=left_ms)
            return await reply.wait()
        raise ReplyTimeout(message.topic, timeout_ms, sent.msg_id if sent is not None else "")

    async def _introduce(self, addrs: list[str], timeout_ms: float) -> None:
        """Make this client known by heartbeats. Brokers that do not answer are avoided until they do."""
        instance, brokers = self._client.instance, self._sender.brokers
        addrs = [addr for addr in addrs if addr not in brokers.suspects.addrs] or addrs
        share_ms = timeout_ms * INTRODUCTION_SHARE
        with trio.move_on_after(share_ms / 1000):
            await instance.introduce(addrs)
        # A healthy broker may need more than a short time, as this is the client's first request to it.
        if share_ms >= PROBE_TIMEOUT_MS:
            for addr in instance.membership.unanswering(addrs):
                brokers.suspect(addr)

    async def reply_to(self, request: MessageExt, body: bytes, properties: Mapping[str, str] | None) -> None:
        """See `Producer.reply_to`."""
        check_body("body", body, self._max_message_bytes)
        # Created first, as this checks the arguments; the request's properties name the real topic.
        reply = Message(DEFAULT_TOPIC, body, properties=properties)
        self._client.check_open()
        asked = request.properties
        missing = [name for name in (CLUSTER, CORRELATION_ID, REPLY_TO_CLIENT) if not asked.get(name)]
        if missing:
            raise InvalidArgument(f"request has no {' and '.join(missing)}: it was not sent with Producer.request")
        topic = reply.topic = reply_topic(asked[CLUSTER])
        packed, _ = await self._packing.packed(reply, REQUEST_TIMEOUT_MS / 1000, is_ordered=False)
        sys_flag = packed.sys_flag if isinstance(packed, PackedMessage) else 0
        copied = {name: asked[name] for name in _COPIED if asked.get(name)}
        own = encode_properties({**(reply.properties or {}), MSG_TYPE: "reply", **copied})
        text = own + self._sender.new_keys(1)[0].decode()
        route = await self._client.instance.route(topic)
        failure: SkylarkError | None = None
        # The broker that stored the request knows the requesting client: try it first.
        for name in sorted(route.brokers, key=lambda name: (name != request.broker_name, name)):
            addr = route.master(name)
            if addr is None:
                continue
            header = SendMessageRequestHeader(
                self._sender.wire_group,
                topic,
                DEFAULT_TOPIC,
                AUTO_CREATE_TOPIC_QUEUES,
                0,
                sys_flag,
                self._sender.now_ms(),
                0,
                text,
                0,
                False,
                broker_name=name,
            )
            try:
                await call(self._client.at(addr, broker_name=name), SEND_REPLY_MESSAGE_V2, header, packed.body)
            except (RemotingError, BrokerError) as error:
                failure = failure or error
            else:
                return
        raise SendFailed(f"no broker could deliver the reply: {failure or 'none has a master now'}") from failure

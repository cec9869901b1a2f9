"""Requests of brokers to this client's consumers and producers, on the client's own connections.

40 (members of the group changed), 220 (go on from these offsets), 221 (offsets), 307 (what the consumer is doing), 309
(consume one message); 326 (a reply that a call of `Producer.request` waits for, see `Replies`); and, to producers, 39
(how a transaction ended). 309 runs the user's handler, so each 309 gets a task in the client's nursery; the number of
these tasks is bounded.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.addresses import split_address
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.message.flags import BORN_HOST_V6, HOSTS_V6, STORE_HOST_V6
from skylark.mqcommon.message.ids import encode_host
from skylark.mqcommon.message.message import MessageExt, decode_messages
from skylark.mqcommon.message.properties import ARRIVE_TIME, CORRELATION_ID, find_property, replace_properties
from skylark.mqcommon.message.record import encode_record, topic_field
from skylark.remoting.net.answers import answer_with
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler, failure
from skylark.remoting.protocol.body import Body
from skylark.remoting.protocol.bounded_body import BodyLimits
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.request import Request
from skylark.remoting.protocol.requests.clients import (
    CONSUME_MESSAGE_DIRECTLY,
    GET_CONSUMER_RUNNING_INFO,
    GET_CONSUMER_STATUS_FROM_CLIENT,
    NOTIFY_CONSUMER_IDS_CHANGED,
    RESET_CONSUMER_CLIENT_OFFSET,
    ConsumeMessageDirectlyResult,
)
from skylark.remoting.protocol.requests.offsets import GetConsumerStatusBody
from skylark.remoting.protocol.requests.sends import PUSH_REPLY_MESSAGE_TO_CLIENT, ReplyMessageRequestHeader
from skylark.remoting.protocol.requests.transactions import CHECK_TRANSACTION_STATE
from skylark.sdk.membership import GroupMember, Membership, ProxiedConsumers

logger = logging.getLogger(__name__)

B = TypeVar("B", bound=Body)

_NO_HOST = bytes(8)


class Reply:
    """The reply that one caller waits for."""

    __slots__ = ("arrived", "message")

    def __init__(self) -> None:
        self.arrived = trio.Event()
        self.message: MessageExt | None = None

    async def wait(self) -> MessageExt:
        """Wait for the reply, and return it."""
        await self.arrived.wait()
        assert self.message is not None
        return self.message


class Replies:
    """The replies that callers of one client wait for, by correlation id."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[str, Reply] = {}

    @contextmanager
    def expected(self, correlation_id: str) -> Iterator[Reply]:
        """A `Reply` for this id, which is expected within the block."""
        reply = self._waiting[correlation_id] = Reply()
        try:
            yield reply
        finally:
            del self._waiting[correlation_id]

    def arrived(self, channel: Channel, request: Command) -> Command:
        """Request 326: a reply. A reply that no caller waits for any more is dropped."""
        header = PUSH_REPLY_MESSAGE_TO_CLIENT.header(request)
        properties = (header.properties or "").encode()
        correlation_id = (find_property(properties, CORRELATION_ID.encode()) or b"").decode(errors="replace")
        reply = self._waiting.get(correlation_id)
        if reply is None:
            logger.info("a reply came too late: nobody waits for %s=%s", CORRELATION_ID, correlation_id[:100])
        # A second reply to one request is dropped: the caller has the first reply.
        elif reply.message is None:
            properties = replace_properties(properties, {ARRIVE_TIME.encode(): b"%d" % self._clock.now_ms()})
            reply.message = _message(header, properties, request.body)
            reply.arrived.set()
        return request.respond()


def _message(header: ReplyMessageRequestHeader, properties: bytes, body: bytes) -> MessageExt:
    born_host, store_host = _host(header.born_host), _host(header.store_host)
    flags = header.sys_flag & ~HOSTS_V6
    flags |= (BORN_HOST_V6 if len(born_host) > 8 else 0) | (STORE_HOST_V6 if len(store_host) > 8 else 0)
    record = encode_record(
        *topic_field(header.topic),
        header.queue_id,
        0,
        0,
        body,
        properties,
        header.flag,
        flags,
        header.born_timestamp,
        born_host,
        header.store_timestamp,
        store_host,
        header.reconsume_times or 0,
        0,
    )
    return MessageExt(record, 0, "")


def _host(text: str) -> bytes:
    """The address as records hold it; zeros when it is no address, as a name in Java's notation."""
    with suppress(ValueError):
        return encode_host(*split_address(text.rpartition("/")[2]))
    return _NO_HOST


# How many messages are consumed directly at the same time; administrators send them one by one.
MAX_DIRECT = 16
# The broker gives up much earlier. This bounds how long a stuck handler occupies one of MAX_DIRECT places.
DIRECT_TIMEOUT_S = 900
# The offsets of all queues of a topic on one broker, in the JSON that Java brokers write.
OFFSETS = BodyLimits(max_bytes=2 * 1024 * 1024, max_entries=None, relaxed_bytes=2 * 1024 * 1024)


class BrokerRequests:
    """Answers brokers' requests for the consumers and producers in ``membership``."""

    def __init__(self, membership: Membership, replies: Replies) -> None:
        self._membership = membership
        self._replies = replies
        self._direct = 0
        #: Set when the client is opened.
        self.nursery: trio.Nursery | None = None

    def handlers(self) -> dict[int, Handler]:
        """Request code → handler, for the remoting client."""
        return {
            NOTIFY_CONSUMER_IDS_CHANGED.code: self._members_changed,
            RESET_CONSUMER_CLIENT_OFFSET.code: self._reset_offsets,
            GET_CONSUMER_STATUS_FROM_CLIENT.code: self._queue_offsets,
            GET_CONSUMER_RUNNING_INFO.code: self._running_info,
            CONSUME_MESSAGE_DIRECTLY.code: self._consume_directly,
            CHECK_TRANSACTION_STATE.code: self._check_transaction,
            PUSH_REPLY_MESSAGE_TO_CLIENT.code: self._replies.arrived,
        }

    def _members_changed(self, channel: Channel, request: Command) -> Command:
        group = NOTIFY_CONSUMER_IDS_CHANGED.header(request).consumer_group or ""
        consumer = self._membership.consumer(group)
        if consumer is not None:
            consumer.members_changed()
        return request.respond()

    def _reset_offsets(self, channel: Channel, request: Command) -> Command:
        """Request 220. It is mostly oneway, so only the log shows a refusal."""
        header = RESET_CONSUMER_CLIENT_OFFSET.header(request)
        offsets = RESET_CONSUMER_CLIENT_OFFSET.body(request, OFFSETS).offset_table
        logger.info(
            "%s resets offsets of %d queues: %s, group %s", channel.remote, len(offsets), header.topic, header.group
        )
        try:
            self._consumer(header.group).reset_offsets(header.topic, offsets)
        except RequestRefused as refusal:
            logger.warning("offsets of group %s are not reset: %s", header.group, refusal.remark)
            raise
        return request.respond()

    def _queue_offsets(self, channel: Channel, request: Command) -> Command:
        header = GET_CONSUMER_STATUS_FROM_CLIENT.header(request)
        offsets = self._consumer(header.group).queue_offsets(header.topic)
        return answer_with(GET_CONSUMER_STATUS_FROM_CLIENT, request, GetConsumerStatusBody(offsets))

    def _running_info(self, channel: Channel, request: Command) -> Command | None:
        header = GET_CONSUMER_RUNNING_INFO.header(request)
        proxied = self._proxied(header.consumer_group)
        if proxied is not None:
            jstack = bool(header.jstack_enable)
            self._start(
                channel,
                request,
                GET_CONSUMER_RUNNING_INFO,
                partial(proxied.running_info, header.consumer_group, header.client_id, jstack=jstack),
            )
            return None
        consumer = self._consumer(header.consumer_group)
        return answer_with(GET_CONSUMER_RUNNING_INFO, request, consumer.running_info())

    def _check_transaction(self, channel: Channel, request: Command) -> None:
        """Request 39, which brokers send oneway: the answer is a request of this client."""
        header = CHECK_TRANSACTION_STATE.header(request)
        for message in decode_messages(CHECK_TRANSACTION_STATE.body(request)):
            group = message.properties.get("PGROUP", "")
            checking = self._membership.checking(group)
            if checking is None:
                logger.info("%s asks about a transaction of group %s, which has no checker", channel.remote, group)
            else:
                checking.check(channel, header, message)

    def _consume_directly(self, channel: Channel, request: Command) -> None:
        header = CONSUME_MESSAGE_DIRECTLY.header(request)
        proxied = self._proxied(header.consumer_group)
        consume: Callable[[MessageExt], Awaitable[ConsumeMessageDirectlyResult]]
        if proxied is not None:
            consume = partial(proxied.consume_directly, header.consumer_group, header.client_id)
        else:
            consume = self._consumer(header.consumer_group).consume_directly

        async def consume_one() -> ConsumeMessageDirectlyResult:
            messages = decode_messages(request.body, header.broker_name or "")
            if len(messages) != 1:
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{len(messages)} messages instead of one")
            return await consume(messages[0])

        self._start(channel, request, CONSUME_MESSAGE_DIRECTLY, consume_one)

    def _start(
        self,
        channel: Channel,
        request: Command,
        what: Request[Any, Any, Any, B],
        work: Callable[[], Awaitable[B]],
    ) -> None:
        """Answer a request with the result of ``work``, in a task."""
        if self._direct >= MAX_DIRECT:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, f"{MAX_DIRECT} messages are being consumed directly already")
        assert self.nursery is not None
        # Counted before the task starts, so that a burst of requests cannot pass the limit.
        self._direct += 1
        self.nursery.start_soon(self._run, channel, request, what, work)

    @enable_ki_protection
    async def _run(
        self,
        channel: Channel,
        request: Command,
        what: Request[Any, Any, Any, B],
        work: Callable[[], Awaitable[B]],
    ) -> None:
        try:
            with trio.fail_after(DIRECT_TIMEOUT_S):
                result = await work()
            answer = answer_with(what, request, result)
        except Exception as error:
            answer = failure(request, error)
        finally:
            self._direct -= 1
        channel.reply(request, answer)

    def _proxied(self, group: str) -> ProxiedConsumers | None:
        """The proxied consumers, unless this client has a consumer of ``group`` itself."""
        return None if self._membership.consumer(group) is not None else self._membership.proxied

    def _consumer(self, group: str) -> GroupMember:
        consumer = self._membership.consumer(group)
        if consumer is None:
            text = f"The Consumer Group <{group}> not exist in this consumer"
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, text)
        return consumer

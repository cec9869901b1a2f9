"""Replies that this client waits for: a broker pushes each of them on a connection of the client (326)."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import trio

from mqcommon.addresses import split_address
from mqcommon.clock import Clock
from mqcommon.message.flags import BORN_HOST_V6, HOSTS_V6, STORE_HOST_V6
from mqcommon.message.ids import encode_host
from mqcommon.message.message import MessageExt
from mqcommon.message.properties import ARRIVE_TIME, CORRELATION_ID, find_property, replace_properties
from mqcommon.message.record import encode_record, topic_field
from remoting.net.channel import Channel
from remoting.protocol.command import Command
from remoting.protocol.requests.sends import PUSH_REPLY_MESSAGE_TO_CLIENT, ReplyMessageRequestHeader

logger = logging.getLogger(__name__)

_NO_HOST = bytes(8)


class Reply:
    """The place for one reply."""

    __slots__ = ("arrived", "message")

    def __init__(self) -> None:
        self.arrived = trio.Event()
        self.message: MessageExt | None = None

    async def wait(self) -> MessageExt:
        """The reply, once it is there."""
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
        """A place for the reply with this id, within the block."""
        reply = self._waiting[correlation_id] = Reply()
        try:
            yield reply
        finally:
            del self._waiting[correlation_id]

    def arrived(self, channel: Channel, request: Command) -> Command:
        """326. A reply that nobody waits for any more is dropped."""
        header = PUSH_REPLY_MESSAGE_TO_CLIENT.header(request)
        properties = (header.properties or "").encode()
        correlation_id = (find_property(properties, CORRELATION_ID.encode()) or b"").decode(errors="replace")
        reply = self._waiting.get(correlation_id)
        if reply is None:
            logger.info("a reply came too late: nobody waits for %s=%s", CORRELATION_ID, correlation_id[:100])
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
        *topic_field(header.topic), header.queue_id, 0, 0, body, properties, header.flag, flags,
        header.born_timestamp, born_host, header.store_timestamp, store_host, header.reconsume_times or 0, 0,
    )  # fmt: skip
    return MessageExt(record, 0, "")


def _host(text: str) -> bytes:
    """The address as records hold it; zeros when it is no address, as a name in Java's notation."""
    with suppress(ValueError):
        return encode_host(*split_address(text.rpartition("/")[2]))
    return _NO_HOST

"""Transactions: half messages, their ends, and the questions of brokers about transactions that stay open.

The id of a transaction says where its half message is. So any proxy can end it, also a proxy that has just started.
The producer group of a transaction is its topic, as in RocketMQ's proxy: the proxy is a member of that group at brokers
for as long as it has producers that name the topic, and asks one of them when a broker asks.
"""

import logging
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

import trio

from skylark.mqcommon.addresses import format_address
from skylark.mqcommon.errors import BrokerError, ProtocolError, SkylarkError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.flags import TRANSACTION_PREPARED
from skylark.mqcommon.message.ids import parse_offset_msg_id
from skylark.mqcommon.message.message import Message, MessageExt
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqproxy.clients import Clients
from skylark.mqproxy.metadata import Metadata
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.routes import MESSAGE_TYPES
from skylark.mqproxy.statuses import Refused
from skylark.mqproxy.stored import stored_message
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.remoting.net.call import call
from skylark.remoting.net.channel import Channel
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.transactions import (
    END_TRANSACTION,
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
)
from skylark.sdk.client import Client, ClientHandle, sharing
from skylark.sdk.nameservers import NameServerSource
from skylark.sdk.producer.producer import Producer
from skylark.sdk.producer.result import SendResult, StoredBatch
from skylark.sdk.producer.transaction import undo_half
from skylark.sdk.runtime import survived

logger = logging.getLogger(__name__)

_LONG_MAX_DIGITS = 19
# The most topics: the proxy names all of them in one heartbeat, and brokers take no more than 1,000 groups in one.
MAX_TOPICS = 900
# How many clients are scanned, at some microseconds each, before other calls have their turn.
TURN = 500


@lazy_dataclass(frozen=True, slots=True)
class Half:
    """The place of a half message: its offset in the topic of halves, and in the log of the broker."""

    broker_name: str
    queue_offset: int
    physical_offset: int

    def __str__(self) -> str:
        return f"{self.queue_offset} {self.physical_offset} {self.broker_name}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The half that a transaction id names. Refused when ``text`` is no transaction id."""
        if not text.strip():
            raise Refused(wire.INVALID_TRANSACTION_ID, "transaction id cannot be empty")
        parts = text.split(" ", 2)
        numbers = parts[:2]
        if len(parts) < 3 or not parts[2] or not all(map(_is_long, numbers)):
            raise Refused(wire.INVALID_TRANSACTION_ID, "the transaction id is none of this proxy")
        return cls(parts[2], int(parts[0]), int(parts[1]))


def _is_long(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _LONG_MAX_DIGITS


@lazy_dataclass(frozen=True, slots=True)
class Check:
    """A broker's question how the transaction of a message ended."""

    topic: str
    half: Half
    message: MessageExt


class Halves:
    """Sends halves and ends them. ``asked`` is called when a broker asks; it must not wait."""

    def __init__(
        self,
        nameserver: NameServerSource | Client | None = None,
        *,
        max_message_bytes: int,
        asked: Callable[[Check], object],
    ) -> None:
        self._client = ClientHandle(nameserver)
        # A half that a broker may have stored is not sent again: both copies could be committed. A half that a broker
        # has stored less durably than required is sent again, since the stored copy can be rolled back.
        self._producer = Producer(
            sharing(self._client.instance),
            group="mqproxy",
            retries=0,
            batching=False,
            accept_weaker=True,
            max_message_bytes=max_message_bytes,
            start_timeout_ms=None,
        )
        self._producer.sys_flag = TRANSACTION_PREPARED
        self._producer.undo_copy = self._undo_half
        self._asked = asked

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        try:
            await self._producer.__aenter__()
        except BaseException:
            await self._client.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._producer.__aexit__(kind, error, trace)
        finally:
            await self._client.__aexit__(kind, error, trace)

    async def send(self, message: Message) -> tuple[SendResult, Half]:
        """Store a half message, whose properties must mark it as a half."""
        result = await self._producer.send(message)
        return result, Half(self._broker_of(result), result.queue_offset, result.physical_offset)

    async def end(self, topic: str, half: Half, message_id: str, how: int, *, from_check: bool) -> None:
        """Tell the broker how a transaction ended. Refused when the broker does not have the transaction (any more)."""
        header = EndTransactionRequestHeader(
            topic, half.queue_offset, half.physical_offset, how, message_id, from_check, message_id, topic
        )
        queue = MessageQueue(topic, half.broker_name, 0)
        try:
            await self._client.ask_master(queue, lambda at: call(at, END_TRANSACTION, header))
        except BrokerError as error:
            if error.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.ILLEGAL_OPERATION):
                raise Refused(wire.INVALID_TRANSACTION_ID, error.remark) from None
            raise

    async def join(self, topic: str) -> None:
        """Join the producer group named after the topic: brokers ask this proxy about its transactions from now on."""
        instance = self._client.instance
        instance.membership.join_producer(topic, self)
        try:
            # The brokers of the topic get heartbeats once the route is known.
            await instance.route(topic)
        except SkylarkError:
            instance.membership.leave_producer(topic, self)
            raise
        instance.tell_brokers()

    async def leave(self, topic: str) -> None:
        """Leave the producer group named after the topic."""
        await self._client.instance.leave_producer(topic, self)

    def check(self, channel: Channel, header: CheckTransactionStateRequestHeader, message: MessageExt) -> None:
        """Handle a broker's question; see `skylark.sdk.membership.TransactionChecker`."""
        topic = message.topic
        broker_name = self._broker_at(channel, topic)
        if broker_name is None:
            logger.warning("%s asks about a transaction of topic %s, whose route it is not in", channel.remote, topic)
            return
        self._asked(Check(topic, Half(broker_name, header.tran_state_table_offset, header.commit_log_offset), message))

    def _undo_half(self, batch: StoredBatch, addr: str) -> None:
        topic = batch.wire_topic
        undo_half(self._client.instance.remoting, topic, batch[0], topic, addr)

    def _broker_of(self, result: SendResult) -> str:
        """The broker that stored a half: the queue of a static topic may be at another broker."""
        queue = result.queue
        route = self._client.instance.routes.get(queue.topic)
        if route is not None and route.leaders:
            ip, port, _ = parse_offset_msg_id(result.offset_msg_id)
            stored_at = format_address(ip, port)
            for name, addrs in route.brokers.items():
                if stored_at in addrs.values():
                    return name
        return queue.broker_name

    def _broker_at(self, channel: Channel, topic: str) -> str | None:
        route = self._client.instance.routes.get(topic)
        if route is None:
            return None
        remoting = self._client.instance.remoting
        for name, addrs in route.brokers.items():
            if any(remoting.is_connection(addr, channel) for addr in addrs.values()):
                return name
        return None


class TransactionProducers:
    """Which clients answer for the transactions of which topic."""

    def __init__(self, halves: Halves, metadata: Metadata, clients: Clients, options: ProxyOptions) -> None:
        self._halves = halves
        self._metadata = metadata
        self._clients = clients
        self._options = options
        # Topic → the clients that name it, in the order in which they are asked next.
        self._topics: dict[str, dict[str, None]] = {}
        self._joining = trio.Lock()

    async def add(self, client_id: str, topics: Iterable[str]) -> None:
        """Add a client that is a producer of these topics, some of which may be for transactions."""
        for topic in topics:
            known = self._topics.get(topic)
            if known is not None:
                known[client_id] = None
            elif await self._takes_transactions(topic):
                await self.add_half(client_id, topic)

    async def add_half(self, client_id: str, topic: str) -> None:
        """Add a client that begins a transaction for this topic, which it need not have named before."""
        # One join for all clients that begin at once: the first sends of a topic often come together.
        if topic not in self._topics:
            async with self._joining:
                if topic not in self._topics and not await self._join(topic):
                    return
        self._topics.setdefault(topic, {})[client_id] = None

    def asked(self, check: Check) -> None:
        """Ask one of the producers of the topic, each time the next one."""
        command = wire.TelemetryCommand()
        recover = command.recover_orphaned_transaction_command
        recover.transaction_id = str(check.half)
        try:
            recover.message.CopyFrom(stored_message(check.message, wire.Resource(name=check.topic)))
        except ProtocolError as error:
            logger.warning("nobody is asked about a transaction of topic %s: %s", check.topic, error)
            return
        # The producer that is asked goes to the end of the line; a producer that has left is removed.
        producers = self._topics.get(check.topic, {})
        for client_id in list(producers):
            del producers[client_id]
            if not self._clients.is_alive(client_id):
                continue
            producers[client_id] = None
            stream = self._clients.stream(client_id)
            if stream is not None and stream.push(command):
                return
        logger.info("no producer of topic %s can be asked about a transaction; the broker asks again", check.topic)

    async def run(self) -> None:
        """Scan the topics, again and again."""
        while True:
            await trio.sleep(self._options.transaction_heartbeat_period_second)
            with survived("scanning topics with transactions"):
                await self.scan()

    async def scan(self) -> None:
        """Join topics that could not be joined before, and leave topics that no living producer names."""
        unknown: dict[str, list[str]] = {}
        for number, (client_id, client) in enumerate(self._clients, 1):
            for topic in client.settings.publishing.topics:
                if client_id not in self._topics.get(topic.name, {}):
                    unknown.setdefault(topic.name, []).append(client_id)
            if number % TURN == 0:
                await trio.lowlevel.checkpoint()
        for name, client_ids in unknown.items():
            for client_id in client_ids:
                await self.add(client_id, [name])
        for name, producers in list(self._topics.items()):
            for client_id in list(producers):
                if not self._clients.is_alive(client_id):
                    del producers[client_id]
            if not producers:
                async with self._joining:
                    # A client may have begun a transaction while this waited.
                    if not producers:
                        del self._topics[name]
                        await self._halves.leave(name)

    async def _takes_transactions(self, topic: str) -> bool:
        try:
            return wire.TRANSACTION in MESSAGE_TYPES.get(await self._metadata.message_type(topic), ())
        except SkylarkError as error:
            logger.info("it is not known yet whether topic %s takes transactions: %s", topic, error)
            return False

    async def _join(self, topic: str) -> bool:
        """Make brokers know the proxy as a producer of the topic; returns whether they do."""
        if len(self._topics) >= MAX_TOPICS:
            logger.warning(
                "producers of topic %s are not asked about transactions: there are %d such topics already",
                topic,
                MAX_TOPICS,
            )
            return False
        try:
            await self._halves.join(topic)
        except SkylarkError as error:
            logger.info("brokers cannot ask about transactions of topic %s yet: %s", topic, error)
            return False
        return True

"""`Producer`: sends messages, retries them on other brokers until a deadline, and avoids slow brokers."""

import os
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from random import Random
from types import TracebackType
from typing import Any, Self, TypeVar

import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.arguments import INT_MAX, check_flag, check_int, check_milliseconds, wrong_type
from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.clock import Clock, SystemClock
from skylark.mqcommon.errors import InvalidArgument, RemotingError, SkylarkError
from skylark.mqcommon.message.ids import UniqueKeys
from skylark.mqcommon.message.message import Message, MessageExt, OwnKeyMessage, wire_properties
from skylark.mqcommon.message.properties import DELAY, LIGHT_QUEUES, PRIORITY, SHARDING_KEY
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import GROUP_MAX_LENGTH, TRACE_TOPIC
from skylark.remoting.net.client import RemotingClient
from skylark.sdk.arrow import ArrowData
from skylark.sdk.checked import Milliseconds, TopicName, check_group_name, check_queue, check_topic_name, checked
from skylark.sdk.client import Client, ClientHandle, sharing
from skylark.sdk.credentials import GivenCredentials, GivenTls
from skylark.sdk.endpoint import check_broker_at
from skylark.sdk.nameservers import NameServerSource
from skylark.sdk.namespaces import check_namespace
from skylark.sdk.producer.backlog import BUFFER_BYTES, BUFFER_COUNT, Backlog
from skylark.sdk.producer.batches import ArrowSends, MakeBatches, batches_of, check_messages, send_batches
from skylark.sdk.producer.brokers import Brokers
from skylark.sdk.producer.lane import Lane
from skylark.sdk.producer.lanes import ANY_QUEUE, CHOOSING, Lanes, QueueChoice, Selector, choice_of
from skylark.sdk.producer.packing import COMPRESS_OVER_BYTES, COMPRESSION_LEVEL, PackedMessage, Packing, check_body
from skylark.sdk.producer.pending import ALONE, DEFERRED, MAX_BATCH_BYTES, PendingSend, Watch, new_ticket
from skylark.sdk.producer.requests import REQUEST_TIMEOUT_MS, Requests
from skylark.sdk.producer.result import BulkResult, SendResult, StoredBatch
from skylark.sdk.producer.routing import SendRoutes, Turns, no_writable, queue_of_key
from skylark.sdk.producer.timed import deferred_lane, recalling, time_property, timed
from skylark.sdk.producer.transaction import TransactionChecks
from skylark.sdk.producer.waiting_sends import WaitingSends
from skylark.sdk.producer.wire import send_request
from skylark.sdk.retry import until_answered
from skylark.sdk.routes import TopicRoute
from skylark.sdk.runtime import FORKS, AsyncOnly, Home, local_ip, raise_or_log, survived
from skylark.sdk.starting import START_TIMEOUT_MS, Start, check_start_timeout
from skylark.sdk.traces.entries import Recalled
from skylark.sdk.traces.sink import SinkWriter, Trace, TraceSink, check_trace
from skylark.sdk.traces.traces import TRACE_GROUP_PREFIX, Traces
from skylark.sdk.values.libraries import JSON
from skylark.sdk.values.values import Values, values_of

T = TypeVar("T", bound=PendingSend)
DEFAULT_GROUP = "DEFAULT_PRODUCER"
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
# The end of the error about an argument that is no message.
NO_MESSAGE = ', such as Message("orders", b"a cup of tea")'
# How many messages are checked (in about 0.1 ms) before other tasks may run.
CHECKED_AT_ONCE = 10_000
# Properties that exclude a message from the fast path of `send_nowait`, and from batches.
_SPECIAL = (SHARDING_KEY, PRIORITY, DELAY, LIGHT_QUEUES)


class Ticket(PendingSend):
    """One send, until its end and after it: ``await ticket`` returns the `SendResult` or raises the error of the send.

    Any number of tasks may await a ticket; after the send's end that returns at once. Cancelling these tasks does not
    end the send. ``error`` is set when the message was not stored.
    """

    __slots__ = ()

    @property
    def message(self) -> Message:
        """A message equal to the message that was sent: the producer does not keep the original."""
        return self.given()

    def done(self) -> bool:
        """Whether the message is stored, or the send has failed."""
        return self.has_ended

    def result(self) -> SendResult:
        """The result; raises the error of the send, and RuntimeError before its end."""
        return self.outcome()

    def __await__(self) -> Generator[Any, Any, SendResult]:
        if not self.has_ended:
            yield from self._ended().__await__()
        return self.outcome()

    async def _ended(self) -> None:
        wake = partial(trio.lowlevel.reschedule, trio.lowlevel.current_task())

        def abort(_: Any) -> trio.lowlevel.Abort:
            self.unwatch(wake)
            return trio.lowlevel.Abort.SUCCEEDED

        self.watch(wake)
        await trio.lowlevel.wait_task_rescheduled(abort)


class Producer(AsyncOnly):
    """``async with Producer("127.0.0.1:9876") as producer: ...``

    ``nameserver`` says where the NameServers are, or is a shared `Client`; by default $NAMESRV_ADDR. Topics and the
    group are names in ``namespace``, by default the `Client`'s namespace. ``send_timeout_ms`` is the time for all tries
    of a send together. ``retries`` limits the tries that may have stored the message; each try gets an equal share of
    the time, so that a broker that does not answer costs at most ``send_timeout_ms / (retries + 1)``. Tries that stored
    nothing, because no broker was reachable or the broker was busy, are repeated until the timeout. A message that a
    broker stored with less safety than it should (a result other than SEND_OK: flush or replication was late) is sent
    once more, to another broker. When no broker stores it more safely, SendFailed is raised, or with ``accept_weaker``
    the weaker result is returned. With ``batching``, sends that wait while others are in flight become one request;
    each send still gets its own result. ``compression`` ("zlib", "lz4" or "zstd") is for bodies longer than
    ``compress_over_bytes``; ``compression_level``, from 1 to 9, has no effect on LZ4. ``trace`` records each message in
    RocketMQ's trace topic, ``trace_topic`` in another one; ``trace`` may be a sink. `send_nowait` accepts messages
    until ``buffer_count`` messages or ``buffer_bytes`` of bodies wait. Leaving ``async with`` waits for these messages,
    ``send_timeout_ms`` at most, and raises the errors that `flush` would raise, or logs them when the block has raised
    an exception.

    ``value`` is the type of the values that `message` and `send_value` take; ``value_format`` (``json`` or ``cbor``) is
    the format in which they are sent: see docs/guides/values.md.

    Opening it raises NoNameServer when no NameServer answers within ``start_timeout_ms``, NotRocketMQ or NotNameServer
    at once when another server listens there, and BrokerError when a broker refuses its credentials; with None the
    start checks nothing.
    """

    def __init__(
        self,
        nameserver: NameServerSource | Client | None = None,
        *,
        group: str = DEFAULT_GROUP,
        send_timeout_ms: float = 3_000,
        retries: int = 2,
        batching: bool = True,
        accept_weaker: bool = False,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        clock: Clock | None = None,
        namespace: str = "",
        credentials: GivenCredentials = None,
        tls: GivenTls = None,
        trace: Trace = False,
        trace_topic: str | None = None,
        compression: str | None = None,
        compress_over_bytes: int = COMPRESS_OVER_BYTES,
        compression_level: int = COMPRESSION_LEVEL,
        buffer_count: int = BUFFER_COUNT,
        buffer_bytes: int = BUFFER_BYTES,
        start_timeout_ms: float | None = START_TIMEOUT_MS,
        value: Any = None,
        value_format: str = JSON,
    ) -> None:
        check_group_name("group", group)
        check_milliseconds("send_timeout_ms", send_timeout_ms)
        check_int("retries", retries, 0, INT_MAX)
        check_flag("batching", batching)
        check_flag("accept_weaker", accept_weaker)
        check_int("max_message_bytes", max_message_bytes, 0, INT_MAX)
        check_start_timeout(start_timeout_ms)
        check_namespace("namespace", namespace)
        check_trace("trace", trace)
        if trace_topic is not None:
            check_topic_name("trace_topic", trace_topic)
        self._client = ClientHandle(nameserver, namespace=namespace, credentials=credentials, tls=tls)
        self._values = None if value is None else Values(value, value_format)
        self.names = self._names = self._client.names
        self._routes = self._client.instance.routes
        self._sendable = SendRoutes(self._client)
        self.timeout_s = send_timeout_ms / 1000
        self._start_timeout_ms = start_timeout_ms
        # Bodies of at most ``_plain_bytes`` are sent as they are.
        self._max_message_bytes = self._plain_bytes = max_message_bytes
        set_plain_bytes = partial(setattr, self, "_plain_bytes")
        self._packing = Packing(compression, compress_over_bytes, compression_level, max_message_bytes, set_plain_bytes)
        self._clock = clock or SystemClock()
        self._random = Random()
        self._lanes = Lanes(self, self._client, self._sendable, self._random, batching=batching)
        self._open_lanes = self._lanes.open
        self._lines = WaitingSends(self._lanes, self._packing, lambda: self._client.nursery)
        self._backlog = Backlog(buffer_count, buffer_bytes)
        self._unique_keys = UniqueKeys("127.0.0.1", 0, 0)
        self._oneway_turns = Turns(self._random)
        self.group = group
        # The group's name as brokers know it.
        self.wire_group = self._names.group(group)
        self.retries = retries
        self.accept_weaker = accept_weaker
        # True for a proxy's producer: its tickets are the sends of many clients, who wait for them.
        self.has_many_senders = False
        self.max_batch_bytes = min(MAX_BATCH_BYTES, max_message_bytes)
        # Of a producer of halves: the common flag and property of its messages, and the object that answers brokers'
        # checks.
        self.sys_flag, self.mark = 0, b""
        self.checking: TransactionChecks | None = None
        self.undo_copy: Callable[[StoredBatch, str], None] | None = None
        self.brokers = Brokers(self._client, self._sendable, self._lanes.wake)
        self._requests = Requests(self, self._client, self._packing, max_message_bytes)
        self._tables = ArrowSends(self._send_batches, self._key_block, max_message_bytes)
        # The number of retries of all sends so far.
        self.retried = 0
        self.traces = traces_of(self._client, group, trace, trace_topic)

    @enable_ki_protection
    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        # A copy for lanes, which end with the client: the client's property checks at each access that the client is
        # open.
        self.remoting: RemotingClient = self._client.instance.remoting
        # Seeded here and not in the constructor: processes that were forked in between must not share unique keys.
        self._random.seed()
        self._backlog.home = Home()
        self._unique_keys = UniqueKeys(local_ip(), os.getpid(), self._random.getrandbits(32))
        try:
            self._client.join_producer(self.group, self.checking)
            if self._start_timeout_ms is not None:
                await Start(self._client, self._start_timeout_ms).without_topics()
        except BaseException:
            await self._client.__aexit__(None, None, None)
            raise
        if self.traces is not None:
            await self.traces.open(self._client)
        return self

    @enable_ki_protection
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Sends first, since their ends are traced; then the traces; then the connections, whatever happened before.
        # Lost messages are raised last, after everything is closed.
        is_settled = False
        try:
            await self._settle()
            if self.traces is not None and self._client.forks == FORKS.count:
                with survived("sending the last traces"):
                    await self.traces.close()
            is_settled = True
        finally:
            await self._client.__aexit__(kind, error, trace)
            lost = self._backlog.take_lost()
            if lost is not None and not is_settled:
                raise_or_log(lost, sys.exception())
        if lost is not None:
            raise_or_log(lost, error)

    # --- public methods

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_ms: float | None = None,
        deliver_at: datetime | None = None,
        delay: timedelta | None = None,
    ) -> SendResult:
        """Store one message; returns when a broker has acknowledged it.

        With ``deliver_at`` (a time with a time zone) or ``delay`` consumers get the message at that time, see
        docs/how/delivery.md.

        ``queue``, ``selector``, a sharding key or a priority choose the queue; messages with the same key keep their
        order. Raises SendFailed when no broker stored the message in time, RouteNotFound for an unknown topic,
        TypeError or ValueError for invalid arguments, and any error of ``selector``.
        """
        result: SendResult
        # The hot path. On every path the lane ends the send: it wakes this task with the result, at the deadline at the
        # latest.
        if self.straight_size(message, queue, selector, timeout_ms, deliver_at, delay) is not None:
            send = new_ticket(PendingSend, message, message.body, self.timeout_s, trio.lowlevel.current_task())
            self._open_lanes[message.topic].add(send)
            result = await trio.lowlevel.wait_task_rescheduled(send.abort)
            return result
        # The second fastest path: a plain message with a time of delivery, once the topic has a lane for such messages.
        # They have a lane of their own, as their batches have another format.
        is_timed = deliver_at is not None or delay is not None
        open_lane: Lane | None = None
        if queue is None and selector is None and timeout_ms is None:
            open_lane = self._deferred_lane(message, is_timed)
        if open_lane is not None:
            send = new_ticket(PendingSend, message, message.body, self.timeout_s, trio.lowlevel.current_task())
            if is_timed:
                name, value = time_property(message, deliver_at, delay)
                send.properties += b"%s\x01%d\x02" % (name.encode(), value)
            send.alone = DEFERRED
            open_lane.add(send)
            result = await trio.lowlevel.wait_task_rescheduled(send.abort)
            return result
        # All other messages. Steps that may wait (compression, finding the route) come before the send is created, as
        # its deadline and its place in the lane count from its creation.
        own_key: bytes | None = None
        if type(message) is not Message:
            if not isinstance(message, Message):
                raise wrong_type("message", "a Message", message, NO_MESSAGE)
            own_key = message.encoded_key if isinstance(message, OwnKeyMessage) else None
        if timeout_ms is not None:
            check_milliseconds("timeout_ms", timeout_ms)
        timeout_s = self.timeout_s if timeout_ms is None else timeout_ms / 1000
        topic = message.topic
        if is_timed:
            message = timed(message, deliver_at, delay)
        is_deferred = is_timed or (message.properties is not None and DELAY in message.properties)
        if is_deferred:
            topic = deferred_lane(topic)
        body, packed = message.body, message
        # Rarely true. ``_plain_bytes`` is -1 while sends wait for a compressed body, so that later sends to the same
        # queue wait after them.
        if type(body) is not bytes or len(body) > self._plain_bytes or self._lines.waiting:
            is_ordered = queue is not None or selector is not None or message.sharding_key is not None
            if is_ordered:
                timeout_s = await self._lines.passed(message.topic, timeout_s)
            packed, timeout_s = await self._packing.packed(message, timeout_s, is_ordered=is_ordered)
        # Most sends use the lane of their topic. A send that chooses its queue, and the first send of a topic, must
        # find their lane.
        lane = self._open_lanes.get(topic)
        is_chosen = message.properties is not None and not message.properties.keys().isdisjoint(CHOOSING)
        if lane is None or queue is not None or selector is not None or is_chosen:
            choice = choice_of(queue, selector, deliver_at, delay)
            choice.check(message)
            self._client.check_open()
            # Finding the lane may ask NameServers; that time counts towards the send's timeout.
            deadline = trio.current_time() + timeout_s
            lane = await self._lanes.find(message, choice, timeout_s)
            timeout_s = deadline - trio.current_time()
        # Check also after a wait above: the client may have been closed meanwhile, and no lane would end this send.
        if self._client.forks != FORKS.count:
            self._client.check_open()
        task = trio.lowlevel.current_task()
        if packed is message:
            send = new_ticket(PendingSend, message, message.body, timeout_s, task)
        else:
            send = PendingSend(packed, None, timeout_s, task)
        if own_key is not None:
            send.set_key(own_key)
        # A message for light queues cannot be in a batch, and a compressed message cannot, either.
        if packed is not message or (message.properties is not None and LIGHT_QUEUES in message.properties):
            send.alone = ALONE
        elif is_deferred:
            send.alone = DEFERRED
        lane.add(send)
        result = await trio.lowlevel.wait_task_rescheduled(send.abort)
        return result

    def message(
        self,
        topic: str,
        value: Any,
        *,
        headers: Mapping[str, str] | None = None,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        delay_level: int = 0,
        sharding_key: str | None = None,
        priority: int | None = None,
    ) -> Message:
        """A message for any of the sends, whose body is ``value``, of the producer's ``value`` type.

        ``headers`` become the message's properties. TypeError or ValueError when ``value`` is no value of that type.
        """
        return values_of(self._values).message(
            topic,
            value,
            headers=headers,
            tags=tags,
            keys=keys,
            delay_level=delay_level,
            sharding_key=sharding_key,
            priority=priority,
        )

    async def send_value(
        self,
        topic: str,
        value: Any,
        *,
        headers: Mapping[str, str] | None = None,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        sharding_key: str | None = None,
        priority: int | None = None,
        timeout_ms: float | None = None,
        deliver_at: datetime | None = None,
        delay: timedelta | None = None,
    ) -> SendResult:
        """`send` of the message that `message` makes of ``value``."""
        message = self.message(
            topic, value, headers=headers, tags=tags, keys=keys, sharding_key=sharding_key, priority=priority
        )
        return await self.send(message, timeout_ms=timeout_ms, deliver_at=deliver_at, delay=delay)

    @checked
    async def send_many(self, topic: TopicName, messages: Iterable[bytes | Message]) -> BulkResult:
        """Store many messages, given as bodies or as Messages of ``topic``; returns when all are acknowledged.

        The messages are sent in batches, to the topic's queues in turn; each batch has the whole send timeout. Raises
        SendFailed when a message could not be stored; other messages may have been stored. A list or a tuple is checked
        before any message is sent, other iterables while they are consumed; errors of an iterable are raised here.
        """
        if isinstance(messages, str | bytes | Message) or not isinstance(messages, Iterable):
            raise wrong_type("messages", "an iterable of bytes and Messages", messages)
        self._client.check_open()
        if isinstance(messages, list | tuple):
            for start in range(0, len(messages), CHECKED_AT_ONCE):
                check_messages(topic, messages[start : start + CHECKED_AT_ONCE], self._max_message_bytes, start)
                await trio.lowlevel.checkpoint()
        most, keys, clock = self._max_message_bytes, self._unique_keys, self._clock
        return await self._send_batches(
            topic, None, lambda queues: batches_of(topic, messages, queues, most, keys, clock)
        )

    @checked
    async def send_arrow(
        self,
        topic: TopicName,
        data: ArrowData,
        *,
        body: str = "body",
        tags: str | None = None,
        keys: str | None = None,
        properties: str | None = None,
        flag: str | None = None,
        queue: MessageQueue | None = None,
    ) -> BulkResult:
        """Store a message for each row of ``data``; returns when all are acknowledged.

        ``data`` is a pyarrow RecordBatch or Table, or an object that converts to one, as a DataFrame of polars or
        pandas. The other arguments name its columns: bytes or text; text; text or lists of text; maps of text;
        integers. Nulls are left out, and so are properties with RocketMQ's own names; a body must not be null. All rows
        are checked before any row is sent: InvalidArgument names row and column. Otherwise this is `send_many`; with
        ``queue`` all messages go to that queue, in their order. This method needs the extra ``arrow``.
        """
        if queue is not None:
            check_queue("queue", queue, topic)
        columns = {"body": body, "tags": tags, "keys": keys, "properties": properties, "flag": flag}
        return await self._tables.send(topic, data, columns, queue)

    @checked
    async def send_oneway(self, message: Message) -> None:
        """Send without an acknowledgement: returns when the request is queued on a connection.

        Raises SendFailed when there was no connection before the send timeout.
        """
        check_topic_name("message.topic", message.topic)
        self._client.check_open()
        properties = wire_properties(message, self._unique_keys.next(self._clock.now_ms()))
        packed, _ = await self._packing.packed(message, self.timeout_s, is_ordered=message.sharding_key is not None)
        sys_flag = packed.sys_flag if isinstance(packed, PackedMessage) else 0
        row = (message.flag, packed.body, properties)
        topic = self._names.topic(message.topic)

        async def try_once() -> None:
            route = await self._sendable.writable(topic)
            target = self._oneway_target(route, message.sharding_key)
            if target is None:
                raise no_writable(topic)
            addr, queue = target
            try:
                check_broker_at(self.remoting, addr, queue.broker_name)
                await self.remoting.oneway(
                    addr, send_request(self.wire_group, queue, [row], self._clock.now_ms(), sys_flag)
                )
            except RemotingError as error:
                # The sender cannot learn of a oneway send that is lost in transit. A visible failure makes later sends
                # avoid the broker.
                self.brokers.failed(addr, error)
                self.brokers.want_route(topic)
                raise

        await self._sendable.in_time(try_once, topic, self.timeout_s)

    # --- sends without waiting

    @enable_ki_protection
    def send_nowait(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_ms: float | None = None,
        deliver_at: datetime | None = None,
        delay: timedelta | None = None,
        on_delivery: Callable[[Ticket], object] | None = None,
    ) -> Ticket:
        """Queue one message and return its ticket, which later has the send's outcome. See `send` for the arguments.

        ``on_delivery`` is called with the ticket at the end, once; it must not block, and its exceptions are logged. An
        error of a ``selector`` becomes the ticket's error. Raises BufferFull when ``buffer_count`` messages or
        ``buffer_bytes`` wait: then call `room`. An error that the program does not see (by awaiting the ticket, by its
        ``result`` or by ``on_delivery``) is raised by `flush`.
        """
        backlog, client = self._backlog, self._client
        if client.forks != FORKS.count:
            client.check_open()
        if (
            ((kind := type(message)) is Message or kind is OwnKeyMessage)
            and queue is None
            and selector is None
            and timeout_ms is None
            and deliver_at is None
            and delay is None
            and ((properties := message.properties) is None or properties.keys().isdisjoint(_SPECIAL))
            and type(body := message.body) is bytes
            and (size := len(body)) <= self._plain_bytes
            and (lane := self._open_lanes.get(message.topic)) is not None
        ):
            watch = None if on_delivery is None else watch_for(on_delivery)
            # Count the send in before it is in the lane: a lane may end the send at once, and count it out.
            backlog.count_in(size)
            ticket = new_ticket(Ticket, message, body, self.timeout_s, watch, backlog.span, size)
            if type(message) is OwnKeyMessage:
                ticket.set_key(message.encoded_key)
            try:
                lane.put(ticket)
            except SkylarkError:
                backlog.end([ticket])
                raise
            return ticket
        choice = choice_of(queue, selector, deliver_at, delay)
        watch = None if on_delivery is None else watch_for(on_delivery)
        ticket, message = self.make_ticket(Ticket, message, choice, timeout_ms, deliver_at, delay, watch)
        try:
            self._lines.place(ticket, message, choice)
        except Exception:
            backlog.end([ticket])
            raise
        return ticket

    async def room(self) -> None:
        """Return when `send_nowait` accepts a message. Takes a turn of the loop, so call it only after a BufferFull."""
        self._client.check_open()
        await self._backlog.room()
        self._client.check_open()

    async def flush(self) -> None:
        """Return when all sends of `send_nowait` until now have ended.

        Raises an ExceptionGroup with the unseen errors, at most 1,000 of them. They then count as seen.
        """
        await self.wait_for_flush()
        self.finish_flush()

    # --- requests and replies

    @checked
    async def request(self, message: Message, *, timeout_ms: Milliseconds = REQUEST_TIMEOUT_MS) -> MessageExt:
        """Send ``message`` and return the reply, which a handler sends with `reply_to`.

        Raises ReplyTimeout when there is no reply after ``timeout_ms``; the message may be handled all the same. Raises
        SendFailed when the message could not be stored.
        """
        return await self._requests.request(message, timeout_ms)

    @checked
    async def reply_to(self, request: MessageExt, body: bytes, *, properties: Mapping[str, str] | None = None) -> None:
        """Answer a message that was sent with `request`; returns when the waiting client has the reply.

        ``properties`` are the reply's properties. Raises SendFailed when the reply could not be delivered: the client
        may have gone, or does not wait any longer.
        """
        await self._requests.reply_to(request, body, properties)

    # --- messages with a time of delivery, and queues

    @checked
    async def recall(self, topic: TopicName, recall_handle: str) -> str:
        """Take back a message that waits for its time of delivery; returns its unique key.

        ``recall_handle`` comes from the message's `SendResult`. InvalidArgument for any other text; BrokerError when
        the broker refuses: the message is delivered already, or will be within its second.
        """
        self._client.check_open()
        ask = recalling(self._client, self._names.topic(topic), self.wire_group, recall_handle)
        msg_id = await until_answered(ask, self.timeout_s * 1000, self.backoff)
        if self.traces is not None:
            self.traces.note(Recalled(msg_id, self.group, topic, self.now_ms(), success=True))
        return msg_id

    @checked
    async def queues(self, topic: TopicName) -> tuple[MessageQueue, ...]:
        """The topic's writable queues, sorted."""
        self._client.check_open()
        topic = self._names.topic(topic)
        route = await until_answered(lambda: self._sendable.find(topic), self.timeout_s * 1000, self.backoff)
        return self._names.plain_queues(route.writable)

    @property
    def traces_dropped(self) -> int:
        """How many records of the trace were dropped, because brokers did not take them fast enough or at all."""
        return 0 if self.traces is None else self.traces.dropped

    # --- used by senders in other threads

    async def wait_for_flush(self) -> None:
        """The first half of `flush`. It may be cancelled, as it takes no errors."""
        self._client.check_open()
        await self._backlog.ended()
        await trio.lowlevel.checkpoint()

    def finish_flush(self) -> None:
        """The second half of `flush`, which does not wait."""
        if (failed := self._backlog.take_unseen()) is not None:
            raise failed

    @property
    def is_open(self) -> bool:
        """Whether the producer is open, in this process."""
        return self._client.forks == FORKS.count

    @property
    def backlog(self) -> Backlog:
        """The waiting sends of `send_nowait`."""
        return self._backlog

    def make_ticket(
        self,
        kind: type[T],
        message: Message,
        choice: QueueChoice,
        timeout_ms: float | None,
        deliver_at: datetime | None,
        delay: timedelta | None,
        watch: Watch | None,
    ) -> tuple[T, Message]:
        """Check the arguments and count the send in. Returns its ticket and the message to send. In any thread."""
        ticket, sent = self.make_send(kind, message, choice, timeout_ms, deliver_at, delay, watch)
        self._backlog.count_in(len(sent.body))
        ticket.size, ticket.span = len(sent.body), self._backlog.span
        return ticket, sent

    def make_send(
        self,
        kind: type[T],
        message: Message,
        choice: QueueChoice,
        timeout_ms: float | None,
        deliver_at: datetime | None,
        delay: timedelta | None,
        waiter: Any,
    ) -> tuple[T, Message]:
        """Check the arguments. Returns the send, which wakes ``waiter`` at its end, and the message. In any thread."""
        if not isinstance(message, Message):
            raise wrong_type("message", "a Message", message, NO_MESSAGE)
        if timeout_ms is not None:
            check_milliseconds("timeout_ms", timeout_ms)
        # The check covers the topic's name, too; the topic of an open lane has passed the check.
        if choice is not ANY_QUEUE or message.topic not in self._open_lanes:
            choice.check(message)
        sent = timed(message, deliver_at, delay) if choice.is_timed else message
        check_body("message.body", sent.body, self._max_message_bytes)
        send = new_ticket(kind, sent, sent.body, self.timeout_s if timeout_ms is None else timeout_ms / 1000, waiter)
        if isinstance(message, OwnKeyMessage):
            send.set_key(message.encoded_key)
        properties = sent.properties or ()
        if LIGHT_QUEUES in properties:
            send.alone = ALONE
        elif choice.is_timed or DELAY in properties:
            send.alone = DEFERRED
        return send, sent

    def place_ticket(self, ticket: PendingSend, message: Message, choice: QueueChoice) -> None:
        """In the loop: put the ticket into its lane, or a line before the lane. The ticket ends in any case."""
        try:
            self._client.check_open()
            self._lines.place(ticket, message, choice)
        except Exception as error:
            ticket.fail(error)

    def straight_size(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        timeout_ms: float | None,
        deliver_at: datetime | None,
        delay: timedelta | None,
    ) -> int | None:
        """The size of a message for which `put_ticket` is enough: it has no special arguments, and its lane is open.

        None for other messages, which need `make_send` and `place_ticket`, and when the producer is not open in this
        process. May be called in any thread.
        """
        if (
            self._client.forks == FORKS.count
            and type(message) is Message
            and ((properties := message.properties) is None or properties.keys().isdisjoint(_SPECIAL))
            and queue is None
            and selector is None
            and timeout_ms is None
            and deliver_at is None
            and delay is None
            and type(body := message.body) is bytes
            and len(body) <= self._plain_bytes
            and message.topic in self._open_lanes
        ):
            return len(body)
        return None

    def _deferred_lane(self, message: Message, is_timed: bool) -> Lane | None:
        """The open lane for a plain message with a time of delivery; None for other messages, or without a lane."""
        if self._client.forks != FORKS.count or type(message) is not Message:
            return None
        properties = message.properties or {}
        is_deferred = is_timed or DELAY in properties
        if not is_deferred or LIGHT_QUEUES in properties or any(name in properties for name in CHOOSING):
            return None
        if type(message.body) is not bytes or len(message.body) > self._plain_bytes:
            return None
        return self._open_lanes.get(deferred_lane(message.topic))

    def put_ticket(self, ticket: PendingSend) -> None:
        """In the loop: put the ticket into the lane of its topic, or end it."""
        try:
            self._open_lanes[ticket.topic].put(ticket)
        except SkylarkError as error:
            ticket.fail(error)

    def add_send(self, send: PendingSend) -> None:
        """In the loop: as `put_ticket`, for a send whose sender waits. The send may leave at once."""
        try:
            self._open_lanes[send.topic].add(send)
        except SkylarkError as error:
            send.fail(error)

    # --- used by lanes

    @property
    def backoff(self) -> Backoff:
        return self._client.instance.backoff

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def new_keys(self, count: int) -> list[bytes]:
        """Unique keys, as encoded properties, after ``mark``."""
        keys = self._unique_keys.many(self._clock.now_ms(), count)
        return [self.mark + key for key in keys] if self.mark else keys

    def route_of(self, topic: str) -> TopicRoute | None:
        return self._routes.get(topic)

    # --- internals

    def _key_block(self, count: int) -> tuple[bytes, int]:
        """See `UniqueKeys.block`. Each opening of the producer has new keys."""
        return self._unique_keys.block(self._clock.now_ms(), count)

    async def _send_batches(self, topic: str, queue: MessageQueue | None, make: MakeBatches) -> BulkResult:
        """Send the batches that ``make`` returns for a number of queues: to the topic's queues, or to ``queue``."""
        self._client.check_open()
        lane = self._open_lanes.get(topic) if queue is None else None
        lane = lane or await self._lanes.find(Message(topic), QueueChoice(queue), self.timeout_s)
        route = self.route_of(self._names.topic(topic))
        return await send_batches(lane, make(len(route.writable) if route else 1), route, self.timeout_s)

    def _oneway_target(self, route: TopicRoute, sharding_key: str | None) -> tuple[str, MessageQueue] | None:
        """The address and queue for one message; None while the queue has no master."""
        if not sharding_key:
            return self._oneway_turns.next(route.writable_at, self._usable)
        queue = queue_of_key(route.writable, sharding_key)
        addr = route.master_of(queue)
        return None if addr is None else (addr, queue)

    def _usable(self, addr: str) -> bool:
        return self.brokers.faults.usable(addr, trio.current_time() * 1000)

    async def _settle(self) -> None:
        """Wait until all sends have ended, for the send timeout at most."""
        # In the child of a fork the parent's sends would never end.
        if self._backlog.waiting and self._client.forks == FORKS.count:
            with trio.move_on_after(self.timeout_s):
                await self._backlog.ended()


def watch_for(on_delivery: Callable[[T], object]) -> Watch:
    """A watch that calls ``on_delivery``. TypeError when it is not a function."""
    if not callable(on_delivery):
        raise wrong_type("on_delivery", "a function", on_delivery)
    return Watch(on_delivery)


def traces_of(client: ClientHandle, group: str, trace: bool | TraceSink, topic: str | None) -> Traces | None:
    """The traces of ``group``: for a sink, or sent to ``topic`` by a producer on the connections of ``client``."""
    if not isinstance(trace, bool):
        if topic is not None:
            raise InvalidArgument("give a sink as trace, or a trace_topic, not both")
        return Traces(SinkWriter(trace, lambda: client.instance.client_id), TRACE_TOPIC, group)
    if not trace and topic is None:
        return None
    trace_group = f"{TRACE_GROUP_PREFIX}{group}"[:GROUP_MAX_LENGTH]
    # No check at the start: the traced client itself checks whether the cluster lets it in.
    producer = Producer(
        sharing(client.instance), group=trace_group, namespace=client.names.namespace, start_timeout_ms=None
    )
    return Traces(producer, topic or TRACE_TOPIC, group)

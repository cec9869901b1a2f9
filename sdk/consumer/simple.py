"""`SimpleConsumer`: takes messages one batch at a time, from whichever queue has some, and acknowledges each.

The broker decides which consumer of a group gets a message (pop), so members need no queues of their own, and any
number of them share a queue. A message that is not acknowledged in time is delivered again.
Neighbours: popped.py (messages and their leases, and the requests for them).
Many tasks that acknowledge one message each share requests, see `AckLane`.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple, Self, TypeVar

import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.arguments import wrong_type
from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.errors import BrokerError, InvalidArgument, RemotingError, RouteNotFound, SkylarkError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.clients import parse_subscription
from skylark.remoting.protocol.requests.pops import INIT_MAX, INIT_MIN
from skylark.sdk.checked import Bounds, GroupName, Milliseconds, NotNegative, check_topic_name, checked_methods
from skylark.sdk.client import Client, ClientHandle
from skylark.sdk.consumer import popped
from skylark.sdk.consumer.decompression import keep_contents
from skylark.sdk.consumer.member import PullMember
from skylark.sdk.consumer.outcome import ConsumeFrom
from skylark.sdk.consumer.popped import Lease, ReceivedMessage, bits_by_lease
from skylark.sdk.credentials import GivenCredentials, GivenTls
from skylark.sdk.endpoint import DEFAULT_TIMEOUT_MS, Endpoint
from skylark.sdk.loop_thread import closed
from skylark.sdk.nameservers import NameServerSource
from skylark.sdk.namespaces import Namespace
from skylark.sdk.retry import is_transient, until_answered
from skylark.sdk.runtime import AsyncOnly
from skylark.sdk.starting import START_TIMEOUT_MS, Start

logger = logging.getLogger(__name__)


# Concurrent requests to one broker. With only one request, a caller would wait for up to two round trips.
AT_ONCE = 4
# Check points in one request; the broker takes some thousands.
MAX_ENTRIES = 1_000

Bits = dict[Lease, int]
Send = Callable[[Bits], Awaitable[None]]


class _Round:
    """The acknowledgements sent in one request, and the event that their callers wait for."""

    __slots__ = ("bits", "done", "error")

    def __init__(self) -> None:
        self.bits: Bits = {}
        self.done = trio.Event()
        self.error: SkylarkError | None = closed()


class AckLane:
    """Batches the acknowledgements for one broker. ``send`` itself repeats a request where that may help."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._running = 0
        self._waiting: deque[_Round] = deque()

    async def ack(self, bits: Bits, nursery: trio.Nursery) -> None:
        """Return when these messages are acknowledged; raises the error of their request."""
        # The first calls are sent at once. Calls that arrive while AT_ONCE requests are in flight gather in a round,
        # which the next request sends: many calls share a request, and a single call is not delayed.
        if self._running < AT_ONCE:
            self._running += 1
            try:
                await self._send(bits)
            finally:
                self._ended(nursery)
            return
        if not self._waiting or len(self._waiting[-1].bits) + len(bits) > MAX_ENTRIES:
            self._waiting.append(_Round())
        current = self._waiting[-1]
        for lease, one in bits.items():
            current.bits[lease] = current.bits.get(lease, 0) | one
        await current.done.wait()
        if current.error is not None:
            raise current.error

    def _ended(self, nursery: trio.Nursery) -> None:
        self._running -= 1
        while self._waiting:
            current = self._waiting.popleft()
            # A closed client sends nothing more: waiting callers get the initial error of their round.
            if not nursery.cancel_scope.cancel_called:
                self._running += 1
                nursery.start_soon(self._run, current, nursery)
                return
            current.done.set()

    @enable_ki_protection
    async def _run(self, current: _Round, nursery: trio.Nursery) -> None:
        try:
            await self._send(current.bits)
            current.error = None
        except SkylarkError as error:
            current.error = error
        finally:
            current.done.set()
            self._ended(nursery)


MAX_COUNT = 32
WAIT_MS = 15_000
INVISIBLE_MS = 60_000
MAX_INVISIBLE_MS = 3 * 24 * 3600 * 1000
_INIT_MODES = {ConsumeFrom.LAST_OFFSET: INIT_MAX, ConsumeFrom.FIRST_OFFSET: INIT_MIN}

T = TypeVar("T")
BatchSize = Annotated[int, Bounds(1, MAX_COUNT)]
InvisibleMs = Annotated[int, Bounds(0, MAX_INVISIBLE_MS)]


class _Place(NamedTuple):
    """A broker with queues of a subscribed topic; names as servers know them."""

    topic: str
    broker_name: str

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker_name, 0)


@checked_methods
class SimpleConsumer(AsyncOnly):
    """``async with SimpleConsumer("127.0.0.1:9876", group="g", subscriptions={"orders": "*"}) as consumer: ...``

    ``subscriptions``: topic → ``"*"``, or tags separated by ``||``. A received message is hidden from the group's other
    consumers for ``invisible_ms``: acknowledge it before that, or prolong the time. Otherwise the message is delivered
    again, and after as many deliveries as the group allows it becomes a dead letter. ``consume_from`` is where a new
    group begins. ``timeout_ms`` is the timeout of each request. Names are in ``namespace``, by default the namespace of
    the `Client` given as ``nameserver``.

    Opening it raises NoNameServer when no NameServer answers within ``start_timeout_ms``, NotRocketMQ or NotNameServer
    at once when another server listens there, and BrokerError when a broker refuses its credentials, its group or its
    topics; with None the start checks nothing.
    """

    def __init__(
        self,
        nameserver: NameServerSource | Client | None = None,
        *,
        group: GroupName,
        subscriptions: Mapping[str, str],
        invisible_ms: InvisibleMs = INVISIBLE_MS,
        consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET,
        timeout_ms: Milliseconds = DEFAULT_TIMEOUT_MS,
        namespace: Namespace = "",
        credentials: GivenCredentials = None,
        tls: GivenTls = None,
        start_timeout_ms: Milliseconds | None = START_TIMEOUT_MS,
    ) -> None:
        if consume_from not in _INIT_MODES:
            raise InvalidArgument("consume_from is ConsumeFrom.LAST_OFFSET or FIRST_OFFSET for a simple consumer")
        if not subscriptions:
            raise InvalidArgument('subscriptions names no topic; give some, as {"orders": "*"}')
        self.group = group
        self._client = client = ClientHandle(
            nameserver, timeout_ms=timeout_ms, namespace=namespace, credentials=credentials, tls=tls
        )
        self._instance = instance = client.instance
        self._group = client.names.group(group)
        self._invisible_ms = invisible_ms
        self._start_timeout_ms = start_timeout_ms
        self._init_mode = _INIT_MODES[consume_from]
        self._clock = SystemClock()
        self._member = PullMember(
            self._group,
            consume_from.value,
            lambda: ";".join(instance.nameserver_addrs),
            self._clock.now_ms(),
            "CONSUME_POP",
        )
        self._expressions: dict[str, str] = {}
        self._tags: dict[str, frozenset[str]] = {}
        for topic, expression in subscriptions.items():
            self._add_subscription(topic, expression)
        self._lanes: dict[_Place, AckLane] = {}
        # Each call begins at the next place.
        self._turn = 0

    def _add_subscription(self, topic: str, expression: str) -> None:
        check_topic_name("a topic of subscriptions", topic)
        try:
            tags = parse_subscription("", expression).tags_set
        except ValueError as error:
            raise InvalidArgument(f"{error}: use '*', or tags separated by '||'") from None
        wire = self._client.names.topic(topic)
        self._expressions[wire], self._tags[wire] = expression, frozenset(tags)
        self._member.listen_to(wire, expression)

    @enable_ki_protection
    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        try:
            self._client.join_consumer(self.group, self._member)
            if self._start_timeout_ms is not None:
                await Start(self._client, self._start_timeout_ms).with_topics(list(self._expressions))
        except BaseException:
            await self._client.__aexit__(None, None, None)
            raise
        return self

    @enable_ki_protection
    async def __aexit__(self, *error: Any) -> None:
        await self._client.__aexit__(*error)

    # --- messages

    async def receive(
        self, most: BatchSize = MAX_COUNT, wait_ms: NotNegative = WAIT_MS, *, invisible_ms: InvisibleMs | None = None
    ) -> list[ReceivedMessage]:
        """Up to ``most`` messages (at most 32); empty when there is none within ``wait_ms``.

        The messages are hidden for ``invisible_ms``, by default the consumer's setting. They come from one topic on one
        broker; the next call begins at another topic or broker. While a broker is down the other brokers are read. A
        call that is cancelled may leave messages hidden until their time is over. A broker that hands out whole batches
        (RocketMQ's, of topics with queues of type BatchCQ) may exceed ``most``.
        """
        deadline = trio.current_time() + wait_ms / 1000
        hidden_ms = self._invisible_ms if invisible_ms is None else invisible_ms

        async def sweep() -> list[ReceivedMessage]:
            return await self._sweep(places, most, _left_ms(deadline) if len(places) == 1 else 0, hidden_ms)

        while True:
            places = await self._places()
            # First all places are asked without waiting. Only when no place has a message, the call waits until one of
            # them has a message.
            found = await until_answered(sweep, self._client.timeout_ms, self._instance.backoff)
            left_ms = _left_ms(deadline)
            if found or not left_ms:
                return found
            if len(places) > 1:
                await self._wait_for_any(places, left_ms)

    async def wait(self, wait_ms: NotNegative = WAIT_MS) -> None:
        """Return when there may be a message, or after ``wait_ms``. Takes no message, so it may be cancelled.

        While a broker is down it returns after a pause.
        """
        places = await self._places()
        await self._wait_for_any(places, wait_ms)

    async def ack(self, messages: ReceivedMessage | Sequence[ReceivedMessage]) -> None:
        """Acknowledge messages: they are not delivered to the group again.

        When this returns, the acknowledgement is as safe as a sent message is when its `send` returns. A message that
        is acknowledged too late is delivered again nevertheless. Calls of several tasks share requests. A batch that
        the broker handed out as a whole is acknowledged with the last of its messages.
        """
        nursery = self._client.nursery
        listed = _checked(messages)
        places: dict[_Place, list[ReceivedMessage]] = {}
        for message in listed:
            lease = message.lease
            places.setdefault(_Place(lease.topic, lease.broker_name), []).append(message)
        for place, those in places.items():
            if bits := bits_by_lease(those):
                await self._lane(place).ack(bits, nursery)

    async def change_invisible_time(self, message: ReceivedMessage, invisible_ms: InvisibleMs) -> None:
        """Let the message be delivered again ``invisible_ms`` from now, unless it is acknowledged: 0 gives it back.

        BrokerError when the message's invisible time was over already.
        """
        (message,) = _checked(message)
        lease, offset = message.lease, message.leased_offset
        place = _Place(lease.topic, lease.broker_name)
        message.renew(await self._ask(place, lambda at: popped.change_invisible_time(at, lease, offset, invisible_ms)))

    # --- internals

    async def _places(self) -> list[_Place]:
        """All places that may have messages, beginning at the next place each time."""
        self._client.check_open()
        found: dict[_Place, None] = {}
        for topic in self._expressions:
            route = await until_answered(
                partial(self._instance.route, topic), self._client.timeout_ms, self._instance.backoff
            )
            # Pops name the brokers' own queues; a static topic's messages may be on any broker of the route.
            names = route.brokers if route.leaders else [mq.broker_name for mq in route.readable]
            found.update(dict.fromkeys([_Place(topic, name) for name in names]))
        if not found:
            raise RouteNotFound(next(iter(self._expressions)), "no broker has queues to read", is_passing=True)
        places = list(found)
        self._turn += 1
        first = self._turn % len(places)
        return places[first:] + places[:first]

    async def _sweep(
        self, places: Sequence[_Place], most: int, wait_ms: int, invisible_ms: int
    ) -> list[ReceivedMessage]:
        """Messages of the first place that has some. Raises an error when all places fail."""
        failed: list[SkylarkError] = []
        for place in places:
            try:
                found = await self._receive_from(place, most, wait_ms, invisible_ms)
            except (RemotingError, BrokerError, RouteNotFound) as error:
                if not is_transient(error):
                    raise
                failed.append(error)
                continue
            if found:
                return found
        if len(failed) == len(places):
            raise failed[0]
        return []

    async def _receive_from(self, place: _Place, most: int, wait_ms: int, invisible_ms: int) -> list[ReceivedMessage]:
        found = await self._client.ask_master(
            place.queue,
            lambda at: popped.pop(
                at,
                self._group,
                place.topic,
                most=most,
                invisible_ms=invisible_ms,
                wait_ms=wait_ms,
                now_ms=self._clock.now_ms(),
                init_mode=self._init_mode,
                expression=self._expressions[place.topic],
                namespace=self._client.names.namespace,
            ),
        )
        tags = self._tags[place.topic]
        if tags and found:
            # The broker compares only hashes of tags. Messages with other tags are acknowledged, so that they do not
            # come again.
            others = [message for message in found if message.tags not in tags]
            if others:
                await self.ack(others)
                found = [message for message in found if message.tags in tags]
        await keep_contents(found)
        return found

    async def _wait_for_any(self, places: Sequence[_Place], wait_ms: int) -> None:
        """Return when one of the places has a message, or the time is over."""
        failures = 0
        with trio.move_on_after(wait_ms / 1000) as scope:
            async with trio.open_nursery() as nursery:

                @enable_ki_protection
                async def ask(place: _Place) -> None:
                    nonlocal failures
                    try:
                        has_message = await self._client.ask_master(
                            place.queue,
                            lambda at: popped.has_message(
                                at, self._group, place.topic, wait_ms=wait_ms, now_ms=self._clock.now_ms()
                            ),
                        )
                    except SkylarkError as error:
                        # The next sweep raises this error, or goes on without this place.
                        logger.debug("%s of %s is not waited for: %s", place.topic, place.broker_name, error)
                        failures += 1
                        await trio.sleep(self._instance.backoff.pause_s(failures))
                        has_message = True
                    if has_message:
                        scope.cancel()

                for place in places:
                    nursery.start_soon(ask, place)

    def _lane(self, place: _Place) -> AckLane:
        lane = self._lanes.get(place)
        if lane is None:

            async def send(bits: Bits) -> None:
                await self._ask(place, lambda at: popped.acknowledge(at, bits))

            lane = self._lanes[place] = AckLane(send)
        return lane

    async def _ask(self, place: _Place, call: Callable[[Endpoint], Awaitable[T]]) -> T:
        """The answer of the place's master; waits for the master within the timeout."""
        ask = self._client.ask_master
        return await until_answered(lambda: ask(place.queue, call), self._client.timeout_ms, self._instance.backoff)


def _left_ms(deadline: float) -> int:
    return max(int((deadline - trio.current_time()) * 1000), 0)


def _checked(messages: object) -> Sequence[ReceivedMessage]:
    """The messages as a sequence."""
    if isinstance(messages, ReceivedMessage):
        return (messages,)
    if not isinstance(messages, Sequence) or not all([isinstance(each, ReceivedMessage) for each in messages]):
        raise wrong_type("messages", "a message that `receive` returned, or a list of such", messages)
    return messages

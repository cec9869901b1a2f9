"""`Producer`: sends messages, retries them on other brokers within one deadline, leaves slow brokers alone."""

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from random import Random
from types import TracebackType
from typing import Self

import trio

from mqcommon.arguments import INT_MAX, check_flag, check_int, check_milliseconds, wrong_type
from mqcommon.clock import Clock, SystemClock
from mqcommon.errors import RouteNotFound, SendFailed, SkylarkError
from mqcommon.message.ids import UniqueKeys
from mqcommon.message.message import Message, wire_properties
from mqcommon.message.properties import DELAY
from mqcommon.message.queue import MessageQueue
from remoting.net.client import RemotingClient
from sdk.checked import TopicName, check_group_name, check_queue, check_topic_name, checked
from sdk.client import ClientInstance
from sdk.identity import local_ip
from sdk.probe import PROBE_INTERVAL_S, answers
from sdk.producer.bulk import check, check_body, cut
from sdk.producer.faults import Faults
from sdk.producer.lane import SLOTS_PER_BROKER, Lane, PendingSend
from sdk.producer.pick import Turns, queue_of_key
from sdk.producer.result import BulkResult, SendResult, StoredBatch
from sdk.producer.wire import AUTO_CREATE_TOPIC_QUEUES, DEFAULT_TOPIC, send_request
from sdk.routes import TopicRoute
from sdk.runtime import FORKS, survived

DEFAULT_GROUP = "DEFAULT_PRODUCER"
# A suspect that has left the routes is asked for so long: most come back from a restart.
DEPARTED_MS = 120_000
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
# So many messages are checked before other tasks have their turn: some 0.1 ms.
CHECKED_AT_ONCE = 10_000

Selector = Callable[[Sequence[MessageQueue], Message], MessageQueue]


class Producer:
    """Sends messages; use it in ``async with``.

    ``send_timeout_ms`` is for all tries of a send together; each try gets an equal share of it, so that a broker that
    does not answer costs ``send_timeout_ms / (retries + 1)`` and no more. With ``batching`` sends that gather while
    others are in flight travel together; each still gets its own result. ``accept_weaker``: take a result other than
    SEND_OK (stored, but flush or replication was late) instead of raising SendFailed.
    """

    def __init__(
        self,
        nameserver: str | None = None,
        *,
        group: str = DEFAULT_GROUP,
        send_timeout_ms: float = 3_000,
        retries: int = 2,
        batching: bool = True,
        accept_weaker: bool = False,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        clock: Clock | None = None,
    ) -> None:
        check_group_name("group", group)
        check_milliseconds("send_timeout_ms", send_timeout_ms)
        check_int("retries", retries, 0, INT_MAX)
        check_flag("batching", batching)
        check_flag("accept_weaker", accept_weaker)
        check_int("max_message_bytes", max_message_bytes, 0, INT_MAX)
        self._client = ClientInstance(nameserver)
        self._stack = AsyncExitStack()
        self._timeout_s = send_timeout_ms / 1000
        self._batching = batching
        self._max_message_bytes = max_message_bytes
        self._clock = clock or SystemClock()
        self._lanes: dict[str | MessageQueue, Lane] = {}
        self._random = Random()
        self._unique_keys = UniqueKeys("127.0.0.1", 0, 0)
        self._oneway_turns = Turns(self._random)
        self._probing = False
        self.group = group
        self.retries = retries
        self.accept_weaker = accept_weaker
        self.faults = Faults()
        # Tries beyond the first, of all sends so far.
        self.retried = 0

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._client)
        # Only now, since processes that were forked from the one that made this must not have the same.
        self._random.seed()
        self._unique_keys = UniqueKeys(local_ip(), os.getpid(), self._random.getrandbits(32))
        self._client.membership.join_producer(self.group)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    # --- what users call

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_ms: float | None = None,
    ) -> SendResult:
        """Store one message; returns when a broker has acknowledged it.

        ``queue`` or ``selector`` say where it goes; a sharding key does, too: messages with one key keep their order.
        Raises SendFailed after the last try, RouteNotFound for an unknown topic, TypeError or ValueError for arguments
        that cannot be used, and what ``selector`` raises.
        """
        if type(message) is not Message and not isinstance(message, Message):
            raise wrong_type("message", "a Message", message)
        if timeout_ms is not None:
            check_milliseconds("timeout_ms", timeout_ms)
        body = message.body
        if type(body) is not bytes or len(body) > self._max_message_bytes:
            check_body("message.body", body, self._max_message_bytes)
        topic = message.topic
        lane = self._lanes.get(topic)
        if lane is None or queue is not None or selector is not None or (message.properties and message.sharding_key):
            lane = await self._lane(message, queue, selector)
        if self._client.forks != FORKS.count:
            self._client.check_open()
        task = trio.lowlevel.current_task()
        send = PendingSend(message, None, self._timeout_s if timeout_ms is None else timeout_ms / 1000, task)
        # A delayed message cannot be in a batch.
        send.alone = message.properties is not None and DELAY in message.properties
        lane.add(send)
        result: SendResult = await trio.lowlevel.wait_task_rescheduled(send.abort)
        return result

    @checked
    async def send_many(self, topic: TopicName, messages: Iterable[bytes | Message]) -> BulkResult:
        """Store many messages, given as bodies or as Messages of ``topic``; returns when all are acknowledged.

        They travel in batches that go round the topic's queues; each batch has the whole send timeout. Raises
        SendFailed when one could not be stored; others may be then. A list or a tuple is checked before anything is
        sent, other iterables while they are consumed; what they raise is raised here.
        """
        if isinstance(messages, str | bytes | Message) or not isinstance(messages, Iterable):
            raise wrong_type("messages", "an iterable of bytes and Messages", messages)
        if isinstance(messages, list | tuple):
            for start in range(0, len(messages), CHECKED_AT_ONCE):
                check(topic, messages[start : start + CHECKED_AT_ONCE], self._max_message_bytes, start)
                await trio.lowlevel.checkpoint()
        self._client.check_open()
        lane = self._lanes.get(topic) or await self._lane(Message(topic), None, None)
        route = self.route_of(topic)
        queues = len(route.writable) if route else 1
        batches = enumerate(cut(topic, messages, queues, self._max_message_bytes, self._unique_keys, self._clock))
        results: dict[int, StoredBatch] = {}
        failures: list[Exception] = []

        async def work(scope: trio.CancelScope) -> None:
            try:
                for number, rows in batches:
                    send = PendingSend(None, rows, self._timeout_s, trio.lowlevel.current_task())
                    lane.add(send)
                    results[number] = await trio.lowlevel.wait_task_rescheduled(send.abort)
            except Exception as error:
                failures.append(error)
                scope.cancel()

        async with trio.open_nursery() as nursery:
            for _ in range((SLOTS_PER_BROKER + 1) * max(len(route.writable_at) if route else 1, 1)):
                nursery.start_soon(work, nursery.cancel_scope)
        if failures:
            raise failures[0]
        return BulkResult([results[number] for number in sorted(results)])

    @checked
    async def send_oneway(self, message: Message) -> None:
        """Send without an acknowledgement: returns when the request is queued on a connection."""
        check_body("message.body", message.body, self._max_message_bytes)
        check_topic_name("message.topic", message.topic)
        self._client.check_open()
        route = await self._route(message.topic)
        target = self._oneway_turns.next(route.writable_at, self._usable)
        if target is None:
            raise SendFailed(f"topic {message.topic} has no writable queue")
        addr, queue = target
        properties = wire_properties(message, self._unique_keys.next(self._clock.now_ms()))
        command = send_request(self.group, queue, [(message.flag, message.body, properties)], self._clock.now_ms())
        await self.remoting.oneway(addr, command)

    @checked
    async def queues(self, topic: TopicName) -> tuple[MessageQueue, ...]:
        """The queues that can be written now, sorted."""
        self._client.check_open()
        return (await self._route(topic)).writable

    # --- what lanes need

    @property
    def remoting(self) -> RemotingClient:
        return self._client.remoting

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def try_timeout_ms(self, left_ms: float) -> float:
        """One try's share of a send's time."""
        return max(min(left_ms, self._timeout_s * 1000 / (self.retries + 1)), 1)

    def new_keys(self, count: int) -> list[bytes]:
        """Unique keys, as encoded properties."""
        return self._unique_keys.many(self._clock.now_ms(), count)

    def route_of(self, topic: str) -> TopicRoute | None:
        return self._client.routes.get(topic)

    def want_route(self, topic: str) -> None:
        """Ask for the topic's route again, in the background."""

        async def ask() -> None:
            with survived(f"asking for the route of topic {topic}"):
                await self._ask_for_route(topic)

        self._client.nursery.start_soon(ask)

    def suspect(self, addr: str) -> None:
        """Leave ``addr`` alone until it answers a probe."""
        self.faults.suspect(addr, trio.current_time() * 1000)
        if not self._probing:
            self._probing = True
            self._client.nursery.start_soon(self._probe)

    # --- inside

    def _usable(self, addr: str) -> bool:
        return self.faults.usable(addr, trio.current_time() * 1000)

    async def _lane(self, message: Message, queue: MessageQueue | None, selector: Selector | None) -> Lane:
        topic = message.topic
        check_topic_name("message.topic", topic)
        if queue is not None:
            check_queue("queue", queue, topic)
        elif selector is not None and not callable(selector):
            raise wrong_type("selector", "a function", selector)
        route = await self._route(topic)
        if queue is None and (selector is not None or message.sharding_key):
            if not route.writable:
                raise SendFailed(f"topic {topic} has no writable queue")
            if selector is not None:
                queue = selector(route.writable, message)
                check_queue("what selector returns", queue, topic)
            else:
                queue = queue_of_key(route.writable, message.sharding_key or "")
        key: str | MessageQueue = topic if queue is None else queue
        lane = self._lanes.get(key)
        if lane is None:
            nursery = self._client.nursery
            lane = self._lanes[key] = Lane(self, nursery, topic, queue, self._batching, Turns(self._random))
            nursery.start_soon(lane.run)
        return lane

    async def _route(self, topic: str) -> TopicRoute:
        """The topic's route; that of RocketMQ's default topic when the broker shall create this one."""
        route = self.route_of(topic)
        if route is not None:
            return route
        try:
            return await self._client.refresh(topic)
        except RouteNotFound as missing:
            try:
                template = await self._client.refresh(DEFAULT_TOPIC)
            except RouteNotFound:
                raise missing from None
        return self._client.routes.put(_route_like(template, topic))

    async def _ask_for_route(self, topic: str) -> None:
        before = self.route_of(topic)
        try:
            await self._client.refresh(topic)
        except SkylarkError:
            # The route that we have stays in use; the next failure or poll asks again.
            return
        masters = self._client.routes.masters()
        for addr in before.writable_at if before else ():
            if addr not in masters:
                # It stopped, or died; it may be back before the next poll of the routes.
                self.suspect(addr)

    async def _probe(self) -> None:
        """Ask suspects, until none is left, whether they answer again."""
        while self.faults.suspects:
            await trio.sleep(PROBE_INTERVAL_S)
            with survived("probing brokers"):
                async with trio.open_nursery() as nursery:
                    for addr in self.faults.suspects:
                        nursery.start_soon(self._probe_one, addr)
        self._probing = False

    async def _probe_one(self, addr: str) -> None:
        routes = self._client.routes
        is_back = await answers(self.remoting, addr)
        if addr in routes.masters():
            if not is_back:
                return
        elif self.faults.suspect_for_ms(addr, trio.current_time() * 1000) < DEPARTED_MS:
            if is_back:
                # It is back before the next poll of the routes; it stays suspect until a NameServer says so, too.
                for topic in routes.topics():
                    self.want_route(topic)
            return
        self.faults.cleared(addr)
        for lane in self._lanes.values():
            lane.wake()


def _route_like(template: TopicRoute, topic: str) -> TopicRoute:
    """The queues that ``topic`` will have when a broker creates it after ``template``."""

    def named(queues: Sequence[MessageQueue]) -> tuple[MessageQueue, ...]:
        return tuple(q._replace(topic=topic) for q in queues if q.queue_id < AUTO_CREATE_TOPIC_QUEUES)

    return TopicRoute(
        topic,
        template.brokers,
        named(template.writable),
        named(template.readable),
        {addr: named(queues) for addr, queues in template.writable_at.items()},
    )

"""The routes of a producer's topics, calls that wait for a route, and which queue gets the next batch.

Brokers take `Turns`, and on each broker its queues. Both start at a random position, so that many processes that send
few messages do not all use the same queue. Brokers that are not usable, or at which this batch has failed, are used
only when there is no other broker."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from random import Random
from typing import TypeVar
from zlib import crc32

import trio

from skylark.mqcommon.errors import NoNameServer, RouteNotFound, SendFailed, SkylarkError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.client import ClientHandle
from skylark.sdk.producer.wire import AUTO_CREATE_TOPIC_QUEUES, DEFAULT_TOPIC
from skylark.sdk.retry import is_transient, until_answered
from skylark.sdk.routes import TopicRoute

T = TypeVar("T")


class SendRoutes:
    """Routes by the names that brokers know."""

    def __init__(self, client: ClientHandle) -> None:
        self._client = client

    async def find(self, topic: str) -> TopicRoute:
        """The topic's route. For an unknown topic, the route of RocketMQ's default topic: the broker creates it."""
        route = self._client.instance.routes.get(topic)
        return await self.refresh(topic) if route is None else route

    async def refresh(self, topic: str) -> TopicRoute:
        """As `find`, but asks the NameServers. A NameServer's route is never replaced by a guess."""
        instance = self._client.instance
        try:
            return await instance.refresh(topic)
        except RouteNotFound as missing:
            # NameServers may just be starting. A guess now would send to queues that the topic, once registered, does
            # not have.
            if missing.is_passing and not instance.is_new(topic):
                raise
            try:
                template = await instance.refresh(DEFAULT_TOPIC)
            except RouteNotFound:
                raise missing from None
        # A set that takes over registers its topics together. If it registered between the two answers above, this
        # topic has other queues than the default topic.
        try:
            return await instance.refresh(topic)
        except RouteNotFound as missing:
            if missing.is_passing and not instance.is_new(topic):
                raise
        made = _route_like(template, topic)
        # While the default topic has no master, the queues that this topic will have are unknown.
        if not made.writable:
            raise no_writable(topic)
        return instance.routes.put(made)

    async def writable(self, topic: str) -> TopicRoute:
        """The topic's route; it is refreshed, and RouteNotFound raised, when it has no writable queue."""
        route = await self.find(topic)
        if not route.writable:
            route = await self.refresh(topic)
        if not route.writable:
            raise no_writable(topic)
        return route

    async def in_time(self, call: Callable[[], Awaitable[T]], topic: str, timeout_s: float) -> T:
        """The result of ``call``, retried until the timeout; then SendFailed with the last error as its cause."""
        last: SkylarkError | None = None

        async def noting() -> T:
            nonlocal last
            try:
                return await call()
            except SkylarkError as error:
                last = error
                raise

        instance = self._client.instance
        with trio.move_on_after(timeout_s):
            try:
                return await until_answered(noting, timeout_s * 1000, instance.backoff)
            except SkylarkError as error:
                if not is_transient(error):
                    raise
        if last is None:
            last = NoNameServer(instance.name_servers.text, f"not within {timeout_s * 1000:.0f} ms")
        raise SendFailed(f"the message for {topic} was not sent within {timeout_s * 1000:.0f} ms: {last}") from last


def no_writable(topic: str) -> RouteNotFound:
    """The error for a topic to which nothing can be sent now."""
    return RouteNotFound(
        topic, "it has no writable queue now; mqadmin topicRoute shows its masters and permissions", is_passing=True
    )


def _route_like(template: TopicRoute, topic: str) -> TopicRoute:
    """The route that ``topic`` will have after a broker has created it from ``template``."""

    def named(queues: Sequence[MessageQueue]) -> tuple[MessageQueue, ...]:
        return tuple(q._replace(topic=topic) for q in queues if q.queue_id < AUTO_CREATE_TOPIC_QUEUES)

    return TopicRoute(
        topic,
        template.brokers,
        named(template.writable),
        named(template.readable),
        {addr: named(queues) for addr, queues in template.writable_at.items()},
        is_guess=True,
    )


class Turns:
    """The round-robin state of one topic."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._turn = 0
        # Address → the turn in which the broker was chosen last; a random number below 0 if it was never chosen. The
        # broker with the lowest number is next, so turns are even also when a broker misses some turns.
        self._chosen: dict[str, float] = {}
        # Address → position of the queue chosen last.
        self._position: dict[str, int] = {}

    def next(
        self,
        queues_at: Mapping[str, Sequence[MessageQueue]],
        usable: Callable[[str], bool] = lambda addr: True,
        avoid: Collection[str] = (),
    ) -> tuple[str, MessageQueue] | None:
        """The (address, queue) to send to next; None when there is no writable queue.

        Of the addresses in ``queues_at`` those that are ``usable`` and not in ``avoid`` come first.
        """
        addrs = [addr for addr, queues in queues_at.items() if queues]
        if not addrs:
            return None
        addr = addrs[0]
        if len(addrs) > 1:
            best = [addr for addr in addrs if addr not in avoid and usable(addr)]
            candidates = best or [addr for addr in addrs if addr not in avoid] or addrs
            addr = min(candidates, key=self._last_turn)
        queues = queues_at[addr]
        position = self._position.get(addr)
        position = self._random.randrange(len(queues)) if position is None else (position + 1) % len(queues)
        self._position[addr] = position
        self._turn += 1
        self._chosen[addr] = self._turn
        return addr, queues[position]

    def _last_turn(self, addr: str) -> float:
        turn = self._chosen.get(addr)
        if turn is None:
            turn = self._chosen[addr] = self._random.random() - 1
        return turn


def queue_of_key(queues: Sequence[MessageQueue], sharding_key: str) -> MessageQueue:
    """The queue for messages with this key: always the same queue while the topic's queues do not change."""
    return queues[crc32(sharding_key.encode()) % len(queues)]

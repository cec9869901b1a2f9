"""The routes of a producer's topics, and calls for messages that must have one in time."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import trio

from mqcommon.errors import NoNameServer, RouteNotFound, SendFailed, SkylarkError
from mqcommon.message.queue import MessageQueue
from sdk.producer.wire import AUTO_CREATE_TOPIC_QUEUES, DEFAULT_TOPIC
from sdk.retry import is_transient
from sdk.routes import TopicRoute
from sdk.shared import ClientHandle
from sdk.waiting import until_answered

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
        """As `find`, but asks the NameServers. A route that a NameServer gave is never replaced by a guess."""
        instance = self._client.instance
        try:
            return await instance.refresh(topic)
        except RouteNotFound as missing:
            if missing.is_passing and not instance.is_new(topic):
                raise
            try:
                template = await instance.refresh(DEFAULT_TOPIC)
            except RouteNotFound:
                raise missing from None
        # A set that takes over registers its topics together. It may have done so between the two answers above, and
        # then its queues of this topic are others than those of the default topic.
        try:
            return await instance.refresh(topic)
        except RouteNotFound as missing:
            if missing.is_passing:
                raise
        made = _route_like(template, topic)
        # While the default topic has no master, nothing is known of the queues that this one will have.
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

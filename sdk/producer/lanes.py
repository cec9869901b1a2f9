"""Which lane a message goes to: the lane of its topic, of its priority, or of the queue that is chosen for it."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from random import Random
from typing import NamedTuple

import trio

from skylark.mqcommon.arguments import wrong_type
from skylark.mqcommon.errors import InvalidArgument
from skylark.mqcommon.message.message import Message
from skylark.mqcommon.message.properties import DELAY, PRIORITY, SHARDING_KEY
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.checked import check_queue, check_topic_name
from skylark.sdk.client import ClientHandle
from skylark.sdk.producer.lane import Lane
from skylark.sdk.producer.pending import LaneOwner
from skylark.sdk.producer.routing import SendRoutes, Turns, queue_of_key
from skylark.sdk.producer.timed import deferred_lane
from skylark.sdk.routes import TopicRoute

#: Properties that choose the queue of a message.
CHOOSING = (SHARDING_KEY, PRIORITY)
Selector = Callable[[Sequence[MessageQueue], Message], MessageQueue]


class QueueChoice(NamedTuple):
    """How the caller chooses a message's queue, and whether the message has a time of delivery."""

    queue: MessageQueue | None = None
    selector: Selector | None = None
    is_timed: bool = False

    def check(self, message: Message) -> None:
        """TypeError or InvalidArgument when the topic of ``message``, or its queue or selector, cannot be used."""
        check_topic_name("message.topic", message.topic)
        if self.queue is not None:
            check_queue("queue", self.queue, message.topic)
        elif self.selector is not None and not callable(self.selector):
            raise wrong_type("selector", "a function", self.selector)
        if (self.queue is not None or self.selector is not None) and message.priority is not None:
            raise InvalidArgument("message has a priority, which chooses its queue: give neither queue nor selector")

    def keeps_order(self, message: Message) -> bool:
        """Whether the message must keep its place among other messages, because its queue is chosen."""
        return self.queue is not None or self.selector is not None or message.sharding_key is not None


ANY_QUEUE = QueueChoice()


def choice_of(
    queue: MessageQueue | None, selector: Selector | None, deliver_at: datetime | None, delay: timedelta | None
) -> QueueChoice:
    """The choice made by these arguments of a send; ANY_QUEUE itself when no argument is given."""
    if queue is None and selector is None and deliver_at is None and delay is None:
        return ANY_QUEUE
    return QueueChoice(queue, selector, deliver_at is not None or delay is not None)


class Lanes:
    """The lanes of ``owner``. A lane is made when it is first needed, and ends with ``client``."""

    def __init__(
        self, owner: LaneOwner, client: ClientHandle, routes: SendRoutes, random: Random, *, batching: bool
    ) -> None:
        self._owner = owner
        self._client = client
        self._names = client.names
        self._routes = routes
        self._random = random
        self._batching = batching
        #: Lanes by topic (by `deferred_lane` of the topic for messages that are delivered later, by `_priority_lane`
        #: for messages with a priority) or by queue.
        self.open: dict[str | MessageQueue, Lane] = {}

    def wake(self) -> None:
        """Wake all lanes: a broker may have become usable."""
        for lane in self.open.values():
            lane.wake()

    def known(self, message: Message, choice: QueueChoice) -> Lane | None:
        """The lane for the message; None while there is no route, or no route with a queue to choose."""
        topic = self._names.topic(message.topic)
        route = self._owner.route_of(topic)
        if route is None:
            return None
        queue = choice.queue
        if queue is None and (choice.selector is not None or message.sharding_key):
            if not route.writable:
                return None
            if choice.selector is not None:
                queue = choice.selector(self._names.plain_queues(route.writable), message)
                check_queue("the result of selector", queue, message.topic)
            else:
                queue = queue_of_key(route.writable, message.sharding_key or "")
        queue = None if queue is None else self._names.queue(queue)
        # `Producer.send` looks for the name in the message.
        is_deferred = choice.is_timed or (message.properties is not None and DELAY in message.properties)
        name = deferred_lane(message.topic) if is_deferred else message.topic
        level = None if queue is not None else _level(message, route)
        if level is not None:
            name = _priority_lane(name, level)
        key: str | MessageQueue = name if queue is None else queue
        lane = self.open.get(key)
        if lane is None:
            nursery, turns = self._client.nursery, Turns(self._random)
            plain = self._names.plain(topic)
            lane = self.open[key] = Lane(
                self._owner,
                nursery,
                topic,
                queue,
                self._batching,
                turns,
                plain,
                is_deferred=is_deferred and queue is None,
                level=level,
            )
            nursery.start_soon(lane.run)
        return lane

    async def find(self, message: Message, choice: QueueChoice, timeout_s: float) -> Lane:
        """The lane for the message, when its route is known. Raises SendFailed when the time is over."""
        deadline = trio.current_time() + timeout_s
        topic = self._names.topic(message.topic)
        chooses = choice.queue is None and (choice.selector is not None or message.sharding_key)
        ask = partial(self._routes.writable if chooses else self._routes.find, topic)
        while (lane := self.known(message, choice)) is None:
            await self._routes.in_time(ask, topic, max(deadline - trio.current_time(), 0))
        return lane


def _level(message: Message, route: TopicRoute) -> int | None:
    """The number of the queue for the message's priority, at a broker that has that many queues."""
    priority = message.priority
    # All priorities above the highest queue share a lane.
    return None if priority is None else min(priority, max(map(len, route.writable_at.values()), default=1) - 1)


def _priority_lane(name: str, level: int) -> str:
    """The name of the lane of messages with the same priority: their batches go to the queue of the priority."""
    return f"{name} priority {level}"

"""The route of a topic that no broker has yet, or that no NameServer knows while a set takes over."""

from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import pytest
import trio

from skylark.mqcommon.errors import RouteNotFound
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.client import ClientHandle
from skylark.sdk.producer.routing import SendRoutes
from skylark.sdk.producer.wire import DEFAULT_TOPIC
from skylark.sdk.routes import TopicRoute


class Instance:
    """Routes as a client caches them; what a NameServer knows is in ``known``."""

    def __init__(self) -> None:
        self.known: dict[str, TopicRoute] = {}
        # What is answered first, before ``known``.
        self.answers: dict[str, list[TopicRoute | None]] = {}
        self.cached: dict[str, TopicRoute] = {}
        self.routes = SimpleNamespace(get=self.cached.get, put=self.put)

    def put(self, route: TopicRoute) -> TopicRoute:
        self.cached[route.topic] = route
        return route

    def is_new(self, topic: str) -> bool:
        return topic not in self.cached

    async def refresh(self, topic: str) -> TopicRoute:
        answers = self.answers.get(topic)
        found = answers.pop(0) if answers else self.known.get(topic)
        await trio.lowlevel.checkpoint()
        if found is None:
            known = self.cached.get(topic)
            raise RouteNotFound(topic, is_passing=known is not None and not known.is_guess)
        return self.put(found)


def default_topic(*masters: str) -> TopicRoute:
    return route(DEFAULT_TOPIC, 1, *masters)


def route(topic: str, queue_nums: int, *masters: str) -> TopicRoute:
    queues = tuple(MessageQueue(topic, "broker-a", number) for number in range(queue_nums))
    writable_at = MappingProxyType(dict.fromkeys(masters, queues))
    return TopicRoute(topic, {}, queues if masters else (), queues, writable_at)


def routes_of(instance: Instance) -> SendRoutes:
    return SendRoutes(cast(ClientHandle, SimpleNamespace(instance=cast(Any, instance))))


async def test_a_new_topic_is_found_as_soon_as_the_set_has_a_master() -> None:
    instance = Instance()
    routes = routes_of(instance)
    with pytest.raises(RouteNotFound):
        await routes.writable("T")
    instance.known[DEFAULT_TOPIC] = default_topic()
    with pytest.raises(RouteNotFound, match="no writable queue now"):
        await routes.writable("T")
    instance.known[DEFAULT_TOPIC] = default_topic("10.0.0.1:1")
    assert (await routes.writable("T")).writable == (MessageQueue("T", "broker-a", 0),)
    # That master died before the topic was created, and the client took it out of the route.
    instance.cached["T"] = replace(instance.cached["T"], writable=(), writable_at={})
    instance.known[DEFAULT_TOPIC] = default_topic("10.0.0.2:1")
    assert set((await routes.writable("T")).writable_at) == {"10.0.0.2:1"}


async def test_a_topic_whose_set_takes_over_meanwhile_gets_its_own_route() -> None:
    """The new master registers after the topic was not found, and before the default topic is looked for."""
    instance = Instance()
    own = route("T", 2, "10.0.0.2:1")
    instance.known = {DEFAULT_TOPIC: route(DEFAULT_TOPIC, 8, "10.0.0.2:1"), "T": own}
    instance.answers["T"] = [None]
    assert await routes_of(instance).find("T") == own
    assert instance.cached["T"] == own


async def test_a_route_of_a_nameserver_stays_when_it_cannot_be_refreshed() -> None:
    """The default topic is known meanwhile, as when the whole set of this topic is away, but not another set."""
    instance = Instance()
    own = instance.put(route("T", 2, "10.0.0.2:1"))
    instance.known[DEFAULT_TOPIC] = route(DEFAULT_TOPIC, 8, "10.0.0.3:1")
    with pytest.raises(RouteNotFound) as refused:
        await routes_of(instance).refresh("T")
    assert refused.value.is_passing and instance.cached["T"] is own


async def test_a_guess_follows_the_default_topic_to_its_new_master() -> None:
    instance = Instance()
    instance.known[DEFAULT_TOPIC] = default_topic("10.0.0.1:1")
    routes = routes_of(instance)
    assert (await routes.find("T")).is_guess
    instance.known[DEFAULT_TOPIC] = default_topic("10.0.0.2:1")
    assert set((await routes.refresh("T")).writable_at) == {"10.0.0.2:1"}
    instance.known["T"] = route("T", 2, "10.0.0.2:1")
    assert await routes.refresh("T") == instance.known["T"]

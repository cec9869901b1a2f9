"""The route of a topic that no broker has yet, while the brokers that could create it have no master."""

from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import pytest

from mqcommon.errors import RouteNotFound
from mqcommon.message.queue import MessageQueue
from sdk.producer.routing import SendRoutes
from sdk.producer.wire import DEFAULT_TOPIC
from sdk.routes import TopicRoute
from sdk.shared import ClientHandle


class Instance:
    """Routes as a client caches them; what a NameServer knows is in ``known``."""

    def __init__(self) -> None:
        self.known: dict[str, TopicRoute] = {}
        self.cached: dict[str, TopicRoute] = {}
        self.routes = SimpleNamespace(get=self.cached.get, put=self.put)

    def put(self, route: TopicRoute) -> TopicRoute:
        self.cached[route.topic] = route
        return route

    async def refresh(self, topic: str) -> TopicRoute:
        if topic not in self.known:
            raise RouteNotFound(topic)
        return self.put(self.known[topic])


def default_topic(*masters: str) -> TopicRoute:
    queues = (MessageQueue(DEFAULT_TOPIC, "broker-a", 0),)
    writable_at = MappingProxyType(dict.fromkeys(masters, queues))
    return TopicRoute(DEFAULT_TOPIC, {}, queues if masters else (), queues, writable_at)


async def test_a_new_topic_is_found_as_soon_as_the_set_has_a_master() -> None:
    instance = Instance()
    routes = SendRoutes(cast(ClientHandle, SimpleNamespace(instance=cast(Any, instance))))
    with pytest.raises(RouteNotFound):
        await routes.writable("T")
    instance.known[DEFAULT_TOPIC] = default_topic()
    with pytest.raises(RouteNotFound, match="no writable queue now"):
        await routes.writable("T")
    instance.known[DEFAULT_TOPIC] = default_topic("10.0.0.1:1")
    assert (await routes.writable("T")).writable == (MessageQueue("T", "broker-a", 0),)
    # That master died before the topic was created, and the client took it out of the route.
    instance.cached["T"] = default_topic()
    instance.known[DEFAULT_TOPIC] = default_topic("10.0.0.2:1")
    assert set((await routes.writable("T")).writable_at) == {"10.0.0.2:1"}

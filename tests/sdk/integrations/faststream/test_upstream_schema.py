"""FastStream's own test cases for its AsyncAPI schema, of version 3."""

from sdk.integrations.faststream import RocketBroker, RocketRoute, RocketRouter, RoutePublisher
from sdk.integrations.faststream.fastapi import RocketRouter as FastAPIRouter
from sdk.integrations.faststream.testing import TestRocketBroker
from tests.sdk.integrations.faststream.cases import InAsyncio
from tests.sdk.integrations.faststream.upstream.asyncapi.arguments import ArgumentsTestcase, FastAPICompatible
from tests.sdk.integrations.faststream.upstream.asyncapi.fastapi import FastAPITestCase
from tests.sdk.integrations.faststream.upstream.asyncapi.naming import NamingTestCase
from tests.sdk.integrations.faststream.upstream.asyncapi.publisher import PublisherTestcase
from tests.sdk.integrations.faststream.upstream.asyncapi.router import RouterTestcase


class Slash:
    """In place of a case that is older than 0.7.8, where a channel's address became its topic instead of its title."""

    def test_slash_in_title(self) -> None:
        broker: RocketBroker = self.broker_class()  # type: ignore[attr-defined]

        @broker.subscriber("test", title="/")
        async def handle(msg: str) -> None: ...

        channels = self.get_spec(broker).to_jsonable()["channels"]  # type: ignore[attr-defined]
        assert [channel["address"] for channel in channels.values()] == ["test"]


class TestArguments(Slash, ArgumentsTestcase):
    broker_class = RocketBroker


class TestNaming(NamingTestCase):
    broker_class = RocketBroker


class TestPublisher(PublisherTestcase):
    broker_class = RocketBroker


class TestRouter(RouterTestcase):
    broker_class = RocketBroker
    router_class = RocketRouter
    route_class = RocketRoute
    publisher_class = RoutePublisher


class TestArgumentsOfFastAPI(Slash, FastAPICompatible):
    broker_class = staticmethod(lambda: FastAPIRouter(group="schema").broker)


class TestFastAPI(InAsyncio, FastAPITestCase):
    router_class = FastAPIRouter
    broker_wrapper = staticmethod(TestRocketBroker)

"""FastStream's own test cases for brokers, against a cluster. docs/faststream.md says which do not apply, and why."""

from typing import Any

import pytest

from sdk.integrations.faststream import RocketBroker, RocketRoute, RoutePublisher
from sdk.testing import Cluster
from tests.sdk.integrations.faststream.cases import InAsyncio, Quadruple, RealCases
from tests.sdk.integrations.faststream.upstream.connection import BrokerConnectionTestcase
from tests.sdk.integrations.faststream.upstream.consume import BrokerRealConsumeTestcase
from tests.sdk.integrations.faststream.upstream.middlewares import ExceptionMiddlewareTestcase, MiddlewareTestcase
from tests.sdk.integrations.faststream.upstream.parser import CustomParserTestcase
from tests.sdk.integrations.faststream.upstream.publish import BrokerPublishTestcase
from tests.sdk.integrations.faststream.upstream.requests import RequestsTestcase
from tests.sdk.integrations.faststream.upstream.router import RouterTestcase


class TestConsume(RealCases, BrokerRealConsumeTestcase):
    pass


class TestPublish(RealCases, BrokerPublishTestcase):
    pass


class TestParser(RealCases, CustomParserTestcase):
    pass


class TestMiddlewares(RealCases, MiddlewareTestcase):
    pass


class TestExceptionMiddlewares(RealCases, ExceptionMiddlewareTestcase):
    pass


class TestRouter(RealCases, RouterTestcase):
    route_class = RocketRoute
    publisher_class = RoutePublisher


class TestRequests(RealCases, RequestsTestcase):
    def get_middleware(self, **others: Any) -> Any:
        return Quadruple


class TestConnection(InAsyncio, BrokerConnectionTestcase):
    broker = RocketBroker

    @pytest.fixture
    def settings(self, cluster: Cluster) -> Cluster:
        return cluster

    def get_broker_args(self, settings: Cluster) -> dict[str, Any]:
        return {"nameserver": settings.nameserver}

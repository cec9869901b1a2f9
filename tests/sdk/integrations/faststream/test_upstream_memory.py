"""FastStream's own test cases for brokers, against `TestRocketBroker`; and those that need no broker at all."""

from typing import Any

import pytest

from sdk.integrations.faststream import RocketPublishCommand, RocketRoute, RoutePublisher
from sdk.integrations.faststream.testing import MemoryProducer
from tests.sdk.integrations.faststream.cases import MemoryCases, Quadruple
from tests.sdk.integrations.faststream.upstream.codec import BatchCodecTestcase, CodecTestcase
from tests.sdk.integrations.faststream.upstream.include_router import (
    IncludePublisherTestcase,
    IncludeSubscriberTestcase,
)
from tests.sdk.integrations.faststream.upstream.middlewares import (
    ExceptionMiddlewareTestcase,
    MiddlewaresOrderTestcase,
    MiddlewareTestcase,
)
from tests.sdk.integrations.faststream.upstream.parser import CustomParserTestcase
from tests.sdk.integrations.faststream.upstream.publish_command import BatchPublishCommandTestcase
from tests.sdk.integrations.faststream.upstream.requests import RequestsTestcase
from tests.sdk.integrations.faststream.upstream.router import RouterLocalTestcase
from tests.sdk.integrations.faststream.upstream.testclient import BrokerTestclientTestcase


class TestTestClient(MemoryCases, BrokerTestclientTestcase):
    @pytest.fixture
    def fake_producer_cls(self) -> type:
        return MemoryProducer


class TestRequests(MemoryCases, RequestsTestcase):
    def get_middleware(self, **others: Any) -> Any:
        return Quadruple


class TestRouter(MemoryCases, RouterLocalTestcase):
    route_class = RocketRoute
    publisher_class = RoutePublisher


class TestParser(MemoryCases, CustomParserTestcase):
    pass


class TestMiddlewares(MemoryCases, MiddlewareTestcase):
    pass


class TestMiddlewaresOrder(MemoryCases, MiddlewaresOrderTestcase):
    pass


class TestExceptionMiddlewares(MemoryCases, ExceptionMiddlewareTestcase):
    pass


class TestCodec(MemoryCases, CodecTestcase):
    pass


class TestBatchCodec(MemoryCases, BatchCodecTestcase):
    pass


class TestIncludedSubscribers(MemoryCases, IncludeSubscriberTestcase):
    pass


class TestIncludedPublishers(MemoryCases, IncludePublisherTestcase):
    pass


class TestPublishCommand(BatchPublishCommandTestcase):
    publish_command_cls = RocketPublishCommand

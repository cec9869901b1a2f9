"""kombu's cases for all transports, with connections to Skylark."""

import os
from typing import Any

import kombu
import kombu.serialization  # finds Skylark's transport: docs/guides/celery.md
import pytest
from t.integration import common

NAMESERVER = os.environ["PEER_NAMESERVER"]
NOBODY = "rocketmq://127.0.0.1:1/"


@pytest.fixture
def connection() -> Any:
    return kombu.Connection(f"rocketmq://{NAMESERVER}/")


@pytest.fixture
def invalid_connection() -> Any:
    return kombu.Connection(NOBODY)


@pytest.fixture
def failover_connection() -> Any:
    return kombu.Connection(f"{NOBODY};rocketmq://{NAMESERVER}/")


class TestBasicFunctionality(common.BasicFunctionality):
    pass


class TestExchangeTypes(common.BaseExchangeTypes):
    pass


class TestTimeToLive(common.BaseTimeToLive):
    pass


class TestPriority(common.BasePriority):
    pass


class TestMessage(common.BaseMessage):
    pass


class TestEventLoop(common.BaseEventLoop):
    pass


class TestFailover(common.BaseFailover):
    pass

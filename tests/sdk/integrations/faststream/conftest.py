import asyncio
from collections.abc import Iterator
from unittest.mock import AsyncMock, MagicMock
from uuid import uuid4

import pytest

from sdk import TopicConfig
from sdk.blocking import Admin
from sdk.testing import Cluster, cluster_fixture

pytest.register_assert_rewrite("tests.sdk.integrations.faststream.upstream")

cluster = cluster_fixture(options={"enablePropertyFilter": True}, scope="package")


# What FastStream's test cases put before and after the name of a topic, to have more of them.
PREFIXES = ("", "test_", "test1_test2_")
SUFFIXES = ("", "1", "2", "r", "reply", "resp", "resp2")
MADE_AT_ONCE = 20


@pytest.fixture(scope="package")
def topics(cluster: Cluster) -> Iterator[str]:
    """Names of new topics. Many are made at once, with all that stand before and after them: a broker takes a pause
    after each registration with its NameServer.
    """

    def made() -> Iterator[str]:
        while True:
            names = [str(uuid4()) for _ in range(MADE_AT_ONCE)]
            with Admin(cluster.nameserver) as admin:
                configs = [
                    TopicConfig(f"{prefix}{name}{suffix}", 1, 1)
                    for name in names for prefix in PREFIXES for suffix in SUFFIXES
                ]  # fmt: skip
                admin.create_topics(cluster.brokers[0].address, configs)
            cluster.create_topic(names[-1], 1)  # returns when the NameServer knows it, and with it the others
            yield from names

    return made()


def pytest_configure(config: pytest.Config) -> None:
    """The marks of FastStream's test cases."""
    for mark in ("asyncio", "connected", "flaky", "slow"):
        config.addinivalue_line("markers", f"{mark}: of FastStream's test cases; means nothing here")


# --- the fixtures that FastStream's test cases want


@pytest.fixture
def queue() -> str:
    return str(uuid4())


@pytest.fixture
def event() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def event2() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def event3() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def mock() -> MagicMock:
    return MagicMock()


@pytest.fixture
def mock2() -> MagicMock:
    return MagicMock()


@pytest.fixture
def async_mock() -> AsyncMock:
    return AsyncMock()

import asyncio
from unittest.mock import AsyncMock, MagicMock
from uuid import uuid4

import pytest

from sdk.testing import cluster_fixture

pytest.register_assert_rewrite("tests.sdk.integrations.faststream.upstream")

cluster = cluster_fixture(options={"enablePropertyFilter": True}, scope="package")


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

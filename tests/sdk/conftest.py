"""Clients of these tests wait long for an answer, unless a test says how long: the machine may stop for seconds."""

import inspect
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import skylark
import skylark.aio
import skylark.blocking
from tests.sdk.consumer.push_cluster import push_cluster
from tests.support.in_process import Servers

PATIENCE_MS = 30_000
CLIENTS = ("Admin", "Client", "Producer", "PullConsumer", "PushConsumer", "SimpleConsumer", "TransactionProducer")
OPTIONS = ("timeout_ms", "send_timeout_ms")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in (skylark, skylark.aio, skylark.blocking):
        for name in CLIENTS:
            defaults = inspect.unwrap(getattr(package, name).__init__).__kwdefaults__
            for option in defaults.keys() & OPTIONS:
                monkeypatch.setitem(defaults, option, PATIENCE_MS)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Servers]:
    async with push_cluster(tmp_path) as made:
        yield made

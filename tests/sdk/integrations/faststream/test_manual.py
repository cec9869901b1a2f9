"""The programs of docs/guides/faststream.md run as they stand there."""

import asyncio
import runpy
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from faststream import FastStream

from skylark.sdk.integrations.faststream import RocketBroker
from skylark.sdk.testing import Cluster
from tests.sdk.facades.adapter import in_asyncio
from tests.sdk.integrations.faststream.services import until_dead
from tests.support.manual import blocks

PROGRAMS = [block.text for block in blocks("docs/guides/faststream.md") if block.language == "python"]


@pytest.fixture
def namespace(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    """The names of a program that has run. Those that run a service make it only."""
    file = tmp_path / "program.py"
    file.write_text(request.param.replace("127.0.0.1:9876", cluster.nameserver))
    return runpy.run_path(str(file))


def with_the_word(word: str) -> list[str]:
    found = [program for program in PROGRAMS if word in program]
    assert found
    return found


@pytest.mark.parametrize("namespace", with_the_word("FastStream(broker)"), indirect=True)
@in_asyncio
async def test_the_first_service_works(namespace: dict[str, Any], cluster: Cluster) -> None:
    app, bills = namespace["app"], asyncio.Queue[str]()
    assert isinstance(app, FastStream)
    other = RocketBroker(cluster.nameserver, group="reader", logger=None)
    other.subscriber("bills")(bills.put)
    async with asyncio.timeout(60), other:
        await other.start()
        await app.start()
        await other.publish({"number": 7, "item": "tea"}, "orders")
        assert await bills.get() == "a tea for order 7"
        await app.stop()


@pytest.mark.parametrize("namespace", with_the_word("asyncio.run(main())"), indirect=True)
def test_programs_that_end_have_run(namespace: dict[str, Any]) -> None:
    assert "main" in namespace


@pytest.mark.parametrize("namespace", with_the_word("TestRocketBroker"), indirect=True)
def test_the_test_has_run(namespace: dict[str, Any]) -> None:
    assert "test_only_dear_orders_have_a_bill" in namespace


@pytest.mark.parametrize("namespace", with_the_word("RejectMessage"), indirect=True)
@in_asyncio
async def test_the_handler_refuses_what_it_says(namespace: dict[str, Any]) -> None:
    broker = namespace["broker"]
    async with asyncio.timeout(60), broker:
        await broker.start()
        await broker.publish({}, "orders")
        letters = await until_dead(broker, "cafe-orders", 1)
    assert "no item" in letters[0].failure.reason


@pytest.mark.parametrize("namespace", with_the_word("FastAPI()"), indirect=True)
def test_the_web_application_publishes(namespace: dict[str, Any]) -> None:
    app = namespace["app"]
    assert isinstance(app, FastAPI)
    with TestClient(app) as client:
        assert len(client.post("/orders", params={"text": "tea"}).json()) == 32
        assert client.get("/asyncapi").status_code == 200

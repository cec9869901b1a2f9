"""examples/outbox.py: an order and its message are stored together, also when the service is killed in between."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from skylark.blocking import Admin
from skylark.sdk.testing import Cluster, cluster_fixture
from tests.tidy.tree import ROOT

EXAMPLES = ROOT / "examples"
LIMIT_S = 60

# A broker that asks while an order is being stored hears that there is no such order, so it asks late.
cluster = cluster_fixture(options={"transactionTimeOut": 3_600_000, "transactionCheckInterval": 100})

# Posts an order; the process kills itself when the order is in the database, before it tells the broker.
KILLED = """
import os, signal, sys
from fastapi.testclient import TestClient
import outbox

add = outbox.Shop.add

async def add_and_die(shop, order):
    await add(shop, order)
    os.kill(os.getpid(), signal.SIGKILL)

outbox.Shop.add = add_and_die
with TestClient(outbox.make_app(*sys.argv[1:])) as client:
    client.post("/orders", json={"item": "tea", "amount": 3})
"""


@pytest.fixture
def make_app(monkeypatch: pytest.MonkeyPatch, cluster: Cluster, tmp_path: Path) -> Callable[[], Any]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import outbox  # type: ignore[import-not-found]

    cluster.create_topic("orders")
    return lambda: outbox.make_app(cluster.nameserver, str(tmp_path / "shop.db"))


def until_listed(client: TestClient, wanted: list[str]) -> None:
    """Ask until the bills are these; each question takes a moment."""
    deadline = time.monotonic() + LIMIT_S
    while sorted(bill or "" for bill in client.get("/orders").json().values()) != wanted:
        assert time.monotonic() < deadline, client.get("/orders").json()


def test_orders_have_bills_and_refused_ones_have_none(make_app: Callable[[], Any]) -> None:
    with TestClient(make_app()) as client:
        assert client.post("/orders", json={"item": "tea", "amount": 3}).status_code == 201
        assert client.post("/orders", json={"item": "tea", "amount": -3}).status_code == 422
        until_listed(client, ["3 x tea"])


def test_an_order_that_is_not_stored_has_no_message(
    make_app: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import outbox

    billed: list[str] = []
    bill = outbox.Shop.bill

    async def note(shop: Any, order: Any) -> None:
        billed.append(order.item)
        await bill(shop, order)

    async def fail(shop: Any, order: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(outbox.Shop, "bill", note)
    with TestClient(make_app()) as client:
        with monkeypatch.context() as broken:
            broken.setattr(outbox.Shop, "add", fail)
            with pytest.raises(OSError, match="the disk is full"):
                client.post("/orders", json={"item": "lost", "amount": 1})
        client.post("/orders", json={"item": "kept", "amount": 1})
        until_listed(client, ["1 x kept"])
    assert billed == ["kept"]


def test_the_broker_asks_about_an_order_of_a_killed_service(
    make_app: Callable[[], Any], cluster: Cluster, tmp_path: Path
) -> None:
    arguments = [cluster.nameserver, str(tmp_path / "shop.db")]
    killed = subprocess.run([sys.executable, "-c", KILLED, *arguments], cwd=EXAMPLES, check=False)
    assert killed.returncode == -9
    with Admin(cluster.nameserver) as admin:
        (addrs,) = admin.cluster_info().broker_addr_table.values()
        admin.update_broker_config(addrs.broker_addrs[0], {"transactionTimeOut": "100"})
    with TestClient(make_app()) as client:
        until_listed(client, ["3 x tea"])

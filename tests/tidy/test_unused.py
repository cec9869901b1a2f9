"""The product has no code that only tests call."""

import ast

import pytest

from tests.tidy.names import Names
from tests.tidy.tree import PACKAGES, Module, modules
from tests.tidy.uses import Uses

CALLERS = (*PACKAGES, "scripts", "mqadmin.py", "pyspark_rocketmq.py")
# Called by others in ways that no syntax tree shows.
CALLED_FROM_OUTSIDE = {
    # Programs in trio call it: those of threads and of asyncio have their own.
    *(f"sdk.{package}.push.StreamMessage.{name}" for package in ("aio", "blocking") for name in ("ack", "nack")),
}
# Tests look here at what nothing else shows.
SEEN_BY_TESTS = {
    "broker.broker.Broker.ha_addr",
    "broker.meta.consumer_offsets.ConsumerOffsets.dirty",
    "broker.replication.slave_sync.SlaveSync.rounds",
    "broker.store.store.MessageStore.query",
    "remoting.net.server.Server.codes",
}
KEPT = CALLED_FROM_OUTSIDE | SEEN_BY_TESTS


def unused(*files: tuple[str, str]) -> set[str]:
    """Of a program with these modules: name and text."""
    made = [Module(f"{name.replace('.', '/')}.py", name, text, ast.parse(text)) for name, text in files]
    return set(Uses(Names(made)).unused())


def test_everything_is_used_by_the_product_itself() -> None:
    found = {name for name in Uses(Names(modules(*CALLERS))).unused() if name.split(".")[0] in PACKAGES}
    # Descriptions stand for codes; test_request_codes.py looks at those.
    found = {name for name in found if not name.startswith("remoting.protocol.requests.")}
    assert sorted(found ^ KEPT) == []


STORE = """
from broker.log import Log

class Store:
    def __init__(self, log: Log) -> None:
        self.log = log
        self.count = 0

    def get(self, topic: str, offset: int) -> bytes:
        return self.log.read(offset)

def again(n: int) -> None:
    again(n - 1)
"""
LOG = """
LIMIT = 3

class Log:
    @property
    def end(self) -> int:
        return LIMIT

    def read(self, offset: int) -> bytes:
        return b""
"""


def test_what_nobody_refers_to_is_found() -> None:
    found = unused(("broker.store", STORE), ("broker.log", LOG))
    assert found == {
        "broker.store.Store", "broker.store.Store.get", "broker.store.Store.count", "broker.store.again",
        "broker.log.Log.end",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "is_used"),
    [
        ("def use(store: Store) -> None:\n    store.get('t', 1)", True),
        ("def use(store: Store | None) -> None:\n    print(store and store.get)", True),
        (
            "def use(all: dict[str, list[Store]]) -> None:\n    [s.get('t', 1) for row in all.values() for s in row]",
            True,
        ),
        ("async def use() -> None:\n    Store(Log()).get('t', 1)", True),
        ("def use(anything) -> None:\n    anything.get('t', 1)", True),
        ("def use(anything) -> None:\n    get = anything.get\n    get('t', offset=1)", True),
        ("def use(anything) -> None:\n    print(anything.get)", True),
        ("def use(anything: object) -> None:\n    if isinstance(anything, Store):\n        anything.get('t', 1)", True),
        ("def use(store: Store) -> None:\n    getattr(store, 'get')", True),
        ("def use(table: dict[str, Store]) -> None:\n    table.get('t')", False),
        ("def use(anything) -> None:\n    anything.get('t')", False),
        ("def use(log: Log) -> None:\n    log.get('t', 1)", False),
        ("def use(get: int) -> None:\n    print(get)", False),
    ],
)
def test_a_method_is_used_where_something_of_its_class_may_be_meant(text: str, is_used: bool) -> None:
    imports = "from broker.log import Log\nfrom broker.store import Store\n"
    found = unused(("broker.store", STORE), ("broker.log", LOG), ("broker.use", imports + text))
    assert ("broker.store.Store.get" not in found) is is_used


def test_a_protocol_stands_for_those_who_fit() -> None:
    text = """
class Reader(Protocol):
    def read(self, offset: int) -> bytes: ...

def use(reader: Reader) -> None:
    reader.read(1)
"""
    assert "broker.log.Log.read" not in unused(
        ("broker.log", LOG), ("broker.use", "from typing import Protocol" + text)
    )

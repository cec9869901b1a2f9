"""What FastStream's test cases need to run against a cluster of ours, and against `TestRocketBroker`."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import wraps
from typing import Any
from uuid import uuid4

import pytest
from faststream import BaseMiddleware

from sdk.admin.dead_letters import DeadLetter
from sdk.aio import Admin
from sdk.integrations.faststream import RocketBroker, RocketRouter
from sdk.integrations.faststream.testing import TestRocketBroker
from sdk.testing import Cluster
from tests.sdk.facades.adapter import in_asyncio


class InAsyncio:
    """The async tests of a class, inherited ones too, run in asyncio. Brokers that they leave open are stopped."""

    brokers: Sequence[RocketBroker] = ()

    def __init_subclass__(cls) -> None:
        for name in dir(cls):
            test = getattr(cls, name)
            if name.startswith("test_") and inspect.iscoroutinefunction(test):
                setattr(cls, name, in_asyncio(and_stop(test)))


def and_stop(test: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(test)
    async def run(self: InAsyncio, *args: Any, **named: Any) -> None:
        try:
            await test(self, *args, **named)
        finally:
            for broker in self.brokers:
                await broker.stop()

    return run


class RealCases(InAsyncio):
    """Against a cluster. Its topics are there before subscribers are, which would wait for them."""

    timeout = 30.0
    supports_cancel_ack_skip = True

    @pytest.fixture(autouse=True)
    def _with_cluster(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.brokers: list[RocketBroker] = []

    def get_broker(self, apply_types: bool = False, **others: Any) -> RocketBroker:
        made = RocketBroker(self.cluster.nameserver, **{"group": "cases", "apply_types": apply_types, **others})
        self.brokers.append(made)
        return made

    def get_router(self, **others: Any) -> RocketRouter:
        return RocketRouter(**others)

    @pytest.fixture
    def queue(self, topics: Iterator[str]) -> str:
        return next(topics)


class MemoryCases(RealCases):
    """Against `TestRocketBroker`. A few of the cases use a cluster all the same, as they do not patch their broker."""

    @pytest.fixture
    def queue(self) -> str:
        return str(uuid4())

    def patch_broker(self, *brokers: RocketBroker, **others: Any) -> TestRocketBroker:
        return TestRocketBroker(*brokers, **others)


class Quadruple(BaseMiddleware):
    async def consume_scope(self, call_next: Any, msg: Any) -> Any:
        msg.body *= 4
        return await call_next(msg)


POLL_S = 0.01


async def until(reached: Callable[[], bool | Awaitable[bool]]) -> None:
    """Ask again and again; the caller has a limit."""
    while True:
        answer = reached()
        if answer if isinstance(answer, bool) else await answer:
            return
        await asyncio.sleep(POLL_S)


async def until_dead(broker: RocketBroker, group: str, count: int) -> list[DeadLetter]:
    """The dead letters of a group, once there are so many."""
    found: list[DeadLetter] = []

    async def are_dead() -> bool:
        found[:] = await admin.dead_letters(group)
        return len(found) >= count

    async with Admin(broker._connection) as admin:
        await until(are_dead)
    return found

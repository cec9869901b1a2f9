"""What tests of services have in common: where they run, what their handlers have seen, and what brokers know."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, nullcontext
from itertools import count
from typing import Any

from faststream import BaseMiddleware, FastStream, TestApp

from skylark.sdk.admin.dead_letters import DeadLetter
from skylark.sdk.aio import Admin
from skylark.sdk.integrations.faststream import RocketBroker, annotations
from skylark.sdk.integrations.faststream.testing import TestRocketBroker

# A test that waits longer has failed, on the slowest machine.
LIMIT_S = 60
POLL_S = 0.01
# Each topic of a test begins with this, so that a router can have a part of it as its prefix.
OUTER, INNER = "eu-", "shop-"


class Place:
    """Where the service of a test runs. `topic` makes the name of a topic that exists there."""

    is_in_memory = False

    def __init__(self, nameserver: str | None, topics: Iterator[str]) -> None:
        self.nameserver = nameserver
        self._topics = topics

    def topic(self) -> str:
        """The name of a new topic, of one queue."""
        return next(self._topics)

    def broker(self, **options: Any) -> RocketBroker:
        """A broker that logs nothing."""
        return RocketBroker(self.nameserver, **{"group": "own", "logger": None, **options})

    @asynccontextmanager
    async def running(self, *brokers: RocketBroker, app: FastStream | None = None) -> AsyncIterator[None]:
        """The brokers run in the block, which has a limit. ``app``: the application that starts them."""
        async with asyncio.timeout(LIMIT_S):
            try:
                for broker in brokers if app is None else ():
                    await broker.start()
                async with nullcontext() if app is None else TestApp(app):
                    yield
            finally:
                for broker in brokers:
                    await broker.stop()


class Memory(Place):
    """A service in memory: when `publish` has returned, all handlers have run."""

    is_in_memory = True

    def __init__(self) -> None:
        super().__init__(None, (f"{OUTER}{INNER}{number}" for number in count()))

    @asynccontextmanager
    async def running(self, *brokers: RocketBroker, app: FastStream | None = None) -> AsyncIterator[None]:
        started = nullcontext() if app is None else TestApp(app)
        async with asyncio.timeout(LIMIT_S), TestRocketBroker(*brokers, connect_only=app is not None), started:
            yield


class Seen(list[Any]):
    """The messages that handlers have seen. Handlers that are not coroutines run in threads."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._added = asyncio.Event()

    def append(self, item: Any) -> None:
        super().append(item)
        self._loop.call_soon_threadsafe(self._added.set)

    async def reaches(self, count: int) -> None:
        """Wait until this many messages have come; the caller has a limit."""
        while len(self) < count:
            self._added.clear()
            await self._added.wait()


def collect(broker: Any, topic: str, **options: Any) -> Seen:
    """The values that come to a topic of a broker or a router."""
    seen = Seen()

    @broker.subscriber(topic, **options)
    async def note(message: annotations.RocketMessage) -> None:
        seen.append(await message.decode())

    return seen


class Done(Seen):
    """The topics of messages whose handlers have ended and published their results. It is a middleware."""

    def __call__(self, message: Any, *, context: Any) -> BaseMiddleware:
        done = self

        class Noting(BaseMiddleware):
            async def after_processed(self, *raised: Any) -> bool | None:
                done.append(self.msg.topic)
                return await super().after_processed(*raised)

        return Noting(message, context=context)


async def until(reached: Callable[[], bool | Awaitable[bool]]) -> None:
    """Ask again and again; the caller has a limit."""
    while True:
        answer = reached()
        if answer if isinstance(answer, bool) else await answer:
            return
        await asyncio.sleep(POLL_S)


async def until_dead(broker: RocketBroker, group: str, count: int) -> list[DeadLetter]:
    """The dead letters of a group, once there are ``count`` of them."""
    found: list[DeadLetter] = []

    async def are_dead() -> bool:
        found[:] = await admin.dead_letters(group)
        return len(found) >= count

    async with Admin(broker._connection) as admin:
        await until(are_dead)
    return found

"""Handlers in asyncio: they are cancelled, and may use what asyncio has; their tasks end when told to."""

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from skylark import MessageExt, MessageQueue, aio
from skylark.sdk import loop_blocks
from skylark.sdk.aio import loop_watch
from skylark.sdk.aio.handlers import AsyncioHandlers
from skylark.sdk.consumer.window import Window
from skylark.sdk.consumer.workers import Job
from skylark.sdk.testing import Cluster
from tests.sdk.facades.adapter import Facades, in_asyncio
from tests.sdk.facades.test_handlers import Counted
from tests.support.waiting import DEADLINE_S

Fill = Callable[..., MessageQueue]
Consumers = Callable[..., Any]


@pytest.fixture
def api() -> Facades:
    return Facades("aio")


@in_asyncio
async def test_a_handler_that_takes_too_long_is_cancelled(
    fill: Fill, consumer_of: Consumers, caplog: pytest.LogCaptureFixture
) -> None:
    fill(2)
    cancelled, other = asyncio.Event(), asyncio.Event()

    async def handle(message: MessageExt) -> None:
        if message.body == b"1":
            other.set()
            return
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with consumer_of(handler=handle, concurrency=1, consume_timeout_ms=40) as consumer:
        await cancelled.wait()
        await other.wait()
        assert consumer.failed == 1
    assert "has worked on message" in caplog.text


class Told(logging.Handler):
    """Sets ``seen`` when a line with ``text`` is logged."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text
        self.seen = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self._text in record.getMessage():
            self.seen.set()


@in_asyncio
async def test_a_loop_that_a_handler_blocks_is_logged_while_it_does(
    fill: Fill, consumer_of: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_blocks, "BLOCKED_S", 0.05)
    monkeypatch.setattr(loop_watch, "WATCH_S", 0.01)
    fill(1)
    told, handled = Told("the event loop of handlers ran nothing for"), asyncio.Event()
    loop_blocks.logger.addHandler(told)

    async def handle(message: MessageExt) -> None:
        assert told.seen.wait(DEADLINE_S)
        handled.set()

    try:
        async with consumer_of(handler=handle, consume_timeout_ms=1_000):
            await handled.wait()
    finally:
        loop_blocks.logger.removeHandler(told)


@pytest.mark.parametrize("tasks", [False, True])
@in_asyncio
async def test_handlers_may_use_timeouts_groups_and_futures(fill: Fill, consumer_of: Consumers, tasks: bool) -> None:
    fill(5)
    loop, seen, raised = asyncio.get_running_loop(), Counted(5), []

    def plain(message: MessageExt) -> "asyncio.Future[None]":
        return loop.create_task(handle(message))

    async def handle(message: MessageExt) -> None:
        try:
            async with asyncio.timeout(0.001):
                await loop.create_future()
        except TimeoutError:
            raised.append(message.body)
        async with asyncio.TaskGroup() as group:
            done = group.create_task(asyncio.sleep(0, message))
        await asyncio.sleep(0)
        seen.add(await done)

    async with consumer_of(handler=plain if tasks else handle):
        await seen.all.wait()
    assert sorted(raised) == sorted(seen.bodies) == [b"%d" % number for number in range(5)]


@in_asyncio
async def test_handlers_have_the_context_of_the_program(cluster: Cluster, fill: Fill, consumer_of: Consumers) -> None:
    fill(1, queues=2)
    tenant = contextvars.ContextVar("tenant", default="nobody")
    seen: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    tenant.set("acme")

    async def handle(message: MessageExt) -> None:
        seen.set_result(tenant.get())

    async with aio.Client(cluster.nameserver) as client, consumer_of(client, handler=handle):
        assert await seen == "acme"


@in_asyncio
async def test_what_a_handler_sets_in_its_context_is_not_for_others_that_run_beside_it(
    fill: Fill, consumer_of: Consumers
) -> None:
    fill(2)
    number: contextvars.ContextVar[bytes] = contextvars.ContextVar("number")
    both, seen, read = asyncio.Barrier(2), Counted(2), []

    async def handle(message: MessageExt) -> None:
        number.set(message.body)
        await both.wait()
        read.append(number.get())
        seen.add(message)

    async with consumer_of(handler=handle, concurrency=2):
        await seen.all.wait()
    assert read == seen.bodies


@in_asyncio
async def test_a_cancelled_opening_leaves_no_task(consumer_of: Consumers) -> None:
    consumer = consumer_of(handler=lambda message: None)
    before = asyncio.all_tasks()
    opening = asyncio.create_task(consumer.__aenter__())
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert asyncio.all_tasks() == before


def job_of(what: str, ended: "list[Job]") -> Job:
    return Job(None, 0, 1, [what], ended.append, set())


async def begun(handler: Any) -> AsyncioHandlers:
    """One task, as the trio side starts it."""
    handlers = AsyncioHandlers(handler)
    handlers.bind()
    handlers._start()
    await turns()
    return handlers


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def expire(handlers: AsyncioHandlers, job: Job) -> None:
    job.is_over = True
    handlers.cancel(job)


@pytest.mark.parametrize("is_late", [True, False])
@in_asyncio
async def test_the_consumer_ends_although_a_handler_cleans_up_late_or_ignores_its_cancellation(is_late: bool) -> None:
    async def handle(what: str) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            if is_late:
                await asyncio.get_running_loop().create_future()

    ended: list[Job] = []
    handlers, job = await begun(handle), job_of("slow", ended)
    handlers.begin([job])
    await turns()
    expire(handlers, job)
    await turns()
    closing = asyncio.create_task(handlers.close())
    await turns()
    assert closing.done() and ended == [job]


@in_asyncio
async def test_a_cancellation_that_a_handler_ignored_is_no_part_of_the_next_call() -> None:
    async def handle(what: str) -> None:
        if what == "stubborn":
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                return
        await asyncio.sleep(0)
        raise asyncio.CancelledError  # of something that the handler waited for

    ended: list[Job] = []
    handlers, first, second = await begun(handle), job_of("stubborn", ended), job_of("next", ended)
    handlers.begin([first, second])
    await turns()
    expire(handlers, first)
    await turns()
    assert ended == [first, second]
    assert second.was_called and isinstance(second.error, asyncio.CancelledError)
    await handlers.close()


@in_asyncio
async def test_what_nobody_waits_for_any_longer_is_not_called() -> None:
    called, first_ends = list[str](), asyncio.Event()

    async def handle(what: str) -> None:
        called.append(what)
        await first_ends.wait()

    ended: list[Job] = []
    handlers, jobs = await begun(handle), [job_of(what, ended) for what in ("first", "given up", "last")]
    handlers.begin(jobs)
    await turns()
    jobs[1].give_up()
    first_ends.set()
    await turns()
    assert called == ["first", "last"] and [job.was_called for job in jobs] == [True, False, True]
    await handlers.close()


def test_jobs_come_back_uncalled_when_the_loop_was_closed() -> None:
    batch: Any = Window(MessageQueue("t", "b", 0), 0).add(cast(Any, [None] * 3), 3, 1)
    ended: list[Job] = []
    jobs = [Job(batch, number, number + 1, ["x"], ended.append, set()) for number in range(3)]

    async def handle(what: str) -> None:
        await asyncio.get_running_loop().create_future()

    async def leave_open() -> AsyncioHandlers:
        handlers = await begun(handle)
        handlers.begin(jobs[:2])
        await turns()
        return handlers

    handlers = asyncio.run(leave_open())
    handlers.begin(jobs[2:])
    assert ended == jobs and not any(job.was_called for job in jobs)

"""Handlers in asyncio: they are cancelled, and may use what asyncio has; their tasks end when told to."""

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
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


def batch_of(count: int) -> Any:
    return Window(MessageQueue("t", "b", 0), 0).add(cast(Any, [None] * count), count, 1)


async def begun(handler: Any, concurrency: int = 1) -> AsyncioHandlers:
    """Tasks, as the trio side starts them."""
    handlers = AsyncioHandlers(handler)
    handlers.concurrency = concurrency
    handlers.bind()
    handlers._start()
    await turns()
    return handlers


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def expire(handlers: AsyncioHandlers, job: Job) -> None:
    job.give_up()
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
    batch = batch_of(3)
    ended: list[Job] = []
    # The last call is awaited by a caller, which cancels it when the consumer ends.
    jobs = [*(Job(batch, number, number + 1, ["x"], ended.append, set()) for number in range(3)), job_of("x", ended)]

    async def handle(what: str) -> None:
        await asyncio.get_running_loop().create_future()

    async def leave_open() -> AsyncioHandlers:
        handlers = await begun(handle)
        handlers.begin(jobs[:2])
        await turns()
        return handlers

    handlers = asyncio.run(leave_open())
    handlers.begin(jobs[2:])
    assert ended == jobs[:3] and not any(job.was_called for job in jobs)


@in_asyncio
async def test_a_stop_in_the_middle_of_a_job_gives_back_the_calls_that_are_left() -> None:
    called: list[int] = []

    def handle(what: int) -> None:
        called.append(what)
        if what == 1:
            handlers.stop()

    ended: list[Job] = []
    handlers = await begun(handle)
    handlers.begin([Job(batch_of(4), 0, 4, [0, 1, 2, 3], ended.append, set())])
    await turns()
    assert called == [0, 1]
    assert [(job.start, job.end, job.was_called) for job in ended] == [(0, 2, True), (2, 4, False)]
    await handlers.close()


@in_asyncio
async def test_the_last_call_of_a_job_may_wait_or_return_a_value() -> None:
    async def handle(what: int) -> str:
        if what == 2:
            await asyncio.sleep(0)
        return f"result {what}"

    def plain(what: int) -> "str | None":
        return None if what < 2 else f"result {what}"

    for handler in (handle, plain):
        ended: list[Job] = []
        handlers = await begun(handler)
        handlers.begin([Job(batch_of(3), 0, 3, [0, 1, 2], ended.append, set())])
        await turns()
        assert sum(job.end - job.start for job in ended) == 3 and all(job.was_called for job in ended)
        assert (ended[-1].start, ended[-1].result) == (2, "result 2")
        await handlers.close()


@in_asyncio
async def test_a_cancellation_after_the_end_of_its_call_reaches_no_other_call() -> None:
    async def handle(what: str) -> str:
        await asyncio.sleep(0)
        return what

    ended: list[Job] = []
    handlers, first, second = await begun(handle), job_of("first", ended), job_of("second", ended)
    handlers.begin([first])
    await turns()
    assert ended == [first]
    handlers.begin([second])
    expire(handlers, first)
    await turns()
    assert [(job.result, job.error) for job in ended] == [("first", None), ("second", None)]
    await handlers.close()


@in_asyncio
async def test_a_job_wakes_a_task_that_lives() -> None:
    ended: list[Job] = []
    handlers = await begun(lambda what: None, concurrency=2)
    handlers._tasks[1].cancel()
    await turns()
    handlers.begin([job_of("x", ended)])
    await turns()
    assert [job.was_called for job in ended] == [True]
    await handlers.close()


@in_asyncio
async def test_a_close_ends_a_task_whose_handler_swallows_the_cancellation() -> None:
    called: list[str] = []

    async def handle(what: str) -> None:
        called.append(what)
        with suppress(asyncio.CancelledError):
            await asyncio.get_running_loop().create_future()

    ended: list[Job] = []
    handlers, first = await begun(handle), job_of("first", ended)
    handlers.begin([first])
    await turns()
    closing = asyncio.create_task(handlers.close())
    await turns()
    assert closing.done() and ended == [first]
    handlers.begin([job_of("late", ended)])
    await turns()
    assert called == ["first"]

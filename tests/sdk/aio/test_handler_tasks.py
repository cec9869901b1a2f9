"""The tasks that call handlers in asyncio: they outlive what handlers do with cancellations, and end when told to."""

import asyncio
from typing import Any

from sdk.aio.handlers import AsyncioHandlers
from sdk.consumer.workers import Job


def job_of(what: str, ended: "list[Job]") -> Job:
    return Job(None, 0, 1, [what], ended.append)


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


def test_the_end_of_the_consumer_reaches_a_handler_that_is_late_to_clean_up() -> None:
    async def handle(what: str) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.get_running_loop().create_future()

    async def use() -> None:
        ended: list[Job] = []
        handlers, job = await begun(handle), job_of("slow", ended)
        handlers.begin([job])
        await turns()
        expire(handlers, job)
        await turns()
        closing = asyncio.create_task(handlers.close())
        await turns()
        assert closing.done() and ended == [job]

    asyncio.run(use())


def test_the_consumer_ends_although_a_handler_ignores_its_cancellation() -> None:
    async def handle(what: str) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return

    async def use() -> None:
        ended: list[Job] = []
        handlers, job = await begun(handle), job_of("stubborn", ended)
        handlers.begin([job])
        await turns()
        closing = asyncio.create_task(handlers.close())
        await turns()
        assert closing.done() and ended == [job]

    asyncio.run(use())


def test_a_cancellation_that_a_handler_ignored_is_no_part_of_the_next_call() -> None:
    async def handle(what: str) -> None:
        if what == "stubborn":
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                return
        await asyncio.sleep(0)
        raise asyncio.CancelledError  # of something that the handler waited for

    async def use() -> None:
        ended: list[Job] = []
        handlers, first, second = await begun(handle), job_of("stubborn", ended), job_of("next", ended)
        handlers.begin([first, second])
        await turns()
        expire(handlers, first)
        await turns()
        assert ended == [first, second]
        assert second.was_called and isinstance(second.error, asyncio.CancelledError)
        await handlers.close()

    asyncio.run(use())

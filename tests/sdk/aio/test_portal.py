"""Calls from asyncio into a trio thread: results, cancellation, closing, mistakes."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from mqcommon.errors import SkylarkError, UserError
from sdk.aio.portal import Portal
from sdk.blocking.loop import ClientLoop
from tests.sdk.blocking.test_loop import skylark_threads
from tests.support.forks import in_child


class Client:
    """Notes its life."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed = 0
        self.started = threading.Event()
        self.cancelled = threading.Event()

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Client"]:
        self.opened += 1
        try:
            yield self
        finally:
            await trio.lowlevel.checkpoint_if_cancelled()
            self.closed += 1

    async def double(self, number: int) -> int:
        await trio.lowlevel.checkpoint()
        return 2 * number

    async def wait(self) -> None:
        self.started.set()
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            self.cancelled.set()
            raise


@asynccontextmanager
async def opened(client: Client, host: Portal[Client] | None = None) -> AsyncIterator[Portal[Client]]:
    portal = Portal(client.open, host)
    await portal.open()
    try:
        yield portal
    finally:
        await portal.close()


async def until(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, 10)


def test_calls_run_in_the_thread_and_closing_joins_it() -> None:
    client = Client()

    async def use() -> None:
        async with opened(client) as portal:
            assert len(skylark_threads()) == 1
            assert await portal.call(lambda it: it.double(21)) == 42
            assert portal.call_sync(lambda it: it.opened) == 1
            with pytest.raises(ZeroDivisionError):
                await portal.call(lambda it: it.double(1 // 0))
            with pytest.raises(ZeroDivisionError):
                portal.call_sync(lambda it: 1 // 0)
            numbers = await asyncio.gather(*[portal.call(lambda it, n=n: it.double(n)) for n in range(1_000)])
            assert numbers == [2 * number for number in range(1_000)]
        await portal.close()

    asyncio.run(use())
    assert (client.opened, client.closed) == (1, 1) and not skylark_threads()


def test_what_gathers_while_a_side_is_busy_crosses_together() -> None:
    """One wake-up for all calls."""

    async def use() -> None:
        async with opened(Client()) as portal:
            may_go_on = threading.Event()
            token = portal.opened().token
            wakes = {"trio": 0}
            wake_trio = token.run_sync_soon
            portal.opened().soon(may_go_on.wait)

            def to_trio(work, *args, **named):  # type: ignore[no-untyped-def]
                wakes["trio"] += 1
                wake_trio(work, *args, **named)

            class Token:
                run_sync_soon = staticmethod(to_trio)

            portal.opened()._token = Token()  # type: ignore[assignment]
            calls = [asyncio.create_task(portal.call(lambda it, n=n: it.double(n))) for n in range(100)]
            await asyncio.sleep(0)
            assert wakes == {"trio": 1}
            may_go_on.set()
            await asyncio.gather(*calls)
            assert wakes["trio"] == 1

    asyncio.run(use())


# --- cancellation


def test_a_cancelled_task_goes_on_when_its_call_has_ended() -> None:
    client = Client()

    async def use() -> None:
        async with opened(client) as portal:
            task = asyncio.create_task(portal.call(lambda it: it.wait()))
            await until(client.started)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert client.cancelled.is_set()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(portal.call(lambda it: it.wait()), 0.01)
            assert await portal.call(lambda it: it.double(2)) == 4

    asyncio.run(use())


def test_a_second_cancellation_does_not_wait() -> None:
    client = Client()
    release = threading.Event()

    async def stubborn(it: Client) -> None:
        with trio.CancelScope(shield=True):
            it.started.set()
            await trio.to_thread.run_sync(release.wait)

    async def use() -> None:
        async with opened(client) as portal:
            task = asyncio.create_task(portal.call(stubborn))
            await until(client.started)
            task.cancel()
            await asyncio.sleep(0)
            assert not task.done()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            release.set()

    asyncio.run(use())


# --- opening and closing


def test_errors_of_opening_are_the_callers() -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[Client]:
        await trio.lowlevel.checkpoint()
        raise UserError("no NameServer is given")
        yield Client()

    async def use() -> None:
        portal = Portal(broken)
        with pytest.raises(UserError, match="no NameServer"):
            await portal.open()
        with pytest.raises(RuntimeError, match="open the client with 'async with' first"):
            await portal.call(lambda it: it.double(1))
        await portal.close()

    asyncio.run(use())
    assert not skylark_threads()


def test_a_cancelled_opening_leaves_nothing_open() -> None:
    client, opening, go_on = Client(), threading.Event(), threading.Event()

    @asynccontextmanager
    async def slow() -> AsyncIterator[Client]:
        opening.set()
        await trio.to_thread.run_sync(go_on.wait)
        async with client.open():
            yield client

    async def use() -> None:
        task = asyncio.create_task(Portal(slow).open())
        await until(opening)
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(use())
    assert (client.opened, client.closed) == (1, 1) and not skylark_threads()


def test_closing_ends_calls_that_wait() -> None:
    client = Client()

    async def use() -> None:
        async with opened(client) as portal:
            task = asyncio.create_task(portal.call(lambda it: it.wait()))
            await until(client.started)
        with pytest.raises(SkylarkError, match="the client was closed"):
            await task
        for _ in range(2):
            with pytest.raises(SkylarkError, match="the client was closed"):
                await portal.call(lambda it: it.double(1))
        with pytest.raises(SkylarkError, match="the client was closed"):
            portal.call_sync(lambda it: it.opened)
        with pytest.raises(RuntimeError, match="make another"):
            await portal.open()

    asyncio.run(use())
    assert client.cancelled.is_set()


def test_a_cancelled_closing_still_closes() -> None:
    client, go_on = Client(), threading.Event()

    @asynccontextmanager
    async def slow() -> AsyncIterator[Client]:
        async with client.open():
            yield client
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(go_on.wait)

    async def use() -> None:
        portal = Portal(slow)
        await portal.open()
        task = asyncio.create_task(portal.close())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(use())
    assert client.closed == 1 and not skylark_threads()


def test_a_thread_whose_asyncio_loop_was_closed_ends() -> None:
    client = Client()

    async def wait_a_turn(it: Client) -> None:
        it.started.set()
        await trio.to_thread.run_sync(closed.wait)

    async def leave_open() -> Portal[Client]:
        portal = Portal(client.open)
        await portal.open()
        calls.append(asyncio.ensure_future(portal.call(wait_a_turn)))
        await until(client.started)
        return portal

    closed = threading.Event()
    calls: list[asyncio.Future[None]] = []
    loop = asyncio.new_event_loop()
    portal = loop.run_until_complete(leave_open())
    calls[0].get_loop().call_exception_handler = lambda context: None  # type: ignore[method-assign]
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    closed.set()
    portal._open.join()  # type: ignore[union-attr]
    assert client.closed == 1


# --- guests


def test_guests_use_the_thread_of_their_host_and_end_before_it() -> None:
    host, guest, other = Client(), Client(), Client()

    async def use() -> None:
        async with opened(host) as hosting:
            async with opened(guest, hosting) as portal:
                assert len(skylark_threads()) == 1
                assert await portal.call(lambda it: it.double(21)) == 42
            assert (guest.closed, host.closed) == (1, 0)
            late = Portal(other.open, hosting)
            await late.open()
        assert (other.closed, host.closed) == (1, 1)
        with pytest.raises(SkylarkError, match="closed"):
            await late.call(lambda it: it.double(1))
        await late.close()
        with pytest.raises(SkylarkError, match="closed"):
            await Portal(Client().open, hosting).open()

    asyncio.run(use())
    assert not skylark_threads()


def test_a_guest_needs_an_open_host() -> None:
    async def use() -> None:
        with pytest.raises(RuntimeError, match="async with"):
            await Portal(Client().open, Portal(Client().open)).open()

    asyncio.run(use())


# --- mistakes


def test_it_belongs_to_one_loop() -> None:
    portal = Portal(Client().open)

    async def call() -> None:
        with pytest.raises(RuntimeError, match="opened in another event loop"):
            await portal.call(lambda it: it.double(1))

    async def use() -> None:
        await portal.open()
        await asyncio.to_thread(asyncio.run, call())
        await portal.close()

    asyncio.run(use())


def test_it_belongs_to_one_process() -> None:
    async def use() -> None:
        async with opened(Client()) as portal:

            def child() -> str:
                with pytest.raises(RuntimeError, match=r"opened in process .* before a fork"):
                    portal.opened()
                portal.close().close()
                return "told"

            assert in_child(child) == "told"

    asyncio.run(use())


def test_a_blocking_client_in_asyncio_goes_on_working() -> None:
    loop = ClientLoop(Client().open)

    async def use() -> int:
        loop.open()
        try:
            return await asyncio.to_thread(loop.call, lambda it: it.double(4))
        finally:
            loop.close()

    assert asyncio.run(use()) == 8

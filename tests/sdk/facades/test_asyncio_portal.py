"""Calls from asyncio into a trio thread: cancellation, and where a client belongs."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from skylark.mqcommon.errors import SkylarkError
from skylark.sdk.aio import portal
from skylark.sdk.aio.portal import Portal
from tests.sdk.facades.adapter import in_asyncio
from tests.sdk.facades.test_portals import Client, skylark_threads
from tests.support.forks import in_child
from tests.support.waiting import DEADLINE_S


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


@in_asyncio
async def test_what_gathers_while_a_side_is_busy_crosses_together() -> None:
    """One wake-up for all calls."""

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
        calls = [asyncio.create_task(portal.call(partial(Client.double, number=n))) for n in range(100)]
        await asyncio.sleep(0)
        assert wakes == {"trio": 1}
        may_go_on.set()
        await asyncio.gather(*calls)
        assert wakes["trio"] == 1


@in_asyncio
async def test_a_cancelled_task_goes_on_when_its_call_has_ended() -> None:
    client = Client()

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


@in_asyncio
async def test_a_second_cancellation_does_not_wait() -> None:
    client = Client()
    release = threading.Event()

    async def stubborn(it: Client) -> None:
        with trio.CancelScope(shield=True):
            it.started.set()
            await trio.to_thread.run_sync(release.wait)

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


@in_asyncio
async def test_a_cancelled_opening_leaves_nothing_open() -> None:
    client, opening, go_on = Client(), threading.Event(), threading.Event()

    @asynccontextmanager
    async def slow() -> AsyncIterator[Client]:
        opening.set()
        await trio.to_thread.run_sync(go_on.wait)
        async with client.open():
            yield client

    task = asyncio.create_task(Portal(slow).open())
    await until(opening)
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (client.opened, client.closed) == (1, 1) and not skylark_threads()


@in_asyncio
async def test_a_cancelled_closing_still_closes() -> None:
    client, go_on = Client(), threading.Event()

    @asynccontextmanager
    async def slow() -> AsyncIterator[Client]:
        async with client.open():
            yield client
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(go_on.wait)

    portal = Portal(slow)
    await portal.open()
    task = asyncio.create_task(portal.close())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
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


def test_a_client_is_closed_when_its_asyncio_loop_ended_without_closing_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(portal, "CHECK_S", 0.001)
    client = Client()
    guest = Client()

    async def leave_open() -> list[Portal[Client]]:
        host = Portal(client.open)
        portals = [host, Portal(guest.open, host)]
        for each in portals:
            await each.open()
        return portals

    for left in asyncio.run(leave_open()):
        assert left._open is not None and left._open._ended.wait(DEADLINE_S)
    assert client.closed == guest.closed == 1
    assert "an asyncio loop was closed before a client" in caplog.text


@in_asyncio
async def test_a_call_that_ends_the_thread_has_an_end_itself() -> None:
    async def leave(it: Client) -> None:
        raise SystemExit

    async with opened(Client()) as portal:
        with pytest.raises(SkylarkError, match="the client was closed"):
            await portal.call(leave)
        portal.opened().join()
        with pytest.raises(SkylarkError, match="the client was closed"):
            await portal.call(lambda it: it.double(1))
    assert not skylark_threads()


@in_asyncio
async def test_a_call_that_reaches_a_loop_that_is_ending_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("Nursery is closed to new arrivals")

    async with opened(Client()) as portal:
        monkeypatch.setattr(trio.lowlevel, "spawn_system_task", refuse)
        with pytest.raises(SkylarkError, match="the client was closed"):
            await portal.call(lambda it: it.double(1))


@in_asyncio
async def test_it_belongs_to_one_loop() -> None:
    portal = Portal(Client().open)

    async def call() -> None:
        with pytest.raises(RuntimeError, match="opened in another event loop"):
            await portal.call(lambda it: it.double(1))

    await portal.open()
    await asyncio.to_thread(asyncio.run, call())
    await portal.close()


@pytest.mark.process
@in_asyncio
async def test_it_belongs_to_one_process() -> None:
    async with opened(Client()) as portal:

        def child() -> str:
            with pytest.raises(RuntimeError, match=r"opened in process .* before a fork"):
                portal.opened()
            portal.close().close()
            return "told"

        assert in_child(child) == "told"

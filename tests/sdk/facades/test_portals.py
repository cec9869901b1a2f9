"""Calls into the thread of a client, from asyncio and from threads: results, errors, closing, guests."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from skylark.mqcommon.errors import SkylarkError, UserError
from tests.sdk.facades.adapter import Facades, in_asyncio


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
async def broken() -> AsyncIterator[Client]:
    await trio.lowlevel.checkpoint()
    raise UserError("no NameServer is given")
    yield Client()


def skylark_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "skylark-sdk"]


@asynccontextmanager
async def opened(api: Facades, client: Client, host: Any = None) -> AsyncIterator[Any]:
    portal = api.portal(client.open, host)
    await portal.open()
    try:
        yield portal
    finally:
        await portal.close()


async def refuses(portal: Any) -> None:
    """Calls of a closed client."""
    with pytest.raises(SkylarkError, match="the client was closed"):
        await portal.call(lambda it: it.double(1))
    with pytest.raises(SkylarkError, match="the client was closed"):
        portal.call_sync(lambda it: it.opened)
    with pytest.raises(RuntimeError, match="make another"):
        await portal.open()


@in_asyncio
async def test_calls_run_in_the_thread_and_closing_joins_it(api: Facades) -> None:
    client = Client()
    async with opened(api, client) as portal:
        assert len(skylark_threads()) == 1
        assert portal.call_sync(lambda it: it.opened) == 1
        with pytest.raises(ZeroDivisionError):
            await portal.call(lambda it: it.double(1 // 0))
        with pytest.raises(ZeroDivisionError):
            portal.call_sync(lambda it: 1 // 0)
        numbers = await asyncio.gather(*[portal.call(lambda it, n=n: it.double(n)) for n in range(500)])
        assert numbers == [2 * number for number in range(500)]
        with pytest.raises(RuntimeError, match="make another"):
            await portal.open()
    await portal.close()
    assert (client.opened, client.closed) == (1, 1) and not skylark_threads()
    await refuses(portal)
    portal.opened().post(lambda it: it.opened)


@in_asyncio
async def test_a_client_that_is_not_open_yet_can_be_closed_and_then_opened(api: Facades) -> None:
    client = Client()
    posted: list[Client] = []
    portal = api.portal(client.open)
    portal.post(posted.append)
    await portal.close()
    await portal.open()
    assert portal.call_sync(lambda it: it.opened) == 1
    await portal.close()
    assert client.closed == 1 and posted == []


@in_asyncio
async def test_errors_of_opening_are_the_callers(api: Facades) -> None:
    def bad_option() -> Any:
        raise UserError("bad option")

    with pytest.raises(UserError, match="bad option"):
        api.portal(bad_option)
    portal = api.portal(broken)
    with pytest.raises(RuntimeError, match="open the client with"):
        await portal.call(lambda it: it.double(1))
    with pytest.raises(UserError, match="no NameServer"):
        await portal.open()
    await portal.close()
    assert not skylark_threads()


@pytest.mark.parametrize("closing", ["itself", "guest", "host"])
@in_asyncio
async def test_closing_ends_calls_that_wait(api: Facades, closing: str) -> None:
    client = Client()
    async with opened(api, Client()) as host:
        async with opened(api, client, None if closing == "itself" else host) as portal:
            call = asyncio.create_task(portal.call(lambda it: it.wait()))
            assert await asyncio.to_thread(client.started.wait, 10)
            await (host if closing == "host" else portal).close()
            with pytest.raises(SkylarkError, match="the client was closed"):
                await call
        await refuses(portal)
    assert client.cancelled.is_set()


@in_asyncio
async def test_guests_use_the_thread_of_their_host_and_end_before_it(api: Facades) -> None:
    host, guest, other = Client(), Client(), Client()
    async with opened(api, host) as hosting:
        with pytest.raises(UserError, match="no NameServer"):
            await api.portal(broken, hosting).open()
        async with opened(api, guest, hosting) as portal:
            assert len(skylark_threads()) == 1
            assert await portal.call(lambda it: it.double(21)) == 42
        assert (guest.opened, guest.closed, host.closed) == (1, 1, 0)
        await refuses(portal)
        late = api.portal(other.open, hosting)
        await late.open()
        assert await late.call(lambda it: it.double(1)) == await hosting.call(lambda it: it.double(1)) == 2
    assert (other.closed, host.closed) == (1, 1) and not skylark_threads()
    await refuses(late)
    await late.close()
    with pytest.raises(SkylarkError, match="closed"):
        await api.portal(Client().open, hosting).open()
    with pytest.raises(RuntimeError, match="open the client with"):
        await api.portal(Client().open, api.portal(Client().open)).open()


@in_asyncio
async def test_an_error_of_the_host_ends_its_guests(api: Facades) -> None:
    @asynccontextmanager
    async def crashing() -> AsyncIterator[trio.Event]:
        crash = trio.Event()

        async def wait_and_raise() -> None:
            await crash.wait()
            raise ZeroDivisionError

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_and_raise)
            yield crash

    async def wait(it: Client) -> None:
        client_of_host.post(lambda crash: crash.set())
        await it.wait()

    client, hosting = Client(), api.portal(crashing)
    await hosting.open()
    client_of_host = hosting.opened()
    async with opened(api, client, hosting) as portal:
        with pytest.raises(SkylarkError, match="closed"):
            await portal.call(wait)
    await hosting.close()
    assert client.cancelled.is_set() and not skylark_threads()

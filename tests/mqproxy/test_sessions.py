"""How sessions end."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self, cast

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from skylark import Client
from skylark.mqcommon.errors import UserError
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.registrations import Registrations
from skylark.mqproxy.sessions import Session, Sessions
from tests.sdk.fakes import FakeNamesrv, serving
from tests.support.waiting import until


class Closing(Client):
    """A client of the SDK that notes when it is closed."""

    def __init__(self, addr: str, closed: Callable[[], object]) -> None:
        super().__init__(addr)
        self._closed = closed

    async def __aexit__(self, *error: object) -> None:
        await super().__aexit__(*error)
        self._closed()


@asynccontextmanager
async def sessions(closed: list[str]) -> AsyncIterator[Sessions]:
    """Sessions without users; ``closed`` gets a line for each client of the SDK that is closed."""
    options, namesrv = ProxyOptions(), FakeNamesrv()
    async with serving(namesrv):
        made = Sessions(
            options,
            lambda credentials: Closing(namesrv.addr, lambda: closed.append("a client")),
            cast(Any, None),
            cast(Any, None),
        )
        async with made.serving():
            yield made


async def test_a_session_whose_task_fails_is_closed_and_the_next_call_gets_another(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    has_failed = trio.Event()

    async def fail(registrations: Registrations) -> None:
        if not has_failed.is_set():
            has_failed.set()
            raise RuntimeError("a mistake")

    monkeypatch.setattr(Registrations, "run", fail)
    closed: list[str] = []
    async with sessions(closed) as opened:
        await has_failed.wait()
        await until(lambda: closed == ["a client"], "the session is closed")
        session = await opened.of_call({})
        assert session.is_open and opened.known({}) is session
    assert closed == ["a client"] * 2
    assert "the session of user '' ended by an error" in caplog.text


async def test_a_session_that_ends_waits_for_the_calls_in_progress() -> None:
    closed: list[str] = []
    async with trio.open_nursery() as nursery:

        async def serve(session_of: list[Session], may_end: trio.Event) -> None:
            async with sessions(closed) as opened:
                session_of.append(await opened.of_call({}))
                session_of[0].begin_call()
                await may_end.wait()

        found: list[Session] = []
        may_end = trio.Event()
        nursery.start_soon(serve, found, may_end)
        await until(lambda: bool(found), "a call is in progress")
        may_end.set()
        await found[0].ending.wait()
        await wait_all_tasks_blocked()
        assert closed == [] and not found[0].is_open
        found[0].end_call()
    assert closed == ["a client"]


class Failing(Client):
    """A client of the SDK that cannot be opened."""

    async def __aenter__(self) -> Self:
        raise UserError("the certificate cannot be read")


async def test_the_error_of_the_session_of_all_calls_is_the_error_of_the_start() -> None:
    made = Sessions(ProxyOptions(), lambda credentials: Failing("127.0.0.1:9"), cast(Any, None), cast(Any, None))
    with pytest.raises(UserError, match="the certificate"):
        async with made.serving():
            raise AssertionError("it serves")

"""How sessions end."""

import asyncio

import pytest

from skylark.mqproxy.metadata import Metadata
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.renewals import RenewalCounts
from skylark.mqproxy.sessions import Session
from skylark.sdk.aio import Admin, Client


def test_the_connections_of_a_session_are_closed_although_a_task_of_it_has_failed() -> None:
    closed: list[str] = []

    async def fail() -> None:
        raise RuntimeError("a mistake")

    async def main() -> None:
        options = ProxyOptions()
        session = Session(
            options, Client("127.0.0.1:9"), Metadata(Admin("127.0.0.1:9"), options), None, "ada", RenewalCounts()
        )
        session._stack.callback(closed.append, "all")
        others = asyncio.Event()
        session._tasks = [asyncio.ensure_future(fail()), asyncio.ensure_future(others.wait())]
        with pytest.raises(RuntimeError, match="a mistake"):
            await asyncio.gather(session._tasks[0])
        with pytest.raises(RuntimeError, match="a mistake"):
            await session.close()
        assert all(task.done() for task in session._tasks)

    asyncio.run(main())
    assert closed == ["all"]

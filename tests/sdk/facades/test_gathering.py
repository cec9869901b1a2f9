"""A loop that hands work to another thread in batches: at once when it is idle, and in time when it is busy."""

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from skylark import Message, aio
from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.aio import gathering
from skylark.sdk.aio.gathering import GatheringLoop
from skylark.sdk.testing import Cluster

Fill = Callable[..., MessageQueue]


def gathering_run(main: Callable[[GatheringLoop], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, GatheringLoop)
        async with asyncio.timeout(30):
            await main(loop)

    with asyncio.Runner(loop_factory=GatheringLoop) as runner:
        runner.run(bounded())


class Noted:
    """The actions of a loop, in order. One byte waits at a socket, which is read once."""

    def __init__(self, loop: GatheringLoop, ours: socket.socket) -> None:
        self.did: list[str] = []
        self._loop, self._ours = loop, ours
        loop.add_reader(ours, self._read)

    def _read(self) -> None:
        self._loop.remove_reader(self._ours)
        self.did.append("socket")


@contextmanager
def a_byte_waits() -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"x")
        yield ours


def test_work_waits_for_functions_that_are_ready_and_for_sockets_and_for_nothing_else() -> None:
    async def main(loop: GatheringLoop) -> None:
        handed_over = asyncio.Event()
        with a_byte_waits() as ours:
            noted = Noted(loop, ours)
            loop.when_idle(noted.did.append, "work")
            loop.when_idle(loop.call_soon, handed_over.set)
            loop.call_soon(loop.call_soon, noted.did.append, "ready")
            await handed_over.wait()
        assert sorted(noted.did[:2]) == ["ready", "socket"] and noted.did[2:] == ["work"]

    gathering_run(main)


def test_a_busy_loop_hands_work_over_in_time_and_looks_at_its_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(loop: GatheringLoop) -> None:
        with a_byte_waits() as ours:
            noted, handed_over, began_s = Noted(loop, ours), asyncio.Event(), loop.time()

            def go_on() -> None:
                if not handed_over.is_set():
                    loop.call_soon(go_on)

            go_on()
            loop.when_idle(noted.did.append, "work")
            loop.when_idle(handed_over.set)
            await handed_over.wait()
            assert loop.time() - began_s >= gathering.MOST_S
        assert noted.did == ["socket", "work"]

    monkeypatch.setattr(gathering, "MOST_S", 0.05)
    gathering_run(main)


def test_sends_that_begin_together_cross_together(
    cluster: Cluster, topic: str, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    crossings: list[object] = []
    when_idle = GatheringLoop.when_idle

    def counted(loop: GatheringLoop, work: Callable[..., object], *args: Any) -> None:
        crossings.append(work)
        when_idle(loop, work, *args)

    async def main(loop: GatheringLoop) -> None:
        async with aio.Producer(cluster.nameserver) as producer:
            await producer.send(Message(topic, b"the route is known"))
            assert len(crossings) == 1
            results = await asyncio.gather(*(producer.send(Message(topic, b"tea")) for _ in range(100)))
            assert len(crossings) == 2 and len({result.queue_offset for result in results}) == 100

    fill()
    monkeypatch.setattr(GatheringLoop, "when_idle", counted)
    gathering_run(main)


def test_a_send_that_never_crosses_ends_with_its_client(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(loop: GatheringLoop) -> None:
        async with aio.Producer(cluster.nameserver) as producer:
            send = asyncio.create_task(producer.send(Message(topic, b"tea")))
            await asyncio.sleep(0)
        with pytest.raises(SkylarkError, match="the client was closed"):
            await send

    monkeypatch.setattr(GatheringLoop, "when_idle", lambda loop, work, *args: None)
    gathering_run(main)

"""An answer that arrives while its caller is cancelled or interrupted is there for the next call."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from skylark import Message, aio, blocking
from skylark.mqcommon.errors import SendFailed
from skylark.mqcommon.message.message import MessageExt
from skylark.sdk.aio import consumer as aio_consumer
from skylark.sdk.aio.consumer import batches_of, messages_of
from skylark.sdk.aio.portal import Portal
from skylark.sdk.blocking import consumer as blocking_consumer
from skylark.sdk.blocking.loop import ClientLoop
from skylark.sdk.consumer.reader import PullResult
from skylark.sdk.consumer.stream import Messages, MessageStream
from skylark.sdk.consumer.trail import Trail
from skylark.sdk.loop_thread import OpenClient
from skylark.sdk.position import Position
from skylark.sdk.runtime import SendsFailed
from skylark.sdk.testing import Cluster
from tests.sdk.consumer.test_stream import BACKOFF, Source
from tests.sdk.facades.adapter import Facades, in_asyncio
from tests.sdk.facades.test_tickets import lose
from tests.support.waiting import DEADLINE_S


class Reader:
    """A client whose stream has three batches of two messages, and then waits for ever."""

    def __init__(self) -> None:
        self.source = Source(size=6, step=2)
        #: Set when the pull at an offset has begun.
        self.begun: dict[int, threading.Event] = defaultdict(threading.Event)
        self.stream: MessageStream | None = None
        self._nursery: trio.Nursery | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Reader"]:
        async with trio.open_nursery() as self._nursery:
            yield self
            self._nursery.cancel_scope.cancel()

    def streaming(self) -> MessageStream:
        assert self._nursery is not None
        self.stream = MessageStream(self._pull, self._nursery, Position(0), None, BACKOFF)
        return self.stream

    async def _pull(self, trail: Trail, offset: int) -> PullResult:
        self.begun[offset].set()
        return await self.source.pull(trail, offset)


def offsets(batch: list[MessageExt]) -> list[int]:
    return [message.queue_offset for message in batch]


@in_asyncio
async def test_a_batch_that_crosses_to_a_cancelled_task_comes_next() -> None:
    reader = Reader()
    portal = Portal(reader.open)
    await portal.open()
    stream = batches_of(portal, Reader.streaming)
    for first in (0, 2, 4):
        waiting = asyncio.create_task(anext(stream))
        await asyncio.sleep(0)
        # This blocks the loop. When the next pull has begun, the batch is on its way here.
        assert reader.begun[first + 2].wait(DEADLINE_S)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert stream.next_offset == first
        assert offsets(await anext(stream)) == [first, first + 1]
        assert stream.next_offset == first + 2
    await portal.close()


@in_asyncio
async def test_messages_go_on_after_a_cancelled_wait() -> None:
    reader = Reader()
    portal = Portal(reader.open)
    await portal.open()
    messages = messages_of(portal, Reader.streaming)
    found = []
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await anext(messages)
        found += [(await anext(messages)).queue_offset for _ in range(2)]
    assert found == list(range(6))
    await messages.aclose()
    assert [message async for message in messages] == []
    await portal.close()


@in_asyncio
async def test_messages_that_are_left_behind_are_not_pulled_any_more() -> None:
    reader = Reader()
    portal = Portal(reader.open)
    await portal.open()
    async for message in messages_of(portal, Reader.streaming):
        assert message.queue_offset == 0
        break
    portal.call_sync(lambda it: None)
    assert reader.stream is not None and reader.stream._closed
    await portal.close()


async def test_messages_go_on_after_a_cancelled_wait_in_trio(nursery: trio.Nursery) -> None:
    stream = MessageStream(Source(size=3, step=1).pull, nursery, Position(0), 3, BACKOFF)
    messages = Messages(stream, lambda: None, stream.close)
    found = []
    for _ in range(3):
        with trio.move_on_after(0):
            await anext(messages)
        found.append((await anext(messages)).queue_offset)
    assert found == [0, 1, 2] and [message async for message in messages] == []


class InterruptedOnce(OpenClient[Any]):
    """Ctrl-C comes when a call has ended in the loop, before its caller has the result."""

    interrupts = False

    def call(self, work: Any) -> Any:
        result = super().call(work)
        if self.interrupts:
            self.interrupts = False
            raise KeyboardInterrupt
        return result


@pytest.mark.parametrize("of_thread", [False, True])
async def test_a_batch_that_waits_for_its_reader_is_not_followed_by_another_pull(
    nursery: trio.Nursery, of_thread: bool
) -> None:
    source = Source(size=2, step=1)
    stream = MessageStream(source.pull, nursery, Position(0), 2, BACKOFF)
    client: Any = SimpleNamespace(post=lambda work: None, opened=lambda: None)
    batches: Any = (blocking_consumer if of_thread else aio_consumer).BatchStream(client, stream)
    for offset in (0, 1):
        # The caller is interrupted after the batch has come, and calls again.
        for _ in range(2):
            await batches._take(None)
        batch = next(batches) if of_thread else await anext(batches)
        assert offsets(batch) == [offset] and batches.next_offset == offset + 1
    for _ in range(2):
        await batches._take(None)
    with pytest.raises(StopIteration if of_thread else StopAsyncIteration):
        assert next(batches) if of_thread else await anext(batches)


def test_messages_that_were_closed_are_at_their_end() -> None:
    reader = Reader()
    loop = ClientLoop(reader.open)
    loop.open()
    messages = blocking_consumer.messages_of(loop, Reader.streaming)
    assert isinstance(messages, blocking_consumer.Messages)
    assert next(messages).queue_offset == 0
    messages.close()
    assert list(messages) == [], "the rest of the batch is not returned either"
    loop.close()


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skylark.sdk.blocking.loop.OpenClient", InterruptedOnce)


@pytest.mark.usefixtures("interrupted")
def test_a_batch_that_crosses_to_an_interrupted_thread_comes_next() -> None:
    reader = Reader()
    loop = ClientLoop(reader.open)
    loop.open()
    stream = blocking_consumer.batches_of(loop, Reader.streaming)
    for first in (0, 2, 4):
        cast(InterruptedOnce, loop.opened()).interrupts = True
        with pytest.raises(KeyboardInterrupt):
            next(stream)
        assert stream.next_offset == first
        assert offsets(next(stream)) == [first, first + 1]
    loop.close()


def test_blocking_streams_go_on_after_an_error() -> None:
    reader = Reader()
    reader.source.errors = [ValueError("first"), ValueError("second")]
    loop = ClientLoop(reader.open)
    loop.open()
    with blocking_consumer.batches_of(loop, Reader.streaming) as stream, pytest.raises(ValueError, match="first"):
        next(stream)
    assert list(stream) == []
    messages = blocking_consumer.messages_of(loop, Reader.streaming)
    with pytest.raises(ValueError, match="second"):
        next(messages)
    assert [next(messages).queue_offset for _ in range(6)] == list(range(6))
    loop.close()


@in_asyncio
async def test_a_cancelled_flush_leaves_the_errors_to_the_next(cluster: Cluster) -> None:
    async with aio.Producer(cluster.nameserver) as producer:
        ticket = lose(producer)
        while not ticket.done():
            await producer.room()
        flushing = asyncio.create_task(producer.flush())
        await asyncio.sleep(0)
        # Meanwhile the other loop does all that it can.
        for _ in range(5):
            producer._loop.call_sync(lambda _: None)
        flushing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await flushing
        with pytest.raises(SendsFailed):
            await producer.flush()


@pytest.mark.parametrize("name", ["aio", "blocking"])
@in_asyncio
async def test_a_send_that_ends_before_its_waiter_is_noted_keeps_nobody_waiting(cluster: Cluster, name: str) -> None:
    api = Facades(name)
    async with api.Producer(cluster.nameserver) as producer:
        ticket = lose(producer)
        ticket.watch((ended := threading.Event()).set)
        assert await asyncio.to_thread(ended.wait, DEADLINE_S)
        # As when the send ends between the question and the wait.
        async with asyncio.timeout(DEADLINE_S):
            await (ticket._wait() if api.is_aio else asyncio.to_thread(ticket._wait, DEADLINE_S))
        with pytest.raises(SendFailed):
            ticket.result()


@pytest.mark.usefixtures("interrupted")
def test_an_interrupted_flush_leaves_the_errors_to_the_next(cluster: Cluster) -> None:
    with blocking.Producer(cluster.nameserver) as producer:
        lose(producer)
        cast(InterruptedOnce, producer._loop.opened()).interrupts = True
        with pytest.raises(KeyboardInterrupt):
            producer.flush()
        with pytest.raises(SendsFailed):
            producer.flush()


@in_asyncio
async def test_an_error_that_a_cancelled_task_waited_for_is_left_to_flush(cluster: Cluster) -> None:
    failed = threading.Event()
    async with aio.Producer(cluster.nameserver) as producer:
        ticket = lose(producer)
        ticket.watch(failed.set)
        waiting = asyncio.create_task(ticket._wait())
        await asyncio.sleep(0)
        # This blocks the loop: the send fails, and its task cannot learn of it before it is cancelled.
        assert failed.wait(DEADLINE_S)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(SendsFailed) as raised:
            await producer.flush()
    assert raised.value.exceptions == (ticket.error,)


def test_a_send_goes_on_whose_thread_was_interrupted(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

    (broker,) = cluster.brokers
    cluster.create_topic("interrupted-send")
    with blocking.Producer(cluster.nameserver, send_timeout_ms=60_000) as producer:
        queue = producer.queues("interrupted-send")[0]
        broker.freeze()
        ticket = producer.send_nowait(Message("interrupted-send", b"x"), queue=queue)
        with monkeypatch.context() as patched:
            patched.setattr("skylark.sdk.blocking.producer.Event", Interrupted)
            with pytest.raises(KeyboardInterrupt):
                ticket.result()
        broker.thaw()
        assert ticket.result().queue_offset == 0
        producer.flush()


def test_an_error_that_an_interrupted_thread_waited_for_is_left_to_flush(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            super().wait(timeout)
            raise KeyboardInterrupt

    with blocking.Producer(cluster.nameserver) as producer:
        ticket = lose(producer)
        with monkeypatch.context() as patched:
            patched.setattr("skylark.sdk.blocking.producer.Event", Interrupted)
            with pytest.raises(KeyboardInterrupt):
                ticket.result()
        with pytest.raises(SendsFailed):
            producer.flush()


@in_asyncio
async def test_a_cancelled_closing_logs_what_is_lost(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    is_leaving = asyncio.Event()

    async def leave() -> None:
        async with aio.Producer(cluster.nameserver) as producer:
            lose(producer)
            is_leaving.set()

    leaving = asyncio.create_task(leave())
    await is_leaving.wait()
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert "1 messages were not stored" in caplog.text

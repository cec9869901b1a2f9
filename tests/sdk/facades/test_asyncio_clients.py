"""What only the asyncio classes do: deadlines and cancelled tasks, calls of functions in the application's loop."""

import asyncio
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from skylark import ConsumeFrom, Message, MessageQueue, aio
from skylark.mqcommon.errors import SendFailed, SkylarkError
from skylark.sdk.testing import Cluster
from tests.sdk.facades.adapter import Facades, in_asyncio
from tests.support.waiting import DEADLINE_S, until_true

Fill = Callable[..., MessageQueue]
Consumers = Callable[..., Any]


@pytest.fixture
def api() -> Facades:
    return Facades("aio")


COUNT = 300
PROGRAM = """
import asyncio, sys, threading
from skylark.sdk.aio import PullConsumer
from skylark import MessageQueue

async def main():
    async with PullConsumer(sys.argv[1], group="ctrl-c") as consumer:
        queue = (await consumer.message_queues(sys.argv[2]))[0]
        await consumer.commit_offset(queue, 0)
        print("ready", flush=True)
        await consumer.pull(queue, 0, wait_ms=60_000)

try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("stopped", threading.active_count(), flush=True)
"""


@in_asyncio
async def test_a_stream_waits_and_can_be_left(cluster: Cluster, topic: str, fill: Fill) -> None:
    queue = fill()
    async with aio.Client(cluster.nameserver) as client, aio.Producer(client) as producer:
        consumer = aio.PullConsumer(client, group="s")
        async with consumer:
            stream = consumer.stream(queue, 0)
            waiting = asyncio.create_task(anext(stream))
            await producer.send(Message(topic, b"x"))
            assert [message.body for message in await waiting] == [b"x"]
            waiting = asyncio.create_task(anext(stream))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            stream.close()
            assert [batch async for batch in stream] == [] and stream.next_offset == 1


@in_asyncio
async def test_a_deadline_of_asyncio_cancels_a_send(cluster: Cluster, topic: str, fill: Fill) -> None:
    fill()
    (broker,) = cluster.brokers
    async with aio.Producer(cluster.nameserver, send_timeout_ms=60_000) as producer:
        await producer.send(Message(topic, b"x"))
        broker.freeze()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await producer.send(Message(topic, b"x"))
        with pytest.raises(SendFailed):
            await producer.send(Message(topic, b"x"), timeout_ms=50)
        broker.thaw()


@in_asyncio
async def test_the_answer_of_a_cancelled_send_is_ignored(cluster: Cluster, topic: str, fill: Fill) -> None:
    fill()
    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, problem: problems.append(problem))
    async with aio.Producer(cluster.nameserver, send_timeout_ms=60_000) as producer:
        await producer.send(Message(topic, b"first"))
        sends = producer._sends
        assert sends is not None
        sending = asyncio.create_task(producer.send(Message(topic, b"second")))
        await asyncio.sleep(0)
        # This blocks the loop: the answer has come, and its task cannot learn of it before it is cancelled.
        until_true(lambda: sends._for_asyncio._items)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert (await producer.send(Message(topic, b"third"))).queue_offset == 2
    assert problems == [] and not sends._waiting


@in_asyncio
async def test_many_awaited_sends_cross_together_and_each_has_its_own_result(
    cluster: Cluster, topic: str, fill: Fill
) -> None:
    queue = fill(queues=2)
    async with aio.Producer(cluster.nameserver) as producer:

        async def send(number: int) -> tuple[MessageQueue, int]:
            body = b"%d" % number
            # Only the first kind takes the short way.
            kinds: tuple[tuple[Message, MessageQueue | None], ...] = (
                (Message(topic, body), None),
                (Message(topic, body), queue),
                (Message(topic, body, keys=f"k{number}"), None),
                (Message(topic, bytearray(body)), None),
            )
            message, wanted = kinds[number % 4]
            result = await producer.send(message, queue=wanted)
            assert wanted in (None, result.queue)
            return result.queue, result.queue_offset

        places = await asyncio.gather(*[send(number) for number in range(200)])
    assert len(set(places)) == 200
    async with aio.PullConsumer(cluster.nameserver, group="all", heartbeat=False) as consumer:
        stored = {
            (message.queue, message.queue_offset): int(message.body)
            for each in await consumer.message_queues(topic)
            async for message in consumer.messages(each, 0, await consumer.max_offset(each))
        }
    assert [stored[place] for place in places] == list(range(200))


@in_asyncio
async def test_mistakes_of_an_awaited_send_are_raised_where_they_were_made(
    cluster: Cluster, topic: str, fill: Fill
) -> None:
    queue = fill()
    async with aio.Producer(cluster.nameserver, max_message_bytes=10) as producer:
        for wrong, error in (
            ("no message", TypeError),
            (Message(topic, b"x" * 11), ValueError),
        ):
            with pytest.raises(error):
                await producer.send(wrong)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="timeout_ms"):
            await producer.send(Message(topic, b"x"), timeout_ms=-1)
        with pytest.raises(ZeroDivisionError):
            await producer.send(Message(topic, b"x"), selector=lambda queues, _: queues[1 // 0])
        assert (await producer.send(Message(topic, b"x"), queue=queue)).queue_offset == 0
    with pytest.raises(SkylarkError, match="the client was closed"):
        await producer.send(Message(topic, b"x"))


@in_asyncio
async def test_sends_that_wait_end_with_the_producer(cluster: Cluster, topic: str, fill: Fill) -> None:
    fill()
    (broker,) = cluster.brokers
    async with aio.Producer(cluster.nameserver, send_timeout_ms=60_000) as producer:
        await producer.send(Message(topic, b"x"))
        broker.freeze()
        sending = [asyncio.create_task(producer.send(Message(topic, b"%d" % n))) for n in range(100)]
        await asyncio.sleep(0)
    for result in await asyncio.gather(*sending, return_exceptions=True):
        assert isinstance(result, SkylarkError)
    broker.thaw()


@in_asyncio
async def test_a_deadline_loses_no_message(cluster: Cluster, topic: str, fill: Fill, consumer_of: Consumers) -> None:
    fill()
    seen: list[bytes] = []
    async with aio.Producer(cluster.nameserver) as producer, consumer_of() as consumer:
        sending = asyncio.gather(*[producer.send(Message(topic, b"%d" % number)) for number in range(50)])
        while len(seen) < 50:
            try:
                async with asyncio.timeout(0.002):
                    async for message in consumer:
                        seen.append(message.body)
            except TimeoutError:
                continue
            # Reached only if the iteration ended by itself.
            raise AssertionError
        await sending
    assert sorted(seen) == sorted(b"%d" % number for number in range(50))


@in_asyncio
async def test_a_cancelled_poll_loses_nothing(cluster: Cluster, topic: str, fill: Fill) -> None:
    fill(queues=2)
    async with (
        aio.Producer(cluster.nameserver) as producer,
        aio.PullConsumer(cluster.nameserver, group="g", consume_from=ConsumeFrom.FIRST_OFFSET) as consumer,
    ):
        queues = await consumer.message_queues(topic)
        consumer.assign(queues)
        sending = asyncio.create_task(send_some(producer, topic))
        found: list[int] = []
        while len(found) < COUNT:
            polling = asyncio.create_task(consumer.poll(timeout_ms=1_000, max_count=1))
            # Cancelled at another step of the call each time.
            for _ in range(len(found) % 7):
                await asyncio.sleep(0)
            polling.cancel()
            try:
                found += [int(message.body) for message in await polling]
            except asyncio.CancelledError:
                found += [int(message.body) for message in await consumer.poll(timeout_ms=5_000, max_count=1)]
        await sending
        assert sorted(found) == list(range(COUNT))
        assert sum(consumer.position(mq) or 0 for mq in consumer.assignment()) == COUNT
        await consumer.commit()
        assert sum([await consumer.committed_offset(mq) or 0 for mq in queues]) == COUNT


async def send_some(producer: aio.Producer, topic: str) -> None:
    for number in range(COUNT):
        await producer.send(Message(topic, b"%d" % number))


@in_asyncio
async def test_on_delivery_is_called_in_the_loop_of_the_application(cluster: Cluster, topic: str, fill: Fill) -> None:
    fill()
    threads: list[str] = []
    called: Counter[int] = Counter()

    def tell(ticket: aio.Ticket) -> None:
        threads.append(threading.current_thread().name)
        called[id(ticket)] += 1
        asyncio.get_running_loop()
        raise ZeroDivisionError

    async with aio.Producer(cluster.nameserver) as producer:
        tickets = [producer.send_nowait(Message(topic, b"%d" % n), on_delivery=tell) for n in range(100)]
        await producer.flush()
        assert called == Counter(map(id, tickets))
        assert set(threads) == {threading.current_thread().name}


@in_asyncio
async def test_a_cancelled_task_does_not_end_the_send(cluster: Cluster, topic: str, fill: Fill) -> None:
    allowed = threading.Event()

    def first_when_allowed(queues: Sequence[MessageQueue], _: Message) -> MessageQueue:
        # It runs in the client's thread.
        allowed.wait(DEADLINE_S)
        return queues[0]

    fill()
    async with aio.Producer(cluster.nameserver) as producer:
        ticket = producer.send_nowait(Message(topic, b"x"), selector=first_when_allowed)
        waiting = asyncio.ensure_future(ticket)
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        allowed.set()
        assert (await ticket).queue_offset == 0


def test_ctrl_c_cancels_calls_and_closes(cluster: Cluster, topic: str, fill: Fill) -> None:
    fill()
    command = [sys.executable, "-c", PROGRAM, cluster.nameserver, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "") and out.startswith("stopped")


def test_no_loop_is_told() -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        aio.Producer("127.0.0.1:1").__aenter__().send(None)

"""`send_nowait` of the asyncio producer, against a broker of ours."""

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence

import pytest

from mqcommon.errors import BufferFull, SendFailed, SkylarkError
from sdk import Message, MessageQueue, aio
from sdk.runtime import SendsFailed
from sdk.testing import Cluster, cluster_fixture
from tests.sdk.aio.test_clients import queue_with

cluster = cluster_fixture(scope="module")
# No broker has this queue.
LOST, NOWHERE = Message("lost"), MessageQueue("lost", "nobody", 0)


def test_tickets_are_awaited_in_asyncio(cluster: Cluster) -> None:
    async def use() -> None:
        queue = await queue_with(cluster, "nowait")
        async with aio.Producer(cluster.nameserver, buffer_count=100) as producer:
            tickets: list[aio.Ticket] = []
            for number in range(1_000):
                message = Message("nowait", b"%d" % number)
                try:
                    tickets.append(producer.send_nowait(message))
                except BufferFull as full:
                    assert "`await producer.room()`" in str(full)
                    await producer.room()
                    tickets.append(producer.send_nowait(message))
            results = await asyncio.gather(*tickets, *tickets[:10])
            assert sorted(result.queue_offset for result in results[:1_000]) == list(range(1_000))
            assert {result.queue for result in results} == {queue}
            assert (await tickets[0]).msg_id == tickets[0].result().msg_id == results[1_000].msg_id
            assert all(ticket.done() for ticket in tickets)

    asyncio.run(use())


def test_on_delivery_is_called_in_the_loop_of_the_application(cluster: Cluster) -> None:
    async def use() -> None:
        await queue_with(cluster, "told")
        threads: list[str] = []
        called: Counter[int] = Counter()

        def tell(ticket: aio.Ticket) -> None:
            threads.append(threading.current_thread().name)
            called[id(ticket)] += 1
            asyncio.get_running_loop()
            raise ZeroDivisionError

        async with aio.Producer(cluster.nameserver) as producer:
            tickets = [producer.send_nowait(Message("told", b"%d" % n), on_delivery=tell) for n in range(100)]
            await producer.flush()
            assert called == Counter(map(id, tickets))
            assert set(threads) == {threading.current_thread().name}

    asyncio.run(use())


def test_errors_are_seen_once(cluster: Cluster) -> None:
    async def use() -> None:
        async with aio.Producer(cluster.nameserver) as producer:
            awaited, unseen = (producer.send_nowait(LOST, queue=NOWHERE, timeout_ms=50) for _ in range(2))
            with pytest.raises(SendFailed):
                await awaited
            with pytest.raises(SendsFailed) as failed:
                await producer.flush()
            assert failed.value.exceptions == (unseen.error,)
            await producer.flush()
        with pytest.raises(SkylarkError, match="closed"):
            producer.send_nowait(LOST, queue=NOWHERE, timeout_ms=50)
        with pytest.raises(SendsFailed):
            async with aio.Producer(cluster.nameserver) as producer:
                producer.send_nowait(LOST, queue=NOWHERE, timeout_ms=50)
        with pytest.raises(ZeroDivisionError):
            async with aio.Producer(cluster.nameserver) as producer:
                producer.send_nowait(LOST, queue=NOWHERE, timeout_ms=50)
                raise ZeroDivisionError

    asyncio.run(use())


def test_a_cancelled_task_does_not_end_the_send(cluster: Cluster) -> None:
    allowed = threading.Event()

    def first_when_allowed(queues: Sequence[MessageQueue], _: Message) -> MessageQueue:
        # It runs in the client's thread.
        allowed.wait(60)
        return queues[0]

    async def use() -> None:
        await queue_with(cluster, "cancelled")
        async with aio.Producer(cluster.nameserver) as producer:
            ticket = producer.send_nowait(Message("cancelled", b"x"), selector=first_when_allowed)
            waiting = asyncio.create_task(_result(ticket))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            allowed.set()
            assert (await ticket).queue_offset == 0

    asyncio.run(use())


async def _result(ticket: aio.Ticket) -> object:
    return await ticket

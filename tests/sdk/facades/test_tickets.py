"""`send_nowait` of both facades: what tickets say, and who learns of sends that failed."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from skylark import Message, MessageQueue
from skylark.mqcommon.errors import BufferFull, InvalidArgument, SendFailed, SkylarkError
from skylark.sdk.runtime import SendsFailed
from skylark.sdk.testing import Cluster
from tests.sdk.facades.adapter import Facades, in_asyncio

# No broker has this queue.
LOST, NOWHERE = Message("lost"), MessageQueue("lost", "nobody", 0)


def lose(producer: Any) -> Any:
    """The ticket of a send that fails."""
    return producer.send_nowait(LOST, queue=NOWHERE, timeout_ms=50)


@in_asyncio
async def test_each_ticket_has_its_own_result(
    api: Facades, cluster: Cluster, topic: str, fill: Callable[..., MessageQueue]
) -> None:
    queue = fill()
    called: Counter[int] = Counter()
    async with api.Producer(cluster.nameserver, buffer_count=100) as producer:

        async def send(number: int) -> Any:
            message = Message(topic, b"%d" % number)
            while True:
                try:
                    return producer.send_nowait(message, on_delivery=lambda ticket: called.update([id(ticket)]))
                except BufferFull as full:
                    assert f"`{'await ' if api.is_aio else ''}producer.room()`" in str(full)
                    await producer.room()

        tickets = [await send(number) for number in range(1_000)]
        await producer.flush()
        assert called == Counter(map(id, tickets))
        results = [await api.result_of(ticket) for ticket in (*tickets, tickets[0])]
        assert {(result.queue, result.queue_offset) for result in results} == {(queue, n) for n in range(1_000)}
        assert results[-1].msg_id == tickets[0].result().msg_id == results[0].msg_id
        assert all(ticket.done() for ticket in tickets)
        assert [ticket.message.body for ticket in tickets] == [b"%d" % number for number in range(1_000)]


@in_asyncio
async def test_an_error_is_seen_once(api: Facades, cluster: Cluster) -> None:
    async with api.Producer(cluster.nameserver) as producer:
        awaited, unseen = lose(producer), lose(producer)
        with pytest.raises(SendFailed):
            await api.result_of(awaited)
        with pytest.raises(SendsFailed) as failed:
            await producer.flush()
        assert failed.value.exceptions == (unseen.error,)
        await producer.flush()
    with pytest.raises(SkylarkError, match="closed"):
        lose(producer)


@in_asyncio
async def test_the_end_raises_what_is_lost_unless_the_block_did(
    api: Facades, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(SendsFailed):
        async with api.Producer(cluster.nameserver) as producer:
            lose(producer)
    with pytest.raises(ZeroDivisionError):
        async with api.Producer(cluster.nameserver) as producer:
            lose(producer)
            raise ZeroDivisionError
    assert "1 messages were not stored" in caplog.text
    async with api.Client(cluster.nameserver) as client:
        with pytest.raises(SendsFailed):
            async with api.Producer(client) as producer:
                lose(producer)


@in_asyncio
async def test_mistakes_are_raised_at_once(api: Facades, cluster: Cluster) -> None:
    with pytest.raises(RuntimeError, match="with'"):
        api.Producer(cluster.nameserver).send_nowait(Message("t"))
    async with api.Producer(cluster.nameserver) as producer:
        with pytest.raises(TypeError, match="message must be a Message"):
            producer.send_nowait(b"x")
        with pytest.raises(InvalidArgument, match="timeout_ms"):
            producer.send_nowait(Message("t"), timeout_ms=-1)

"""The classes of both facades against a broker."""

import asyncio
from collections.abc import Callable
from importlib import import_module

import pytest

from skylark import Message, MessageQueue, PullStatus
from skylark.mqcommon.errors import RouteNotFound, SkylarkError, UserError
from skylark.sdk.testing import Cluster
from tests.sdk.facades.adapter import Facades, in_asyncio

Fill = Callable[..., MessageQueue]


@in_asyncio
async def test_a_producer_sends(api: Facades, cluster: Cluster, topic: str, fill: Fill) -> None:
    queue = fill()
    async with api.Producer(cluster.nameserver, group="p") as producer:
        assert (producer.group, producer.retried, producer.traces_dropped) == ("p", 0, 0)
        results = await asyncio.gather(*[producer.send(Message(topic, b"%d" % n)) for n in range(200)])
        assert sorted(result.queue_offset for result in results) == list(range(200))
        chosen = await producer.send(Message(topic, b"x"), selector=lambda queues, message: queues[0])
        assert chosen.queue == queue
        with pytest.raises(TypeError, match="message must be a Message"):
            await producer.send(b"x")


@in_asyncio
async def test_a_consumer_reads_and_commits(api: Facades, cluster: Cluster, topic: str, fill: Fill) -> None:
    queue = fill(3)
    async with api.PullConsumer(cluster.nameserver, group="g") as consumer:
        assert (consumer.group, consumer.traces_dropped) == ("g", 0)
        assert await consumer.message_queues(topic) == [queue]
        assert (await consumer.min_offset(queue), await consumer.max_offset(queue)) == (0, 3)
        result = await consumer.pull(queue, 1)
        assert result.status is PullStatus.FOUND
        assert [message.body for message in result.messages] == [b"1", b"2"]
        assert await consumer.committed_offset(queue) is None
        await consumer.commit_offset(queue, 2)
        assert await consumer.committed_offset(queue) == 2
        assert [len(batch) async for batch in consumer.stream(queue, 0, 3, max_count=2)] == [2, 1]
        assert [message.body async for message in consumer.messages(queue, 0, 2)] == [b"0", b"1"]
        async for message in consumer.messages(queue, 2):
            assert message.body == b"2"
            break
        consumer.assign([queue])
        consumer.seek(queue, 1)
        assert [message.body for message in await consumer.poll(max_count=1)] == [b"1"]
        assert (consumer.assignment(), consumer.position(queue)) == ([queue], 2)
        with pytest.raises(RouteNotFound):
            await consumer.message_queues("unknown")


@in_asyncio
async def test_several_share_a_client_and_its_thread(api: Facades, cluster: Cluster, topic: str, fill: Fill) -> None:
    queue = fill(1)
    async with api.Client(cluster.nameserver) as client:
        async with api.Producer(client, group="p") as producer, api.Admin(client) as admin:
            assert client.client_id and topic in await admin.topic_list()
            assert await admin.max_offset(queue) == 1
            assert len(await producer.queues(topic)) == 1
        for late_call in (producer.queues(topic), producer.send(Message(topic, b"x"))):
            with pytest.raises(SkylarkError, match="closed"):
                await late_call
        late = api.Admin(client)
        await late.__aenter__()
    with pytest.raises(SkylarkError, match="closed"):
        await late.max_offset(queue)


# --- mistakes


def test_a_bad_address_is_told_where_it_was_given(api: Facades) -> None:
    for name in ("Admin", "PullConsumer", "Producer", "Client"):
        with pytest.raises(UserError, match="host:port"):
            getattr(api, name)("nonsense")


@in_asyncio
async def test_use_before_it_is_open_is_told(api: Facades) -> None:
    with pytest.raises(RuntimeError, match=r"open the client with '(async )?with' first"):
        await api.Producer("127.0.0.1:1").send(Message("t", b"x"))
    with pytest.raises(AttributeError, match=rf"module 'skylark\.{api.name}' has no attribute 'Consumer'"):
        _ = api.Consumer
    with pytest.raises(AttributeError, match=rf"module 'skylark\.{api.name}' has no attribute 'Consumer'"):
        _ = import_module(f"skylark.sdk.{api.name}").Consumer

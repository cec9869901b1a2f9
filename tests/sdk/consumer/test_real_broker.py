"""PullConsumer against a NameServer and a broker of ours, in this process, over real sockets."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.broker import Broker
from broker.options import BrokerOptions
from mqcommon.errors import BrokerError, RouteNotFound
from mqcommon.message.message import Message, MessageExt, decode_messages
from mqcommon.message.queue import MessageQueue
from remoting.protocol.bodies.connections import Connection
from remoting.protocol.bodies.topic import TopicConfig
from sdk import Admin, Producer, PullConsumer, PullStatus, blocking
from tests.namesrv.peer import serve


@pytest.fixture
async def nameserver(nursery: trio.Nursery, tmp_path: Path) -> AsyncIterator[str]:
    """A cluster with topic ``t``: one broker, two queues."""
    served = await serve(nursery, tmp_path)
    options = BrokerOptions(
        broker_name="broker-a",
        broker_ip1="127.0.0.1",
        bind_address="127.0.0.1",
        listen_port=0,
        namesrv_addr=served.address,
        store_path_root_dir=str(tmp_path / "store"),
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=20 * 1000,
        max_hash_slot_num=1000,
        max_index_num=4000,
    )
    broker = Broker(options)
    addr = await nursery.start(broker.run)
    async with Admin(served.address) as admin:
        await admin.create_topic(addr, TopicConfig("t", 2, 2))
        with trio.fail_after(10):
            while not await known(admin, "t"):
                pass
    yield served.address
    broker.stop()


async def known(admin: Admin, topic: str) -> bool:
    try:
        await admin.topic_route(topic)
    except RouteNotFound:
        return False
    return True


async def everything(consumer: PullConsumer) -> dict[MessageQueue, list[MessageExt]]:
    found = {}
    for mq in await consumer.message_queues("t"):
        start, end = await consumer.min_offset(mq), await consumer.max_offset(mq)
        found[mq] = [message async for message in consumer.messages(mq, start, end)]
    return found


async def test_what_was_sent_is_read(nameserver: str) -> None:
    bodies = [b"%d" % number for number in range(3000)]
    async with Producer(nameserver) as producer, PullConsumer(nameserver, group="g") as consumer:
        await producer.send_many("t", bodies)
        large = await producer.send(Message("t", b"x" * 100_000, tags="A", keys=["k1", "k2"], properties={"p": "é"}))
        found = await everything(consumer)
        for messages in found.values():
            assert [message.queue_offset for message in messages] == list(range(len(messages)))
        together = [message for messages in found.values() for message in messages]
        assert sorted(int(message.body) for message in together if len(message.body) < 10) == list(range(3000))
        (big,) = [message for message in together if message.tags]
        assert (big.msg_id, big.offset_msg_id) == (large.msg_id, large.offset_msg_id)
        assert (big.queue, big.queue_offset, big.keys, big.properties["p"]) == (
            large.queue,
            large.queue_offset,
            "k1 k2",
            "é",
        )


async def test_stored_bytes_and_messages_agree(nameserver: str) -> None:
    async with Producer(nameserver) as producer, PullConsumer(nameserver) as consumer:
        mq = (await producer.send(Message("t", b"one"))).queue
        raw = await consumer.pull_bytes(mq, 0)
        cooked = await consumer.pull(mq, 0)
        assert [message.record for message in decode_messages(raw.data)] == [it.record for it in cooked.messages]
        assert (raw.status, raw.next_offset, raw.max_offset) == (PullStatus.FOUND, 1, 1)


async def test_tags(nameserver: str) -> None:
    """Aa and BB have one hash."""
    async with Producer(nameserver) as producer, PullConsumer(nameserver) as consumer:
        mq = (await producer.queues("t"))[0]
        for tag in ("Aa", "BB", "C", "Aa"):
            await producer.send(Message("t", tag.encode(), tags=tag), queue=mq)

        async def offsets(expression: str) -> list[int]:
            return [message.queue_offset async for message in consumer.messages(mq, 0, 4, expression=expression)]

        assert await offsets("*") == [0, 1, 2, 3]
        assert await offsets("Aa") == [0, 3]
        assert await offsets("BB || C") == [1, 2]
        assert await offsets("D") == []


async def test_a_stream_waits_for_what_comes(nameserver: str) -> None:
    async with Producer(nameserver) as producer, PullConsumer(nameserver) as consumer:
        mq = (await producer.queues("t"))[1]
        async with consumer.stream(mq, 0) as stream, trio.open_nursery() as nursery:

            async def send() -> None:
                await wait_all_tasks_blocked(0.005)
                await producer.send(Message("t", b"late"), queue=mq)

            nursery.start_soon(send)
            with trio.fail_after(10):
                batch = await anext(stream)
        assert [message.body for message in batch] == [b"late"]
        assert stream.next_offset == 1


async def test_offsets_of_a_group(nameserver: str) -> None:
    async with Producer(nameserver) as producer:
        result = await producer.send(Message("t", b"x"))
    mq = result.queue
    async with PullConsumer(nameserver, group="g") as consumer:
        assert await consumer.committed_offset(mq) is None
        await consumer.commit_offset(mq, 1)
        (message,) = (await consumer.pull(mq, 0)).messages
        stored = message.store_timestamp
        assert await consumer.earliest_store_time(mq) == stored
        assert [await consumer.search_offset(mq, stored + step) for step in (-1, 0, 1)] == [0, 0, 1]
    async with PullConsumer(nameserver, group="g") as again, PullConsumer(nameserver, group="other") as other:
        assert await again.committed_offset(mq) == 1
        assert await other.committed_offset(mq) is None


async def test_offsets_that_do_not_exist(nameserver: str) -> None:
    async with Producer(nameserver) as producer, PullConsumer(nameserver) as consumer:
        mq = (await producer.send(Message("t", b"x"))).queue
        late = await consumer.pull(mq, 1000)
        assert (late.status, late.next_offset) == (PullStatus.OFFSET_ILLEGAL, 1)
        with pytest.raises(BrokerError, match="queueId"):
            await consumer.pull(mq._replace(queue_id=9), 0)


async def test_brokers_know_their_consumers(nameserver: str) -> None:
    async with Admin(nameserver) as admin:
        async with PullConsumer(nameserver, group="cg") as consumer:
            await consumer.pull((await consumer.message_queues("t"))[0], 0)
            with trio.fail_after(10):
                while not (found := await connections(admin, "cg")):
                    pass
            assert [client.language for client in found] == ["PYTHON"]
            info = await admin.consumer_running_info("cg", found[0].client_id)
            assert [each.topic for each in info.subscription_set] == ["t"]
        assert await connections(admin, "cg") == []
        async with PullConsumer(nameserver, group="quiet", heartbeat=False) as consumer:
            await consumer.pull((await consumer.message_queues("t"))[0], 0)
            await wait_all_tasks_blocked(0.005)
            assert await connections(admin, "quiet") == []


async def connections(admin: Admin, group: str) -> list[Connection]:
    try:
        return list((await admin.consumer_connection(group)).connection_set)
    except BrokerError as error:
        assert error.code == 206
        return []


async def test_threads(nameserver: str) -> None:
    def work() -> None:
        with blocking.Producer(nameserver) as producer, blocking.PullConsumer(nameserver) as consumer:
            producer.send_many("t", [b"a", b"b", b"c"])
            producer.send(Message("t", b"d"))
            found = []
            for mq in consumer.message_queues("t"):
                end = consumer.max_offset(mq)
                found += [message.body for message in consumer.messages(mq, 0, end)]
            assert sorted(found) == [b"a", b"b", b"c", b"d"]

    await trio.to_thread.run_sync(work)

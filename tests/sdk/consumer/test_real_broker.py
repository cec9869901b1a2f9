"""Consumers against a NameServer and a broker of ours, in this process, over real sockets."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from skylark import (
    Admin,
    Client,
    ConsumeFrom,
    ConsumeResult,
    Producer,
    PullConsumer,
    PullStatus,
    PushConsumer,
    blocking,
)
from skylark.mqcommon.errors import BrokerError, InvalidArgument
from skylark.mqcommon.message.message import Message, MessageExt, decode_messages
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.clients import Connection
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.support.in_process import servers, until_known
from tests.support.waiting import DEADLINE_S


@pytest.fixture
async def nameserver(tmp_path: Path) -> AsyncIterator[str]:
    """A cluster with topic ``t``: one broker, two queues."""
    async with servers(tmp_path, {"t": 2}, message_delay_level="1s") as made:
        yield made.nameserver


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
        assert (raw.status, raw.next_offset, raw.min_offset, raw.max_offset) == (PullStatus.FOUND, 1, 0, 1)
        assert (await consumer.pull_bytes(mq, 1)).data == b""


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
        none = await consumer.pull(mq, 1, max_count=1, expression="Aa")
        assert (none.status, none.messages, none.next_offset) == (PullStatus.NO_MATCHED_MESSAGE, [], 3)


async def test_a_stream_waits_for_what_comes(nameserver: str) -> None:
    async with Producer(nameserver) as producer, PullConsumer(nameserver) as consumer:
        mq = (await producer.queues("t"))[1]
        async with consumer.stream(mq, 0) as stream, trio.open_nursery() as nursery:

            async def send() -> None:
                await wait_all_tasks_blocked(0.005)
                await producer.send(Message("t", b"late"), queue=mq)

            nursery.start_soon(send)
            with trio.fail_after(DEADLINE_S):
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


@pytest.mark.parametrize(("namespace", "known_as"), [("", "t3"), ("north", "north%t3")])
async def test_the_offsets_of_all_queues_at_once(nameserver: str, namespace: str, known_as: str) -> None:
    async with (
        Admin(nameserver) as admin,
        Producer(nameserver, namespace=namespace) as producer,
        PullConsumer(nameserver, namespace=namespace) as consumer,
    ):
        (broker,) = (await admin.cluster_info()).broker_addr_table.values()
        await admin.create_topic(broker.broker_addrs[0], TopicConfig(known_as, 3, 3))
        await until_known(admin, known_as)
        queues = await consumer.message_queues("t3")
        for queue in (queues[1], queues[1], queues[2]):
            await producer.send(Message("t3", b"x"), queue=queue)
        found = await consumer.topic_offsets("t3", broker.broker_name)
        assert found == {queues[0]: (0, 0), queues[1]: (0, 2), queues[2]: (0, 1)}


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
            with trio.fail_after(DEADLINE_S):
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


async def test_assigned_queues_are_polled_committed_and_sought(nameserver: str) -> None:
    async with Producer(nameserver) as producer:
        await producer.send_many("t", [b"%d" % number for number in range(1000)])
        queues = await producer.queues("t")
        async with PullConsumer(nameserver, group="g", consume_from=ConsumeFrom.FIRST_OFFSET) as consumer:
            consumer.assign(queues)
            found = await polled(consumer, 700)
            positions = {mq: consumer.position(mq) for mq in consumer.assignment()}
            await consumer.commit()
        async with PullConsumer(nameserver, group="g") as consumer:
            consumer.assign(queues)
            rest = await polled(consumer, 1000 - len(found))
            assert sorted(int(message.body) for message in found + rest) == list(range(1000))
            assert all(message.queue_offset >= (positions[message.queue] or 0) for message in rest)
            await consumer.seek_to_begin(queues[0])
            assert consumer.position(queues[0]) == 0
            consumer.pause([queues[1]])
            (again,) = await polled(consumer, 1, most=1)
            assert (again.queue, again.queue_offset) == (queues[0], 0)
            await consumer.seek_to_time(queues[0], again.store_timestamp)
            assert consumer.position(queues[0]) == 0
            await consumer.seek_to_end(queues[0])
            consumer.resume(consumer.assignment())
            late = await producer.send(Message("t", b"late"), queue=queues[0])
            (message,) = await polled(consumer, 1)
            assert (message.body, message.queue_offset) == (b"late", late.queue_offset)
        async with PullConsumer(
            nameserver,
            group="late",
            consume_from=ConsumeFrom.TIMESTAMP,
            consume_timestamp_ms=message.store_timestamp + 60_000,
        ) as consumer:
            consumer.assign(queues)
            with trio.fail_after(DEADLINE_S):
                while consumer.position(queues[0]) is None:
                    assert await consumer.poll(timeout_ms=50) == []
            assert consumer.position(queues[0]) == late.queue_offset + 1
        async with PullConsumer(nameserver, group="new") as consumer:
            consumer.assign(queues)
            assert (await polled(consumer, 1))[0].queue_offset == 0, "the first message is still in memory"
        with pytest.raises(InvalidArgument, match="consume_timestamp_ms"):
            PullConsumer(nameserver, consume_from=ConsumeFrom.TIMESTAMP)


async def polled(consumer: PullConsumer, count: int, *, most: int = 100) -> list[MessageExt]:
    """Poll until at least ``count`` messages have come."""
    found: list[MessageExt] = []
    with trio.fail_after(DEADLINE_S):
        while len(found) < count:
            found += await consumer.poll(max_count=most)
    return found


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
            queues = consumer.message_queues("t")
            consumer.assign(queues)
            for mq in queues:
                consumer.seek_to_begin(mq)
            polled: list[bytes] = []
            while len(polled) < 4:
                polled += [message.body for message in consumer.poll(max_count=3)]
            assert sorted(polled) == sorted(found)
            assert [consumer.position(mq) for mq in queues] == [consumer.max_offset(mq) for mq in queues]
            consumer.commit()
            assert [consumer.committed_offset(mq) for mq in consumer.assignment()] == [
                consumer.max_offset(mq) for mq in queues
            ]

    await trio.to_thread.run_sync(work)


async def test_a_namespace_keeps_its_topics_and_groups_apart(nameserver: str) -> None:
    async with (
        Client(nameserver, namespace="prod") as client,
        Producer(client, group="shop") as producer,
        Producer(nameserver) as outside,
        PullConsumer(client, group="shop") as consumer,
        PullConsumer(nameserver, group="prod%shop", heartbeat=False) as whole,
        Admin(client) as admin,
    ):
        (addr,) = await admin.brokers_of_cluster("DefaultCluster")
        await admin.create_topic(addr, TopicConfig("t", 1, 1))
        assert (await admin.topic_config(addr, "t")).topic_name == "prod%t"
        await until_known(admin, "t")
        await outside.send(Message("t", b"outside"))
        result = await producer.send(Message("t", b"plain"))
        mq = MessageQueue("t", "broker-a", 0)
        assert result.queue == mq and await producer.queues("t") == (mq,)
        for send in (
            producer.send(Message("t", b"chosen"), queue=mq),
            producer.send(Message("t", b"selected"), selector=lambda queues, message: queues[0]),
            producer.send(Message("t", b"keyed", sharding_key="k")),
        ):
            assert (await send).queue == mq
        assert (await producer.send_many("t", [b"bulk", Message("t", b"bulk")]))[1].queue == mq
        assert await consumer.message_queues("t") == [mq]
        assert await consumer.max_offset(mq) == 6
        (first, *_) = (await consumer.pull(mq, 0)).messages
        assert (first.topic, first.queue, first.body) == ("t", mq, b"plain")
        consumer.assign([mq])
        await consumer.seek_to_begin(mq)
        assert [message.queue for message in await polled(consumer, 6)] == [mq] * 6
        await consumer.commit()
        assert await consumer.committed_offset(mq) == 6
        (raw, *_) = (await whole.pull(mq._replace(topic="prod%t"), 0)).messages
        assert raw.topic == "prod%t"
        assert await whole.committed_offset(raw.queue) == 6
        assert (await admin.query_by_unique_key("t", result.msg_id))[0].topic == "prod%t"
        assert list((await admin.consume_stats("shop")).offset_table) == [raw.queue]
        assert await connections(admin, "shop")


@pytest.mark.parametrize("fails", [False, True])
async def test_a_member_of_a_group_in_a_namespace(nameserver: str, fails: bool) -> None:
    topic, seen = f"pushed-{fails}".lower(), []
    done = trio.Event()

    def handle(message: MessageExt) -> ConsumeResult:
        seen.append((message.topic, message.queue.topic, message.reconsume_times))
        if fails and message.reconsume_times == 0:
            return ConsumeResult.LATER
        done.set()
        return ConsumeResult.SUCCESS

    async with Client(nameserver, namespace="dev") as client, Producer(client) as producer, Admin(client) as admin:
        (addr,) = await admin.brokers_of_cluster("DefaultCluster")
        await admin.create_topic(addr, TopicConfig(topic, 1, 1))
        await until_known(admin, topic)
        await producer.send(Message(topic, b"x"))
        async with PushConsumer(
            client, group="pushed", subscriptions={topic: "*"}, handler=handle, consume_from=ConsumeFrom.FIRST_OFFSET
        ) as consumer:
            with trio.fail_after(DEADLINE_S):
                await done.wait()
            assert MessageQueue(topic, "broker-a", 0) in consumer.queues
            await consumer.pause(topic)
            await consumer.unsubscribe(topic)
        groups = await admin.all_groups(addr)
    assert [each[0] for each in seen] == [topic] * (1 + fails)
    assert "dev%pushed" in groups.subscription_group_table

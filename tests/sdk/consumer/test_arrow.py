"""Queues as record batches, and handlers that take some, in trio, threads and asyncio; the broker is real."""

import asyncio
import queue
import sys
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
import trio

import skylark.aio
from skylark import Admin, ConsumeFrom, ConsumeResult, LightMessage, Producer, PullConsumer, PushConsumer, blocking
from skylark.mqcommon.errors import InvalidArgument, ProtocolError, UserError
from skylark.mqcommon.message.message import Message, decode_messages
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.sdk.arrow import decode
from skylark.sdk.arrow.schema import COLUMNS, USUAL
from tests.sdk.consumer.push_cluster import push_cluster
from tests.sdk.consumer.test_light_queues import ON
from tests.sdk.consumer.test_workers import Scripted
from tests.sdk.fakes import FakeBroker, FakeNamesrv, record, serving, until
from tests.sdk.fakes import queue as fake_queue
from tests.support.in_process import Servers, until_known

FIRST = ConsumeFrom.FIRST_OFFSET
ONE = {"one": "*"}


async def batches(consumer: PullConsumer, mq: MessageQueue, start: int, end: int, **others: Any) -> list[Any]:
    async with consumer.arrow(mq, start, end, **others) as stream:
        found = [batch async for batch in stream]
        assert stream.next_offset == end
    return found


async def rows(consumer: PullConsumer, mq: MessageQueue, start: int, end: int, **others: Any) -> list[dict[str, Any]]:
    return [row for batch in await batches(consumer, mq, start, end, **others) for row in batch.to_pylist()]


async def make_topic(cluster: Servers, topic: str) -> None:
    async with Admin(cluster.nameserver) as admin:
        await admin.create_topic(cluster.broker, TopicConfig(topic, 1, 1))
        await until_known(admin, topic)


async def send_three(producer: Producer) -> MessageQueue:
    """Three messages to the one queue of topic ``one``."""
    (mq,) = await producer.queues("one")
    table = pa.table({"body": ["a", "b", "c"], "tags": ["Aa", None, "BB"], "keys": [["k", "l"], None, ["m"]]})
    await producer.send_arrow("one", table, tags="tags", keys="keys")
    return mq


async def test_what_a_table_held_is_read(cluster: Servers) -> None:
    async with Producer(cluster.nameserver) as producer, PullConsumer(cluster.nameserver) as consumer:
        mq = await send_three(producer)
        (batch,) = await batches(consumer, mq, 0, 3)
        assert tuple(batch.schema.names) == USUAL
        plain = [message async for message in consumer.messages(mq, 0, 3)]
        assert batch.column("body").to_pylist() == [b"a", b"b", b"c"]
        assert batch.column("tags").to_pylist() == ["Aa", None, "BB"]
        assert batch.column("keys").to_pylist() == ["k l", None, "m"]
        assert batch.column("msgId").to_pylist() == [message.msg_id for message in plain]
        assert set(batch.column("brokerName").to_pylist()) == {"broker-a"}
        (all_columns,) = await batches(consumer, mq, 0, 3, columns=list(COLUMNS))
        properties = [dict(each) for each in all_columns.column("properties").to_pylist()]
        assert properties == [message.properties for message in plain]


async def test_a_copy_of_what_was_read(cluster: Servers) -> None:
    async with Producer(cluster.nameserver) as producer, PullConsumer(cluster.nameserver) as consumer:
        mq = await send_three(producer)
        (batch,) = await batches(consumer, mq, 0, 3, columns=["body", "tags", "keys", "properties", "flag"])
        copied = await producer.send_arrow("one", batch, tags="tags", keys="keys", properties="properties", flag="flag")
        (again,) = await batches(consumer, mq, 3, 6, columns=["msgId", "body", "tags", "keys"])
        assert again.column("msgId").to_pylist() == [result.msg_id for result in copied]
        assert again.drop_columns(["msgId"]).equals(batch.select(["body", "tags", "keys"]))


async def test_from_where_to_where(cluster: Servers) -> None:
    async with Producer(cluster.nameserver) as producer, PullConsumer(cluster.nameserver) as consumer:
        sent = [b"%d" % number for number in range(50)]
        (mq,) = await producer.queues("one")
        await producer.send_arrow("one", pa.table({"body": sent}))
        for start, end, most in ((0, 50, 7), (3, 20, 100), (49, 50, 1), (10, 10, 5)):
            found = await batches(consumer, mq, start, end, columns=["body", "queueOffset"], max_count=most)
            assert all(0 < batch.num_rows <= most for batch in found)
            table = pa.Table.from_batches(found, pa.schema([(name, COLUMNS[name]) for name in ("body", "queueOffset")]))
            assert table.column("body").to_pylist() == sent[start:end]
            assert table.column("queueOffset").to_pylist() == list(range(start, end))


async def test_compressed_bodies(cluster: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when one batch cannot hold all of a pull: the others are pulled again."""
    sent = [b"%d" % number * 2_000 for number in range(9)]
    async with (
        Producer(cluster.nameserver, compression="zlib", compress_over_bytes=100) as producer,
        PullConsumer(cluster.nameserver) as consumer,
    ):
        (mq,) = await producer.queues("one")
        for body in sent:
            await producer.send(Message("one", body), queue=mq)
        for most, most_rows in ((1 << 20, 9), (5_000, 2), (1, 1)):
            monkeypatch.setattr(decode, "CONTENT_BYTES", most)
            found = await batches(consumer, mq, 0, 9, columns=["body"])
            assert [row["body"] for batch in found for row in batch.to_pylist()] == sent
            assert max(batch.num_rows for batch in found) == most_rows


async def test_names_of_a_namespace_are_not_shown(cluster: Servers) -> None:
    await make_topic(cluster, "prod%new")
    async with (
        Producer(cluster.nameserver, namespace="prod") as producer,
        PullConsumer(cluster.nameserver, namespace="prod") as consumer,
    ):
        results = await producer.send_arrow("new", pa.table({"body": ["x"]}))
        found = await rows(consumer, results[0].queue, 0, 1, columns=["body", "topic"])
        assert found == [{"body": b"x", "topic": "new"}]


async def test_a_light_queue(tmp_path: Path) -> None:
    async with (
        push_cluster(tmp_path, **ON) as cluster,
        Producer(cluster.nameserver) as producer,
        PullConsumer(cluster.nameserver) as consumer,
    ):
        await producer.send(Message("one", b"first"))
        sent = await producer.send(LightMessage("one", b"x", light_queues=["ada"]))
        mq = MessageQueue("%LMQ%ada", sent.queue.broker_name, 0)
        found = await rows(consumer, mq, 0, 1, columns=["body", "queueId", "queueOffset"])
        assert found == [{"body": b"x", "queueId": 0, "queueOffset": 0}]


async def test_damage_is_an_error_and_names_the_queue() -> None:
    names, broker = FakeNamesrv(), FakeBroker()
    async with serving(names), serving(broker):
        names.add("t", broker)
        broker.put("t", 0, b"a", b"b")
        async with PullConsumer(names.addr, heartbeat=False) as consumer:
            assert [row["body"] for row in await rows(consumer, fake_queue(), 0, 2)] == [b"a", b"b"]
            kept = broker.queues["t", 0]
            kept[1] = kept[1][:5] + b"?" + kept[1][6:]
            with pytest.raises(ProtocolError, match=r"topic='t'.* a pull at offset 0 .* record 1 at byte"):
                await batches(consumer, fake_queue(), 0, 2)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"columns": ["text"]}, r"columns\[0\] is 'text'"),
        ({"columns": "body"}, "columns must be a sequence of str"),
        ({"expression": 5}, "expression"),
        ({"max_count": 0}, "max_count"),
    ],
)
async def test_arguments(cluster: Servers, wrong: dict[str, Any], said: str) -> None:
    async with PullConsumer(cluster.nameserver, heartbeat=False) as consumer:
        (mq,) = await consumer.message_queues("one")
        with pytest.raises((TypeError, ValueError), match=said):
            consumer.arrow(mq, 0, **wrong)


async def test_a_missing_package_is_named(cluster: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    async with PullConsumer(cluster.nameserver, heartbeat=False) as consumer:
        (mq,) = await consumer.message_queues("one")
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(UserError, match=r"PullConsumer.arrow needs .*extra arrow \(.*pyarrow"):
            consumer.arrow(mq, 0)
    with pytest.raises(UserError, match=r"arrow_handler needs .*extra arrow \(.*pyarrow"):
        PushConsumer(cluster.nameserver, group="g", subscriptions=ONE, arrow_handler=print)


# --- handlers


async def test_a_handler_takes_record_batches(cluster: Servers) -> None:
    taken: list[Any] = []
    async with (
        Producer(cluster.nameserver) as producer,
        PushConsumer(
            cluster.nameserver,
            group="g",
            subscriptions=ONE,
            arrow_handler=taken.append,
            arrow_columns=["body", "queueOffset"],
            batch_size=1_000,
            consume_from=FIRST,
        ) as consumer,
    ):
        sent = [b"%d" % number for number in range(2_500)]
        (mq,) = await producer.queues("one")
        await producer.send_arrow("one", pa.table({"body": sent}), queue=mq)
        await until(lambda: consumer.consumed == 2_500)
        table = pa.Table.from_batches(taken)
        assert table.column("body").to_pylist() == sent
        assert table.column("queueOffset").to_pylist() == list(range(2_500))
        assert max(batch.num_rows for batch in taken) <= 1_000 and consumer.failed == 0


async def test_a_batch_that_failed_comes_again_with_its_own_topic(cluster: Servers) -> None:
    taken: list[list[dict[str, Any]]] = []

    async def handle(batch: Any) -> ConsumeResult:
        taken.append(batch.to_pylist())
        return ConsumeResult.LATER if taken[-1][0]["reconsumeTimes"] == 0 else ConsumeResult.SUCCESS

    async with (
        Producer(cluster.nameserver) as producer,
        PushConsumer(
            cluster.nameserver,
            group="again",
            subscriptions=ONE,
            arrow_handler=handle,
            batch_size=100,
            consume_from=FIRST,
        ) as consumer,
    ):
        await send_three(producer)
        await until(lambda: consumer.consumed == 3)
        again = [row for batch in taken for row in batch if row["reconsumeTimes"]]
        assert sorted(row["body"] for row in again) == [b"a", b"b", b"c"]
        assert {(row["topic"], row["reconsumeTimes"]) for row in again} == {("one", 1)}


async def test_an_orderly_handler_and_a_namespace(cluster: Servers) -> None:
    taken: list[dict[str, Any]] = []
    await make_topic(cluster, "prod%new")

    def handle(batch: Any) -> None:
        taken.extend(batch.to_pylist())
        if len(taken) == 3:
            raise RuntimeError("the handler of this test fails once")

    async with (
        Producer(cluster.nameserver, namespace="prod") as producer,
        PushConsumer(
            cluster.nameserver,
            group="orderly",
            subscriptions={"new": "*"},
            arrow_handler=handle,
            arrow_columns=["body", "topic", "reconsumeTimes"],
            orderly=True,
            suspend_ms=1,
            namespace="prod",
            consume_from=FIRST,
        ) as consumer,
    ):
        (first, *_) = await producer.send_arrow("new", pa.table({"body": ["x"]}))
        await until(lambda: consumer.consumed == 1)
        await producer.send_arrow("new", pa.table({"body": ["y", "z"]}), queue=first.queue)
        await until(lambda: consumer.consumed == 3)
    assert [(row["body"], row["topic"], row["reconsumeTimes"]) for row in taken] == [
        (b"x", "new", 0), (b"y", "new", 0), (b"z", "new", 0), (b"y", "new", 1), (b"z", "new", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({"batch_handler": print}, "not both"),
        ({"handler": print}, "not both"),
        ({"arrow_columns": ["text"]}, r"columns\[0\] is 'text'"),
        ({"arrow_handler": None, "handler": print, "arrow_columns": ["body"]}, "which is not given"),
    ],
)
def test_arguments_of_handlers(others: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"arrow_handler": print, **others}
    with pytest.raises(InvalidArgument, match=said):
        PushConsumer("127.0.0.1:1", group="g", subscriptions=ONE, **given)


# --- threads and asyncio


def test_a_traced_handler_that_is_given_again_gets_record_batches_again() -> None:
    handlers = Scripted()
    for _ in range(2):
        PushConsumer("127.0.0.1:1", group="g", subscriptions=ONE, arrow_handler=cast(Any, handlers), trace=True)
    taken: list[Any] = []
    handlers.plain.plain = taken.append  # type: ignore[attr-defined]
    handlers.handler(decode_messages(record("t", 0, 0, b"x")))
    assert [batch.column("body").to_pylist() for batch in taken] == [[b"x"]]


async def test_in_threads(cluster: Servers) -> None:
    def use() -> None:
        taken: queue.Queue[Any] = queue.Queue()
        with (
            blocking.Client(cluster.nameserver) as client,
            blocking.Producer(client) as producer,
            blocking.PullConsumer(client, group="reader") as consumer,
            blocking.PushConsumer(
                client, group="g", subscriptions=ONE, arrow_handler=taken.put, batch_size=10, consume_from=FIRST
            ),
        ):
            assert len(producer.send_arrow("one", pa.table({"body": ["a", "b"]}))) == 2
            (mq,) = consumer.message_queues("one")
            assert [batch.column("body").to_pylist() for batch in consumer.arrow(mq, 0, 2)] == [[b"a", b"b"]]
            bodies: list[bytes] = []
            while len(bodies) < 2:
                bodies += taken.get(timeout=60).column("body").to_pylist()
            assert bodies == [b"a", b"b"]

    await trio.to_thread.run_sync(use)


async def test_in_asyncio(cluster: Servers) -> None:
    async def use() -> None:
        taken: asyncio.Queue[Any] = asyncio.Queue()
        async with (
            skylark.aio.Client(cluster.nameserver) as client,
            skylark.aio.Producer(client) as producer,
            skylark.aio.PullConsumer(client, group="reader") as consumer,
            skylark.aio.PushConsumer(
                client, group="g", subscriptions=ONE, arrow_handler=taken.put, batch_size=10, consume_from=FIRST
            ),
        ):
            assert len(await producer.send_arrow("one", pa.table({"body": ["a", "b"]}))) == 2
            (mq,) = await consumer.message_queues("one")
            async with consumer.arrow(mq, 0, 2, columns=["body"]) as stream:
                assert [batch.to_pylist() async for batch in stream] == [[{"body": b"a"}, {"body": b"b"}]]
                assert stream.next_offset == 2
            bodies: list[bytes] = []
            while len(bodies) < 2:
                bodies += (await asyncio.wait_for(taken.get(), 60)).column("body").to_pylist()
            assert bodies == [b"a", b"b"]

    await trio.to_thread.run_sync(lambda: asyncio.run(use()))

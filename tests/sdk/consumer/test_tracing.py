"""What producers and consumers of all kinds write to the trace topic of a broker of ours."""

import logging
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from skylark import (  # fmt: skip
    Admin,
    Client,
    ConsumeFrom,
    ConsumeResult,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
    blocking,
)
from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.message.message import Message, MessageExt, decode_messages
from skylark.sdk.consumer.slow_handlers import name_of
from skylark.sdk.consumer.tracing import Tracing
from skylark.sdk.traces.entries import Consumed, Consuming, Entry
from skylark.sdk.traces.records import Step, decode_records, timeline
from skylark.sdk.traces.traces import Traces
from tests.sdk.consumer.push_cluster import push_cluster
from tests.sdk.consumer.test_workers import Scripted, settings_of
from tests.sdk.fakes import record, until
from tests.support.in_process import Servers
from tests.support.waiting import DEADLINE_S


async def steps_of(cluster: Servers, msg_id: str, count: int, topic: str = "RMQ_SYS_TRACE_TOPIC") -> list[Step]:
    """The steps of a message, as soon as there are ``count``: the index follows the log."""
    async with Admin(cluster.nameserver) as admin:
        while True:
            try:
                found = await admin.query_message_by_key(topic, msg_id)
            except SkylarkError:
                found = []  # the topic is not known yet
            records = [(record, each.born_host) for each in found for record in decode_records(each.body.decode())]
            steps = timeline(msg_id, records)
            if len(steps) >= count:
                return steps
            await trio.lowlevel.checkpoint()


def subscribed(cluster: Servers | Client, **others: Any) -> PushConsumer:
    at = cluster if isinstance(cluster, Client) else cluster.nameserver
    return PushConsumer(
        at, group="g", subscriptions={"t": "*"}, consume_from=ConsumeFrom.FIRST_OFFSET, trace=True, **others
    )


async def test_from_a_producer_to_a_handler_that_fails_first(cluster: Servers) -> None:
    failed = False

    async def handle(message: MessageExt) -> ConsumeResult:
        nonlocal failed
        if not failed:
            failed = True
            raise ValueError("not today")
        return ConsumeResult.SUCCESS

    async with Producer(cluster.nameserver, group="p", trace=True) as producer:
        sent = await producer.send(Message("t", b"one", tags="tea", keys="k1"))
    async with subscribed(cluster, handler=handle) as consumer:
        await until(lambda: consumer.consumed == 1)
    pub, first, second = await steps_of(cluster, sent.msg_id, 3)
    assert (pub.kind, pub.group, pub.status) == ("Pub", "p", "success")
    assert (pub.record.topic, pub.record.tags, pub.record.keys, pub.record.body_length) == ("t", "tea", "k1", 3)
    assert (pub.record.store_host, pub.record.offset_msg_id) == (cluster.broker, sent.offset_msg_id)
    assert (first.kind, first.group, first.status) == ("Sub", "g", "failed (EXCEPTION)")
    assert (second.kind, second.group, second.status) == ("Sub", "g", "success")
    assert consumer.traces_dropped == producer.traces_dropped == 0


async def test_the_size_is_that_of_the_content(cluster: Servers) -> None:
    async with Producer(cluster.nameserver, trace=True, compression="zlib") as producer:
        sent = await producer.send(Message("t", b"x" * 5_000))
    (pub,) = await steps_of(cluster, sent.msg_id, 1)
    assert pub.record.body_length == 5_000


async def test_batches_streams_and_orderly_handlers(cluster: Servers) -> None:
    def handle_batch(messages: list[MessageExt]) -> None:
        pass

    def handle(message: MessageExt) -> None:
        pass

    async with Client(cluster.nameserver) as client, Producer(client, trace=True) as producer:
        batch = await producer.send_many("t", [b"one", b"two"])
        async with subscribed(client, batch_handler=handle_batch) as consumer:
            await until(lambda: consumer.consumed == 2)
        one = await producer.send(Message("t", b"three"))
        async with subscribed(client) as consumer:
            message = await anext(consumer)
            await message.ack()
        two = await producer.send(Message("t", b"four"))
        async with subscribed(client, handler=handle, orderly=True) as consumer:
            await until(lambda: consumer.consumed == 1)
    for msg_id in (batch[0].msg_id, batch[1].msg_id, one.msg_id, two.msg_id):
        steps = await steps_of(cluster, msg_id, 2)
        assert [(step.kind, step.status) for step in steps] == [("Pub", "success"), ("Sub", "success")]


class NotedEntries:
    """Traces that only note."""

    topic = "RMQ_SYS_TRACE_TOPIC"
    group = "g"

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.note = self.entries.append


def test_handlers_that_are_given_again_note_their_calls_in_the_new_trace_only() -> None:
    parents, childs = NotedEntries(), NotedEntries()
    handlers = Scripted()
    for traces in (parents, childs):
        Tracing(cast(Traces, traces), lambda: "client").traced(settings_of(handlers))
    (message,) = decode_messages(record("t", 0, 0, b"x"))
    handlers.handler(message)
    assert [type(entry) for entry in childs.entries] == [Consuming, Consumed] and not parents.entries


def test_a_traced_handler_keeps_its_name() -> None:
    def handle(_: object) -> None: ...

    settings = Tracing(cast(Traces, NotedEntries()), lambda: "client").traced(settings_of(handle))
    assert name_of(settings.handler) == f"{test_a_traced_handler_keeps_its_name.__name__}.<locals>.handle"


async def test_pulls_and_polls_in_a_topic_of_ones_own_and_a_namespace(cluster: Servers) -> None:
    async with (
        Client(cluster.nameserver, namespace="ns") as client,
        Producer(client, trace_topic="mine") as producer,
        PullConsumer(client, group="r", trace_topic="mine", consume_from=ConsumeFrom.FIRST_OFFSET) as consumer,
    ):
        sent = await producer.send(Message("t", b"one"))
        queue = sent.queue
        (pulled,) = (await consumer.pull(queue, 0)).messages
        consumer.assign([queue])
        (polled,) = await consumer.poll()
        assert pulled.msg_id == polled.msg_id == sent.msg_id
    pub, *subs = await steps_of(cluster, sent.msg_id, 3, "ns%mine")
    assert (pub.kind, pub.record.topic, pub.group) == ("Pub", "t", "DEFAULT_PRODUCER")
    assert [(step.kind, step.group, step.status) for step in subs] == [("Sub", "r", "success")] * 2


async def test_a_reader_of_the_trace_is_not_traced(cluster: Servers) -> None:
    async with Producer(cluster.nameserver, trace=True) as producer:
        sent = await producer.send(Message("t", b"one"))
    await steps_of(cluster, sent.msg_id, 1)
    async with PullConsumer(cluster.nameserver, trace=True) as consumer:
        (queue,) = [mq for mq in await consumer.message_queues("RMQ_SYS_TRACE_TOPIC") if mq.queue_id == 0]
        total = sum([await consumer.max_offset(mq) for mq in await consumer.message_queues(queue.topic)])
        for mq in await consumer.message_queues(queue.topic):
            await consumer.pull(mq, 0)
    async with PullConsumer(cluster.nameserver) as consumer:
        assert sum([await consumer.max_offset(mq) for mq in await consumer.message_queues(queue.topic)]) == total == 1


async def test_handlers_in_threads(cluster: Servers) -> None:
    async with Producer(cluster.nameserver, trace=True) as producer:
        sent = [await producer.send(Message("t", b"one")) for _ in range(5)]

    def consume() -> None:
        got: list[str] = []
        all_here = threading.Event()

        def handle(message: MessageExt) -> None:
            got.append(message.msg_id)
            if len(got) == 5:
                all_here.set()

        with blocking.PushConsumer(
            cluster.nameserver, group="g", subscriptions={"t": "*"}, consume_from=ConsumeFrom.FIRST_OFFSET,
            handler=handle, trace=True,
        ):  # fmt: skip
            assert all_here.wait(DEADLINE_S)

    await trio.to_thread.run_sync(consume)
    for each in sent:
        assert [step.status for step in await steps_of(cluster, each.msg_id, 2)] == ["success", "success"]


async def test_a_broker_that_wants_no_trace(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with push_cluster(tmp_path, trace_on=False, auto_create_topic_enable=False) as cluster:
        with caplog.at_level(logging.WARNING, "skylark.sdk.traces"):
            async with Producer(cluster.nameserver, trace=True) as producer:
                await producer.send(Message("t", b"one"))
                async with subscribed(cluster, handler=lambda message: None) as consumer:
                    await until(lambda: consumer.consumed == 1)
    assert (producer.traces_dropped, consumer.traces_dropped) == (0, 0)
    assert [record for record in caplog.records if record.name == "skylark.sdk.traces.traces"] == []


async def test_without_a_trace_topic_messages_are_sent_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        push_cluster(tmp_path, auto_create_topic_enable=False) as cluster,
        Producer(cluster.nameserver, trace=True) as producer,
    ):
        await producer.send(Message("t", b"one"))
        await producer.send(Message("t", b"two"))
    assert producer.traces_dropped == 2
    (record,) = [record for record in caplog.records if record.name == "skylark.sdk.traces.traces"]
    assert "RMQ_SYS_TRACE_TOPIC" in record.getMessage()


async def test_the_end_of_a_transaction_by_its_producer_and_by_the_checker(tmp_path: Path) -> None:
    timing = {"transaction_time_out": 100, "transaction_check_interval": 100}
    async with push_cluster(tmp_path, **timing) as cluster:
        async with TransactionProducer(
            cluster.nameserver, group="p", checker=lambda message: TransactionState.ROLLBACK, trace=True
        ) as producer:
            async with producer.transaction(Message("t", b"one", tags="tea", keys="k1")) as committed:
                pass
            async with producer.transaction(Message("t", b"two")) as left_open:
                left_open.leave_open()
            half, end = await steps_of(cluster, committed.transaction_id, 2)
            _, asked = await steps_of(cluster, left_open.transaction_id, 2)
            assert producer.traces_dropped == 0
        assert (half.kind, half.record.message_type) == ("Pub", "Trans_Msg_Half")
        assert (end.kind, end.group, end.status) == ("EndTransaction", "p", "COMMIT_MESSAGE")
        record = end.record
        assert (record.topic, record.tags, record.keys, record.from_check) == ("t", "tea", "k1", False)
        assert (record.store_host, record.transaction_id) == (cluster.broker, committed.transaction_id)
        assert (asked.kind, asked.status, asked.record.from_check) == ("EndTransaction", "ROLLBACK_MESSAGE", True)


async def test_a_recall(cluster: Servers) -> None:
    async with Producer(cluster.nameserver, group="p", trace=True) as producer:
        sent = await producer.send(Message("t", b"later"), delay=timedelta(hours=1))
        assert sent.recall_handle is not None
        assert await producer.recall("t", sent.recall_handle) == sent.msg_id
    _, recalled = await steps_of(cluster, sent.msg_id, 2)
    assert (recalled.kind, recalled.group, recalled.status) == ("Recall", "p", "success")
    assert recalled.record.topic == "t"

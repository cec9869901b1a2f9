"""Transactions through a cluster in this process: blocks, checks, lost connections, other styles."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import pytest
import trio

from skylark import (
    Client,
    InvalidArgument,
    Message,
    MessageExt,
    MessageQueue,
    PullConsumer,
    SendFailed,
    TransactionProducer,
    TransactionState,
)
from skylark.sdk.aio import TransactionProducer as AioProducer
from skylark.sdk.blocking import TransactionProducer as BlockingProducer
from skylark.sdk.testing import Cluster
from tests.support.waiting import DEADLINE_S, until, until_true

OPTIONS = {"transactionTimeOut": 100, "transactionCheckInterval": 100, "transactionCheckMax": 10_000}
TOPIC = "orders"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(options=OPTIONS) as made:
        made.create_topic(TOPIC)
        yield made


async def bodies(cluster: Cluster) -> list[bytes]:
    """All that consumers can see."""
    found = []
    async with PullConsumer(cluster.nameserver, group="reader", timeout_ms=60_000) as consumer:
        for queue in await consumer.message_queues(TOPIC):
            offset = 0
            while messages := (await consumer.pull(queue, offset)).messages:
                found += [message.body for message in messages]
                offset = messages[-1].queue_offset + 1
    return sorted(found)


async def until_seen(cluster: Cluster, wanted: list[bytes]) -> None:
    async def seen() -> bool:
        return await bodies(cluster) == wanted

    await until(seen, f"consumers see {wanted}")


def never(message: MessageExt) -> TransactionState:
    return TransactionState.UNKNOWN


async def test_a_block_commits_and_rolls_back(cluster: Cluster) -> None:
    async with TransactionProducer(cluster.nameserver, group="g", checker=never) as producer:
        async with producer.transaction(Message(TOPIC, b"committed", tags="a")) as transaction:
            assert transaction.result.queue.topic == TOPIC
            assert await bodies(cluster) == []
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction(Message(TOPIC, b"failed")):
                raise ZeroDivisionError
        async with producer.transaction(Message(TOPIC, b"rolled back")) as transaction:
            transaction.rollback()
        done = await producer.send_in_transaction(Message(TOPIC, b"local"), lambda message: TransactionState.COMMIT)
        assert done.state is TransactionState.COMMIT

        async def rolls_back(message: Message) -> TransactionState:
            await trio.lowlevel.checkpoint()
            return TransactionState.ROLLBACK

        await producer.send_in_transaction(Message(TOPIC, b"not local"), rolls_back)
        await until_seen(cluster, [b"committed", b"local"])


async def test_the_checker_decides_what_was_left_open(cluster: Cluster) -> None:
    asked: list[tuple[str, bytes, str]] = []
    states = {b"yes": TransactionState.COMMIT, b"no": TransactionState.ROLLBACK}

    async def check(message: MessageExt) -> TransactionState:
        asked.append((message.topic, message.body, message.msg_id))
        if len(asked) == 1:
            raise ZeroDivisionError
        return states[message.body]

    async with (
        Client(cluster.nameserver, namespace="shop") as client,
        TransactionProducer(client, group="g", checker=check, namespace="shop") as producer,
    ):
        for body in (b"yes", b"no"):
            async with producer.transaction(Message("hats", body)) as transaction:
                transaction.leave_open()
        with trio.CancelScope() as scope:
            async with producer.transaction(Message("hats", b"yes")) as cancelled:
                scope.cancel()
                await trio.sleep_forever()
        assert cancelled.state is TransactionState.UNKNOWN
        await until(lambda: len({key for _, _, key in asked}) == 3 and len(asked) >= 4, "all were asked about")
        assert {topic for topic, _, _ in asked} == {"hats"}
        async with PullConsumer(client, group="reader", namespace="shop") as consumer:

            async def committed() -> bool:
                seen = 0
                for queue in await consumer.message_queues("hats"):
                    messages = (await consumer.pull(queue, 0)).messages
                    assert {message.body for message in messages} <= {b"yes"}
                    seen += len(messages)
                return seen == 2

            await until(committed, "both were committed")


async def test_no_checker_is_asked_about_a_block_that_runs(cluster: Cluster) -> None:
    asked: list[bytes] = []

    def check(message: MessageExt) -> TransactionState:
        asked.append(message.body)
        return TransactionState.UNKNOWN if message.body == b"steps" else TransactionState.ROLLBACK

    async with TransactionProducer(cluster.nameserver, group="g", checker=check) as producer:
        async with (
            producer.transaction(Message(TOPIC, b"slow")),
            producer.transaction(Message(TOPIC, b"decided")) as decided,
            producer.transaction(Message(TOPIC, b"left open")) as left_open,
        ):
            decided.commit()
            left_open.leave_open()
            steps = await producer.begin(Message(TOPIC, b"steps"))
            # A round of checks takes halves in their order: in the second round all checkers of the first have run.
            await until(lambda: asked.count(b"steps") > 1, "a broker has asked twice")
            assert steps.state is None and set(asked) == {b"steps"}
        await until_seen(cluster, [b"decided", b"slow"])
        await until(lambda: b"left open" in asked, "a broker has asked after the block")


async def test_another_member_is_asked_after_a_producers_death(cluster: Cluster) -> None:
    async with TransactionProducer(cluster.nameserver, group="g") as dead:
        await dead.begin(Message(TOPIC, b"orphan"))
    asked = []

    def check(message: MessageExt) -> TransactionState:
        asked.append(message.body)
        return TransactionState.COMMIT

    async with TransactionProducer(cluster.nameserver, group="g", checker=check, topics=[TOPIC]):
        await until_seen(cluster, [b"orphan"])
    assert set(asked) == {b"orphan"}


async def test_an_end_that_is_lost_with_the_broker_is_asked_for(cluster: Cluster) -> None:
    def check(message: MessageExt) -> TransactionState:
        return TransactionState.COMMIT if message.body == b"yes" else TransactionState.ROLLBACK

    (broker,) = cluster.brokers
    async with TransactionProducer(cluster.nameserver, group="g", checker=check, topics=[TOPIC]) as producer:
        for body in (b"yes", b"no"):
            with suppress(ZeroDivisionError):
                async with producer.transaction(Message(TOPIC, body)):
                    await trio.to_thread.run_sync(broker.kill)
                    if body == b"no":
                        raise ZeroDivisionError
            await trio.to_thread.run_sync(broker.start)
        async with producer.transaction(Message(TOPIC, b"yes")):
            pass
        await until_seen(cluster, [b"yes", b"yes"])


async def test_a_half_that_is_not_stored_runs_no_block() -> None:
    with Cluster(options={"rejectTransactionMessage": True}) as cluster:
        cluster.create_topic(TOPIC)
        async with TransactionProducer(cluster.nameserver, group="g") as producer:
            with pytest.raises(SendFailed, match="sending transaction message is forbidden"):
                async with producer.transaction(Message(TOPIC, b"one")):
                    pytest.fail("the block runs")


async def test_one_checker_for_a_group_of_a_client() -> None:
    async with (
        Client("127.0.0.1:9876") as client,
        TransactionProducer(client, group="g", checker=never, start_timeout_ms=None),
    ):
        with pytest.raises(InvalidArgument, match="'g' with a checker"):
            async with TransactionProducer(client, group="g", checker=never, start_timeout_ms=None):
                pass
        async with TransactionProducer(client, group="g", start_timeout_ms=None):
            pass


async def test_messages_without_a_transaction_are_sent_as_by_any_producer(cluster: Cluster) -> None:
    async with TransactionProducer(cluster.nameserver, group="g", checker=never) as producer:
        queues = await producer.queues(TOPIC)
        result = await producer.send(Message(TOPIC, b"one"), queue=queues[-1])
        assert result.queue == queues[-1]
        await producer.send_many(TOPIC, [b"three", b"two"])
        assert await bodies(cluster) == [b"one", b"three", b"two"]
        with pytest.raises(InvalidArgument, match="topic 'orders'"):
            await producer.send(Message(TOPIC, b"x"), queue=MessageQueue("other", "broker-a", 0))
        async with producer.transaction(Message(TOPIC, b"kept")) as transaction:
            assert b"kept" not in await bodies(cluster)
            transaction.rollback()


def test_the_blocking_producer(cluster: Cluster) -> None:
    asked: list[bytes] = []

    def check(message: MessageExt) -> TransactionState:
        asked.append(message.body)
        return TransactionState.ROLLBACK if message.body == b"two" else TransactionState.COMMIT

    with BlockingProducer(cluster.nameserver, group="g", checker=check) as producer:
        with pytest.raises(ZeroDivisionError), producer.transaction(Message(TOPIC, b"two")):
            with producer.transaction(Message(TOPIC, b"three")) as transaction:
                transaction.leave_open()
            until_true(lambda: b"three" in asked, "a broker has asked")
            assert b"two" not in asked
            raise ZeroDivisionError
        with producer.transaction(Message(TOPIC, b"one")):
            pass
        done = producer.send_in_transaction(Message(TOPIC, b"four"), lambda message: TransactionState.COMMIT)
        assert done.state is TransactionState.COMMIT
        producer.send(Message(TOPIC, b"five"))
        trio.run(until_seen, cluster, [b"five", b"four", b"one", b"three"])


def test_the_asyncio_producer(cluster: Cluster) -> None:
    asked: list[bytes] = []
    has_asked = asyncio.Event()

    async def check(message: MessageExt) -> TransactionState:
        asked.append(message.body)
        has_asked.set()
        return TransactionState.ROLLBACK if message.body == b"two" else TransactionState.COMMIT

    async def local(message: Message) -> TransactionState:
        return TransactionState.COMMIT

    async def run() -> None:
        async with AioProducer(cluster.nameserver, group="g", checker=check) as producer:
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction(Message(TOPIC, b"two")):
                    async with producer.transaction(Message(TOPIC, b"three")) as transaction:
                        transaction.leave_open()
                    await asyncio.wait_for(has_asked.wait(), DEADLINE_S)
                    assert b"two" not in asked
                    raise ZeroDivisionError
            async with producer.transaction(Message(TOPIC, b"one")):
                pass
            await producer.send_in_transaction(Message(TOPIC, b"four"), local)
            await producer.send(Message(TOPIC, b"five"))
            await asyncio.to_thread(trio.run, until_seen, cluster, [b"five", b"four", b"one", b"three"])

    asyncio.run(run())

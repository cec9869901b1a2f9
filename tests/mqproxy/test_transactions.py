"""Transactions of the official producers: their ends, and the questions of brokers about those that stay open."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import grpc
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from skylark import Admin
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.transactions import TransactionProducers
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.sdk.testing import Cluster, cluster_fixture
from tests.mqproxy.test_producer import Got, read
from tests.support.proxies import Proxy, Telling, call, message, proxy, started
from tests.support.waiting import until

# Open transactions are asked about soon.
OPTIONS = {"transactionTimeOut": 300, "transactionCheckInterval": 300, "transactionCheckMax": 10_000}
cluster = cluster_fixture(scope="module", options=OPTIONS)


@pytest.fixture
def transact(served: Proxy, language: str) -> Callable[..., Any]:
    """Begins the program of a producer."""

    def begin(topic: str, messages: list[dict[str, str]], **answers: str) -> Any:
        return started("transact", served.address, language=language, topic=topic, messages=messages, answers=answers)

    return begin


def bodies(cluster: Cluster, topic: str, count: int) -> list[str]:
    """The first messages of a topic that consumers see."""
    return sorted(found.body.decode() for found in read(cluster, topic, count))


def test_committed_messages_are_seen_and_others_are_not(
    got: Got, cluster: Cluster, transact: Callable[..., Any], make_topic: Callable[..., str]
) -> None:
    topic = make_topic("TRANSACTION", queues=1)
    steps = [{"body": "one", "end": "commit"}, {"body": "two", "end": "rollback"}, {"body": "three", "end": "commit"}]
    with transact(topic, steps) as producer:
        sent = producer.answer()
        producer.end()
    found = read(cluster, topic, 2)
    assert [each.body for each in found] == [b"one", b"three"]
    assert [each.msg_id for each in found] == [sent[0]["id"], sent[2]["id"]]
    assert (found[0].tags, found[0].properties["shop"]) == ("tea", "north")
    got("Producer: transactions", f"{len(found)} commits are read by the SDK, a rollback is not")


def test_a_producer_that_was_silent_is_asked(
    got: Got, cluster: Cluster, transact: Callable[..., Any], make_topic: Callable[..., str]
) -> None:
    topic = make_topic("TRANSACTION", queues=1)
    with transact(topic, [{"body": "forgotten"}, {"body": "given up"}], forgotten="COMMIT") as producer:
        sent = producer.answer()
        assert bodies(cluster, topic, 1) == ["forgotten"]
        checked = producer.end()
    (asked,) = [each for each in checked if each["body"] == "forgotten"]
    shown = {"shop": "north", "__transactionId__": sent[0]["id"]}
    assert asked == {"body": "forgotten", "id": sent[0]["id"], "properties": shown, "tag": "tea"}
    got("Producer: open transaction", "the checker is asked, and its commit is read by the SDK")


def test_another_producer_of_the_topic_answers_for_one_that_was_killed(
    cluster: Cluster, transact: Callable[..., Any], make_topic: Callable[..., str]
) -> None:
    topic = make_topic("TRANSACTION", queues=1)
    with transact(topic, [{"body": "orphan"}], orphan="TRANSACTION_RESOLUTION_UNSPECIFIED") as producer:
        producer.answer()
        producer.kill()
    with transact(topic, [], orphan="COMMIT") as other:
        assert other.answer() == []
        assert bodies(cluster, topic, 1) == ["orphan"]
        assert {each["body"] for each in other.end()} == {"orphan"}


@pytest.fixture(scope="module")
def channel(served: Proxy) -> Iterator[grpc.Channel]:
    with served.channel() as opened:
        yield opened


def end(channel: grpc.Channel, topic: str, transaction_id: str, resolution: wire.TransactionResolution) -> wire.Status:
    request = wire.EndTransactionRequest(
        topic=wire.Resource(name=topic), message_id="m", transaction_id=transaction_id, resolution=resolution,
        source=wire.SOURCE_CLIENT,
    )  # fmt: skip
    return call(channel, "EndTransaction", request, wire.EndTransactionResponse).status


def begin(channel: grpc.Channel, topic: str, **system: Any) -> wire.SendMessageResponse:
    half = message(topic, message_type=wire.TRANSACTION, **system)
    return call(channel, "SendMessage", wire.SendMessageRequest(messages=[half]), wire.SendMessageResponse)


def test_any_proxy_ends_a_transaction_and_only_once(
    cluster: Cluster, channel: grpc.Channel, make_topic: Callable[..., str]
) -> None:
    topic = make_topic("TRANSACTION")
    (entry,) = begin(channel, topic).entries
    assert entry.status.code == wire.OK
    # An answer of "not known yet" leaves it open.
    assert end(channel, topic, entry.transaction_id, wire.TRANSACTION_RESOLUTION_UNSPECIFIED).code == wire.OK
    with proxy(cluster.nameserver) as other, other.channel() as elsewhere:
        assert end(elsewhere, topic, entry.transaction_id, wire.COMMIT).code == wire.OK
    again = end(channel, topic, entry.transaction_id, wire.COMMIT)
    assert (again.code, "ended already" in again.message) == (wire.INVALID_TRANSACTION_ID, True)
    assert bodies(cluster, topic, 1) == ["a cup of tea"]


def produce(channel: grpc.Channel, client_id: str, *topics: str) -> Telling:
    """A producer that names these topics."""
    named = [wire.Resource(name=topic) for topic in topics]
    settings = wire.Settings(client_type=wire.PRODUCER, publishing=wire.Publishing(topics=named))
    return Telling(channel, client_id, settings)


def test_a_producer_that_named_no_topic_is_asked_about_its_transaction(
    cluster: Cluster, channel: grpc.Channel, make_topic: Callable[..., str]
) -> None:
    topic = make_topic("MIXED", queues=1)
    producer = produce(channel, "test")
    (entry,) = begin(channel, topic).entries
    command = producer.read().recover_orphaned_transaction_command
    asked = command.message
    assert (asked.topic.name, asked.body, asked.system_properties.message_type) == (
        topic, b"a cup of tea", wire.TRANSACTION,
    )  # fmt: skip
    # The broker asks about a copy of the half; that the first one is not answered any more does not matter.
    assert command.transaction_id != entry.transaction_id
    assert end(channel, topic, command.transaction_id, wire.COMMIT).code == wire.OK
    assert bodies(cluster, topic, 1) == ["a cup of tea"]
    producer.close()


def test_a_producer_of_another_proxy_is_asked_when_the_first_proxy_has_gone(
    cluster: Cluster, channel: grpc.Channel, make_topic: Callable[..., str]
) -> None:
    topic = make_topic("TRANSACTION", queues=1)
    with proxy(cluster.nameserver) as other, other.channel() as elsewhere:
        assert begin(elsewhere, topic).status.code == wire.OK
    producer = produce(channel, "successor", topic)
    command = producer.read().recover_orphaned_transaction_command
    assert end(channel, topic, command.transaction_id, wire.COMMIT).code == wire.OK
    assert bodies(cluster, topic, 1) == ["a cup of tea"]
    producer.close()


def test_producers_are_asked_in_turns(channel: grpc.Channel, make_topic: Callable[..., str]) -> None:
    topic = make_topic("TRANSACTION", queues=1)
    producers = [produce(channel, f"producer-{number}", topic) for number in range(2)]
    begin(channel, topic)
    for producer in [*producers, *producers]:
        assert producer.read().recover_orphaned_transaction_command.message.topic.name == topic
    for producer in producers:
        producer.close()


def test_the_proxy_leaves_a_topic_that_has_no_producer_any_more(
    cluster: Cluster, make_topic: Callable[..., str]
) -> None:
    topic = make_topic("TRANSACTION", queues=1)

    async def producers(expected: bool) -> None:
        async with Admin(cluster.nameserver) as admin:

            async def is_so() -> bool:
                table = await admin.all_producers(cluster.brokers[0].address)
                return (topic in table.data) == expected

            await until(is_so, f"producers of {topic}: {expected}")

    with (
        proxy(cluster.nameserver, transaction_heartbeat_period_second=1) as served,
        served.channel() as channel,
    ):
        producer = produce(channel, "leaving", topic)
        trio.run(producers, True)
        ending = wire.NotifyClientTerminationRequest()
        call(channel, "NotifyClientTermination", ending, wire.NotifyClientTerminationResponse, "leaving")
        trio.run(producers, False)
        producer.close()


@pytest.mark.parametrize("wrong", ["", "nonsense", "1 2", "1 -2 broker-a", "1 2000000 broker-a"])
def test_a_transaction_id_that_means_no_transaction_is_refused(
    channel: grpc.Channel, make_topic: Callable[..., str], wrong: str
) -> None:
    topic = make_topic("TRANSACTION")
    assert end(channel, topic, wrong, wire.COMMIT).code == wire.INVALID_TRANSACTION_ID


def test_a_time_without_checks_that_is_too_long_is_refused(
    channel: grpc.Channel, make_topic: Callable[..., str]
) -> None:
    topic = make_topic("TRANSACTION")
    half = message(topic, message_type=wire.TRANSACTION)
    half.system_properties.orphaned_transaction_recovery_duration.FromSeconds(3_601)
    asked = wire.SendMessageRequest(messages=[half])
    answer = call(channel, "SendMessage", asked, wire.SendMessageResponse)
    assert (answer.status.code, "max is 3600" in answer.status.message) == (wire.BAD_REQUEST, True)


def test_a_transaction_for_a_topic_of_another_type_is_refused(
    channel: grpc.Channel, make_topic: Callable[..., str]
) -> None:
    topic = make_topic("NORMAL")
    assert begin(channel, topic).status.code == wire.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


class Joined:
    """The topics whose transactions the proxy answers for, in place of `Halves`."""

    def __init__(self) -> None:
        self.topics: set[str] = set()

    async def join(self, topic: str) -> None:
        self.topics.add(topic)

    async def leave(self, topic: str) -> None:
        self.topics.remove(topic)


async def test_a_transaction_that_begins_while_its_topic_is_left_keeps_the_topic() -> None:
    joined, alive = Joined(), {"old"}

    class Known(dict[str, Any]):
        def is_alive(self, client_id: str) -> bool:
            return client_id in alive

    producers = TransactionProducers(cast(Any, joined), cast(Any, None), cast(Any, Known()), ProxyOptions())
    await producers.add_half("old", "payments")
    alive.clear()
    # Another topic is being joined, so the topic cannot be left yet.
    async with trio.open_nursery() as nursery, producers._joining:
        nursery.start_soon(producers.scan)
        await wait_all_tasks_blocked()
        alive.add("new")
        await producers.add_half("new", "payments")
    assert joined.topics == {"payments"}

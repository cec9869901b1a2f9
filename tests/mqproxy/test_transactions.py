"""Transactions of the official Python producer: their ends, and the questions of brokers about those that stay open."""

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from mqproxy.wire import messaging_pb2 as wire
from sdk.testing import Cluster, cluster_fixture
from tests.mqproxy.test_producer import read
from tests.support.proxies import Proxy, call, message, proxy, started

# Open transactions are asked about soon.
OPTIONS = {"transactionTimeOut": 300, "transactionCheckInterval": 300, "transactionCheckMax": 10_000}
cluster = cluster_fixture(scope="module", options=OPTIONS)


@pytest.fixture
def transact(served: Proxy) -> Callable[..., Any]:
    """Begins the program of a producer."""

    def begin(topic: str, messages: list[dict[str, str]], **answers: str) -> Any:
        return started("transact", served.address, topic=topic, messages=messages, answers=answers)

    return begin


def bodies(cluster: Cluster, topic: str, count: int) -> list[str]:
    """The first messages of a topic that consumers see."""
    return sorted(found.body.decode() for found in read(cluster, topic, count))


def test_committed_messages_are_seen_and_others_are_not(
    cluster: Cluster, transact: Callable[..., Any], make_topic: Callable[..., str]
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


def test_a_producer_that_was_silent_is_asked(
    cluster: Cluster, transact: Callable[..., Any], make_topic: Callable[..., str]
) -> None:
    topic = make_topic("TRANSACTION", queues=1)
    with transact(topic, [{"body": "forgotten"}, {"body": "given up"}], forgotten="COMMIT") as producer:
        sent = producer.answer()
        assert bodies(cluster, topic, 1) == ["forgotten"]
        checked = producer.end()
    (asked,) = [each for each in checked if each["body"] == "forgotten"]
    assert asked == {"body": "forgotten", "id": sent[0]["id"], "properties": {"shop": "north"}, "tag": "tea"}


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

"""The official producers send through the proxy; what they send is read with the other protocol."""

import re
from collections.abc import Callable
from typing import Any

from skylark import ConsumeFrom, MessageExt, blocking
from skylark.sdk.testing import Cluster
from tests.mqproxy.conftest import NODE_AT_NIGHT
from tests.support.proxies import Proxy

Client = Callable[..., Any]
Got = Callable[[str, str], None]


def read(cluster: Cluster, topic: str, count: int) -> list[MessageExt]:
    """The first messages of the topic, queue by queue, by the remoting protocol."""
    found: list[MessageExt] = []
    with blocking.PullConsumer(
        cluster.nameserver, group=f"readers-{topic}", consume_from=ConsumeFrom.FIRST_OFFSET
    ) as consumer:
        consumer.assign(consumer.message_queues(topic))
        for _ in range(100):
            if len(found) >= count:
                break
            found += consumer.poll()
    return sorted(found, key=lambda message: (message.queue_id, message.queue_offset))


def test_a_message_keeps_its_tag_key_properties_and_id(
    client: Client, got: Got, cluster: Cluster, served: Proxy, make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    sent = {"body": "a cup of tea", "tag": "tea", "key": "order-1", "properties": {"shop": "north"}}
    (receipt,) = client("produce", served.address, topic=topic, messages=[sent])
    (message,) = read(cluster, topic, 1)
    assert message.body == b"a cup of tea"
    assert (message.tags, message.keys, message.properties["shop"]) == ("tea", "order-1", "north")
    assert (message.msg_id, message.queue_offset) == (receipt["id"], receipt["offset"])
    got("Producer: normal", f"read by the SDK: {len(message.properties)} properties, id and offset as told")


def test_messages_of_a_group_are_in_one_queue_in_their_order(
    client: Client, got: Got, cluster: Cluster, served: Proxy, make_topic: Callable[..., str]
) -> None:
    topic = make_topic("FIFO")
    sends = [{"body": f"{group} {step}", "group": group} for step in range(4) for group in ("ada", "bob", "eve")]
    client("produce", served.address, topic=topic, messages=sends)
    messages = read(cluster, topic, len(sends))
    for group in ("ada", "bob", "eve"):
        own = [message for message in messages if message.properties["__SHARDINGKEY"] == group]
        assert [message.body.decode() for message in own] == [f"{group} {step}" for step in range(4)]
        assert len({message.queue_id for message in own}) == 1
    got("Producer: FIFO", f"read by the SDK: {len(messages)} messages, each group in one queue and in order")


@NODE_AT_NIGHT
def test_the_most_urgent_message_is_received_first(
    client: Client,
    got: Got,
    cluster: Cluster,
    served: Proxy,
    make_topic: Callable[..., str],
    make_group: Callable[..., str],
) -> None:
    topic, group = make_topic("PRIORITY", queues=10), make_group()
    # Node's client takes 0 for no priority.
    urgencies = [1, 9, 3, 9, 1, 5]
    sent = [{"body": str(priority), "priority": priority} for priority in urgencies]
    results = client("produce", served.address, topic=topic, messages=sent)
    assert [result for result in results if "error" in result] == []
    assert sorted(message.priority or 0 for message in read(cluster, topic, len(sent))) == sorted(urgencies)
    received = client("receive", served.address, topic=topic, group=group, count=len(sent))
    found = [int(message["body"]) for message in received]
    assert found == sorted(urgencies, reverse=True)
    got("Producer: priority", f"received from the highest: {found}")


def test_a_delayed_message_has_a_recall_handle_and_arrives(
    client: Client, got: Got, cluster: Cluster, served: Proxy, make_topic: Callable[..., str]
) -> None:
    topic = make_topic("DELAY")
    # The first one only shows its handle: the second one may come too late to wait, on a busy machine.
    sends = [{"body": "in an hour", "delay_s": 3600}, {"body": "later", "delay_s": 1}]
    receipt, _ = client("produce", served.address, topic=topic, messages=sends)
    assert receipt["recall"]
    (message,) = read(cluster, topic, 1)
    assert message.body == b"later"
    got("Producer: delayed", f"read by the SDK: {message.body.decode()}")


@NODE_AT_NIGHT
def test_a_recalled_message_does_not_arrive(
    client: Client, got: Got, cluster: Cluster, served: Proxy, make_topic: Callable[..., str]
) -> None:
    topic = make_topic("DELAY", queues=1)
    sends = [{"body": "recalled", "delay_s": 5, "recalled": True}, {"body": "kept", "delay_s": 6}]
    first, _ = client("produce", served.address, topic=topic, messages=sends)
    assert first["recalled"] == first["id"]
    # One queue: had it not been recalled, it would be in front of the other one.
    (message,) = read(cluster, topic, 1)
    assert message.body == b"kept"
    got("Producer: recalled", "did not arrive; the message after it did")


@NODE_AT_NIGHT
def test_a_message_of_the_wrong_type_is_refused_by_name(
    client: Client, got: Got, served: Proxy, make_topic: Callable[..., str]
) -> None:
    topic = make_topic("FIFO")
    (result,) = client("produce", served.address, topic=topic, messages=[{"body": "no group"}])
    # The Node client names the types by their numbers.
    assert re.search(r"message_type:NORMAL.*type:FIFO|actualMessageType=1, acceptMessageTypes=\[2\]", result["error"])
    got("Producer: wrong type", result["error"])


@NODE_AT_NIGHT
def test_an_unknown_topic_is_named(client: Client, got: Got, served: Proxy) -> None:
    (result,) = client("produce", served.address, topic="nowhere", messages=[{"body": "lost"}])
    assert "nowhere" in result["error"]
    got("Producer: unknown topic", result["error"])

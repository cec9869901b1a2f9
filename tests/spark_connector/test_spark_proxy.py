"""A message is the same for all: sent through a proxy or by the SDK, read through either, by Spark, and in files."""

import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from pyspark.sql import Row, SparkSession

from skylark import Message, blocking
from skylark.mqcommon.message.properties import RESERVED
from skylark.mqproxy.service import SERVICE
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.sdk.testing import Cluster
from tests.mqproxy.test_producer import read
from tests.support.proxies import Proxy, call, message, proxy

pytestmark = pytest.mark.spark

GROUP = "readers"
# How each message is described: body, tag, keys, properties, message group, when it is delivered.
Described = dict[str, Any]
KINDS: dict[str, Described] = {
    "NORMAL": {"body": b"a cup of tea", "tag": "tea", "keys": ["order-1", "ada"], "properties": {"shop": "north"}},
    "bare": {"body": b"\0\xff"},
    "FIFO": {"body": b"a pot of tea", "group": "ada", "properties": {"ä": "ö \U0001f375"}},
    "DELAY": {"body": b"tea at five", "tag": "tea", "deliver_at_ms": 0},
    "compressed": {"body": b"tea " * 2_000, "keys": ["order-2"]},
}


def described(body: bytes, properties: Mapping[str, str]) -> Described:
    """A message as the broker has it."""
    found: Described = {"body": body, "tag": properties.get("TAGS"), "group": properties.get("__SHARDINGKEY")}
    found["keys"] = sorted(properties.get("KEYS", "").split())
    found["properties"] = {name: value for name, value in properties.items() if name not in RESERVED}
    found["deliver_at_ms"] = int(properties.get("TIMER_DELIVER_MS", 0))
    return found


def of_grpc(received: wire.Message) -> Described:
    """A message as clients of the proxy read it."""
    system = received.system_properties
    return {
        "body": received.body,
        "tag": system.tag if system.HasField("tag") else None,
        "keys": sorted(system.keys),
        "properties": {name: text for name, text in received.user_properties.items() if name != "__SHARDINGKEY"},
        "group": system.message_group if system.HasField("message_group") else None,
        "deliver_at_ms": system.delivery_timestamp.ToMilliseconds(),
    }


def wanted(deliver_at_ms: int) -> dict[str, Described]:
    """All kinds, with everything that their readers find."""
    empty: Described = {"tag": None, "keys": [], "properties": {}, "group": None, "deliver_at_ms": 0}
    made = {name: {**empty, **kind, "keys": sorted(kind.get("keys", []))} for name, kind in KINDS.items()}
    made["DELAY"]["deliver_at_ms"] = deliver_at_ms
    return made


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("proxied")


@pytest.fixture(scope="module")
def cluster(home: Path) -> Iterator[Cluster]:
    with Cluster(home=home) as made:
        yield made


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Iterator[Proxy]:
    short = {"min_invisible_time_mills_for_recv": 1_000, "grpc_client_consumer_min_long_polling_timeout_millis": 100}
    with proxy(cluster.nameserver, **short) as running:
        yield running


@pytest.fixture(scope="module")
def make_topic(cluster: Cluster) -> Callable[[str], str]:
    def made(topic: str) -> str:
        cluster.create_topic(topic, 2)
        with blocking.Admin(cluster.nameserver) as admin:
            config = TopicConfig(topic, 2, 2, attributes={"+message.type": "MIXED"})
            admin.create_topic(cluster.brokers[0].address, config)
        return topic

    return made


def check_readers(
    spark: SparkSession, cluster: Cluster, home: Path, topic: str, expected: dict[str, Described]
) -> None:
    """The SDK and Spark, from the broker, the broker's files, and a directory, have what was sent."""
    messages = read(cluster, topic, len(expected))
    assert sorted_by_body(described(each.body, each.properties) for each in messages) == sorted_by_body(
        expected.values()
    )
    ids = {(each.queue_id, each.queue_offset): each.msg_id for each in messages}
    (broker,) = cluster.brokers
    store = next(path.parent for path in home.rglob("commitlog") if path.is_dir())
    of_broker = {"nameserver": cluster.nameserver, "topic": topic, "includeProperties": "true"}
    of_files = {"storePath": str(store), "brokerName": broker.name, "topic": topic, "includeProperties": "true"}
    for options in (of_broker, {**of_broker, "localStorePath": str(store)}, of_files):
        rows: list[Row] = spark.read.format("rocketmq").options(**options).load().collect()
        found = [described(bytes(row.body), row.properties) for row in rows]
        assert sorted_by_body(found) == sorted_by_body(expected.values()), options
        assert {(row.queueId, row.queueOffset): row.msgId for row in rows} == ids
        assert {(row.tags, row["keys"]) for row in rows} == {(each.tags, each.keys) for each in messages}


def sorted_by_body(all_of: Any) -> list[Described]:
    return sorted(all_of, key=lambda each: bytes(each["body"]))


def test_what_a_proxy_took_is_read_by_the_sdk_and_by_spark(
    spark: SparkSession, cluster: Cluster, served: Proxy, make_topic: Callable[[str], str], home: Path
) -> None:
    topic = make_topic("taken")
    expected = wanted(int(time.time() * 1000) + 1_000)
    with served.channel() as channel:
        for number, (name, kind) in enumerate(expected.items()):
            made = message(topic, kind["body"], message_id=f"0102FC00000001751700000000000000{number:02X}")
            system = made.system_properties
            made.user_properties.update(kind["properties"])
            system.keys.extend(kind["keys"])
            if kind["tag"]:
                system.tag = kind["tag"]
            if kind["group"]:
                system.message_group = kind["group"]
            if kind["deliver_at_ms"]:
                system.delivery_timestamp.FromMilliseconds(kind["deliver_at_ms"])
            if name == "compressed":
                system.body_encoding, made.body = wire.GZIP, zlib.compress(kind["body"])
            answer = call(channel, "SendMessage", wire.SendMessageRequest(messages=[made]), wire.SendMessageResponse)
            assert answer.status.code == wire.OK, answer.status
    check_readers(spark, cluster, home, topic, expected)


def test_what_the_sdk_sent_is_read_through_a_proxy_and_by_spark(
    spark: SparkSession, cluster: Cluster, served: Proxy, make_topic: Callable[[str], str], home: Path
) -> None:
    topic = make_topic("sent")
    with blocking.SimpleConsumer(cluster.nameserver, group=GROUP, subscriptions={topic: "*"}) as consumer:
        consumer.receive(wait_ms=0)  # a group that begins to pop begins at the end of the topic
    expected = wanted(int(time.time() * 1000) + 1_000)
    with blocking.Producer(cluster.nameserver, compress_over_bytes=4_096) as producer:
        for kind in expected.values():
            tags, keys, properties = kind["tag"], kind["keys"] or None, kind["properties"]
            sent = Message(topic, kind["body"], tags=tags, keys=keys, properties=properties, sharding_key=kind["group"])
            due = datetime.fromtimestamp(kind["deliver_at_ms"] / 1000, UTC)
            producer.send(sent, deliver_at=due if kind["deliver_at_ms"] else None)
    check_readers(spark, cluster, home, topic, expected)
    with served.channel() as channel:
        received = receive(channel, topic, len(expected))
    assert sorted_by_body(map(of_grpc, received)) == sorted_by_body(expected.values())
    types = {each.body: wire.MessageType.Name(each.system_properties.message_type) for each in received}
    assert types == {kind["body"]: name if name in ("FIFO", "DELAY") else "NORMAL" for name, kind in expected.items()}


def receive(channel: grpc.Channel, topic: str, count: int) -> list[wire.Message]:
    """``count`` messages for the group, from each of its queues."""
    asked = wire.ReceiveMessageRequest(
        group=wire.Resource(name=GROUP),
        message_queue=wire.MessageQueue(topic=wire.Resource(name=topic)),
        batch_size=32,
    )
    asked.invisible_duration.FromSeconds(60)
    asked.long_polling_timeout.FromMilliseconds(500)
    made = channel.unary_stream(
        f"/{SERVICE}/ReceiveMessage",
        wire.ReceiveMessageRequest.SerializeToString,
        wire.ReceiveMessageResponse.FromString,
    )
    found: list[wire.Message] = []
    for _ in range(20):
        answers = made(asked, metadata=[("x-mq-client-id", "reader")], timeout=30)
        found += [each.message for each in answers if each.HasField("message")]
        if len(found) >= count:
            break
    return found

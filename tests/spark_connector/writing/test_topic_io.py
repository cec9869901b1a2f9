"""Topics that do not exist when rows are written to them, at real brokers."""

import threading
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest

from skylark.mqcommon.errors import RouteNotFound, SendFailed
from skylark.mqcommon.message.message import Message, OwnKeyMessage, WithOwnKeys
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.blocking import PullConsumer
from skylark.sdk.testing import Cluster, cluster_fixture
from skylark.spark_connector.options.write import WriteOptions
from skylark.spark_connector.writing.rows import Lot, Place
from skylark.spark_connector.writing.topic_io import check_topic_exists, send_all
from skylark.spark_connector.writing.writer import Deduplicated, Task

pair = cluster_fixture(brokers=2, scope="module")


def write(cluster: Cluster, topic: str, *, create_topic: bool, send_timeout_ms: int = 2_000) -> int:
    options = WriteOptions(
        nameserver=cluster.nameserver, topic=topic, create_topic=create_topic, send_timeout_ms=send_timeout_ms
    )
    options.check()
    with Deduplicated(options, Task("query", "0", 0)) as target:
        return target.send(Lot(topic, [b"a", b"b", b"c"]))


def test_a_topic_that_is_missing_is_created_at_all_brokers(pair: Cluster) -> None:
    # Long, as this is also how long a busy machine has to register the topic; heartbeats come only every 30 s.
    assert write(pair, "new", create_topic=True, send_timeout_ms=20_000) == 3
    with PullConsumer(pair.nameserver) as consumer:
        queues = consumer.message_queues("new")
        assert sorted(f"{queue.broker_name} {queue.queue_id}" for queue in queues) == [
            f"broker-{name} {number}" for name in "ab" for number in range(4)
        ]
        assert sum(consumer.max_offset(queue) for queue in queues) == 3


def test_rows_of_a_task_that_is_run_again_are_in_the_topic_already(pair: Cluster) -> None:
    pair.create_topic("again")
    assert write(pair, "again", create_topic=True) == 3
    assert write(pair, "again", create_topic=True) == 0


def test_a_topic_that_is_there_stays_as_it_is(pair: Cluster) -> None:
    pair.create_topic("narrow", queues=1)
    assert write(pair, "narrow", create_topic=True) == 3
    with PullConsumer(pair.nameserver) as consumer:
        assert len(consumer.message_queues("narrow")) == 2


def test_without_the_option_the_error_names_it(pair: Cluster) -> None:
    with pytest.raises(RouteNotFound, match=r'mqadmin updateTopic creates topics, .*option\("createTopic", "true"\)'):
        write(pair, "missing", create_topic=False)


def test_brokers_that_create_no_topics_are_obeyed() -> None:
    with (
        Cluster(options={"autoCreateTopicEnable": False}) as cluster,
        pytest.raises(RouteNotFound, match="autoCreateTopicEnable=false"),
    ):
        write(cluster, "missing", create_topic=True)


QUEUES = [MessageQueue("t", "b", number) for number in range(3)]


class MemoryProducer:
    """Keeps what it is sent, one after the other; ``refused`` cannot be sent."""

    def __init__(self, refused: bytes = b"none") -> None:
        self.refused = refused
        self.lock = threading.Lock()
        self.alone: list[tuple[MessageQueue | None, str | None, bytes]] = []
        self.together: list[Sequence[Any]] = []
        self.keys: list[bytes] = []

    def send(self, message: Message, *, queue: MessageQueue | None = None, deliver_at: datetime | None = None) -> None:
        if message.body == self.refused:
            raise SendFailed("refused")
        with self.lock:
            self.alone.append((queue, message.sharding_key, message.body))
            self.keys += [message.encoded_key] if isinstance(message, OwnKeyMessage) else []

    def send_many(self, topic: str, messages: Sequence[bytes | Message]) -> None:
        self.together.append(messages)


def test_plain_messages_go_together() -> None:
    producer = MemoryProducer()
    messages = [b"a", Message("t", b"b", sharding_key="k"), b"c"]
    send_all(producer, "t", messages, {1: Place()})
    assert producer.together == [[b"a", b"c"]]
    assert producer.alone == [(None, "k", b"b")]
    send_all(producer, "t", [b"d"], {})
    send_all(producer, "t", [], {})
    assert producer.together[1:] == [[b"d"]]


def test_queues_and_keys_keep_their_order() -> None:
    producer = MemoryProducer()
    messages = [Message("t", b"%d" % n, sharding_key=None if n % 2 else f"k{n % 10}") for n in range(300)]
    places = {n: Place(QUEUES[n % 3] if n % 2 else None) for n in range(300)}
    send_all(producer, "t", messages, places)
    assert len(producer.alone) == 300
    for lane in {one[:2] for one in producer.alone}:
        bodies = [int(body) for *found, body in producer.alone if tuple(found) == lane]
        assert bodies == sorted(bodies)


def test_a_failure_is_raised_when_the_others_have_ended() -> None:
    producer = MemoryProducer(b"7")
    with pytest.raises(SendFailed, match="refused"):
        send_all(
            producer,
            "t",
            [Message("t", b"%d" % n, sharding_key="k" * n) for n in range(20)],
            dict.fromkeys(range(20), Place()),
        )
    assert len(producer.alone) > 7


def test_keys_go_with_their_messages() -> None:
    producer = MemoryProducer()
    messages = [b"a", Message("t", b"b", sharding_key="k"), b"c"]
    send_all(producer, "t", messages, {1: Place()}, ["KA", "KB", "KC"])
    (many,) = producer.together
    assert isinstance(many, WithOwnKeys)
    assert (list(many), many.encoded_keys) == ([b"a", b"c"], [b"UNIQ_KEY\x01KA\x02", b"UNIQ_KEY\x01KC\x02"])
    (key,) = producer.keys
    assert key == b"UNIQ_KEY\x01KB\x02"


def test_a_job_for_an_unknown_topic_is_refused_on_the_driver() -> None:
    """But not where its sends create the topic."""
    with Cluster() as cluster:
        cluster.create_topic("known", queues=1)
        given = {"nameserver": cluster.nameserver, "topic": "nowhere"}
        check_topic_exists(WriteOptions.parse({**given, "topic": "known"}))
        check_topic_exists(WriteOptions.parse({**given, "dedup": "false"}))
        with pytest.raises(RouteNotFound, match=r'mqadmin updateTopic .* so does \.option\("createTopic", "true"\)'):
            check_topic_exists(WriteOptions.parse(given))
    with Cluster(options={"autoCreateTopicEnable": False}) as cluster, pytest.raises(RouteNotFound):
        check_topic_exists(WriteOptions.parse({**given, "nameserver": cluster.nameserver, "dedup": "false"}))

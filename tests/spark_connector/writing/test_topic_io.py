"""Topics that do not exist when rows are written to them, at real brokers."""

import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from skylark import TopicConfig
from skylark.mqcommon.errors import RouteNotFound, SendFailed
from skylark.mqcommon.message.message import Message, OwnKeyMessage, WithOwnKeys
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import PERM_INHERIT
from skylark.remoting.protocol.requests.routes import BrokerData, QueueData, TopicRouteData
from skylark.sdk.blocking import PullConsumer
from skylark.sdk.testing import Cluster, cluster_fixture
from skylark.spark_connector.options.write import WriteOptions
from skylark.spark_connector.writing import topic_io as topic_io_module
from skylark.spark_connector.writing.once import FoundRows
from skylark.spark_connector.writing.rows import Lot, Place
from skylark.spark_connector.writing.topic_io import TopicIO, check_topic_exists, create_missing, send_all
from skylark.spark_connector.writing.writer import Deduplicated, Task
from tests.spark_connector.cluster import MemoryCluster

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


# --- what tasks ask of topics, in memory


def topic_io(cluster: Any) -> TopicIO:
    options = WriteOptions.parse({"nameserver": "127.0.0.1:9", "topic": "t"})
    return TopicIO("t", "scope", options, cast(Any, None), cluster, cluster)


def test_the_rows_of_a_topic_have_one_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    def begin(self: Deduplicated, topic: str) -> Any:
        begun.append(topic)
        return SimpleNamespace(send=lambda messages, places: len(messages))

    monkeypatch.setattr(Deduplicated, "_once", begin)
    target = Deduplicated(WriteOptions.parse({"nameserver": "127.0.0.1:9"}), Task("query", "0", 0))
    assert [target.send(Lot(topic, [b"x"] * 2)) for topic in ("t", "u", "t")] == [2, 2, 2]
    assert begun == ["t", "u"]


def test_messages_of_others_are_no_rows_of_a_task() -> None:
    cluster = MemoryCluster()
    cluster.add(QUEUES[0], 3)
    assert topic_io(cluster).read(0) == FoundRows()


def test_a_task_waits_for_a_broker_that_may_have_its_rows() -> None:
    cluster = MemoryCluster()
    cluster.add(QUEUES[0], 1)
    cluster.add(MessageQueue("t", "c", 0), 1)
    io = topic_io(cluster)
    io.read(0)
    cluster.away = {"c"}
    with pytest.raises(RouteNotFound, match="no NameServer knows its queues of c any more") as raised:
        io.read(0)
    assert raised.value.is_passing
    cluster.away = set()
    io.read(0)


class Unknown(MemoryCluster):
    """NameServers that know no topic of ``t``; ``is_passing``: as they are starting."""

    def __init__(self, *, is_passing: bool) -> None:
        super().__init__()
        self._is_passing = is_passing
        self.created: list[tuple[str, TopicConfig]] = []

    def topic_queues(self, topic: str) -> NoReturn:
        raise RouteNotFound(topic, "no route", is_passing=self._is_passing)

    def topic_route(self, topic: str) -> TopicRouteData:
        """Broker b has a master, broker c only a slave."""
        brokers = [BrokerData("cluster", "b", {0: "b:1"}), BrokerData("cluster", "c", {1: "c:1"})]
        queues = [QueueData(name, 8, 8, PERM_INHERIT | 6) for name in ("b", "c")]
        return TopicRouteData(queue_datas=queues, broker_datas=brokers)

    def create_topic(self, addr: str, config: TopicConfig) -> None:
        self.created.append((addr, config))


@pytest.mark.parametrize("is_passing", [True, False])
def test_a_topic_without_a_route_is_unknown_only_when_nameservers_can_say_so(is_passing: bool) -> None:
    with pytest.raises(RouteNotFound) as raised:
        topic_io(Unknown(is_passing=is_passing)).read(0)
    assert raised.value.is_passing is is_passing
    assert ("createTopic" in str(raised.value)) is not is_passing


def test_a_topic_is_not_created_while_nameservers_are_starting() -> None:
    cluster = Unknown(is_passing=True)
    with pytest.raises(RouteNotFound, match="no route"):
        create_missing("t", cast(Any, cluster), cast(Any, cluster), 1_000)
    assert cluster.created == []


def test_a_topic_is_created_at_masters_and_must_be_known_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_io_module, "REGISTERING_S", 0)
    cluster = Unknown(is_passing=False)
    with pytest.raises(RouteNotFound, match="it was created, but no NameServer knows that after 0 ms"):
        create_missing("t", cast(Any, cluster), cast(Any, cluster), 0)
    assert cluster.created == [("b:1", TopicConfig("t", 4, 4, 6))]


def test_a_search_that_is_not_whole_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Partial(MemoryCluster):
        def query_by_unique_key(self, *_: str, on_partial: Callable[[str], None], **more: Any) -> list[Any]:
            on_partial("broker b has deleted some")
            return []

    cluster = Partial()
    cluster.add(QUEUES[0], 1)
    assert topic_io(cluster).claims("key", 0) == []
    (line,) = caplog.messages
    assert "its rows may be sent again" in line and "broker b has deleted some" in line

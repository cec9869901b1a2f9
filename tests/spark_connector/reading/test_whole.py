"""A read is whole, or it says which brokers are missing: with queues in memory, and with a cluster in this process."""

import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from skylark import Message
from skylark.mqcommon.errors import ConnectFailed, RouteNotFound
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.routes import LOST, STOPPED, UNHEARD, AbsentBroker
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.sdk.blocking import Admin, Producer, PullConsumer
from skylark.sdk.routes import TopicQueues
from skylark.sdk.testing import Cluster
from skylark.spark_connector.jobs import copy_topic
from skylark.spark_connector.options.connection import ConnectionOptions
from skylark.spark_connector.options.read import ReadOptions
from skylark.spark_connector.reading.batch_reader import open_consumer
from skylark.spark_connector.reading.planning import bounds_of, list_topics, plan
from skylark.spark_connector.reading.pulling import BrokersMissing
from skylark.spark_connector.reading.whole import whole_queues
from tests.spark_connector.cluster import MemoryCluster
from tests.spark_connector.query import Query
from tests.support.waiting import until

A, B = MessageQueue("t", "a", 0), MessageQueue("t", "b", 0)
AWAY = AbsentBroker("b", "c1", LOST, has_topic=True)
MAYBE = AbsentBroker("b", "c1", UNHEARD)


def options(**given: str) -> ReadOptions:
    return ReadOptions.parse({"topic": "t", "retryIntervalMs": "0", **given})


@pytest.fixture
def half() -> MemoryCluster:
    """Broker b is away."""
    cluster = MemoryCluster()
    cluster.add(A, 10)
    cluster.absent = [AWAY]
    return cluster


@pytest.mark.parametrize(
    ("absent", "given", "said"),
    [
        ([AWAY], {}, r"topic t: broker b has queues and is away \(its connection ended, .*skip.*mqadmin forgetBroker"),
        ([MAYBE], {}, r"broker b may have queues and is away \(it has not registered since"),
        ([], {"brokers": "b, a"}, "topic t: b, which option brokers names, is in no route"),
        ([AWAY], {"brokers": "b"}, "broker b has queues and is away"),
        ([], {"brokers": "a"}, ""),
        ([AWAY], {"topic": "", "assign": '{"t": {"a": [0]}}'}, ""),
    ],
)
def test_a_read_is_whole_or_names_what_is_missing(
    absent: list[AbsentBroker], given: dict[str, str], said: str, half: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    half.absent = absent
    if said:
        with pytest.raises(BrokersMissing, match=said):
            plan(half, options(**given))
    assert [one.queue for one in plan(half, options(**given, missingBrokers="skip"))] == [A]
    assert len([one for one in caplog.messages if "is not read" in one]) == bool(said)


def test_a_nameserver_that_has_just_started_is_asked_again(half: MemoryCluster) -> None:
    class Starting(MemoryCluster):
        asked = 0

        def topic_queues(self, topic: str) -> TopicQueues:
            self.asked += 1
            if self.asked == 3:
                self.add(B, 5)
                self.absent = []
            return super().topic_queues(topic)

    starting = Starting()
    starting.logs, starting.absent = half.logs, [MAYBE]
    pauses: list[float] = []
    assert whole_queues(starting, options(retryIntervalMs="200"), sleep=pauses.append) == [A, B]
    assert len(pauses) == 2
    assert pauses[0] < pauses[1] <= 0.4


def test_a_broker_that_is_away_is_waited_for(half: MemoryCluster) -> None:
    def back(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 10:
            half.add(B, 5)
            half.absent = []

    pauses: list[float] = []
    assert whole_queues(half, options(brokerWaitMs="60000"), sleep=back) == [A, B]


def test_a_stream_starts_whole_and_goes_on_without_brokers_that_leave(
    half: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(half, retryIntervalMs="0", brokerWaitMs="0", onBrokerAway="continue")
    with pytest.raises(BrokersMissing):
        query.trigger()
    half.absent = []
    half.add(B, 5)
    query.trigger()
    half.absent = [AWAY]
    del half.logs[B]
    half.grow(A, 1)
    query.trigger()
    assert query.sizes == [15, 1]
    assert [one for one in caplog.messages if "broker b is away" in one]
    # A run that reads what there is now would end without what b has.
    with pytest.raises(BrokersMissing):
        query.start(available_now=True)


@pytest.mark.parametrize("when", ["asked first", "asked again"])
def test_available_now_is_whole_although_a_broker_is_listed(when: str) -> None:
    class Silent(MemoryCluster):
        asked = 0

        def end_position(self, mq: MessageQueue) -> object:  # type: ignore[override]
            self.asked += mq == B
            if mq == B and (when == "asked first" or self.asked > 1):
                raise ConnectFailed("b:1", "refused")
            return super().end_position(mq)

    cluster = Silent()
    cluster.add(A, 10)
    cluster.add(B, 5)
    with pytest.raises((ConnectFailed, BrokersMissing), match=r"b:1|broker b has just"):
        Query(cluster, brokerWaitMs="0").start(available_now=True)


# --- a cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two brokers with the topics `both` and, on the second one only, `single`."""
    with Cluster(brokers=2) as cluster, Producer(cluster.nameserver) as producer:
        cluster.create_topic("both", queues=2)
        with Admin(cluster.nameserver) as admin:
            admin.create_topic(cluster.brokers[1].address, TopicConfig("single", 1, 1))
        with PullConsumer(cluster.nameserver, heartbeat=False) as consumer:
            for queue in consumer.message_queues("both"):
                producer.send(Message("both", b"x"), queue=queue)
        yield cluster


def count(cluster: Cluster, **given: str) -> int:
    wanted = options(**{"topic": "both", "nameserver": cluster.nameserver, "retryIntervalMs": "1", **given})
    with open_consumer(wanted) as consumer:
        return sum(one.maximum for one in bounds_of(consumer, wanted).values())


def reason(cluster: Cluster) -> str:
    """Why the second broker is away; empty when it is there, or the NameServer knows no broker yet."""
    with Admin(cluster.nameserver) as admin, suppress(RouteNotFound):
        return "".join(one.reason for one in admin.topic_route("both").absent_brokers or ())
    return ""


def wait_for_reason(cluster: Cluster, wanted: str) -> None:
    async def is_reached() -> bool:
        return await trio.to_thread.run_sync(reason, cluster) == wanted

    trio.run(until, is_reached, f"the second broker is away: {wanted}")


def test_a_batch_fails_while_a_broker_is_away_also_after_a_restart_of_all_nameservers(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "skylark.namesrv")
    second, namesrv = cluster.brokers[1], cluster.nameservers[0]
    connection = ConnectionOptions.parse({"nameserver": cluster.nameserver})
    what = {"from": "x", "topic": "both", "to": "y", "toTopic": "both"}
    assert count(cluster) == 4
    for leave, why in ((second.stop, STOPPED), (second.kill, LOST)):
        leave()
        assert reason(cluster) == why
        with pytest.raises(BrokersMissing, match=second.name):
            count(cluster)
        second.start()
        assert count(cluster) == 4
    second.kill()
    namesrv.kill()
    namesrv.start()
    wait_for_reason(cluster, UNHEARD)
    with pytest.raises(BrokersMissing, match=f"{second.name} may have queues"):
        count(cluster)
    with pytest.raises(BrokersMissing, match="Nothing was copied"):
        copy_topic._planned(tmp_path / "progress", what, connection, connection, ())
    assert count(cluster, missingBrokers="skip") == 2
    with Admin(cluster.nameserver) as admin:
        admin.forget_broker(second.name)
    assert count(cluster) == 2
    with pytest.raises(BrokersMissing, match="which option brokers names"):
        count(cluster, brokers=second.name)
    half = copy_topic._planned(tmp_path / "progress", what, connection, connection, ())
    # It comes back all the same: the copy that was planned without it is completed.
    second.start()
    assert count(cluster) == 4
    whole = copy_topic._planned(tmp_path / "progress", what, connection, connection, ())
    assert whole[: len(half)] == half
    assert len(whole) == 2 * len(half) == 4


def test_a_client_keeps_its_route_until_a_nameserver_has_heard_of_all_brokers(cluster: Cluster) -> None:
    second, namesrv = cluster.brokers[1], cluster.nameservers[0]
    with PullConsumer(cluster.nameserver, heartbeat=False) as consumer:
        before = consumer.topic_queues("both")
        assert len(before.queues) == 4
        second.freeze()
        namesrv.kill()
        namesrv.start()
        wait_for_reason(cluster, UNHEARD)
        assert consumer.topic_queues("both") == before
        with pytest.raises(BrokersMissing):
            count(cluster)
        second.thaw()
        wait_for_reason(cluster, "")
        assert count(cluster) == 4


def test_a_topic_of_a_broker_that_is_away_is_found_by_its_pattern(cluster: Cluster) -> None:
    second = cluster.brokers[1]
    wanted = options(topic="", topicPattern="s.*", nameserver=cluster.nameserver)
    assert "single" in list_topics(wanted)
    second.kill()
    assert "single" in list_topics(wanted)
    with pytest.raises(Exception, match=f"the brokers that have it are away: {second.name}"):
        count(cluster, topic="single")
    skipping = options(topic="", topicPattern="s.*", nameserver=cluster.nameserver, missingBrokers="skip")
    assert "single" not in list_topics(skipping)
    second.start()

"""updateStaticTopic and remappingStaticTopic on brokers of ours, and what other commands say of static topics."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from click.testing import CliRunner

from skylark import Admin, Message, Producer, PullConsumer
from skylark.mqadmin.cli import mqadmin
from skylark.mqcommon.errors import BrokerError
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.sdk.admin.remapping import BLOCK
from skylark.sdk.admin.static_topics import StaticTopic
from skylark.sdk.testing import Cluster

TOPIC = "static"


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    with Cluster(brokers=3) as cluster:
        yield cluster


async def run(cluster: Cluster, *words: str, ends_with: int = 0) -> Any:
    """The result of a command, or what it says when it fails; its exit code must be as given."""
    line = [*words, "-n", cluster.nameserver, "--output", "json"]
    done = await trio.to_thread.run_sync(lambda: CliRunner().invoke(mqadmin, line))
    assert done.exit_code == ends_with, done.output
    return json.loads(done.stdout) if done.stdout else done.stderr


def places(result: Any) -> list[tuple[int, str, int]]:
    return [(row["queueId"], row["brokerName"], row["brokerQueueId"]) for row in result["queues"]]


async def test_a_static_topic_is_made_grown_and_moved(cluster: Cluster) -> None:
    a, b, c = [broker.name for broker in cluster.brokers]
    made = await run(cluster, "updateStaticTopic", "-t", TOPIC, "-qn", "3", "-b", f"{a},{b}")
    assert places(made) == [(0, a, 0), (1, b, 0), (2, a, 1)]
    again = await run(cluster, "updateStaticTopic", "-t", TOPIC, "-qn", "3", "-b", f"{a},{b}")
    assert (places(again), again["epoch"]) == (places(made), made["epoch"])
    grown = await run(cluster, "updateStaticTopic", "-t", TOPIC, "-qn", "5", "-c", "DefaultCluster")
    assert places(grown)[:3] == places(made)
    assert Counter(row["brokerName"] for row in grown["queues"]) == {a: 2, b: 2, c: 1}
    async with Producer(cluster.nameserver, group="p") as producer:
        before = {number: (await producer.send(Message(TOPIC, b"x", sharding_key=str(number)))).queue.queue_id
                  for number in range(20)}  # fmt: skip
    plan = await run(cluster, "remappingStaticTopic", "-t", TOPIC, "-b", c, "--dryRun")
    assert {row["brokerName"] for row in plan["queues"]} == {c}
    moved = await run(cluster, "remappingStaticTopic", "-t", TOPIC, "-b", c)
    assert places(moved) == places(plan)
    assert [row["logicOffset"] for row in moved["queues"]] == [
        0 if row["before"] == c else BLOCK for row in moved["queues"]
    ]
    async with Producer(cluster.nameserver, group="p") as producer:
        after = {number: (await producer.send(Message(TOPIC, b"y", sharding_key=str(number)))).queue.queue_id
                 for number in range(20)}  # fmt: skip
    assert after == before
    async with PullConsumer(cluster.nameserver, group="g") as consumer:
        found = 0
        for queue in await consumer.message_queues(TOPIC):
            offset, end = 0, await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.pull(queue, offset)
                found += len(result.messages)
                offset = result.next_offset
    assert found == 40
    # A broker that is not named knows of the topic, too: else a send there could make a topic of that name.
    async with Admin(cluster.nameserver) as admin:
        for broker in cluster.brokers:
            part = await admin.static_topic(broker.address, TOPIC)
            assert part.mapping_detail is not None
            assert (part.mapping_detail.total_queues, part.mapping_detail.epoch) == (5, moved["epoch"])


async def test_a_move_that_was_killed_goes_on(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, _ = [broker.name for broker in cluster.brokers]
    await run(cluster, "updateStaticTopic", "-t", TOPIC, "-qn", "2", "-b", a)

    class Killed(Exception):
        pass

    async def killed(self: StaticTopic, stretch: object) -> int:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(StaticTopic, "_end_of", killed)
        with pytest.raises(AssertionError):  # it does not end well
            await run(cluster, "remappingStaticTopic", "-t", TOPIC, "-b", b)
    async with Producer(cluster.nameserver, group="p") as producer:
        assert (await producer.send(Message(TOPIC, b"x"))).queue_offset == -1
    moved = await run(cluster, "remappingStaticTopic", "-t", TOPIC, "-b", b)
    assert [row["logicOffset"] for row in moved["queues"]] == [BLOCK, BLOCK]
    assert places(moved) == [(0, b, 0), (1, b, 1)]


async def test_mistakes_are_told(cluster: Cluster) -> None:
    a = cluster.brokers[0].name
    cluster.create_topic("plain")
    for words, told in (
        (("updateStaticTopic", "-t", "plain", "-qn", "2", "-b", a), "is not static"),
        (("updateStaticTopic", "-t", TOPIC, "-qn", "2", "-b", "nobody"), "no broker 'nobody'"),
        (("updateStaticTopic", "-t", TOPIC, "-qn", "2", "-c", "nowhere"), "no cluster 'nowhere'"),
        (("updateStaticTopic", "-t", TOPIC, "-qn", "2"), "give -b BROKERS or -c CLUSTERS"),
        (("remappingStaticTopic", "-t", TOPIC, "-b", a), "there is no static topic"),
    ):
        assert told in json.dumps(await run(cluster, *words, ends_with=1))
    await run(cluster, "updateStaticTopic", "-t", TOPIC, "-qn", "2", "-b", a)
    for words, told in (
        (("updateStaticTopic", "-t", TOPIC, "-qn", "1", "-b", a), "does not get fewer"),
        (("shrinkTopic", "-t", TOPIC, "-c", "DefaultCluster", "-w", "1"), "is static"),
        (("rebalanceTopic", "-t", TOPIC, "-c", "DefaultCluster"), "is static"),
        (("drain", "-b", a), "leads queues of static topics: static"),
    ):
        assert told in json.dumps(await run(cluster, *words, ends_with=1))
    async with Admin(cluster.nameserver) as admin:
        with pytest.raises(BrokerError, match="updateStaticTopic"):
            await admin.create_topic(cluster.brokers[0].address, TopicConfig(TOPIC, 8, 8))

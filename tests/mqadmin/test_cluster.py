"""mqadmin against a NameServer, a broker and its slave, over real sockets."""

import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result

from skylark import Admin, Message, Producer, PullConsumer, PullStatus
from skylark.mqadmin.cli import mqadmin
from tests.support.in_process import servers, small_broker
from tests.support.waiting import DEADLINE_S

# --- Every command against a NameServer and a broker of ours, in this process, over real sockets


class Cluster:
    """Where the servers are, and mqadmin run against them."""

    def __init__(self, namesrv: str, broker: str) -> None:
        self.namesrv = namesrv
        self.broker = broker

    async def run(self, *arguments: str) -> Result:
        """mqadmin has an event loop of its own, so it runs in a thread."""
        common = ["-n", self.namesrv, "--timeout", "30"]
        call = partial(CliRunner().invoke, mqadmin, [*arguments, *common], prog_name="mqadmin")
        return await trio.to_thread.run_sync(call)

    async def text(self, *arguments: str) -> str:
        result = await self.run(*arguments)
        assert (result.exit_code, result.stderr) == (0, ""), arguments
        return result.stdout

    async def json(self, *arguments: str) -> Any:
        return json.loads(await self.text(*arguments, "--output", "json"))

    async def registered(self) -> None:
        """Wait until the NameServer has heard of the broker."""
        with trio.fail_after(DEADLINE_S):
            while not await self.json("clusterList"):
                pass

    async def topic(self, name: str, *options: str) -> None:
        """Create a topic and wait until the NameServer has heard of it."""
        await self.text("updateTopic", "-b", self.broker, "-t", name, *options)
        await self.until_it_works("topicRoute", "-t", name)

    async def until_it_works(self, *arguments: str) -> None:
        """Routes and the index of keys follow a change a moment later."""
        with trio.fail_after(DEADLINE_S):
            while (await self.run(*arguments)).exit_code:
                pass


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with servers(tmp_path, forward_timeout=30_000) as made:
        cluster = Cluster(made.nameserver, made.broker)
        await cluster.registered()
        yield cluster


async def test_the_life_of_a_topic(cluster: Cluster) -> None:
    created = await cluster.text("updateTopic", "-c", "DefaultCluster", "-t", "t", "-r", "3", "-w", "3")
    assert created.startswith(f"create topic to {cluster.broker} success.\nTopicConfig [topicName=t, readQueueNums=3, ")
    await cluster.topic("t", "-r", "3", "-w", "3")
    [queues] = (await cluster.json("topicRoute", "-t", "t"))["queueDatas"]
    assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (3, 3, 6)
    assert "t\n" in await cluster.text("topicList")
    assert await cluster.text("topicClusterList", "-t", "t") == "DefaultCluster\n"
    assert len((await cluster.json("topicStatus", "-t", "t"))["queues"]) == 3
    changed = await cluster.text("updateTopicPerm", "-b", cluster.broker, "-t", "t", "-p", "4")
    assert changed == f"update topic perm from 6 to 4 in {cluster.broker} success.\n"
    deleted = await cluster.text("deleteTopic", "-c", "DefaultCluster", "-t", "t")
    assert deleted.endswith("delete topic [t] from NameServer success.\n")
    assert (await cluster.run("topicStatus", "-t", "t")).exit_code == 1


async def test_order_and_attributes_of_a_topic(cluster: Cluster) -> None:
    await cluster.topic("t", "-o", "true", "-w", "4", "-a", "+message.type=FIFO")
    await cluster.text("updateTopicPerm", "-b", cluster.broker, "-t", "t", "-p", "4")
    async with Admin(cluster.namesrv) as admin:
        config = await admin.topic_config(cluster.broker, "t")
        assert (config.order, config.perm, config.attributes) == (True, 4, {"message.type": "FIFO"})
        assert await admin.get_kv("ORDER_TOPIC_CONFIG", "t") == "broker-a:4"
        words = ["updateTopic", "-b", cluster.broker, "-t", "t", "-w", "4", "--attributes=-message.type"]
        await cluster.text(*words)
        assert (await admin.topic_config(cluster.broker, "t")).attributes == {}


async def test_a_new_broker_gets_the_topics_and_groups_of_another_one(cluster: Cluster, tmp_path: Path) -> None:
    await cluster.text(
        "updateTopic", "-b", cluster.broker, "-t", "ordered", "-r", "4", "-w", "3", "-o", "true", "-p", "4",
        "-a", "+message.type=FIFO",
    )  # fmt: skip
    for topic, queues in (("few", "2"), ("same", "8"), ("batches", "1")):
        attributes = ["-a", "+queue.type=BatchCQ"] if topic == "batches" else []
        await cluster.text("updateTopic", "-b", cluster.broker, "-t", topic, "-r", queues, "-w", queues, *attributes)
    await cluster.text("updateSubGroup", "-b", cluster.broker, "-g", "g", "-r", "3")
    other = small_broker(cluster.namesrv, tmp_path / "other", broker_name="broker-b", forward_timeout=30_000)
    async with trio.open_nursery() as nursery, Admin(cluster.namesrv) as admin:
        addr = await nursery.start(other.run)
        await cluster.until_it_works("updateTopic", "-b", addr, "-t", "few", "-r", "16", "-w", "1")
        await cluster.text("updateTopic", "-b", addr, "-t", "same")
        await cluster.text("updateTopic", "-b", addr, "-t", "batches")
        await cluster.until_it_works("topicRoute", "-t", "few")
        clone = ("cloneTopics", "--from", "broker-a", "--to", "broker-b", "--groups", "--output", "json")
        plan = json.loads((await cluster.run(*clone, "--dry-run")).stdout)["plan"]
        assert [(row["action"], row["kind"], row["name"]) for row in plan] == [
            ("conflict", "topic", "batches"), ("change", "topic", "few"), ("create", "topic", "ordered"),
            ("keep", "topic", "same"), ("set", "order", "ordered"), ("create", "group", "g"),
        ]  # fmt: skip
        assert "ordered" not in (await admin.all_topic_config(addr)).topic_config_table
        result = await cluster.run(*clone)
        assert (result.exit_code, "topic batches stays as it is" in result.stderr) == (1, True)
        few, ordered = await admin.topic_config(addr, "few"), await admin.topic_config(addr, "ordered")
        assert (few.read_queue_nums, few.write_queue_nums, few.perm) == (16, 2, 6)
        assert ordered == await admin.topic_config(cluster.broker, "ordered")
        assert (await admin.group_config(addr, "g")).retry_max_times == 3
        assert await admin.get_kv("ORDER_TOPIC_CONFIG", "ordered") == "broker-a:3;broker-b:3"
        again = await cluster.run(*clone[:-2])
        assert {line.split()[0] for line in again.stdout.splitlines()[1:-1]} == {"conflict", "keep"}
        assert again.stdout.endswith(f"0 created, 0 changed, 0 orders set on {addr}: done\n")
        assert (await cluster.run(*clone[:3], "--to", "broker-a")).exit_code == 1
        assert "the NameServer knows: broker-a at" in (await cluster.run(*clone[:3], "--to", "x")).stderr
        other.stop()


async def test_a_message_is_found_in_every_way(cluster: Cluster) -> None:
    await cluster.topic("t", "-r", "2", "-w", "2")
    sent = await cluster.json(
        "sendMessage", "-t", "t", "-p", "hello", "-k", "k1", "-c", "A", "-b", "broker-a", "-i", "1"
    )
    assert (sent["sendStatus"], sent["brokerName"], sent["queueId"], sent["queueOffset"]) == (
        "SEND_OK",
        "broker-a",
        1,
        0,
    )
    await cluster.until_it_works("queryMsgByKey", "-t", "t", "-k", "k1")
    await cluster.until_it_works("queryMsgByUniqueKey", "-t", "t", "-i", sent["msgId"])
    ways = [
        ("queryMsgById", "-i", sent["offsetMsgId"]),
        ("queryMsgById", "-i", sent["msgId"], "-t", "t"),
        ("queryMsgByKey", "-t", "t", "-k", "k1"),
        ("queryMsgByUniqueKey", "-t", "t", "-i", sent["msgId"]),
        ("queryMsgByOffset", "-t", "t", "-b", "broker-a", "-i", "1", "-o", "0"),
    ]
    for way in ways:
        [found] = await cluster.json(*way)
        assert (found["msgId"], found["offsetMsgId"], found["body"]) == (sent["msgId"], sent["offsetMsgId"], "hello"), (
            way
        )
        assert (found["tags"], found["keys"], found["queueId"]) == ("A", "k1", 1)
    consumed = await cluster.json("consumeMessage", "-t", "t")
    assert [one["body"] for one in consumed["messages"]] == ["hello"]
    stats = (await cluster.json("topicStatus", "-t", "t"))["queues"]
    assert [(one["minOffset"], one["maxOffset"]) for one in stats] == [(0, 0), (0, 1)]


async def test_queues_are_looked_into(cluster: Cluster) -> None:
    await cluster.topic("t", "-r", "1", "-w", "1")
    async with Producer(cluster.namesrv, group="g") as producer:
        for number in range(70):
            await producer.send(Message("t", b"%d" % number, tags="B" if number % 10 else "A"))
    printed = await cluster.json("printMsg", "-t", "t")
    assert [one["body"] for one in printed["messages"]] == [str(number) for number in range(70)]
    tagged = await cluster.json("printMsg", "-t", "t", "-s", "A || C")
    assert [one["body"] for one in tagged["messages"]] == ["0", "10", "20", "30", "40", "50", "60"]
    queue = ("-a", "broker-a", "-i", "0")
    counted = await cluster.text("printMsgByQueue", "-t", "t", *queue, "-f", "true")
    assert [line.split() for line in counted.splitlines()] == [
        ["Tag:", "B", "Count:", "63"],
        ["Tag:", "A", "Count:", "7"],
    ]
    entries = await cluster.json("queryCq", "-t", "t", "-q", "0", "-i", "65", "-c", "32")
    places = [one["commitLogOffset"] for one in printed["messages"]]
    assert [one["physicOffset"] for one in entries["queueData"]] == places[65:]
    time_ms = printed["messages"][20]["storeTimestamp"]
    times = [one["storeTimestamp"] for one in printed["messages"]]
    [row] = (await cluster.json("searchOffset", "-t", "t", "-s", str(time_ms)))["queues"]
    assert (row["lower"], row["upper"]) == (times.index(time_ms), 69 - times[::-1].index(time_ms))
    assert (row["minOffset"], row["maxOffset"], row["lowerTimestamp"]) == (0, 70, time_ms)


async def test_what_is_not_there(cluster: Cluster) -> None:
    await cluster.topic("t")
    for arguments, words in (
        (["queryMsgByKey", "-t", "t", "-k", "none"], "no message of topic t has key none"),
        (["queryMsgByUniqueKey", "-t", "t", "-i", "none"], "has the unique key none"),
        (["queryMsgById", "-i", "zz"], "message zz: "),
        (["queryMsgByOffset", "-t", "t", "-b", "broker-a", "-i", "0", "-o", "5"], "is empty"),
        (["printMsg", "-t", "nowhere"], "no NameServer knows topic nowhere"),
        (["searchOffset", "-t", "t", "-s", "now", "-b", "nobody"], "has no such queue"),
        (["queryCq", "-t", "t", "-q", "3", "-i", "0"], "3@t is not exist!"),
        (["consumerConnection", "-g", "nobody"], "code 206"),
        (["producerConnection", "-g", "nobody", "-t", "t"], "code 1"),
        (["topicRoute", "-t", "nowhere"], "no NameServer knows topic nowhere"),
        (["updateBrokerConfig", "-b", cluster.broker, "-k", "noSuchKey", "-v", "1"], "noSuchKey"),
        (["updateTopic", "-b", cluster.broker, "-t", "bad topic"], "code 29"),
    ):
        result = await cluster.run(*arguments)
        assert result.exit_code == 1, arguments
        assert words in result.stderr
        assert result.stderr.count("\n") == 1, result.stderr


async def test_groups(cluster: Cluster) -> None:
    created = await cluster.text("updateSubGroup", "-b", cluster.broker, "-g", "g", "-r", "3")
    assert "groupName=g, " in created and "retryMaxTimes=3, " in created
    assert "Consume Diff Total: 0" in await cluster.text("consumerProgress", "-g", "g")
    assert (await cluster.text("consumerProgress")).startswith("#Group ")
    deleted = await cluster.text("deleteSubGroup", "-b", cluster.broker, "-g", "g", "-r", "true")
    assert deleted == f"delete subscription group [g] from broker [{cluster.broker}] success.\n"


async def test_brokers(cluster: Cluster) -> None:
    [row] = await cluster.json("clusterList")
    assert (row["brokerName"], row["brokerAddr"], row["version"]) == ("broker-a", cluster.broker, "V5_3_3")
    assert row["ok"] and row["brokerActive"]
    [more] = await cluster.json("clusterList", "-m")
    assert more["inTotalToday"] == 0
    [status] = await cluster.json("brokerStatus", "-c", "DefaultCluster")
    assert status["table"]["brokerVersionDesc"] == "V5_3_3"
    await cluster.text("updateBrokerConfig", "-b", cluster.broker, "-k", "fileReservedTime", "-v", "71")
    [shown] = await cluster.json("getBrokerConfig", "-b", cluster.broker)
    assert (shown["config"]["brokerName"], shown["config"]["fileReservedTime"]) == ("broker-a", "71")


async def test_write_permission(cluster: Cluster) -> None:
    await cluster.topic("t")
    assert "OK, " in await cluster.text("wipeWritePerm", "-b", "broker-a")
    assert (await cluster.json("topicRoute", "-t", "t"))["queueDatas"][0]["perm"] == 4
    assert "OK, " in await cluster.text("addWritePerm", "-b", "broker-a")
    assert (await cluster.json("topicRoute", "-t", "t"))["queueDatas"][0]["perm"] == 6
    unknown = await cluster.run("wipeWritePerm", "-b", "nobody")
    assert unknown.exit_code == 1
    assert "no topic of broker nobody was changed" in unknown.stderr


async def test_offsets_of_a_group_without_consumers(cluster: Cluster) -> None:
    await cluster.topic("t", "-r", "1", "-w", "1")
    async with Producer(cluster.namesrv) as producer:
        for _ in range(3):
            await producer.send(Message("t", b"x"))
    async with PullConsumer(cluster.namesrv, group="g", heartbeat=False) as consumer:
        (mq,) = await consumer.message_queues("t")
        await consumer.commit_offset(mq, 1)

        async def moved(*arguments: str) -> int | None:
            await cluster.text(*arguments)
            return await consumer.committed_offset(mq)

        group = ("-g", "g", "-t", "t")
        assert await moved("skipAccumulatedMessage", *group) == 3
        assert await moved("resetOffsetByTime", *group, "-s", "0") == 0
        assert await moved("resetOffsetByTime", *group, "-b", cluster.broker, "-q", "0", "-o", "2") == 2
        assert await moved("resetOffsetByTime", *group, "-s", "-1", "-f", "false") == 2
        assert await moved("resetOffsetByTimeOld", *group, "-s", "0") == 0
        assert await moved("resetOffsetByTimeOld", *group, "-s", "-1") == 3
        assert await moved("resetOffsetByTimeOld", *group, "-s", "now", "-f", "false") == 3
        await consumer.commit_offset(mq, 1)
    for command in ("cloneGroupOffset -s g -d h -t t", "resetOffsetByTimeOld -g h -t t -s 0"):
        unknown = await cluster.run(*command.split())
        assert unknown.exit_code == 1
        assert "success" not in unknown.stdout and "group h" in unknown.stderr.lower()
    await cluster.text("updateSubGroup", "-b", cluster.broker, "-g", "h")
    assert "clone group offset success" in await cluster.text("cloneGroupOffset", "-s", "g", "-d", "h", "-t", "t")
    for group_name in ("g", "h"):
        progress = await cluster.json("consumerProgress", "-g", group_name, "-t", "t", "-l")
        assert [row["consumerOffset"] for row in progress["queues"]] == [1]
        assert progress["queues"][0]["lagMs"] is not None
    rows = (await cluster.json("brokerConsumeStats", "-b", cluster.broker, "-l", "1"))["queues"]
    assert sorted((row["group"], row["diff"]) for row in rows) == [("g", 2), ("h", 2)]
    [config] = (await cluster.json("getConsumerConfig", "-g", "h"))["configs"]
    assert (config["brokerName"], config["config"]["groupName"]) == ("broker-a", "h")


async def test_offsets_of_a_running_consumer(cluster: Cluster) -> None:
    await cluster.topic("t", "-r", "1", "-w", "1")
    async with Producer(cluster.namesrv) as producer, PullConsumer(cluster.namesrv, group="g") as consumer:
        for _ in range(3):
            await producer.send(Message("t", b"x"))
        (mq,) = await consumer.message_queues("t")
        await consumer.pull(mq, 0)
        await cluster.until_it_works("consumerConnection", "-g", "g")
        await consumer.commit_offset(mq, 3)
        assert [row["offset"] for row in await cluster.json("getConsumerStatus", "-g", "g", "-t", "t")] == [3]
        status = await cluster.json("consumerStatus", "-g", "g")
        assert [one["subscriptions"][0]["topic"] for one in status["consumers"]] == ["t"]
        producers = await cluster.json("producer", "-b", cluster.broker)
        assert sum(map(len, producers.values())) == 1
        await cluster.text("resetOffsetByTime", "-g", "g", "-t", "t", "-s", "0")
        await consumer.commit_offset(mq, 3)
        assert await consumer.committed_offset(mq) == 0
        moved = await consumer.pull(mq, 3)
        assert (moved.status, moved.next_offset) == (PullStatus.OFFSET_ILLEGAL, 0)
        assert len((await consumer.pull(mq, 0)).messages) == 3


async def test_mistakes_about_offsets(cluster: Cluster) -> None:
    await cluster.topic("t")
    await cluster.text("updateSubGroup", "-b", cluster.broker, "-g", "g")
    for arguments, words in (
        (["resetOffsetByTime", "-g", "nobody", "-t", "t", "-s", "0"], "code 26"),
        (["skipAccumulatedMessage", "-g", "g", "-t", "nowhere"], "no NameServer knows topic nowhere"),
        (["cloneGroupOffset", "-s", "g", "-d", "nobody", "-t", "t"], "code 26"),
        (["cloneGroupOffset", "-s", "nobody", "-d", "g", "-t", "t"], "code 26"),
        (["getConsumerStatus", "-g", "g", "-t", "t"], "No Any Consumer online"),
        (["consumerStatus", "-g", "g"], "code 206"),
        (["getConsumerConfig", "-g", "nobody"], "no broker knows group nobody"),
        (["resetOffsetByTime", "-g", "g g", "-t", "t", "-s", "0"], "g g"),
    ):
        result = await cluster.run(*arguments)
        assert result.exit_code == 1, arguments
        assert words in result.stderr, result.stderr
        assert result.stderr.count("\n") == 1, result.stderr


# --- What mqadmin tells of a master and its slave, over real sockets


@pytest.fixture
async def slave(nursery: trio.Nursery, cluster: Cluster, tmp_path: Path) -> str:
    """The address of a slave of the cluster's broker, which follows it."""
    broker = small_broker(cluster.namesrv, tmp_path / "slave", broker_id=1, broker_role="SLAVE")
    addr = await nursery.start(broker.run)
    assert isinstance(addr, str)
    with trio.fail_after(DEADLINE_S):
        while (await cluster.json("haStatus", "-b", cluster.broker))[0]["inSyncSlaveNums"] != 1:
            pass
    return addr


async def test_a_set(cluster: Cluster, slave: str) -> None:
    await cluster.topic("t")
    async with Producer(cluster.namesrv) as producer:
        await producer.send(Message("t", b"hello"))
    with trio.fail_after(DEADLINE_S):
        while (await cluster.json("haStatus", "-b", cluster.broker))[0]["haConnectionInfo"][0]["diff"]:
            pass
    _, first, second = (await cluster.text("clusterList", "-l")).splitlines()
    assert first.split()[-3:] == ["true", "-", "-"]
    assert second.split()[2:4] == ["1", slave] and second.split()[-3:] == ["false", "0", "0.0"]
    (row,) = await cluster.json("haStatus", "-b", slave)
    assert not row["master"] and row["haClientRuntimeInfo"]["maxOffset"] > 0
    assert f"My Master: {cluster.broker}=====Slave: {slave}" in await cluster.text(
        "getBrokerConfig", "-c", "DefaultCluster"
    )
    await cluster.text("resetMasterFlushOffset", "-b", slave, "-o", "4711")
    assert "#MasterFlushOffset\t4711" in await cluster.text("haStatus", "-b", slave)


async def test_topics_are_changed_on_the_master(cluster: Cluster, slave: str) -> None:
    refused = await cluster.run("updateTopic", "-b", slave, "-t", "t")
    assert refused.exit_code == 1 and "please execute it from master broker" in refused.stderr

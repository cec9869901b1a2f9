"""A broker process on a Java broker's store directory: clients and mqadmin find all, and the way back is open."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from scripts.daemons import broker_daemon, namesrv_daemon
from skylark import Admin, Message, Producer, PullConsumer
from skylark.mqcommon.message.queue import MessageQueue
from tests.support.daemons import Cluster, start, started, until_registered
from tests.support.golden_store import VERSIONS, rows, stored_offsets, unpack
from tests.support.warm_daemons import warm

NAME = "broker-g"
# The keys of the Java broker's conf file.
CONF = """brokerName=broker-g
mappedFileSizeCommitLog=262144
maxMessageSize=200000
mappedFileSizeConsumeQueue=6000
maxHashSlotNum=500
maxIndexNum=2000
"""


def run(*command: str) -> str:
    done = subprocess.run([warm(command[0]), *command[1:]], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def cluster_on(version: str, home: Path) -> Cluster:
    unpack(version, home).rename(home / NAME)
    (home / "broker.conf").write_text(CONF, encoding="utf-8")
    namesrv = namesrv_daemon(home)
    return Cluster(home, [namesrv], [broker_daemon(home, NAME, namesrv.addr, 0, "-c", str(home / "broker.conf"))])


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_java_brokers_store_is_served_and_given_back(version: str, tmp_path: Path) -> None:
    cluster = cluster_on(version, tmp_path)
    (broker,) = cluster.brokers
    async with started(*cluster.namesrvs, broker):
        await until_registered(cluster, [NAME])
        await read_everything(cluster, version)
        sent = await send_on(cluster, version)
        out = str(tmp_path / "out")
        run("mqadmin", "exportMetadata", "-n", cluster.nameserver, "-b", broker.addr, "-f", out)
        exported = json.loads((tmp_path / "out" / "metadata.json").read_text(encoding="utf-8"))
        assert set(exported["topicConfigTable"]) == {"GoldenA", "GoldenB", "GoldenBatch"}
        assert set(exported["subscriptionGroupTable"]) == {"golden_group"}
        broker.kill()
        await start(broker)
        await until_registered(cluster, [NAME])
        await read_everything(cluster, version)
        async with Admin(cluster.nameserver) as admin:
            assert (await admin.view_message(sent)).body == b"ours"
        broker.terminate()
        broker.wait_stopped()
    assert b"Traceback" not in broker.logged
    give_back(tmp_path / NAME, version)


async def read_everything(cluster: Cluster, version: str) -> None:
    """Read everything as a consumer and as an administrator do."""
    told = rows(version, "ROW")
    async with PullConsumer(cluster.nameserver, group="golden_group") as consumer, Admin(cluster.nameserver) as admin:
        for topic, queue_id in sorted({(row["topic"], row["queueId"]) for row in told}):
            queue = MessageQueue(topic, NAME, queue_id)
            expected = [row for row in told if (row["topic"], row["queueId"]) == (topic, queue_id)]
            found: list[Any] = []
            while len(found) < len(expected):
                found += (await consumer.pull(queue, len(found))).messages
            assert [(each.body.decode(), each.msg_id) for each in found[: len(expected)]] == [
                (row["body"], row["msgId"]) for row in expected
            ]
        for row in told[::11]:
            (message,) = await admin.query_by_unique_key(row["topic"], row["msgId"])
            assert message.offset_msg_id == row["offsetMsgId"]
            assert row["msgId"] in [each.msg_id for each in await admin.query_message_by_key(row["topic"], row["keys"])]
        for queue_id, offset in stored_offsets(version).items():
            assert await consumer.committed_offset(MessageQueue("GoldenA", NAME, queue_id)) == offset
    row = told[3]
    listed = run("mqadmin", "queryMsgByUniqueKey", "-n", cluster.nameserver, "-t", row["topic"], "-i", row["msgId"])
    assert row["keys"] in listed
    progress = run("mqadmin", "consumerProgress", "-n", cluster.nameserver, "-g", "golden_group", "--output", "json")
    assert '"GoldenA"' in progress


async def send_on(cluster: Cluster, version: str) -> str:
    """Send one message after the messages of the Java broker; returns its offset message id."""
    end = next(row["max"] for row in rows(version, "OFFSET") if row["queueId"] == 2)
    async with Producer(cluster.nameserver) as producer:
        result = await producer.send(Message("GoldenA", b"ours"), queue=MessageQueue("GoldenA", NAME, 2))
    assert result.queue_offset == end
    return result.offset_msg_id


def give_back(store: Path, version: str) -> None:
    """Check what a Java broker would find in the store."""
    before = json.loads((store / "config" / "topics.json").read_text(encoding="utf-8"))
    assert run("broker", "exportMetadata", str(store)).count("success") == 4
    after = json.loads((store / "config" / "topics.json").read_text(encoding="utf-8"))
    for name, config in before["topicConfigTable"].items():
        assert config.items() <= after["topicConfigTable"][name].items()
    assert not (store / "abort").exists()
    assert (store / "commitlog" / ("0" * 20)).stat().st_size == 262_144

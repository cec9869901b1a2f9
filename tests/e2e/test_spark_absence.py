"""Spark's readers and writers, without a JVM, while real brokers and NameServers are away, or take a right away."""

import logging
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StructType

from skylark import Admin, Message, Producer
from skylark.mqcommon.errors import BrokerError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.auth import UserInfo
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.sdk.testing import Cluster as InProcess
from skylark.spark_connector.options.read import ReadOptions
from skylark.spark_connector.options.write import WriteOptions
from skylark.spark_connector.reading.batch_reader import RocketMQBatchReader
from skylark.spark_connector.reading.pulling import BrokersMissing
from skylark.spark_connector.stream.admitting_reader import AdmittingStreamReader
from skylark.spark_connector.writing.rows import layout_of
from skylark.spark_connector.writing.writer import Deduplicated, Task, Written, send_batches
from tests.sdk.test_access_control import APP, OPTIONS, ROOT, allowing
from tests.support.daemons import Cluster, make_topic, running, start, until_route
from tests.support.in_process import until_known
from tests.support.waiting import until

TOPIC = "flights"
BODY = StructType().add("body", BinaryType())
ALL = ReadAllAvailable()


async def send(cluster: Cluster, broker: str, *bodies: bytes) -> None:
    async with Producer(cluster.nameserver) as producer:
        for body in bodies:
            await producer.send(Message(TOPIC, body), queue=MessageQueue(TOPIC, broker, 0))


def batch_of(cluster: Cluster, **given: str) -> list[bytes]:
    options = {"nameserver": cluster.nameserver, "topic": TOPIC, "brokerWaitMs": "0", "retryIntervalMs": "1", **given}
    reader = RocketMQBatchReader(ReadOptions.parse(options), BODY)
    found = [batch for task in reader.partitions() for batch in reader.read(task)]
    return sorted(body for batch in found for body in batch.column("body").to_pylist())


async def test_a_batch_is_whole_or_names_the_broker_that_is_missing(tmp_path: Path) -> None:
    async with running(tmp_path, 2) as cluster:
        await make_topic(cluster, TopicConfig(TOPIC, 1, 1))
        await send(cluster, "broker-a", b"a")
        await send(cluster, "broker-b", b"b")
        assert await trio.to_thread.run_sync(batch_of, cluster) == [b"a", b"b"]
        cluster.broker("broker-b").kill()
        await until_route(cluster, TOPIC, ["broker-a"])
        with pytest.raises(BrokersMissing, match=r"broker-b .*is away"):
            await trio.to_thread.run_sync(batch_of, cluster)
        # The broker that is left tells a new NameServer of the other one.
        cluster.namesrvs[0].kill()
        await start(cluster.namesrvs[0])
        await until_route(cluster, TOPIC, ["broker-a"])
        with pytest.raises(BrokersMissing, match="broker-b"):
            await trio.to_thread.run_sync(batch_of, cluster)
        assert await trio.to_thread.run_sync(lambda: batch_of(cluster, missingBrokers="skip")) == [b"a"]
        async with Admin(cluster.nameserver) as admin:
            await admin.forget_broker("broker-b")
        assert await trio.to_thread.run_sync(batch_of, cluster) == [b"a"]


class Stream:
    """One run of a query, asked as Spark asks; its methods block."""

    def __init__(self, **given: str) -> None:
        options = {"topic": TOPIC, "startingOffsets": "earliest", "discoveryIntervalMs": "0", **given}
        self.reader = AdmittingStreamReader(ReadOptions.of_stream(options), BODY)
        self.at = self.reader.initialOffset()

    def has_new(self) -> bool:
        return bool(self.reader.latestOffset(self.at, ALL) != self.at)

    def bodies(self) -> list[bytes]:
        """The next micro-batch."""
        end = self.reader.latestOffset(self.at, ALL)
        found: list[Any] = [
            body
            for task in self.reader.partitions(self.at, end)
            for batch in self.reader.read(task)
            for body in batch.column("body").to_pylist()
        ]
        self.reader.commit(end)
        self.at = end
        return sorted(found)

    def close(self) -> None:
        self.reader.stop()


async def test_a_stream_is_held_while_a_broker_is_away_and_has_all_rows_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, 2) as cluster:
        await make_topic(cluster, TopicConfig(TOPIC, 1, 1))
        await send(cluster, "broker-a", b"a1")
        with closing(await trio.to_thread.run_sync(lambda: Stream(nameserver=cluster.nameserver))) as stream:
            assert await trio.to_thread.run_sync(stream.bodies) == [b"a1"]
            await send(cluster, "broker-b", b"b2")
            cluster.broker("broker-b").kill()
            await until_route(cluster, TOPIC, ["broker-a"])
            await send(cluster, "broker-a", b"a2")
            assert not await trio.to_thread.run_sync(stream.has_new)
            assert "broker-b" in caplog.text
            await start(cluster.broker("broker-b"))
            await until_route(cluster, TOPIC, ["broker-a", "broker-b"])
            await until(lambda: trio.to_thread.run_sync(stream.has_new), "the stream goes on")
            assert await trio.to_thread.run_sync(stream.bodies) == [b"a2", b"b2"]


async def test_a_right_that_is_taken_away_ends_a_stream_with_the_words_of_the_broker() -> None:
    async with (
        InProcess(options={**OPTIONS, "brokerRole": "ASYNC_MASTER"}) as cluster,
        Admin(cluster.nameserver, credentials=ROOT) as root,
    ):
        broker = cluster.brokers[0].address
        await root.create_topic(broker, TopicConfig(TOPIC, 1, 1))
        await until_known(root, TOPIC)
        await root.create_user(broker, UserInfo("app", "a secret of the app"))
        group = "Group:spark-rocketmq"
        await root.create_acl(broker, allowing((f"Topic:{TOPIC}", "Sub"), (f"Topic:{TOPIC}", "Get"), (group, "Sub")))
        keys = {"accessKey": APP.access_key, "secretKey": APP.secret_key}
        with closing(await trio.to_thread.run_sync(lambda: Stream(nameserver=cluster.nameserver, **keys))) as stream:
            assert await trio.to_thread.run_sync(stream.bodies) == []
            await root.delete_acl(broker, "User:app")
            with pytest.raises(BrokerError, match="User:app has no permission"):
                await trio.to_thread.run_sync(stream.has_new)


async def test_a_write_waits_for_nameservers_that_are_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with running(tmp_path) as cluster:
        await make_topic(cluster, TopicConfig(TOPIC, 1, 1))
        cluster.namesrvs[0].kill()
        options = WriteOptions.parse({"nameserver": cluster.nameserver, "topic": TOPIC})

        def write() -> Written:
            rows = pa.RecordBatch.from_pydict({"body": [b"%d" % number for number in range(10)]})
            with Deduplicated(options, Task("q", "0", 0)) as target:
                return send_batches([rows], layout_of(BODY, options), TOPIC, target, Written(0))

        async def come_back() -> None:
            await until(lambda: "waits up to 60 s" in caplog.text, "the write waits")
            await start(cluster.namesrvs[0])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(come_back)
            written = await trio.to_thread.run_sync(write)
        assert written.rows == 10
        assert len(await trio.to_thread.run_sync(batch_of, cluster)) == 10

"""kill -9 of a broker under load: its directory, read without it, has what it serves after its restart."""

from pathlib import Path
from random import Random
from typing import Any

import trio

from skylark import Producer
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.spark_connector.options.read import ReadOptions
from skylark.spark_connector.reading.batch_reader import RocketMQBatchReader
from skylark.spark_connector.schema import spark_schema
from skylark.spark_connector.store.reader import StoreReader
from tests.e2e.load import Load
from tests.support.daemons import Cluster, make_topic, running, start, until_route
from tests.support.waiting import until

TOPIC = "kill"
SENDERS = 20
SCHEMA = spark_schema(include_properties=True)

Rows = list[dict[str, Any]]


def rows(source: StoreReader | RocketMQBatchReader) -> Rows:
    found = [row for one in source.partitions() for batch in source.read(one) for row in batch.to_pylist()]
    return sorted(found, key=lambda row: (row["queueId"], row["queueOffset"]))


async def of_directory(cluster: Cluster) -> Rows:
    name = cluster.brokers[0].name
    given = {"storePath": str(cluster.home / name), "topic": TOPIC}
    return await trio.to_thread.run_sync(rows, StoreReader(ReadOptions.parse(given), SCHEMA))


async def of_broker(cluster: Cluster) -> Rows:
    given = {"nameserver": cluster.nameserver, "topic": TOPIC}
    return await trio.to_thread.run_sync(rows, RocketMQBatchReader(ReadOptions.parse(given), SCHEMA))


async def test_a_directory_has_what_its_broker_serves_after_a_kill(tmp_path: Path, seed: int) -> None:
    enough = Random(seed).randrange(300, 1500)
    async with running(tmp_path) as cluster:
        (broker,) = cluster.brokers
        await make_topic(cluster, TopicConfig(TOPIC, 4, 4))
        async with Producer(cluster.nameserver, retries=0) as producer, trio.open_nursery() as nursery:
            load = Load(producer, TOPIC)
            for sender in range(SENDERS):
                nursery.start_soon(load.send, sender)
            await until(lambda: len(load.acked) >= enough, f"{enough} sends are acknowledged")
            while_it_runs = await of_directory(cluster)
            load.stopping = True
            broker.kill()
        found = await of_directory(cluster)
        assert len(found) >= len(load.acked) and len(found) >= len(while_it_runs) >= enough
        await start(broker)
        await until_route(cluster, TOPIC, [broker.name])
        assert found == await of_broker(cluster) == await of_directory(cluster)

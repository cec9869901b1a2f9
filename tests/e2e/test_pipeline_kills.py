"""examples/pipeline while its driver, workers, broker and NameServer are killed: each row is in each sink once."""

import json
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from random import Random

import psycopg
import pyarrow.parquet as pq
import pytest
import trio

from examples.pipeline.events import events_of, messages
from skylark import Producer
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.e2e.spark_job import POLL_S, Job, bodies, committed
from tests.support.daemons import Cluster, make_topic, running, start
from tests.support.postgresql import postgresql
from tests.support.rounds import report
from tests.support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.needs("PostgreSQL")]

ORDERS_A_ROUND = 60
# Orders of the next day: the first one ends all windows before it, and the micro-batch of the second one sends these.
LAST_ORDERS = (86_401, 86_402)
TIMEOUT_S = 600
# What is killed; the job starts again without its driver or a planner, and goes on without a task.
OF_SPARK = ("driver", "task", "planner")
SERVERS = ("broker", "namesrv")
# A task whose worker is killed is run again. A micro-batch without rows after each one with rows would cost a third of
# the test's time.
SPARK = "--master local[2,4] --driver-memory 512m"
CONF = (
    "spark.ui.enabled=false", "spark.ui.showConsoleProgress=false", "spark.driver.host=127.0.0.1",
    "spark.driver.bindAddress=127.0.0.1", "spark.sql.streaming.noDataMicroBatches.enabled=false",
)  # fmt: skip
SUBMIT = " ".join([SPARK, *(f"--conf {each}" for each in CONF), "pyspark-shell"])


class Sinks:
    """The rows that the pipeline has written, and how far its queries have read."""

    def __init__(self, folder: Path, database: str) -> None:
        self._folder = folder
        self._database = database

    def read(self) -> int:
        """How many messages the finished micro-batches of all queries had."""
        return sum(self._read_by(query) for query in (self._folder / "checkpoints").glob("*"))

    def _read_by(self, query: Path) -> int:
        finished = [int(each.name) for each in (query / "commits").glob("[0-9]*")]
        if not finished:
            return 0
        _, _, *sources = (query / "offsets" / str(max(finished))).read_text().splitlines()
        offsets = [json.loads(source) for source in sources]
        return sum(offset for source in offsets for key, offset in source.items() if key.count("|") == 2)

    def orders(self) -> Counter[str]:
        """The ids in the Parquet files."""
        files = committed(self._folder / "orders")
        return Counter(order for file in files for order in pq.read_table(file)["order_id"].to_pylist())

    def paid(self) -> Counter[str]:
        """The ids in the table of PostgreSQL."""
        with psycopg.connect(self._database) as connection:
            return Counter(row[0] for row in connection.execute("SELECT order_id FROM paid"))


Revenue = Counter[tuple[str, str, int]]


async def revenue(cluster: Cluster) -> Revenue:
    """Minute, shop and sum of each message of the sink's topic."""
    rows = [json.loads(body) for body in await bodies(cluster, "revenue")]
    return Counter((row["minute"], row["shop"], row["revenue"]) for row in rows)


class Expected:
    """The rows that the sinks should have."""

    def __init__(self, numbers: Sequence[int]) -> None:
        """``numbers``: of the orders whose windows have ended."""
        events = [event for number in (*numbers, *LAST_ORDERS) for event in events_of(number)]
        orders = [event.fields for event in events if event.topic == "orders"]
        self.orders = Counter(str(order["order_id"]) for order in orders)
        self.paid = Counter(str(event.fields["order_id"]) for event in events if event.topic == "payments")
        sums: Counter[tuple[str, str]] = Counter()
        for order in orders[: len(numbers)]:
            minute = datetime.fromisoformat(str(order["at"])).strftime("%Y-%m-%dT%H:%M:00.000Z")
            sums[minute, str(order["shop"])] += int(order["amount"])
        self.revenue: Revenue = Counter((*key, amount) for key, amount in sums.items())


async def send(cluster: Cluster, first: int, count: int) -> int:
    """How many messages the three queries read of them: two read orders only, one reads both topics."""
    by_topic = messages(first, count)
    async with Producer(cluster.nameserver) as producer:
        for topic, sent in by_topic.items():
            await producer.send_many(topic, sent)
    return 3 * len(by_topic["orders"]) + len(by_topic["payments"])


@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=pytest.mark.nightly)])
async def test_each_row_is_in_each_sink_once_whatever_is_killed(rounds: int, seed: int, tmp_path: Path) -> None:
    """A round kills two parts of the job, the broker and the NameServer, each at a random moment."""
    random = Random(seed)
    async with postgresql() as database, running(tmp_path, options=()) as cluster:
        for topic in ("orders", "payments", "revenue"):
            await make_topic(cluster, TopicConfig(topic, 2, 2))
        sinks = Sinks(tmp_path / "sinks", database)
        job = Job(
            tmp_path, "examples.pipeline.pipeline", cluster.nameserver, str(tmp_path / "sinks"), database,
            "--trigger", "300 milliseconds", "--batch", "40", "--partitions", "1",
            environment={"PYSPARK_SUBMIT_ARGS": SUBMIT},
        )  # fmt: skip
        sent = 0

        async def has_read(wanted: int) -> bool:
            await trio.sleep(random.uniform(0, POLL_S))
            assert not job.ended_well
            return sinks.read() >= wanted

        async def until_read(wanted: int) -> None:
            await until(lambda: has_read(wanted), f"{wanted} messages are read", TIMEOUT_S)

        async def kill(what: str) -> None:
            if what == "driver":
                job.kill_and_start()
            elif what == "task":
                job.kill_a_task(random)
            elif what == "planner":
                job.kill_a_planner(random)
            else:
                daemon = cluster.brokers[0] if what == "broker" else cluster.namesrvs[0]
                daemon.kill()
                await start(daemon)

        try:
            for number in range(rounds):
                # The first round kills the driver and a task.
                victims = [*random.sample(OF_SPARK if number else OF_SPARK[:2], 2), *SERVERS]
                before = sent
                sent += await send(cluster, number * ORDERS_A_ROUND, ORDERS_A_ROUND)
                for victim in random.sample(victims, len(victims)):
                    await until_read(before + random.randrange(sent - before))
                    await kill(victim)
            await until_read(sent)
            for number in LAST_ORDERS:
                sent += await send(cluster, number, 1)
                await until_read(sent)
        finally:
            await trio.to_thread.run_sync(job.kill)
        expected = Expected(range(rounds * ORDERS_A_ROUND))
        found = sinks.orders(), sinks.paid(), await revenue(cluster)
        wanted = expected.orders, expected.paid, expected.revenue
        lost = sum((wanted_rows - rows).total() for wanted_rows, rows in zip(wanted, found, strict=True))
        report(rounds, acknowledged=sum(map(Counter.total, wanted)), lost=lost)
        assert found == wanted

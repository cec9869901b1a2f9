"""A query against a cluster in memory, run as Spark runs it."""

import json
from typing import Any

from pyspark.sql.streaming.datasource import ReadLimit

from skylark.mqcommon.message.queue import MessageQueue
from skylark.spark_connector.options.read import ReadOptions
from skylark.spark_connector.schema import spark_schema
from skylark.spark_connector.stream.admitting_reader import AdmittingStreamReader
from tests.spark_connector.cluster import MemoryCluster

A0, A1, B0 = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1), MessageQueue("t", "b", 0)
SCHEMA = spark_schema(include_properties=False)

Offset = dict[str, Any]


class Query:
    """A query and its checkpoint, as Spark runs them; `start` is a run, with a reader of its own."""

    def __init__(self, cluster: MemoryCluster, *, idle_s: float = 0, **given: str) -> None:
        self.cluster = cluster
        self.idle_s = idle_s
        self.given = {"topic": "t", "startingOffsets": "earliest", "discoveryIntervalMs": "0", **given}
        self.log: list[Offset] = []
        self.now_s = 0.0
        self.rows: list[tuple[str, int, int]] = []
        self.sizes: list[int] = []
        self.start()

    def start(self, *, available_now: bool = False, **given: str) -> None:
        self.reader = AdmittingStreamReader(
            ReadOptions.of_stream({**self.given, **given}),
            SCHEMA,
            lambda options: self.cluster,
            lambda options: sorted({queue.topic for queue in self.cluster.logs}),
            lambda options: ["cluster"],
            lambda: self.now_s,
            self.idle_s,
        )
        if available_now:
            self.reader.prepareForTriggerAvailableNow()

    def trigger(self, limit: ReadLimit | None = None) -> bool:
        """Whether there was a micro-batch."""
        if not self.log:
            self.log.append(kept(self.reader.initialOffset()))
        start = self.log[-1]
        end = kept(self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit()))
        if json.dumps(end) == json.dumps(start):
            return False
        self.log.append(end)
        found = self.batch()
        self.sizes.append(len(found))
        self.rows += found
        self.reader.commit(end)
        return True

    def batch(self) -> list[tuple[str, int, int]]:
        """The rows of the last micro-batch, whenever it is run."""
        return [
            (row["brokerName"], row["queueId"], row["queueOffset"])
            for partition in self.reader.partitions(self.log[-2], self.log[-1])
            for batch in self.reader.read(partition)
            for row in batch.to_pylist()
        ]

    def of(self, queue: MessageQueue) -> list[int]:
        return [offset for broker, queue_id, offset in self.rows if (broker, queue_id) == queue[1:]]


def kept(offset: Offset) -> Offset:
    return json.loads(json.dumps(offset))  # type: ignore[no-any-return]

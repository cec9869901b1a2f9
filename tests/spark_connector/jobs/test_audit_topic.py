from datetime import UTC, datetime

import pyarrow as pa

from skylark.spark_connector.jobs.audit_topic import count


def test_each_queue_of_a_task_is_counted_by_itself() -> None:
    """A batch of Spark may begin within a queue and have several: their offsets are no gaps and no disorder."""
    rows = [("a", 0, 7), ("a", 0, 8), ("a", 1, 0), ("a", 1, 3), ("b", 1, 4)]
    stored = [datetime(2026, 1, 1, second=10 - number, tzinfo=UTC) for number in (3, 2, 9, 8, 9)]
    columns = [*zip(*rows, strict=True), stored]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(column) for column in columns], names=["brokerName", "queueId", "queueOffset", "storeTimestamp"]
    )
    found = [row for each in count(iter([batch, batch.slice(0, 0)])) for row in each.to_pylist()]
    names = ("brokerName", "queueId", "first", "last", "messages", "missing", "gaps", "disordered")
    assert [tuple(row[name] for name in names) for row in found] == [
        ("a", 0, 7, 8, 2, 0, 0, 0),
        ("a", 1, 0, 3, 2, 2, 1, 0),
        ("b", 1, 4, 4, 1, 0, 0, 0),
    ]

import importlib.util
import logging
import pickle
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row, datasource
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType

from mqcommon.errors import SendFailed, UserError
from mqcommon.message.message import Message
from spark_connector.options.write import WriteOptions
from spark_connector.source import RocketMQDataSource
from spark_connector.writing import writer
from spark_connector.writing.columns import layout_of
from spark_connector.writing.once import WriteFailed
from spark_connector.writing.rows import Lot
from spark_connector.writing.writer import BATCH_ROWS, RocketMQBatchWriter, Written, arrow_batches, send_batches

OPTIONS = WriteOptions(topic="t")
SCHEMA = StructType().add("body", BinaryType()).add("tags", StringType())


class MemoryTarget:
    """Keeps what it is sent; fails after ``room`` messages."""

    def __init__(self, room: int = 100) -> None:
        self.room = room
        self.sent: list[bytes | Message] = []

    def __enter__(self) -> "MemoryTarget":
        return self

    def __exit__(self, *error: object) -> None: ...

    def send(self, lot: Lot) -> int:
        if len(self.sent) + len(lot.messages) > self.room:
            raise SendFailed("no broker")
        self.sent += lot.messages
        return len(lot.messages)


def batches(*sizes: int) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pydict({"body": [b"x"] * size, "tags": ["a"] * size}) for size in sizes]


def test_a_task_counts_its_rows() -> None:
    target = MemoryTarget()
    done = send_batches(batches(3, 0, 2), layout_of(SCHEMA, OPTIONS), "t", target, Written(4))
    assert done == Written(4, 5, 5)
    assert len(target.sent) == 5


def test_a_failed_task_says_what_stays() -> None:
    said = r"no broker \(partition 4; the 3 messages sent before stay in the topic"
    with pytest.raises(WriteFailed, match=said):
        send_batches(batches(3, 2), layout_of(SCHEMA, OPTIONS), "t", MemoryTarget(4), Written(4))


def test_rows_of_an_older_pyspark_become_arrow_batches() -> None:
    kinds = StructType().add("body", BinaryType()).add("keys", ArrayType(StringType()))
    kinds = kinds.add("properties", MapType(StringType(), StringType()))
    rows = [Row(body=b"%d" % n, keys=["k"], properties={"a": "b"}) for n in range(BATCH_ROWS + 1)]
    made = list(arrow_batches(iter(rows), kinds))
    assert [batch.num_rows for batch in made] == [BATCH_ROWS, 1]
    assert made[1].to_pylist() == [{"body": b"10000", "keys": ["k"], "properties": [("a", "b")]}]
    assert list(arrow_batches(iter([]), kinds)) == []


def test_arrow_batches_are_used_as_they_are() -> None:
    given = batches(2, 3)
    assert list(arrow_batches(iter(given), SCHEMA)) == given


def test_a_writer_can_be_pickled_and_mistakes_are_found_before() -> None:
    pickle.loads(pickle.dumps(RocketMQBatchWriter(OPTIONS, SCHEMA)))
    with pytest.raises(UserError, match="no column body"):
        RocketMQBatchWriter(OPTIONS, StructType().add("tags", StringType()))


def test_commit_and_abort_say_what_was_sent(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    source = RocketMQDataSource({"topic": "t", "nameserver": "h:1"})
    batch: Any = source.writer(SCHEMA, overwrite=False)
    stream: Any = source.streamWriter(SCHEMA, overwrite=False)
    batch.commit([Written(0, 5, 3), Written(1, 2, 2)])
    assert "batch: 7 rows written, 2 of them were there already" in caplog.text
    stream.abort([Written(0, 5, 3), None], 8)
    assert "epoch 8 failed: 1 of 2 tasks ended, and the 3 messages that they sent stay in the topic" in caplog.text
    batch.abort([None])
    stream.commit([], 9)


def test_a_topic_cannot_be_overwritten() -> None:
    source = RocketMQDataSource({"topic": "t"})
    with pytest.raises(UserError, match=r'use \.mode\("append"\)'):
        source.writer(SCHEMA, overwrite=True)
    with pytest.raises(UserError, match=r'use \.outputMode\("append"\) or "update"'):
        source.streamWriter(SCHEMA, overwrite=True)


def test_pyspark_without_an_arrow_writer_for_streams_passes_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As 4.0: the writer is one for rows there, and makes Arrow batches of them itself."""
    assert issubclass(writer.RocketMQStreamWriter, datasource.DataSourceStreamArrowWriter)
    arrow = datasource.DataSourceStreamArrowWriter
    monkeypatch.delattr(datasource, "DataSourceStreamArrowWriter")
    spec = importlib.util.find_spec("spark_connector.writing.writer")
    assert spec is not None
    assert spec.loader is not None
    older = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(older)
    assert issubclass(older.RocketMQStreamWriter, datasource.DataSourceStreamWriter)
    assert not issubclass(older.RocketMQStreamWriter, arrow)

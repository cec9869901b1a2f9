import importlib.util
import logging
import pickle
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row, datasource
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, MapType, StringType, StructType

from skylark.mqcommon.errors import InvalidArgument, SendFailed, UserError
from skylark.mqcommon.message.message import Message
from skylark.spark_connector.options.write import WriteOptions
from skylark.spark_connector.source import RocketMQDataSource
from skylark.spark_connector.writing import writer
from skylark.spark_connector.writing.once import WriteFailed
from skylark.spark_connector.writing.rows import Lot, layout_of
from skylark.spark_connector.writing.writer import (
    APPLICATION_ID,
    BATCH_ROWS,
    EPOCH,
    EXECUTION_ID,
    QUERY_ID,
    Plain,
    RocketMQBatchWriter,
    RocketMQStreamWriter,
    Task,
    Written,
    arrow_batches,
    gathered,
    send_batches,
    task_of,
)

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
    # Nobody looks for a topic that may be created.
    source = RocketMQDataSource({"topic": "t", "nameserver": "h:1", "createTopic": "true"})
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
    spec = importlib.util.find_spec("skylark.spark_connector.writing.writer")
    assert spec is not None
    assert spec.loader is not None
    older = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(older)
    assert issubclass(older.RocketMQStreamWriter, datasource.DataSourceStreamWriter)
    assert not issubclass(older.RocketMQStreamWriter, arrow)


FAST = WriteOptions(topic="t", dedup=False)
MAP = pa.map_(pa.string(), pa.string())
KINDS: dict[str, tuple[DataType, pa.DataType]] = {
    "body": (BinaryType(), pa.binary()),
    "topic": (StringType(), pa.string()),
    "tags": (StringType(), pa.string()),
    "flag": (IntegerType(), pa.int32()),
    "shardingKey": (StringType(), pa.string()),
    "properties": (MapType(StringType(), StringType()), MAP),
}


class MemoryProducer:
    """Keeps what it is sent; refuses tables with a null body, as the real one does."""

    def __init__(self) -> None:
        self.tables: list[dict[str, list[Any]]] = []
        self.messages: list[Any] = []

    def send_arrow(self, topic: str, table: pa.Table, **names: str | None) -> None:
        if table.column("body").null_count:
            raise InvalidArgument("row 0, column 'body': it is null")
        self.tables.append({role: table.column(name).to_pylist() for role, name in names.items() if name is not None})

    def send_many(self, topic: str, messages: list[Any]) -> None:
        self.messages += messages

    def send(self, message: Any, **others: Any) -> None:
        self.messages.append(message)


def sent(*batches: dict[str, list[Any]], topic: str = "t") -> tuple[MemoryProducer, Written]:
    plain = Plain(FAST, Task("q", "e", 0))
    plain._producer = producer = MemoryProducer()  # type: ignore[assignment]  # what is used of it
    schema = StructType()
    for name in batches[0]:
        schema = schema.add(name, KINDS[name][0])
    given = [pa.record_batch({name: pa.array(batch[name], KINDS[name][1]) for name in batch}) for batch in batches]
    return producer, send_batches(given, layout_of(schema, FAST), topic, plain, Written(0))


def test_columns_that_need_no_messages_are_sent_as_they_are() -> None:
    first, second = (
        {"tags": ["a", None], "body": [b"x", b"y"], "flag": [1, 2]},
        {"tags": ["b"], "body": [b"z"], "flag": [3]},
    )
    producer, written = sent(first, second)
    assert producer.tables == [{"body": [b"x", b"y", b"z"], "tags": ["a", None, "b"], "flag": [1, 2, 3]}]
    assert (producer.messages, written) == ([], Written(0, 3, 3))


@pytest.mark.parametrize("others", [{"shardingKey": ["k"]}, {"properties": [[("a", "b")]]}])
def test_other_columns_are_made_messages_of(others: dict[str, list[Any]]) -> None:
    producer, written = sent({"body": [b"x"], **others})
    assert (producer.tables, len(producer.messages), written) == ([], 1, Written(0, 1, 1))


def test_a_topic_for_each_row_is_made_messages_of() -> None:
    producer, written = sent({"body": [b"x", b"y"], "topic": ["a", "b"]}, topic="")
    assert (producer.tables, len(producer.messages), written) == ([], 2, Written(0, 2, 2))


def test_a_row_that_is_refused_is_named_as_ever() -> None:
    with pytest.raises(WriteFailed, match=r"row 2 of the partition .* column body is null; leave such rows out"):
        sent({"body": [b"x", b"y"]}, {"body": [None]})


def test_batches_are_gathered() -> None:
    sizes = [3, 0, 4, 10, 1, 1]
    batches = [pa.RecordBatch.from_pydict({"body": [b"x"] * size}) for size in sizes]
    assert [[batch.num_rows for batch in some] for some in gathered(batches, 6)] == [[3, 0, 4], [10], [1, 1]]
    assert list(gathered([], 6)) == []


STREAM = {QUERY_ID: "q", EPOCH: "7", APPLICATION_ID: "app", EXECUTION_ID: "3"}
PLAIN = WriteOptions(topic="t")
NAMED = WriteOptions(topic="t", query_id="mine")


def test_a_stream_is_known_by_its_query_and_epoch() -> None:
    assert task_of(STREAM.get, 2, PLAIN, is_stream=True) == Task("q", "7", 2, epoch_before="6")
    assert task_of(STREAM.get, 2, NAMED, is_stream=True) == Task("mine", "7", 2, epoch_before="6")


def test_a_first_epoch_has_no_epoch_before() -> None:
    assert task_of({**STREAM, EPOCH: "0"}.get, 2, PLAIN, is_stream=True) == Task("q", "0", 2)


def test_only_a_batch_without_an_id_cannot_have_begun_before_its_writer_was_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []

    class Target(MemoryTarget):
        def __init__(self, options: WriteOptions, task: Task) -> None:
            super().__init__()
            seen.append(task.since_ms)

    monkeypatch.setattr(writer, "Deduplicated", Target)
    monkeypatch.setattr(writer, "this_task", lambda options, *, is_stream: Task("q", "7", 0))
    monkeypatch.setattr(writer, "keep_freed_memory", lambda: None)
    monkeypatch.setattr(writer, "time", SimpleNamespace(time=lambda: 5.0))
    for kind, options in ((RocketMQBatchWriter, PLAIN), (RocketMQBatchWriter, NAMED), (RocketMQStreamWriter, PLAIN)):
        pickle.loads(pickle.dumps(kind(options, SCHEMA))).write(iter(batches(1)))
    assert seen == [5_000, 0, 0]


def test_a_batch_is_known_by_its_run_or_by_the_users_id() -> None:
    """Also in foreachBatch, where there is a query: one epoch may write several times there."""
    assert task_of(STREAM.get, 2, PLAIN, is_stream=False) == Task("app", "3", 2)
    assert task_of(STREAM.get, 2, NAMED, is_stream=False) == Task("mine", "batch", 2)


@pytest.mark.parametrize("is_stream", [True, False])
def test_without_an_id_rows_cannot_be_recognised(is_stream: bool) -> None:
    with pytest.raises(UserError, match=r'use \.option\("dedup", "false"\)'):
        task_of({}.get, 2, PLAIN, is_stream=is_stream)
    assert task_of({}.get, 2, WriteOptions(topic="t", dedup=False), is_stream=is_stream).partition == 2

"""What `Plain` sends as tables, and what as messages."""

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, DataType, IntegerType, MapType, StringType, StructType

from mqcommon.errors import InvalidArgument
from spark_connector.options.write import WriteOptions
from spark_connector.writing.columns import layout_of
from spark_connector.writing.once import WriteFailed
from spark_connector.writing.target import Plain
from spark_connector.writing.task import Task
from spark_connector.writing.writer import Written, gathered, send_batches

OPTIONS = WriteOptions(topic="t", dedup=False)
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
    plain = Plain(OPTIONS, Task("q", "e", 0))
    plain._producer = producer = MemoryProducer()  # type: ignore[assignment]  # what is used of it
    schema = StructType()
    for name in batches[0]:
        schema = schema.add(name, KINDS[name][0])
    given = [pa.record_batch({name: pa.array(batch[name], KINDS[name][1]) for name in batch}) for batch in batches]
    return producer, send_batches(given, layout_of(schema, OPTIONS), topic, plain, Written(0))


def test_columns_that_need_no_messages_are_sent_as_they_are() -> None:
    first, second = (
        {"tags": ["a", None], "body": [b"x", b"y"], "flag": [1, 2]},
        {"tags": ["b"], "body": [b"z"], "flag": [3]},
    )
    producer, written = sent(first, second)
    assert producer.tables == [{"body": [b"x", b"y", b"z"], "tags": ["a", None, "b"], "flag": [1, 2, 3]}]
    assert (producer.messages, written) == ([], Written(0, 3, 3))


@pytest.mark.parametrize(
    "others",
    [{"shardingKey": ["k"]}, {"properties": [[("a", "b")]]}],
)
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

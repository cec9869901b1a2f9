"""Columns made into bodies and keys before rows become messages."""

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, BinaryType, DataType, LongType, StringType, StructType

from skylark.mqcommon.errors import UserError
from skylark.mqcommon.message.message import Message
from skylark.spark_connector.options.formats import value_spec
from skylark.spark_connector.options.write import WriteOptions
from skylark.spark_connector.writing.bodies import Bodies
from skylark.spark_connector.writing.rows import RowRefused, layout_of, lots_of
from skylark.spark_connector.writing.writer import RocketMQBatchWriter
from tests.spark_connector.formats.columns import descriptor_file

VALUE = StructType().add("id", LongType()).add("name", StringType())
ARROW = pa.struct([("id", pa.int64()), ("name", pa.string())])


def messages(columns: dict[str, tuple[DataType, pa.Array]], **given: str) -> list[bytes | Message]:
    """The messages as which the rows of a batch are sent."""
    schema = StructType()
    for name, (kind, _) in columns.items():
        schema.add(name, kind)
    options = WriteOptions.parse({"topic": "t", **given})
    spec = value_spec(options)
    layout = layout_of(schema, options, spec)
    bodies: Bodies = pickle.loads(pickle.dumps(Bodies(spec, schema, layout)))
    batch = pa.RecordBatch.from_pydict({name: column for name, (_, column) in columns.items()})
    made = bodies.made([batch.slice(0, 1), batch.slice(1)])
    return [message for one in made for lot in lots_of(one, layout, "t") for message in lot.messages]


def values(*rows: Any) -> tuple[DataType, pa.Array]:
    return VALUE, pa.array(rows, ARROW)


def test_a_struct_becomes_the_body() -> None:
    rows = values({"id": 1, "name": None}, {"id": 2, "name": "b"})
    bodies = messages({"value": rows}, valueFormat="json")
    assert bodies == [b'{"id":1,"name":null}', b'{"id":2,"name":"b"}']
    tags = (StringType(), pa.array(["x", "y"]))
    tagged = messages({"tags": tags, "value": rows}, valueFormat="json")
    assert [(one.body, one.tags) for one in tagged if isinstance(one, Message)] == list(zip(bodies, "xy", strict=True))


def test_a_row_without_a_body_is_refused_by_its_number() -> None:
    with pytest.raises(RowRefused, match="column body is null"):
        messages({"value": values({"id": 1}, None)}, valueFormat="json")
    pytest.importorskip("fastavro", reason="the extra formats is not installed")
    fields = [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]
    schema = json.dumps({"type": "record", "name": "R", "fields": fields})
    with pytest.raises(RowRefused, match=r"row 1 of the partition .* is no record of the Avro schema"):
        messages({"value": values({"id": 1, "name": ""}, {"id": 2})}, valueFormat="avro", valueSchema=schema)


KEYS = [
    (StringType(), pa.array(["k1", "a b", None])),
    (BinaryType(), pa.array([b"k1", b"a b", None], pa.binary())),
    (ArrayType(StringType()), pa.array([["k1"], ["a", "b", None], None], pa.list_(pa.string()))),
]


@pytest.mark.parametrize(("kind", "column"), KEYS)
def test_kafkas_key_is_the_keys_of_the_message(kind: DataType, column: pa.Array) -> None:
    """With the column ``key`` that schemaStyle=kafka reads, a message has the same keys again."""
    sent = messages({"value": (StringType(), pa.array(["x"] * 3)), "key": (kind, column)})
    assert [one.keys for one in sent if isinstance(one, Message)] == ["k1", "a b", None]


def test_a_key_that_is_no_text_is_refused() -> None:
    keys = pa.array([b"ok", b"\xff"], pa.binary())
    with pytest.raises(RowRefused, match=r"row 1 of the partition .* key b'\\xff' is no UTF-8"):
        messages({"value": (StringType(), pa.array(["x", "y"])), "key": (BinaryType(), keys)})


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"body": VALUE}, "column body is a body, and with valueFormat=protobuf bodies are made of the column value"),
        ({"value": StringType()}, "column value is string, but with valueFormat=protobuf it is a struct"),
        ({"value": VALUE}, r"column value has a field id, and the schema of protobuf sku"),
        ({"value": StructType().add("sku", LongType())}, "field sku of column value is bigint, .* string; cast it"),
        ({"tags": StringType()}, r'with the option valueFormat of struct\("\*"\)\.alias\("value"\)'),
        (
            {"value": StructType().add("sku", StringType()), "key": LongType()},
            "column key is bigint, but must be string",
        ),
    ],
)
def test_columns_that_do_not_fit_the_format_are_refused(
    columns: dict[str, DataType], said: str, tmp_path: Path
) -> None:
    given = {"valueFormat": "protobuf", "valueSchema": str(descriptor_file(tmp_path)), "valueMessage": "shop.Item"}
    schema = StructType()
    for name, kind in columns.items():
        schema.add(name, kind)
    with pytest.raises(UserError, match=said):
        RocketMQBatchWriter(WriteOptions.parse({"topic": "t", **given}), schema)

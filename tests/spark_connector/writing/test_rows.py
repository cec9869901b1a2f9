"""Rows of Arrow batches as messages, against a plain model of one row."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from skylark.mqcommon.errors import UserError
from skylark.mqcommon.message.message import Message
from skylark.mqcommon.message.queue import MessageQueue
from skylark.spark_connector.options.write import WriteOptions
from skylark.spark_connector.writing.rows import Layout, Place, RowKeys, RowRefused, layout_of, lots_of, name_in

NAMES = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=8)
COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "topic": (pa.string(), st.sampled_from(["a", "b", "c"])),
    "tags": (pa.string(), st.none() | NAMES),
    "keys": (pa.string(), st.none() | NAMES),
    "properties": (
        pa.map_(pa.string(), pa.string()),
        st.none() | st.dictionaries(NAMES | st.sampled_from(["KEYS", "UNIQ_KEY", "SPARK_ROW"]), st.none() | NAMES),
    ),
    "flag": (pa.int32(), st.none() | st.integers(-(2**31), 2**31 - 1)),
    "shardingKey": (pa.string(), st.none() | NAMES),
    "delayTimeLevel": (pa.int32(), st.none() | st.integers(0, 18)),
}


@st.composite
def batches(draw: st.DrawFn) -> tuple[pa.RecordBatch, list[dict[str, Any]]]:
    """A batch with some of the columns, and its rows."""
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), unique=True))
    bodies = st.binary(max_size=9) if draw(st.booleans()) else NAMES
    shape = {"body": bodies} | {name: COLUMNS[name][1] for name in names}
    rows = draw(st.lists(st.fixed_dictionaries(shape), min_size=1, max_size=8))
    kinds = {"body": pa.string() if bodies is NAMES else pa.binary()} | {name: COLUMNS[name][0] for name in names}
    given = {name: [row[name] for row in rows] for name in shape}
    columns = [
        pa.array([None if row is None else list(row.items()) for row in given[name]] if name == "properties" else
                 given[name], kinds[name])
        for name in shape
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, names=list(shape)), rows


def expected(row: dict[str, Any], topic: str) -> tuple[Any, ...]:
    """The message of a row: topic, body, flag, properties, and whether it must be sent alone."""
    body = row["body"].encode() if isinstance(row["body"], str) else row["body"]
    special = {"KEYS": row.get("keys"), "TAGS": row.get("tags"), "__SHARDINGKEY": row.get("shardingKey")}
    special["DELAY"] = str(row.get("delayTimeLevel") or "")
    own = {k: v for k, v in (row.get("properties") or {}).items() if k not in ("KEYS", "UNIQ_KEY", "SPARK_ROW", "")}
    properties = {name: value for name, value in {**own, **special}.items() if value}
    return topic, body, row.get("flag") or 0, properties, bool(special["__SHARDINGKEY"] or special["DELAY"])


@given(batches(), st.booleans())
def test_messages_are_what_rows_ask_for(made: tuple[pa.RecordBatch, list[dict[str, Any]]], fixed: bool) -> None:
    batch, rows = made
    layout = Layout({name: position for position, name in enumerate(batch.schema.names)})
    topic = "fixed" if fixed or "topic" not in batch.schema.names else ""
    got: dict[str, list[Any]] = {}
    for lot in lots_of(batch, layout, topic):
        for number, message in enumerate(lot.messages):
            if isinstance(message, bytes):
                message = Message(lot.topic, message)
            place = lot.places.get(number)
            assert place in (None, Place())
            shown = (message.topic, message.body, message.flag, message.properties or {}, place is not None)
            got.setdefault(lot.topic, []).append(shown)
    wanted: dict[str, list[Any]] = {}
    for row in rows:
        name = topic or row["topic"]
        wanted.setdefault(name, []).append(expected(row, name))
    assert got == wanted


def one(**columns: tuple[Any, pa.DataType]) -> tuple[pa.RecordBatch, Layout]:
    """A batch of one row."""
    arrays = [pa.array([value], kind) for value, kind in columns.values()]
    layout = Layout({name: position for position, name in enumerate(columns)})
    return pa.RecordBatch.from_arrays(arrays, names=list(columns)), layout


def test_queues_and_times() -> None:
    body = (b"x", pa.binary())
    at = datetime(2030, 1, 2, 3, 4, 5, 6000, UTC)
    for value, kind in ((at, pa.timestamp("us", tz="Europe/Berlin")), (1893553445006, pa.int64())):
        (lot,) = lots_of(*one(body=body, deliverTime=(value, kind)), "t")
        assert lot.places == {0: Place(None, at)}
    (lot,) = lots_of(*one(body=body, queueId=(3, pa.int32()), brokerName=("b", pa.string())), "t")
    assert lot.places == {0: Place(MessageQueue("t", "b", 3))}
    (lot,) = lots_of(*one(body=body, queueId=(None, pa.int32()), brokerName=(None, pa.string())), "t")
    assert not lot.places


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_a_body_may_be_text_or_bytes_of_either_size(kind: pa.DataType) -> None:
    for text in ("a", ""):
        (lot,) = lots_of(*one(body=(text if kind in (pa.string(), pa.large_string()) else text.encode(), kind)), "t")
        assert lot.messages == [text.encode()]


def test_keys_may_be_a_list() -> None:
    (lot,) = lots_of(*one(body=(b"x", pa.binary()), keys=(["a", None, "b"], pa.list_(pa.string()))), "t")
    (message,) = lot.messages
    assert isinstance(message, Message)
    assert message.keys == "a b"


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"body": (None, pa.binary())}, r'row 7 of the partition .* column body is null; .*df\.where\("body is not'),
        ({"body": (b"x", pa.binary()), "topic": (None, pa.string())}, "row 7 .*column topic is null; fill it"),
        ({"body": (b"x", pa.binary()), "tags": ("a\x01", pa.string())}, "row 7 .*tags = .* holds the characters"),
        (
            {"body": (b"x", pa.binary()), "queueId": (1, pa.int32()), "brokerName": (None, pa.string())},
            "row 7 .*one of them is null",
        ),
        ({"body": (b"x", pa.binary()), "deliverTime": (2**62, pa.int64())}, "row 7 .*column deliverTime is 4611"),
    ],
)
def test_a_row_that_cannot_be_sent_is_named(columns: dict[str, tuple[Any, pa.DataType]], said: str) -> None:
    topic = "" if "topic" in columns else "t"
    with pytest.raises(RowRefused, match=said):
        lots_of(*one(**columns), topic, 7)


def test_no_rows_are_no_messages() -> None:
    batch, layout = one(body=(b"x", pa.binary()))
    assert lots_of(batch.slice(1), layout, "t") == []


TEXT, BYTES = StringType(), BinaryType()
TOPIC = WriteOptions(topic="flights")
FAST = WriteOptions(topic="flights", dedup=False)


def schema(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


def test_all_columns_have_their_places() -> None:
    fields = {
        "TAGS": TEXT,
        "value": BYTES,
        "keys": ArrayType(TEXT),
        "properties": MapType(TEXT, TEXT),
        "flag": ShortType(),
        "topic": TEXT,
        "queueid": IntegerType(),
        "brokerName": TEXT,
        "deliverTime": LongType(),
    }
    found = layout_of(schema(**fields), WriteOptions(dedup=False))
    names = ["tags", "body", "keys", "properties", "flag", "topic", "queueId", "brokerName", "deliverTime"]
    assert list(found.positions) == names
    assert list(found.positions.values()) == list(range(len(names)))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, r"no column body; name the column with the messages so, as in df\.select"),
        (
            {"body": DoubleType()},
            r"column body is double, but must be binary or string; cast it, as in .*cast\(.binary",
        ),
        ({"body": TEXT, "tags": IntegerType()}, "column tags is int, but must be string; cast it"),
        ({"body": TEXT, "keys": ArrayType(IntegerType())}, "column keys is array<int>"),
        ({"body": TEXT, "flag": LongType()}, "column flag is bigint, but must be int or smallint or tinyint"),
        ({"body": TEXT, "properties": MapType(TEXT, BYTES)}, "column properties is map<string,binary>"),
        ({"body": TEXT, "value": TEXT}, "columns body and value are both the body; drop one of them"),
        ({"body": TEXT, "msgId": TEXT}, r'column msgId cannot be written; brokers set it: .*df\.drop\("msgId"\)'),
        ({"body": TEXT, "tag": TEXT}, "column tag cannot be written; did you mean tags?"),
        ({"body": TEXT, "key": TEXT, "keys": TEXT}, "columns key and keys are both the keys; drop one of them"),
        ({"body": TEXT, "partition": TEXT}, "column partition cannot be written; name a queue with"),
        ({"body": TEXT, "zzz": TEXT}, "column zzz cannot be written; columns are body, topic, tags"),
        ({"body": TEXT, "queueId": IntegerType()}, "columns queueId and brokerName name a queue together"),
        ({"body": TEXT, "delayTimeLevel": IntegerType()}, r'use \.option\("dedup", "false"\)'),
        ({"body": TEXT, "deliverTime": TimestampType()}, r'use \.option\("dedup", "false"\)'),
        (
            {"body": TEXT, "queueId": IntegerType(), "brokerName": TEXT, "shardingKey": TEXT},
            "columns shardingKey and queueId both choose the queue; drop one",
        ),
    ],
)
def test_a_column_that_cannot_be_written_is_named_with_the_remedy(fields: dict[str, DataType], said: str) -> None:
    with pytest.raises(UserError, match=said):
        layout_of(schema(**fields), TOPIC)


def test_times_need_a_zone_and_one_column() -> None:
    with pytest.raises(UserError, match="column deliverTime is timestamp_ntz, but must be timestamp or bigint"):
        layout_of(schema(body=TEXT, deliverTime=TimestampNTZType()), FAST)
    with pytest.raises(UserError, match="both say when to deliver; drop one of them"):
        layout_of(schema(body=TEXT, deliverTime=LongType(), delayTimeLevel=IntegerType()), FAST)


def test_a_topic_is_needed_in_one_of_two_ways() -> None:
    with pytest.raises(UserError, match=r'use \.option\("topic", "name"\), or a column topic'):
        layout_of(schema(body=TEXT), WriteOptions())
    layout_of(schema(body=TEXT, topic=TEXT), WriteOptions())


ROWS = st.lists(
    st.sampled_from([b"a", b"b", b""]) | st.builds(lambda flag: Message("t", b"a", flag=flag), st.integers(0, 1))
)


def keys() -> RowKeys:
    return RowKeys("query", "7", 3, "t")


@given(ROWS, st.randoms())
def test_keys_do_not_depend_on_the_order_or_on_batches(rows: list[bytes | Message], random: object) -> None:
    first = keys().names(rows)
    assert len(set(first)) == len(rows)
    again = list(rows)
    random.shuffle(again)  # type: ignore[attr-defined]
    in_parts = keys()
    assert sorted(n for row in again for n in in_parts.names([row])) == sorted(first)


@given(
    st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3), st.integers(0, 3), st.text(max_size=3)), unique=True)
)
def test_scopes_are_of_one_query_epoch_partition_and_topic(tasks: list[tuple[str, str, int, str]]) -> None:
    assert len({RowKeys(*task).scope for task in tasks}) == len(tasks)


def test_keys_are_hex_and_tell_their_name() -> None:
    made = keys()
    (name,) = made.names([b"x"])
    assert len(bytes.fromhex(made.scope + name)) == len(bytes.fromhex(made.claim(2))) == 16
    assert made.claim(2).startswith(made.scope)
    assert name_in(made.scope + name) == name

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from skylark.mqcommon.errors import UserError
from skylark.spark_connector.formats.format_spec import FormatSpec
from skylark.spark_connector.formats.json_cbor import JsonFormat
from skylark.spark_connector.formats.value_columns import decode_column
from skylark.spark_connector.schema import arrow_type
from tests.spark_connector.formats.columns import decoded, encoded

JSON = FormatSpec("json")
INNER = StructType().add("x", IntegerType()).add("y", StringType())
# Types that Arrow's reader takes: whole columns may be decoded at once.
PLAIN = (
    StructType()
    .add("a", LongType())
    .add("b", ByteType())
    .add("s", StringType())
    .add("d", DoubleType())
    .add("t", BooleanType())
    .add("l", ArrayType(LongType()))
    .add("n", INNER)
    .add("m", ArrayType(INNER))
)
RICH = (
    StructType()
    .add("at", TimestampType())
    .add("day", DateType())
    .add("price", DecimalType(10, 2))
    .add("raw", BinaryType())
    .add("half", FloatType())
    .add("counts", MapType(StringType(), LongType()))
)
ROW = {
    "at": datetime(2026, 1, 31, 12, 0, 0, 500, tzinfo=UTC),
    "day": date(2026, 1, 31),
    "price": Decimal("19.90"),
    "raw": b"\x00\xff",
    "half": 0.5,
    "counts": [("a", 1), ("b", None)],
}


def test_values_come_back_as_they_were_written() -> None:
    bodies = encoded(JSON, RICH, ROW, None)
    assert json.loads(bodies[0] or b"") == {
        "at": "2026-01-31T12:00:00.000500Z", "day": "2026-01-31", "price": 19.9, "raw": "AP8=", "half": 0.5,
        "counts": {"a": 1, "b": None},
    }  # fmt: skip
    assert bodies[1] is None
    assert decoded(JSON, RICH, bodies[0] or b"") == ([ROW], {})


def test_fields_that_are_missing_are_null_and_others_are_left_out() -> None:
    nothing = dict.fromkeys(PLAIN.names)
    assert decoded(JSON, PLAIN, b'{"zz":[{}],"a":1}', b"{}") == ([{**nothing, "a": 1}, nothing], {})
    assert decoded(JSON, PLAIN, b"null", b'{"a":null}') == ([None, nothing], {})


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        (PLAIN, b'{"a":', "it is no JSON"),
        (PLAIN, b"", "it is no JSON"),
        (PLAIN, b'{"a":1}{"a":2}', "it is no JSON"),
        (PLAIN, b"[1]", "[1] is no object"),
        (PLAIN, b'{"a":"1"}', "field a: '1' is no integer"),
        (PLAIN, b'{"a":1.5}', "field a: 1.5 is no integer"),
        (PLAIN, b'{"a":true}', "field a: True is no integer"),
        (PLAIN, b'{"b":200}', "field b: it does not fit the type int8"),
        (PLAIN, b'{"s":1}', "field s: 1 is no string"),
        (PLAIN, b'{"d":"x"}', "field d: 'x' is no number"),
        (PLAIN, b'{"d":NaN}', "it is no JSON"),
        (PLAIN, b'{"l":{}}', "field l: {} is no array"),
        (PLAIN, b'{"n":{"x":"q"}}', "field n: field x: 'q' is no integer"),
        (PLAIN, b'{"zz":"\xff"}', "it is no JSON"),
        (RICH, b'{"at":"yesterday"}', "field at: 'yesterday' is no time"),
        (RICH, b'{"day":5}', "field day: 5 is no date"),
        (RICH, b'{"price":1.234}', "field price: 1.234 has more than 2 decimals"),
        (RICH, b'{"price":"NaN"}', "field price: 'NaN' is no decimal number"),
        (RICH, b'{"price":123456789012}', "field price: it does not fit the type decimal128(10, 2)"),
        (RICH, b'{"half":1e39}', "field half: 1e+39 is too large for a float"),
        (RICH, b'{"raw":"%"}', "field raw: '%' is no base64"),
        (RICH, b'{"counts":[]}', "field counts: [] is no object"),
    ],
)
def test_a_bad_body_is_found_among_good_ones(kind: StructType, body: bytes, said: str) -> None:
    values, bad = decoded(JSON, kind, b"{}", body, b"{}")
    nothing = dict.fromkeys(kind.names)
    assert values == [nothing, None, nothing]
    assert list(bad) == [1]
    assert said in bad[1]


def test_times_without_zone_are_utc_and_others_are_converted() -> None:
    kind = StructType().add("at", TimestampType())
    values, _ = decoded(JSON, kind, b'{"at":"2026-01-31T12:00:00"}', b'{"at":"2026-01-31T13:00:00+01:00"}')
    assert values == [{"at": datetime(2026, 1, 31, 12, tzinfo=UTC)}] * 2


def test_what_json_cannot_say_is_refused() -> None:
    with pytest.raises(UserError, match="keys in JSON are strings"):
        JSON.open(StructType().add("m", ArrayType(MapType(LongType(), LongType()))))
    # Spark would fail in a task, with an error of its Arrow buffers.
    with pytest.raises(UserError, match="two fields of the same name"):
        JSON.open(StructType().add("n", StructType().add("a", LongType()).add("a", LongType())))


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**65), 2**65), st.floats(), st.text(max_size=3), st.just("\x00")
)
THINGS = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from([*PLAIN.names, "x", "z"]), inner),
    max_leaves=4,
)
OBJECTS = st.dictionaries(st.sampled_from([*PLAIN.names, "z"]), THINGS, max_size=4)
FITTING = st.fixed_dictionaries(
    {},
    optional={
        "a": st.none() | st.integers(-(2**63), 2**63 - 1),
        "b": st.integers(-128, 127),
        "s": st.text(max_size=5),
        "d": st.floats(allow_nan=False, allow_infinity=False),
        "t": st.booleans(),
        "l": st.lists(st.none() | st.integers(0, 9), max_size=3),
        "n": st.none() | st.fixed_dictionaries({}, optional={"x": st.integers(0, 9), "y": st.text(max_size=2)}),
        "m": st.lists(st.none() | st.fixed_dictionaries({"x": st.integers(0, 9)}), max_size=2),
        "z": THINGS,
    },
)
PIECES = st.lists(st.sampled_from(['{"a":1}', "{", "}", '"', "[", "]", ",", "\n", " ", '"n":{', "null", "1e5"]))


@given(st.lists(st.one_of(FITTING.map(json.dumps), OBJECTS.map(json.dumps), PIECES.map("".join)), max_size=4))
def test_columns_at_once_have_the_values_of_one_body_after_the_other(texts: list[str]) -> None:
    form, bodies = JsonFormat(PLAIN), pa.array([text.encode() for text in texts], pa.binary())
    whole = form.decode_all(bodies)
    if whole is None:
        return
    one_by_one = JsonFormat(PLAIN)
    one_by_one._columns = None
    found = decode_column(one_by_one, bodies, arrow_type(PLAIN))
    assert found.bad == {}
    assert whole.type == found.values.type
    assert whole.to_pylist() == found.values.to_pylist()


@given(st.lists(FITTING, min_size=1, max_size=4))
def test_columns_of_fitting_objects_are_decoded_at_once(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        row.pop("z", None)
    bodies = pa.array([json.dumps(row).encode() for row in rows], pa.binary())
    assert JsonFormat(PLAIN).decode_all(bodies) is not None

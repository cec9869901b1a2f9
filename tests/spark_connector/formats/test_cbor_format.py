from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import cbor2
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from skylark.mqcommon.errors import UserError
from skylark.spark_connector.formats.format_spec import FormatSpec
from tests.spark_connector.formats.columns import decoded, encoded

CBOR = FormatSpec("cbor")
KIND = (
    StructType()
    .add("at", TimestampType())
    .add("day", DateType())
    .add("price", DecimalType(10, 2))
    .add("raw", BinaryType())
    .add("counts", MapType(LongType(), ArrayType(StringType())))
)
ROW = {
    "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
    "day": date(2026, 1, 31),
    "price": Decimal("19.90"),
    "raw": b"\x00\xff",
    "counts": [(1, ["a", None]), (2, None)],
}


def test_values_come_back_as_they_were_written() -> None:
    (body,) = encoded(CBOR, KIND, ROW)
    assert cbor2.loads(body or b"") == {**ROW, "counts": {1: ["a", None], 2: None}}
    assert decoded(CBOR, KIND, body or b"", cbor2.dumps(None)) == ([ROW, None], {})


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"\xff", "it is no CBOR"),
        (b"", "it is no CBOR"),
        (b"\xd8\x1c\x81\xd8\x1d\x00", "it is no CBOR"),  # a list that contains itself
        (cbor2.dumps({}) + cbor2.dumps({"raw": b"x"}), "7 bytes follow the CBOR value"),
        (cbor2.dumps([1]), "[1] is no object"),
        (cbor2.dumps({"raw": 5}), "field raw: 5 is no binary value"),
        (cbor2.dumps({"counts": {None: []}}), "field counts: a key of a map is null"),
        (cbor2.dumps({"at": UUID(int=5)}), "is no time"),
        (cbor2.dumps({"price": 10**5000}), "field price: a long int is no decimal number"),
    ],
)
def test_a_bad_body_has_its_reason(body: bytes, said: str) -> None:
    values, bad = decoded(CBOR, KIND, body)
    assert values == [None]
    assert said in bad[0]


def test_a_decimal_has_all_its_digits() -> None:
    kind = StructType().add("d", DecimalType(38, 10))
    value = {"d": Decimal("1234567890123456789012345678.0123456789")}
    assert decoded(CBOR, kind, cbor2.dumps(value)) == ([value], {})


def test_a_type_that_bodies_cannot_have_is_refused() -> None:
    with pytest.raises(UserError, match="values have no type timestamp_ntz; use string or another type"):
        CBOR.open(StructType().add("at", TimestampNTZType()))

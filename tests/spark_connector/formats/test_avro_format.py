import json
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from skylark.mqcommon.errors import UserError
from skylark.spark_connector.formats.format_spec import FormatSpec
from skylark.spark_connector.formats.value_columns import RowUnwritable
from tests.spark_connector.formats.columns import decoded, encoded

pytest.importorskip("fastavro", reason="the extra formats is not installed")


def record(*fields: tuple[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "Order", "fields": [{"name": n, "type": t} for n, t in fields]})


ORDER = record(
    ("id", "long"),
    ("state", {"type": "enum", "name": "State", "symbols": ["NEW", "SENT"]}),
    ("old_state", ["null", "State"]),
    ("at", {"type": "long", "logicalType": "timestamp-millis"}),
    ("day", {"type": "int", "logicalType": "date"}),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}),
    ("uuid", {"type": "string", "logicalType": "uuid"}),
    ("code", {"type": "fixed", "name": "Code", "size": 2}),
    ("counts", {"type": "map", "values": "int"}),
    (
        "items",
        {"type": "array", "items": {"type": "record", "name": "Item", "fields": [{"name": "x", "type": "float"}]}},
    ),
)
AVRO = FormatSpec("avro", schema=ORDER)
ROW = {
    "id": 5,
    "state": "SENT",
    "old_state": None,
    "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
    "day": date(2026, 1, 31),
    "price": Decimal("19.90"),
    "uuid": "f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
    "code": b"ab",
    "counts": [("a", 1)],
    "items": [{"x": 0.5}],
}
BODY = (
    b"\x0a\x02\x00" + b"\x80\xa0\x87\xd1\x81\x67" + b"\xb8\xbf\x02" + b"\x04\x07\xc6"
    b"\x48" + ROW["uuid"].encode() + b"ab" + b"\x02\x02a\x02\x00" + b"\x02\x00\x00\x00\x3f\x00"
)  # fmt: skip


def test_values_come_back_as_they_were_written() -> None:
    kind = AVRO.type_of_schema()
    assert kind is not None
    assert kind.simpleString() == (
        "struct<id:bigint,state:string,old_state:string,at:timestamp,day:date,price:decimal(6,2),uuid:string,"
        "code:binary,counts:map<string,int>,items:array<struct<x:float>>>"
    )
    (body,) = encoded(AVRO, kind, ROW)
    assert decoded(AVRO, kind, body or b"") == ([ROW], {})


def test_a_bad_body_has_its_reason() -> None:
    spec = FormatSpec("avro", schema=record(("id", "long"), ("name", "string")))
    kind = spec.type_of_schema()
    assert kind is not None
    good, long = b"\x02\x02a", b"\x02\x02a!"
    values, bad = decoded(spec, kind, good, b"", b"\x02\x7f", b"\x02\x02\xff", long)
    assert values == [{"id": 1, "name": "a"}, None, None, None, None]
    assert list(bad) == [1, 2, 3, 4]
    assert "it is no record of the Avro schema: EOFError" in bad[1]
    assert bad[4] == "1 bytes follow the record of the Avro schema"


def test_a_row_that_the_schema_does_not_allow_is_named() -> None:
    kind = AVRO.type_of_schema()
    assert kind is not None
    with pytest.raises(RowUnwritable, match="is no record of the Avro schema") as caught:
        encoded(AVRO, kind, ROW, {**ROW, "state": "LOST"})
    assert caught.value.row == 1


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("{", "option valueSchema is no Avro schema in JSON"),
        ('{"type":"record"}', "option valueSchema is no Avro schema in JSON"),
        (record(("x", "strnig")), "option valueSchema is no Avro schema in JSON"),
        ('"long"', "the Avro schema must be a record"),
        (record(), "the Avro record Order has no fields"),
        (record(("x", ["int", "string"])), "field x is a union of 2 types; only null may be added"),
        (record(("x", "null")), "field x is 'null', which no column can be"),
        (record(("x", ["null", "Order"])), "field x contains itself"),
    ],
)
def test_a_schema_that_cannot_be_columns_is_refused(schema: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        FormatSpec("avro", schema=schema).type_of_schema()


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    monkeypatch.delitem(sys.modules, "skylark.spark_connector.formats.avro_format", raising=False)
    with pytest.raises(UserError, match=r"valueFormat=avro needs .*fastavro.*, here and on all executors"):
        AVRO.type_of_schema()

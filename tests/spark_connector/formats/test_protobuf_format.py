import sys
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from skylark.mqcommon.errors import UserError
from skylark.spark_connector.formats.format_spec import FormatSpec
from skylark.spark_connector.formats.value_columns import RowUnwritable
from tests.spark_connector.formats.columns import decoded, encoded, order_descriptors

SET = order_descriptors().SerializeToString()
ORDER = FormatSpec("protobuf", descriptors=SET, message="shop.Order")
KIND = ORDER.type_of_schema()
assert KIND is not None
ROW = {
    "id": -5,
    "state": "SENT",
    "serial": Decimal(2**64 - 1),
    "at": datetime(2026, 1, 31, 12, 0, 0, 500, tzinfo=UTC),
    "items": [{"sku": "a"}, {"sku": ""}],
    "codes": [2**32 - 1],
    "counts": [("a", 1)],
    "photo": b"\xff",
}


def test_types_are_those_of_from_protobuf() -> None:
    assert KIND.simpleString() == (
        "struct<id:bigint,state:string,serial:decimal(20,0),at:timestamp,items:array<struct<sku:string>>,"
        "codes:array<bigint>,counts:map<string,int>,photo:binary>"
    )


def test_values_come_back_as_they_were_written() -> None:
    (body,) = encoded(ORDER, KIND, ROW)
    assert decoded(ORDER, KIND, body or b"") == ([ROW], {})


def test_what_is_not_set_is_the_default_or_null() -> None:
    nothing = {
        "id": 0, "state": "NEW", "serial": Decimal(0), "at": None, "items": [], "codes": [], "counts": [], "photo": b"",
    }  # fmt: skip
    assert decoded(ORDER, KIND, b"") == ([nothing], {})
    assert encoded(ORDER, KIND, dict.fromkeys(KIND.names)) == [b""]


def test_an_unknown_number_of_an_enum_stays_a_number() -> None:
    ((value,), bad) = decoded(ORDER, KIND, b"\x10\x07")
    assert (value["state"], bad) == ("7", {})
    assert encoded(ORDER, KIND, {**dict.fromkeys(KIND.names), "state": "7"}) == [b"\x10\x07"]


def test_a_bad_body_has_its_reason() -> None:
    values, bad = decoded(ORDER, KIND, b"\xff", b"")
    assert values[0] is None
    assert "it is no message shop.Order" in bad[0]


@pytest.mark.parametrize(
    "wrong", [{"state": "LOST"}, {"codes": [None]}, {"counts": [("a", None)]}, {"serial": Decimal(-1)}]
)
def test_a_row_that_the_message_cannot_have_is_named(wrong: dict[str, object]) -> None:
    with pytest.raises(RowUnwritable, match=r"is no message shop\.Order") as caught:
        encoded(ORDER, KIND, ROW, {**ROW, **wrong})
    assert caught.value.row == 1


@pytest.mark.parametrize(
    ("descriptors", "message", "said"),
    [
        (b"\xff", "shop.Order", "its file is no set of descriptors"),
        (SET, "shop.Ordr", r"option valueMessage: shop\.Ordr is not in the file .* shop\.Item, shop\.Order"),
        (SET, "shop.Loop", r"shop\.Loop contains itself"),
    ],
)
def test_descriptors_that_cannot_be_columns_are_refused(descriptors: bytes, message: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        FormatSpec("protobuf", descriptors=descriptors, message=message).type_of_schema()


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.protobuf.descriptor", None)
    monkeypatch.delitem(sys.modules, "skylark.spark_connector.formats.protobuf_format", raising=False)
    with pytest.raises(UserError, match=r"valueFormat=protobuf needs .*google.*, here and on all executors"):
        ORDER.type_of_schema()

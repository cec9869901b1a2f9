"""CBOR of messages' bodies: values keep their types, and nothing grows."""

import re
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from ipaddress import ip_address
from typing import Any
from uuid import UUID

import cbor2
import pytest

from skylark.remoting.protocol.strict_cbor import MAX_VALUE_DEPTH, loads_values

VALUES = [
    None, 1.5, 2**100, -(2**100), "text", b"bytes", [1, [2]], {"a": {1: 2}}, {1, 2},
    datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    date(2026, 1, 2), Decimal("1.50"), Fraction(1, 3), UUID(int=7), ip_address("10.0.0.1"), 1 + 2j,
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_come_back_with_their_types(value: Any) -> None:
    found = loads_values(cbor2.dumps(value))
    assert (found, type(found)) == (value, type(value))


def test_a_tag_that_nobody_knows_stays_a_tag() -> None:
    found = loads_values(cbor2.dumps(cbor2.CBORTag(4711, [1])))
    assert (found.tag, list(found.value)) == (4711, [1])


REFUSED = {
    "a shared list": cbor2.CBORTag(28, []),
    "a reference": [cbor2.CBORTag(28, []), cbor2.CBORTag(29, 0)],
    "references to texts": cbor2.CBORTag(256, ["a long text", cbor2.CBORTag(25, 0)]),
    "a regular expression": re.compile("(a+)+"),
    "a MIME message": cbor2.CBORTag(36, "a: b\n\nc"),
    "a power of two": cbor2.CBORTag(5, [1 << 20, 1]),
}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_what_could_grow_is_refused(value: Any) -> None:
    with pytest.raises(cbor2.CBORDecodeError):
        loads_values(cbor2.dumps(value))


def test_the_depth_is_bounded() -> None:
    assert loads_values(b"\x81" * (MAX_VALUE_DEPTH - 1) + b"\x01")
    with pytest.raises(cbor2.CBORDecodeError, match="depth"):
        loads_values(b"\x81" * (MAX_VALUE_DEPTH + 1) + b"\x01")

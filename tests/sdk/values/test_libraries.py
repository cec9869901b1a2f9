"""Values become the bytes that cbor2 makes of them, and cbor2 runs no Python code meanwhile."""

import sys
from collections import namedtuple
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID

import cbor2
import pytest

from skylark.sdk.values.libraries import dumps_values

OTHERS = [None, 1.5, 2**100, "text", b"bytes", {"a": {1: 2}}, Fraction(1, 3), 1 + 2j]
ASKED = [
    *([1, [2, ()]], (1,), {"a": [{"b": (1,)}]}, {1, 2}, frozenset([3]), Decimal("1.50"), Decimal("NaN"), UUID(int=7)),
    *(date(2026, 1, 2), datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 2)),
]


@pytest.mark.parametrize("value", ASKED, ids=str)
def test_a_ctrl_c_is_not_lost_as_nobody_asks_of_which_kind_a_value_is(value: Any) -> None:
    """cbor2 would drop what the Python code that answers this raises, as the handler of a signal."""
    called: list[str] = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_qualname) if event == "call" else None)
    try:
        dumps_values(value, timezone=UTC)
    finally:
        sys.setprofile(None)
    assert "dumps_values" in called
    assert not any("instancecheck" in name for name in called)


@pytest.mark.parametrize("value", [*OTHERS, *ASKED, namedtuple("Pair", "a b")(1, 2)], ids=str)
@pytest.mark.parametrize("options", [{}, {"timezone": UTC, "datetime_as_timestamp": True}], ids=str)
def test_the_bytes_are_cbor2s(value: Any, options: dict[str, Any]) -> None:
    if value == datetime(2026, 1, 2) and not options:
        with pytest.raises(cbor2.CBOREncodeError, match="naive datetime"):
            dumps_values(value)
    else:
        assert dumps_values(value, **options) == cbor2.dumps(value, **options)

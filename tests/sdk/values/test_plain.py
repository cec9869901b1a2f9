"""Values as plain data and back: nothing changes on the way, and what is wrong is named with its place."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal
from uuid import UUID

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.sdk.values.plain import plain, reader_of


class Kind(Enum):
    TEA = "tea"
    CAKE = "cake"


class Size(IntEnum):
    SMALL = 1


@dataclass
class Item:
    kind: Kind
    price: Decimal
    tags: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Order:
    number: int
    items: list[Item]
    at: datetime
    paid: float | None = None
    raw: bytes = b""
    notes: dict[str, str] = field(default_factory=dict)
    place: tuple[int, str] = (0, "")
    more: "Order | None" = None
    state: Literal["new", "old"] = "new"


TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=10)
ITEMS = st.builds(
    Item, st.sampled_from(Kind), st.decimals(allow_nan=False, allow_infinity=False, places=2), st.frozensets(TEXTS)
)
ORDERS = st.builds(
    Order, st.integers(-(2**62), 2**62), st.lists(ITEMS, max_size=3), st.datetimes(timezones=st.just(UTC)),
    st.none() | st.floats(allow_nan=False, allow_infinity=False), st.binary(max_size=9),
    st.dictionaries(TEXTS, TEXTS, max_size=3), st.tuples(st.integers(0, 9), TEXTS), st.none(),
    st.sampled_from(["new", "old"]),
)  # fmt: skip


@given(ORDERS, st.booleans())
def test_a_value_comes_back_as_it_was(order: Order, has_bytes: bool) -> None:
    nested = Order(1, [], datetime.now(UTC), more=order)
    data = plain(nested, has_bytes=has_bytes)
    if not has_bytes:
        data = orjson.loads(orjson.dumps(data))
    assert reader_of(Order)(data, "") == nested


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
SOME_KINDS = [Order, Item, Kind, Size, int, str, bytes, datetime, date, time, timedelta, UUID, Decimal, dict[str, int],
              tuple[int, ...], set[str], Literal["a"], Order | int, Sequence[int], Mapping[str, Kind]]  # fmt: skip


@given(ANYTHING, st.sampled_from(SOME_KINDS))
def test_whatever_the_data_is_a_reader_gives_a_value_or_one_kind_of_error(data: Any, kind: Any) -> None:
    try:
        reader_of(kind)(data, "")
    except ValueError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("kind", "data", "text"),
    [
        (int, True, ". must be a whole number, not True"),
        (int, 1.0, ". must be a whole number, not 1.0"),
        (str, 1, ". must be a text, not 1"),
        (float, "1", ". must be a number, not '1'"),
        (bytes, "%", ". must be base64, not '%'"),
        (datetime, "soon", ". must be a time in ISO 8601, not 'soon'"),
        (UUID, "x", ". must be a UUID, not 'x'"),
        (Decimal, "x", ". must be a decimal number, not 'x'"),
        (Kind, "milk", ". must be a Kind, not 'milk'"),
        (Literal["a", 1], "b", ". must be one of 'a', 1, not 'b'"),
        (list[int], {}, ". must be a list, not {}"),
        (list[int], [1, "2"], "[1] must be a whole number, not '2'"),
        (tuple[int, str], [1], ". must be a list of 2, not [1]"),
        (dict[str, int], {"a": None}, ".a must be a whole number, not None"),
        (dict[str, int], {5: 1}, "a key of . must be a text, not 5"),
        (int | None, "x", ". must be a whole number, not 'x'"),
        (int | bool, "x", ". is no int or bool: . must be a whole number"),
        (Item, [], ". must be an object, not []"),
        (Item, {"kind": "tea"}, ".: Item needs a price"),
        (list[Item], [{"kind": "tea", "price": "x"}], "[0].price must be a decimal number, not 'x'"),
        (str, ["x" * 100], "xxx..."),
    ],
)
def test_an_error_names_the_place_and_what_should_be_there(kind: Any, data: Any, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        reader_of(kind)(data, "")


def test_members_that_are_not_known_are_left_out_and_others_have_their_defaults() -> None:
    assert reader_of(Item)({"kind": "tea", "price": 5, "new": 1}, "") == Item(Kind.TEA, Decimal(5))
    assert reader_of(Annotated[Size, "doc"])(1, "") is Size.SMALL


@dataclass
class Checked:
    age: int

    def __post_init__(self) -> None:
        if self.age < 0:
            raise ValueError("age is below 0")


def test_a_class_may_refuse_what_it_is_made_of() -> None:
    with pytest.raises(ValueError, match=r"\[1\]: age is below 0"):
        reader_of(list[Checked])([{"age": 1}, {"age": -1}], "")


@dataclass
class Lost:
    other: "NotThere"  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (re.Pattern, "values of type Pattern are not supported"),
        (list[re.Pattern], "values of type Pattern are not supported"),  # type: ignore[type-arg]
        (dict[int, str], "keys must be str"),
        (Lost, "a type of Lost cannot be found"),
    ],
)
def test_types_that_cannot_be_read_are_refused_at_once(kind: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        reader_of(kind)


@pytest.mark.parametrize("value", [object(), {1: 2}, [re.compile("a")], 1j])
def test_what_has_no_place_in_a_message_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        plain(value, has_bytes=True)


def test_all_of_the_standard_library_that_is_supported() -> None:
    values: list[tuple[Any, Any, Any]] = [
        (date, date(2026, 11, 27), "2026-11-27"),
        (time, time(8, 30), "08:30:00"),
        (timedelta, timedelta(seconds=1.5), 1.5),
        (UUID, UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (Decimal, Decimal("1.10"), "1.10"),
        (Size, Size.SMALL, 1),
        (dict[str, Kind], {"a": Kind.TEA}, {"a": "tea"}),
        (bytes, b"\x00", "AA=="),
        (None, None, None),
        (Any, {"a": [1]}, {"a": [1]}),
    ]
    for kind, value, data in values:
        assert plain(value, has_bytes=False) == data
        assert reader_of(kind)(data, "") == value
    assert plain({Kind.TEA: bytearray(b"x")}, has_bytes=True) == {"tea": b"x"}


class Text(str):
    __slots__ = ()


@dataclass
class Counted:
    name: str
    calls: int = field(default=0, init=False)


@pytest.mark.parametrize(
    ("kind", "value", "data"),
    [
        (tuple, (1, "a"), [1, "a"]),
        (tuple[int, ...], (1, 2), [1, 2]),
        (list, [1, "a"], [1, "a"]),
        (str, Text("a"), "a"),
        (Annotated[int, ["doc"]], 5, 5),
        (Counted, Counted("a"), {"name": "a"}),
    ],
)
def test_less_common_types_come_back(kind: Any, value: Any, data: Any) -> None:
    assert plain(value, has_bytes=False) == data
    assert reader_of(kind)(data, "") == value

"""Values of dataclasses, msgspec and pydantic in messages, and what becomes of bodies that are none."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

import cbor2
import msgspec
import pydantic
import pytest

from skylark import Values, read_value
from skylark.mqcommon.errors import InvalidArgument, UnreadableValue
from skylark.mqcommon.message.message import Message, MessageExt
from skylark.mqcommon.message.properties import encode_properties
from skylark.mqcommon.message.record import encode_record, topic_field

HOST = bytes([127, 0, 0, 1, 0, 0, 0, 1])


def stored(message: Message, body: bytes | None = None, **changed: str) -> MessageExt:
    """The message as a consumer gets it, with another body and properties."""
    properties = encode_properties((message.properties or {}) | changed).encode()
    body = message.body if body is None else body
    record = encode_record(*topic_field(message.topic), 0, 0, 0, body, properties, 0, 0, 5, HOST, 5, HOST, 0, 0)
    return MessageExt(record, 0, "broker-a")


@dataclass
class Tea:
    kind: str
    cups: int
    raw: bytes = b""


@dataclass
class Mug:
    colour: str


class Cake(msgspec.Struct):
    kind: str
    pieces: int
    raw: bytes = b""


class Milk(pydantic.BaseModel):
    kind: str
    litres: int


KINDS = [Tea("green", 2, b"\xff"), Cake("apple", 3, b"\xff"), Milk(kind="oat", litres=1)]


@pytest.mark.parametrize("value", KINDS)
@pytest.mark.parametrize(("form", "content"), [("json", "application/json"), ("cbor", "application/cbor")])
def test_a_value_is_read_as_it_was_sent(value: Any, form: str, content: str) -> None:
    values = Values(type(value), form)
    message = values.message("t", value, headers={"shop": "north"}, tags="a", keys=["k"], sharding_key="s")
    got = stored(message)
    assert values.read(got) == read_value(got, type(value)) == value
    assert (got.tags, got.keys, got.properties["content-type"]) == ("a", "k", content)
    assert got.headers == {"shop": "north"}


@pytest.mark.parametrize("value", KINDS)
def test_a_reader_takes_each_format_that_the_message_says(value: Any) -> None:
    """One whose own format is another, and a message of a producer that says nothing, as one in Java."""
    kind = type(value)
    as_json, as_cbor = (stored(Values(kind, form).message("t", value)) for form in ("json", "cbor"))
    assert Values(kind, "cbor").read(as_json) == Values(kind, "json").read(as_cbor) == value
    plain_one = stored(Message("t", as_json.body))
    assert Values(kind).read(plain_one) == value
    assert Values(kind).read(stored(Message("t"), as_json.body, **{"content-type": "Application/JSON; x=1"})) == value


def test_a_union_is_read_by_its_own_order_of_types() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5)
    message = stored(Message("t", b'"2026-01-02T03:04:05"'))
    assert [Values(kind).read(message) for kind in (str | datetime, datetime | str)] == [at.isoformat(), at]


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [(Tea, b'{"kind": "a", "cups": "two"}'), (Cake, b'{"kind": "a", "pieces": "two"}'), (Milk, b'{"kind": "a"}')],
)
@pytest.mark.parametrize("form", ["json", "cbor"])
def test_a_body_that_is_no_such_value_is_unreadable(kind: Any, wrong: bytes, form: str) -> None:
    import orjson

    body = wrong if form == "json" else cbor2.dumps(orjson.loads(wrong))
    for each in (body, b"\xff\xff", b"", body[:-1]):
        message = stored(Message("t"), each, **{"content-type": f"application/{form}"})
        with pytest.raises(UnreadableValue, match=f"the body is no {kind.__name__}: ") as found:
            Values(kind).read(message)
        assert isinstance(found.value, ValueError) and found.value.__cause__ is not None


def test_a_format_that_is_not_known_is_unreadable_and_so_is_a_damaged_body() -> None:
    message = stored(Message("t"), b"{}", **{"content-type": "application/xml"})
    with pytest.raises(UnreadableValue, match="content-type 'application/xml' is not known"):
        Values(Tea).read(message)
    good = stored(Values(Tea).message("t", Tea("a", 1)))
    damaged = MessageExt(good._data.replace(b"cups", b"cuqs"), 0, "")
    with pytest.raises(UnreadableValue, match="the body cannot be read"):
        Values(Tea).read(damaged)


@pytest.mark.parametrize(
    ("kind", "value", "error", "text"),
    [
        (Tea, Cake("a", 1), TypeError, "value must be a Tea"),
        (Tea, {"kind": "a", "cups": 1}, TypeError, "value must be a Tea"),
        (Tea, Tea("a", "two"), ValueError, "value cannot be read as Tea: .cups must be a whole number, not 'two'"),  # type: ignore[arg-type]
        (Cake, Cake("a", "two"), ValueError, "value cannot be read as Cake: Expected `int`"),  # type: ignore[arg-type]
        (Cake, Tea("a", 1), TypeError, "value must be a Cake"),
        (Milk, "milk", TypeError, "value must be a Milk"),
        (Milk, Milk.model_construct(kind="a", litres="two"), ValueError, "value cannot be read as Milk"),
        (bytes, "text", TypeError, "value must be bytes"),
        (dict[str, int], {"a": "b"}, ValueError, "value cannot be read as dict"),
        (dict[str, int], [1], ValueError, "value cannot be read as dict"),
    ],
)
def test_the_sender_hears_of_a_value_that_no_reader_could_read(
    kind: Any, value: Any, error: type[Exception], text: str
) -> None:
    for form in ("json", "cbor"):
        with pytest.raises(error, match=text):
            Values(kind, form).message("t", value)


def test_bytes_are_sent_as_they_are() -> None:
    message = stored(Values(bytes).message("t", b"\x00\xff"))
    assert message.body == b"\x00\xff" and message.properties["content-type"] == "application/octet-stream"
    assert Values(bytes).read(message) == Values(bytes).read(stored(Message("t", b"\x00\xff"))) == b"\x00\xff"
    with pytest.raises(UnreadableValue, match="content-type 'application/octet-stream' is not known"):
        Values(Tea).read(message)


T = TypeVar("T")


class Page(msgspec.Struct, Generic[T]):
    entries: list[T]


@pydantic.dataclasses.dataclass
class Box:
    size: int


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Tea | Mug, Mug("a")),
        (Cake | None, Cake("a", 1)),
        (list[Tea], [Tea("a", 1)]),
        (dict[str, Milk], {"a": Milk(kind="b", litres=2)}),
        (Page[int], Page([1])),
        (Box, Box(1)),
        (dict[str, Any], {"a": [1, None]}),
        (str, "text"),
        (int, 5),
        (Annotated[int, ["a list cannot be hashed"]], 5),
    ],
)
def test_types_may_be_made_of_others(kind: Any, value: Any) -> None:
    assert Values(kind).read(stored(Values(kind).message("t", value))) == value


def test_wrong_arguments() -> None:
    with pytest.raises(InvalidArgument, match="value_format must be json or cbor, not 'xml'"):
        Values(Tea, "xml")
    with pytest.raises(TypeError, match="are not supported"):
        Values(complex)
    with pytest.raises(InvalidArgument, match="choose a value_format"):
        Values(Tea).message("t", Tea("a", 1), headers={"content-type": "text/plain"})
    with pytest.raises(InvalidArgument, match="reserved"):
        Values(Tea).message("t", Tea("a", 1), headers={"KEYS": "a"})

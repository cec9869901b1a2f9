"""Columns of any type and shape become the bytes that the plain encoder makes of rows."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skylark.mqcommon.errors import InvalidArgument
from skylark.mqcommon.message.batch import encode_batch
from skylark.mqcommon.message.message import Message, own_properties
from skylark.mqcommon.message.properties import RESERVED
from skylark.sdk.arrow import encode as encoding
from skylark.sdk.arrow.encode import TableColumns, encode

HEAD = b"UNIQ_KEY\x017F0000012A9918B4AAC2000000"
FIRST = 65_533  # numbers of keys begin again at 65,536
LIMIT = 1 << 20
NAMES = {"body": "body", "tags": "t", "keys": "k", "properties": "p", "flag": "f"}

TEXTS = (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()))
BYTES = (pa.binary(), pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int32(), pa.binary()))
LISTS = tuple(make(kind) for make in (pa.list_, pa.large_list) for kind in TEXTS[:3])
PAIRS = pa.struct([("name", pa.string()), ("value", pa.large_string())])
MAPS = (pa.map_(pa.string(), pa.string()), pa.map_(pa.large_string(), pa.string_view()))
FLAGS = (pa.int32(), pa.int8(), pa.int64(), pa.uint16())

TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=20)
# A space separates keys.
KEY = st.text(st.characters(exclude_characters="\x01\x02 ", exclude_categories=["Cs"]), max_size=20)
BODY_TEXT = st.one_of(TEXT, st.sampled_from(["", "x" * 70_000, "\x01\x02"]))
NAME = st.one_of(TEXT, st.sampled_from(["a", "UNIQ_KEY", "TAGS", "shop", "é"]))


class Row(NamedTuple):
    body: str
    tags: str | None
    keys: list[str | None] | None
    properties: dict[str, str | None] | None
    flag: int | None


ROWS = st.lists(
    st.builds(
        Row,
        BODY_TEXT,
        st.none() | TEXT,
        st.none() | st.lists(st.none() | KEY, max_size=3),
        st.none() | st.dictionaries(NAME, st.none() | TEXT, max_size=4),
        st.none() | st.integers(-100, 100),
    ),
    max_size=12,
)


def plain(row: Row, key: bytes) -> tuple[int, bytes, bytes]:
    """The row of the plain encoder."""
    properties = {n: v for n, v in (row.properties or {}).items() if n and v and n not in RESERVED}
    keys = [each for each in row.keys or () if each]
    message = Message("t", row.body.encode(), tags=row.tags, keys=keys, properties=properties, flag=row.flag or 0)
    return message.flag, message.body, own_properties(message) + key


def keys_of(count: int) -> list[bytes]:
    return [HEAD + b"%04X\x02" % (number & 0xFFFF) for number in range(FIRST, FIRST + count)]


def encoded(data: Any, **names: str | None) -> bytes:
    found, first = b"", FIRST
    for part in TableColumns(data, names or NAMES, LIMIT).parts():
        messages = encode(part, HEAD, first)
        assert messages.ends[-1] == len(messages.data)
        found += messages.data
        first += len(part.bodies)
    return found


def chunked(draw: st.DrawFn, values: Sequence[Any], kind: pa.DataType, around: Any) -> pa.ChunkedArray:
    """``values`` in some chunks, each of which is a part of a longer array."""
    cuts = sorted(draw(st.lists(st.integers(0, len(values)), max_size=3)))
    bounds = [0, *cuts, len(values)]
    chunks = []
    for start, end in pairwise(bounds):
        before, after = draw(st.integers(0, 2)), draw(st.integers(0, 1))
        whole = [around] * before + list(values[start:end]) + [around] * after
        chunks.append(pa.array(whole, kind).slice(before, end - start))
    return pa.chunked_array(chunks, kind)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Row], pa.Table]:
    rows = draw(ROWS)
    body_kind = draw(st.sampled_from(TEXTS + BYTES))
    bodies: list[Any] = [row.body for row in rows]
    if body_kind in BYTES:
        bodies = [body.encode() for body in bodies]
    if draw(st.booleans()):
        properties_kind: pa.DataType = draw(st.sampled_from(MAPS))
        properties: list[Any] = [None if row.properties is None else list(row.properties.items()) for row in rows]
    else:
        properties_kind = draw(st.sampled_from([pa.list_(PAIRS), pa.large_list(PAIRS)]))
        properties = [
            None
            if row.properties is None
            else [None, *({"name": name, "value": value} for name, value in row.properties.items())]
            for row in rows
        ]
    columns = {
        "body": chunked(draw, bodies, body_kind, bodies[0] if bodies else None),
        "t": chunked(draw, [row.tags for row in rows], draw(st.sampled_from(TEXTS)), "around"),
        "k": chunked(draw, [row.keys for row in rows], draw(st.sampled_from(LISTS)), ["around", "it"]),
        "p": chunked(draw, properties, properties_kind, [("a", "b")] if pa.types.is_map(properties_kind) else []),
        "f": chunked(draw, [row.flag for row in rows], draw(st.sampled_from(FLAGS[:3])), 7),
    }
    return rows, pa.table(columns)


@given(tables(), st.integers(1, 5), st.sampled_from([1, 100, 1 << 21]))
def test_columns_are_encoded_as_rows_are(made: tuple[list[Row], pa.Table], part_rows: int, part_bytes: int) -> None:
    rows, table = made
    wanted = encode_batch(map(plain, rows, keys_of(len(rows))))
    with mock.patch.multiple(encoding, PART_ROWS=part_rows, PART_BYTES=part_bytes):
        assert encoded(table) == wanted
    assert encoded(table) == wanted


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=30))
@example([b""])
@example([b"", b"x" * 12, b"x" * 13])
def test_bodies_alone(bodies: list[bytes]) -> None:
    wanted = encode_batch([(0, body, key) for body, key in zip(bodies, keys_of(len(bodies)), strict=True)])
    for kind in BYTES:
        batch = pa.record_batch([pa.array(bodies, kind)], ["value"])
        assert encoded(batch, body="value") == wanted
    views = pa.chunked_array([pa.array([body], pa.binary_view()) for body in bodies])
    assert encoded(pa.table({"value": views}), body="value") == wanted


def test_values_that_many_rows_share() -> None:
    """Views of one value, in any order; indices of a dictionary with a null."""
    values = ["a", "b" * 20, "c" * 13, "d"]
    _, plain_views, *buffers = pa.array(values, pa.string_view()).buffers()
    shuffled = np.frombuffer(plain_views, np.int32).reshape(-1, 4)[[3, 1, 1, 0, 2, 1]]
    views = pa.Array.from_buffers(pa.string_view(), 6, [None, pa.py_buffer(shuffled), *buffers])
    shared = pa.DictionaryArray.from_arrays(pa.array([0, 2, None, 1, 0, 2], pa.int8()), pa.array(["x", None, "y"]))
    table = pa.table({"body": views, "t": shared})
    bodies, tags = [values[n] for n in (3, 1, 1, 0, 2, 1)], ["x", "y", None, None, "x", "y"]
    rows = [Row(body, tag, None, None, None) for body, tag in zip(bodies, tags, strict=True)]
    assert encoded(table, body="body", tags="t") == encode_batch(map(plain, rows, keys_of(6)))


def test_bodies_of_one_size() -> None:
    batch = pa.record_batch([pa.array([b"abc", b"def"], pa.binary(3))], ["body"])
    assert encoded(batch, body="body") == encode_batch([(0, b"abc", keys_of(2)[0]), (0, b"def", keys_of(2)[1])])


def test_keys_that_are_texts() -> None:
    batch = pa.record_batch({"body": ["x", "y", "z"], "k": ["a b", None, ""]})
    own = [b"KEYS\x01a b\x02", b"", b""]
    rows = [(0, body, mine + key) for body, mine, key in zip([b"x", b"y", b"z"], own, keys_of(3), strict=True)]
    assert encoded(batch, body="body", keys="k") == encode_batch(rows)


@pytest.mark.parametrize("role", ["tags", "keys", "properties", "flag"])
def test_a_column_without_a_type_has_nothing(role: str) -> None:
    batch = pa.record_batch({"body": ["x", "y"], "none": pa.nulls(2)})
    assert encoded(batch, body="body", **{role: "none"}) == encoded(batch, body="body")


def test_a_table_without_rows() -> None:
    assert encoded(pa.table({"body": pa.chunked_array([], pa.binary())}), body="body") == b""


def test_what_can_be_a_table() -> None:
    reader = pa.RecordBatchReader.from_batches(pa.schema([("body", pa.string())]), [pa.record_batch({"body": ["x"]})])
    assert encoded(reader, body="body") == encode_batch([(0, b"x", keys_of(1)[0])])


MARK = r"the characters \\x01 or \\x02"


@pytest.mark.parametrize(
    ("column", "values", "kind", "said"),
    [
        ("body", ["x", None], pa.string(), "row 1, column 'it': it is null; fill it"),
        ("body", ["x", None], pa.dictionary(pa.int8(), pa.string()), "row 1, column 'it': it is null"),
        ("body", [None, None], pa.null(), "row 0, column 'it': it is null"),
        ("body", ["x", "y" * (LIMIT + 1)], pa.large_string(), f"row 1, column 'it': {LIMIT + 1} bytes are more than"),
        ("body", ["x", "y" * (LIMIT + 1)], pa.string_view(), "row 1, column 'it': "),
        ("tags", [None, "a\x01"], pa.string(), f"row 1, column 'it': it holds {MARK}"),
        ("tags", ["", "\x02"], pa.string_view(), f"row 1, column 'it': it holds {MARK}"),
        ("tags", ["a", "b" * 32_000], pa.string(), "row 1, column 'it': the properties have 32006 bytes"),
        ("keys", ["", "a\x02b"], pa.string(), f"row 1, column 'it': it holds {MARK}"),
        ("keys", [["a"], ["b", "\x02"]], pa.list_(pa.string()), f"row 1, column 'it': it holds {MARK}"),
        ("properties", [[], [("a", "b"), ("c", "\x01")]], MAPS[0], f"row 1, column 'it': it holds {MARK}"),
        ("properties", [[("a", "")], [("\x02", "b")]], MAPS[1], f"row 1, column 'it': it holds {MARK}"),
        ("flag", [0, 2**31], pa.int64(), "row 1, column 'it': 2147483648 is not between"),
        ("flag", [0, 2**64 - 1], pa.uint64(), "row 1, column 'it': 18446744073709551615 is not between"),
    ],
)
def test_rows_that_cannot_be_sent(column: str, values: list[Any], kind: pa.DataType, said: str) -> None:
    table = pa.table({"body": ["x", "y"]})
    names = {"body": "body", column: "it"}
    table = table.append_column("it", pa.array(values, kind))
    with pytest.raises(InvalidArgument, match=said):
        encoded(table, **names)


def test_rows_are_counted_from_the_beginning_of_the_table() -> None:
    table = pa.table({"body": pa.chunked_array([["a", "b"], ["c", None]])})
    with mock.patch.object(encoding, "PART_ROWS", 1), pytest.raises(InvalidArgument, match="row 3, column 'body'"):
        encoded(table, body="body")


def test_what_a_null_holds_is_not_looked_at() -> None:
    held = pa.array(["a", "\x01", "b"])
    tags = pa.Array.from_buffers(pa.string(), 3, [pa.py_buffer(b"\x05"), *held.buffers()[1:]])
    batch = pa.record_batch({"body": ["x", "y", "z"], "t": tags})
    rows = [Row("x", "a", None, None, None), Row("y", None, None, None, None), Row("z", "b", None, None, None)]
    assert encoded(batch, body="body", tags="t") == encode_batch(map(plain, rows, keys_of(3)))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"body": "text"}, r"body='text': data has no column of that name; it has \['body', 'n', 'twice', 'twice'\]"),
        ({"body": "twice"}, "body='twice': data has several columns of that name"),
        ({"body": "n"}, "body='n': the column is int64, but must be binary or string; cast it"),
        ({"body": "body", "tags": "n"}, "tags='n': the column is int64, but must be string"),
        ({"body": "body", "keys": "n"}, "keys='n': .* must be string or list<string>"),
        ({"body": "body", "properties": "body"}, "properties='body': the column is string, but must be map"),
        ({"body": "body", "flag": "body"}, "flag='body': the column is string, but must be an integer"),
    ],
)
def test_columns_that_do_not_fit(names: dict[str, str], said: str) -> None:
    arrays = [pa.array(["x"]), pa.array([1]), pa.array(["y"]), pa.array(["z"])]
    with pytest.raises(InvalidArgument, match=said):
        TableColumns(pa.table(arrays, ["body", "n", "twice", "twice"]), names, LIMIT)


def test_what_is_no_table() -> None:
    with pytest.raises(TypeError, match=r"data must be a pyarrow\.RecordBatch, .* not list"):
        TableColumns([{"body": b"x"}], {"body": "body"}, LIMIT)

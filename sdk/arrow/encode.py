r"""Encodes a user's table for sends: its columns, checked, in parts, and the bodies of batch sends.

Bodies are binary or text, tags text, keys text or lists of texts, properties maps (or lists of structs of a name and a
value), flags integers. A null, or an empty text, counts as a missing value; a body may be empty, but not null. Of the
properties, names that RocketMQ reserves are left out: properties of messages that were read hold such names, too. Texts
and bytes of all types become binary arrays first. A property is ``name \x01 value \x02``, see
mqcommon/message/properties.py. `encode` makes the same bytes as `encode_batch` (mqcommon/message/batch.py) makes of
rows: Arrow joins the pieces of each message, so that each byte is copied once. Unique keys differ in their last four
digits.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from skylark.mqcommon.arguments import INT_MAX, INT_MIN, wrong_type
from skylark.mqcommon.errors import InvalidArgument
from skylark.mqcommon.message.message import MAX_PROPERTIES_BYTES
from skylark.mqcommon.message.properties import KEYS, RESERVED, TAGS
from skylark.sdk.arrow.records import Ints, Mask, equal_texts, hex_text, numbers

# A part has at most this many rows, and bodies of at most this many bytes or one row: encoding it takes about a
# millisecond.
PART_ROWS = 8_000
PART_BYTES = 2 * 1024 * 1024

#: The roles of columns.
BODY, TAG, KEY, PROPERTY, FLAG = "body", "tags", "keys", "properties", "flag"
_WANTED = {
    BODY: "binary or string",
    TAG: "string",
    KEY: "string or list<string>",
    PROPERTY: "map<string, string>, or a list of structs of two strings",
    FLAG: "an integer",
}


class TableRows(NamedTuple):
    """Some rows: bodies, encoded properties (None: no row has any), and flags (None: all are 0)."""

    bodies: pa.Array
    properties: pa.Array | None
    flags: Ints | None


class TableColumns:
    """The columns of ``data`` that become messages; ``names`` has each role's column name, or None.

    Raises TypeError when ``data`` is no table, InvalidArgument when a named column is missing or of a wrong type.
    """

    def __init__(self, data: object, names: Mapping[str, str | None], max_body_bytes: int) -> None:
        table = _table(data)
        self._names = {role: name for role, name in names.items() if name is not None}
        columns = {role: _column(table, role, name) for role, name in self._names.items()}
        self._columns = {
            role: each for role, each in columns.items() if role == BODY or not pa.types.is_null(each.type)
        }
        self._max_body_bytes = max_body_bytes
        self.rows: int = table.num_rows

    def parts(self, start: int = 0) -> Iterator[TableRows]:
        """The rows from ``start`` on, checked; InvalidArgument names row and column of a value that cannot be sent."""
        while start < self.rows:
            count = self._fitting(start)
            yield self._part(start, count)
            start += count

    def _fitting(self, start: int) -> int:
        """How many rows from ``start`` on make a part."""
        # Parts are bounded in rows and in bytes: besides the table, memory holds only the encoded copy of a part.
        bodies = self._columns[BODY].slice(start, PART_ROWS)
        sizes = np.concatenate([lengths(chunk) for chunk in bodies.chunks if len(chunk)])
        # Checked before the values are copied.
        too_long = sizes > self._max_body_bytes
        if too_long.any():
            row = int(too_long.argmax())
            raise self._wrong(start + row, BODY, f"{sizes[row]} bytes are more than {self._max_body_bytes}")
        return max(int(np.searchsorted(np.cumsum(sizes), PART_BYTES, side="right")), 1)

    def _part(self, start: int, count: int) -> TableRows:
        rows = {role: _one(column.slice(start, count)) for role, column in self._columns.items()}
        bodies = as_binary(rows[BODY])
        if bodies.null_count:
            row = int(is_valid(bodies).argmin())
            raise self._wrong(start + row, BODY, "it is null; fill it, or leave such rows out")
        pieces = []
        if PROPERTY in rows:
            pieces.append(self._properties(rows[PROPERTY], start))
        if KEY in rows:
            keys = rows[KEY] if is_text(rows[KEY].type) else joined_lists(rows[KEY])
            pieces.append(self._pair(KEYS, as_binary(keys), KEY, start))
        if TAG in rows:
            pieces.append(self._pair(TAGS, as_binary(rows[TAG]), TAG, start))
        own = joined(b"", *pieces) if pieces else None
        if own is not None:
            sizes = lengths(own)
            if (sizes > MAX_PROPERTIES_BYTES).any():
                row = int((sizes > MAX_PROPERTIES_BYTES).argmax())
                text = f"the properties have {sizes[row]} bytes, at most {MAX_PROPERTIES_BYTES} are taken"
                raise self._wrong(start + row, PROPERTY if PROPERTY in rows else KEY if KEY in rows else TAG, text)
        return TableRows(bodies, own, self._flags(rows[FLAG], start) if FLAG in rows else None)

    def _pair(self, name: str, values: pa.Array, role: str, start: int) -> pa.Array:
        row = first_marked(values)
        if row is not None:
            raise self._marked(start + row, role)
        return pairs(name.encode(), values)

    def _properties(self, lists: pa.Array, start: int) -> pa.Array:
        given = Properties(lists)
        for values in (given.names, given.values):
            number = first_marked(values)
            if number is not None:
                raise self._marked(start + given.row_of(number), PROPERTY)
        return given.encoded()

    def _flags(self, column: pa.Array, start: int) -> Ints:
        values = column.fill_null(0).to_numpy()
        wrong = (values < INT_MIN) | (values > INT_MAX)
        if wrong.any():
            row = int(wrong.argmax())
            raise self._wrong(start + row, FLAG, f"{values[row]} is not between {INT_MIN} and {INT_MAX}")
        flags: Ints = values.astype(np.int64)
        return flags

    def _marked(self, row: int, role: str) -> InvalidArgument:
        return self._wrong(row, role, "it holds the characters \\x01 or \\x02, which end names and values")

    def _wrong(self, row: int, role: str, reason: str) -> InvalidArgument:
        return InvalidArgument(f"row {row}, column {self._names[role]!r}: {reason}")


def _table(data: object) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if hasattr(data, "__arrow_c_stream__"):
        return pa.table(data)
    raise wrong_type("data", "a pyarrow.RecordBatch, a pyarrow.Table, or what can be one", data)


def _column(table: pa.Table, role: str, name: str) -> pa.ChunkedArray:
    places = table.schema.get_all_field_indices(name)
    if len(places) != 1:
        how_many = "several columns" if places else "no column"
        raise InvalidArgument(f"{role}={name!r}: data has {how_many} of that name; it has {table.schema.names}")
    column: pa.ChunkedArray = table.column(places[0])
    if not _fits(role, column.type):
        raise InvalidArgument(f"{role}={name!r}: the column is {column.type}, but must be {_WANTED[role]}; cast it")
    return column


def _fits(role: str, kind: Any) -> bool:
    if pa.types.is_null(kind):
        return True
    if role == FLAG:
        return bool(pa.types.is_integer(kind))
    if role == PROPERTY:
        return are_properties(kind)
    if role == KEY and is_list(kind):
        return is_text(kind.value_type)
    return is_text(kind) or (role == BODY and is_bytes(kind))


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


_VIEW_WORDS = 4
_SHORT = 12


def view_lengths(array: pa.Array) -> Ints:
    """How many bytes each value has; any number for a null."""
    return _words(array)[:, 0].astype(np.int64)


def without_views(array: pa.Array) -> pa.Array:
    """The same values as a binary array. Long values that lie side by side are copied together."""
    words = _words(array)
    sizes = view_lengths(array)
    if array.null_count:
        sizes[array.is_null().to_numpy(zero_copy_only=False)] = 0
    ends = np.cumsum(sizes)
    begins = ends - sizes
    data = np.empty(int(sizes.sum()), np.uint8)
    # Short values lie in the views themselves, at most 12 bytes each: copy them as rows of a matrix, with a mask of the
    # used bytes.
    short = np.flatnonzero((sizes > 0) & (sizes <= _SHORT))
    places = np.arange(_SHORT)
    inside = places < sizes[short, None]
    data[(begins[short, None] + places)[inside]] = words.view(np.uint8)[short, 4:][inside]
    # Long values lie in buffers. Runs of rows whose values follow one another in one buffer are copied together, which
    # is the usual case.
    long = np.flatnonzero(sizes > _SHORT)
    which, at = words[long, 2], words[long, 3]
    is_next = (np.diff(long) == 1) & (which[1:] == which[:-1]) & (at[1:] == at[:-1] + sizes[long][:-1])
    buffers = [np.frombuffer(buffer, np.uint8) for buffer in array.buffers()[2:]]
    for first, end in pairwise([0, *(np.flatnonzero(~is_next) + 1).tolist(), len(long)]):
        if first < end:
            begin, stop, start = int(begins[long[first]]), int(ends[long[end - 1]]), int(at[first])
            data[begin:stop] = buffers[which[first]][start : start + stop - begin]
    bounds = np.append(0, ends).astype(np.int32)
    bitmap = None
    if array.null_count:
        bitmap = pa.py_buffer(np.packbits(array.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(array), [bitmap, pa.py_buffer(bounds), pa.py_buffer(data)])


def _words(array: pa.Array) -> NDArray[np.int32]:
    """The views, a row each."""
    words = np.frombuffer(array.buffers()[1], np.int32)[_VIEW_WORDS * array.offset :]
    return words[: _VIEW_WORDS * len(array)].reshape(-1, _VIEW_WORDS)


BINARY = pa.binary()


def is_text(kind: Any) -> bool:
    """Whether values of this type are texts."""
    types = pa.types
    if types.is_dictionary(kind):
        return is_text(kind.value_type)
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_bytes(kind: Any) -> bool:
    """Whether values of this type are bytes."""
    types = pa.types
    if types.is_dictionary(kind):
        return is_bytes(kind.value_type)
    is_plain = types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    return bool(is_plain or types.is_binary_view(kind))


def is_list(kind: Any) -> bool:
    """Whether values of this type are lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def are_properties(kind: Any) -> bool:
    """Whether values of this type are maps of texts, or lists of pairs of texts."""
    if pa.types.is_map(kind):
        return is_text(kind.key_type) and is_text(kind.item_type)
    if not is_list(kind) or not pa.types.is_struct(kind.value_type) or kind.value_type.num_fields != 2:
        return False
    return all(is_text(kind.value_type.field(number).type) for number in range(2))


def lengths(array: pa.Array) -> Ints:
    """How many bytes each text, or each bytes, has; any number for a null."""
    kind = array.type
    if pa.types.is_null(kind):
        return np.zeros(len(array), np.int64)
    if pa.types.is_dictionary(kind):
        # Nulls look up the 0 at the end.
        known = np.append(lengths(array.dictionary), 0)
        found: Ints = known[array.indices.cast(pa.int64()).fill_null(len(known) - 1).to_numpy()]
        return found
    if pa.types.is_fixed_size_binary(kind):
        return np.full(len(array), kind.byte_width, np.int64)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return view_lengths(array)
    return np.diff(_bounds(array)).astype(np.int64)


def is_valid(array: pa.Array) -> Mask:
    """Which values are not null."""
    valid: Mask = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def as_binary(array: pa.Array) -> pa.Array:
    """The same values as a binary array."""
    kind = array.type
    if pa.types.is_binary(kind):
        return array
    if pa.types.is_string(kind):
        return array.view(BINARY)
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(array.indices, as_binary(array.dictionary)).dictionary_decode()
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return without_views(array)
    return array.cast(BINARY)


def joined(*pieces: pa.Array | bytes) -> pa.Array:
    """The pieces of each row, one after another, without nulls; each row needs a piece that is not null."""
    given = [pa.scalar(piece, BINARY) if isinstance(piece, bytes) else piece for piece in pieces]
    return pc.binary_join_element_wise(*given, pa.scalar(b"", BINARY), null_handling="skip")


def joined_lists(lists: pa.Array) -> pa.Array:
    """The texts of each list with blanks between them, without null or empty texts."""
    values, counts = as_binary(lists.flatten()), _counts(lists)
    given = _are_given(values)
    if not given.all():
        values, counts = values.take(numbers(np.flatnonzero(given))), _counts_of(given, counts)
    return pc.binary_join(pa.ListArray.from_arrays(_starts(counts), values), pa.scalar(b" ", BINARY))


def pairs(name: bytes, values: pa.Array) -> pa.Array:
    """The property ``name`` with these values; null where there is no value."""
    if values.null_count < len(values) and not _are_given(values).all():
        values = pc.if_else(pc.equal(pc.binary_length(values), 0), pa.scalar(None, BINARY), values)
    given = (pa.scalar(name + b"\x01", BINARY), values, pa.scalar(b"\x02", BINARY))
    return pc.binary_join_element_wise(*given, pa.scalar(b"", BINARY))


def first_marked(values: pa.Array) -> int | None:
    r"""The number of the first value that holds \x01 or \x02."""
    bounds, data = _bounds(values), values.buffers()[2]
    if data is None:
        return None
    raw = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]
    # One comparison for both bytes: of all bytes minus 1 only the bytes 1 and 2 give 0 or 1, as 0 wraps to 255.
    marks = np.flatnonzero(raw - np.uint8(1) <= 1)
    if not len(marks):
        return None
    found = np.searchsorted(bounds, marks + bounds[0], side="right") - 1
    found = found[is_valid(values)[found]]  # the bytes of a null do not count
    return int(found[0]) if len(found) else None


class Properties:
    """All rows' properties that are neither null, empty nor reserved: ``names`` and ``values``, in row order."""

    def __init__(self, lists: pa.Array) -> None:
        bounds = lists.offsets.to_numpy()
        counts = np.diff(bounds).astype(np.int64)
        is_map = pa.types.is_map(lists.type)
        pair = (lists.keys, lists.items) if is_map else lists.values.flatten()
        self.names, self.values = [as_binary(each[bounds[0] : bounds[-1]]) for each in pair]
        given = _are_given(self.names) & _are_given(self.values) & np.repeat(is_valid(lists), counts)
        given &= ~pc.is_in(self.names, value_set=_RESERVED).to_numpy(zero_copy_only=False)
        if not given.all():
            kept = numbers(np.flatnonzero(given))
            self.names, self.values = self.names.take(kept), self.values.take(kept)
            counts = _counts_of(given, counts)
        self._ends = np.cumsum(counts)

    def row_of(self, number: int) -> int:
        """The row of a property."""
        return int(np.searchsorted(self._ends, number, side="right"))

    def encoded(self) -> pa.Array:
        """The properties of each row, encoded."""
        each = joined(self.names, b"\x01", self.values, b"\x02")
        # The properties of a row lie side by side, so the bounds of the rows are some of the bounds of the properties.
        bounds = np.ascontiguousarray(_bounds(each)[np.append(0, self._ends)])
        raw = each.buffers()[2] or pa.py_buffer(b"")
        return pa.Array.from_buffers(BINARY, len(self._ends), [None, pa.py_buffer(bounds), raw])


def _bounds(array: pa.Array) -> Ints:
    """The start of each value in the data of a binary or text array, and the end of the last value."""
    is_large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    kind: type[Any] = np.int64 if is_large else np.int32
    if not len(array):
        return np.zeros(1, kind)
    bounds: Ints = np.frombuffer(array.buffers()[1], kind)[array.offset : array.offset + len(array) + 1]
    return bounds


def _are_given(values: pa.Array) -> Mask:
    """Which values of a binary array are neither null nor empty."""
    return is_valid(values) & (lengths(values) > 0)


def _counts(lists: pa.Array) -> Ints:
    """How many values each list has; 0 for a null."""
    counts: Ints = np.diff(lists.offsets.to_numpy()).astype(np.int64) * is_valid(lists)
    return counts


def _counts_of(given: Mask, counts: Ints) -> Ints:
    """How many of the values of each list are given."""
    found: Ints = np.bincount(np.repeat(np.arange(len(counts)), counts)[given], minlength=len(counts))
    return found


def _starts(counts: Ints) -> pa.Array:
    """The offsets of lists with these numbers of values."""
    return numbers(np.append(0, np.cumsum(counts)).astype(np.int32))


def _binaries(values: list[bytes]) -> pa.Array:
    # not pa.array(values): see `numbers`
    bounds = np.append(0, np.cumsum([len(value) for value in values])).astype(np.int32)
    return pa.Array.from_buffers(BINARY, len(values), [None, pa.py_buffer(bounds), pa.py_buffer(b"".join(values))])


_RESERVED = _binaries([name.encode() for name in sorted(RESERVED)])


_HEAD = np.dtype([("size", ">i4"), ("magic_crc", ">i8"), ("flag", ">i4"), ("body_length", ">i4")])
_LENGTH = np.dtype(">i2")
_NUMBER = np.dtype(">u2")
# The digits of a key's number, and the end of the property.
_KEY_END_BYTES = 2 * _NUMBER.itemsize + 1


class Encoded(NamedTuple):
    """Messages, one after another, and where each of them ends."""

    data: memoryview
    ends: Ints


def encode(part: TableRows, key_head: bytes, first_key: int) -> Encoded:
    r"""The messages of ``part``. Their unique keys are ``key_head``, a number from ``first_key`` on and ``\x02``."""
    rows = len(part.bodies)
    body_lengths = lengths(part.bodies)
    own_lengths: Ints | int = 0 if part.properties is None else lengths(part.properties)
    property_lengths = np.broadcast_to(own_lengths + len(key_head) + _KEY_END_BYTES, rows)
    heads = np.zeros(rows, _HEAD)
    # Sizes are computed before pieces are joined, so each piece is written once, in its place.
    heads["size"] = sizes = _HEAD.itemsize + body_lengths + _LENGTH.itemsize + property_lengths
    heads["body_length"] = body_lengths
    if part.flags is not None:
        heads["flag"] = part.flags
    key_numbers = (np.arange(first_key, first_key + rows) & 0xFFFF).astype(_NUMBER)
    messages = joined(
        equal_texts(heads.view(np.uint8), _HEAD.itemsize, rows, BINARY),
        part.bodies,
        equal_texts(property_lengths.astype(_LENGTH).view(np.uint8), _LENGTH.itemsize, rows, BINARY),
        *(() if part.properties is None else (part.properties,)),
        key_head,
        hex_text(key_numbers.view(np.uint8).reshape(rows, _NUMBER.itemsize)).view(BINARY),
        b"\x02",
    )
    ends = np.cumsum(sizes)
    return Encoded(memoryview(messages.buffers()[2])[: int(ends[-1])], ends)

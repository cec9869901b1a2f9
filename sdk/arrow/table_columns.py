"""What a user's table has to send: its columns, checked, in parts that encode.py makes batch sends of.

Bodies are binary or text, tags text, keys text or lists of texts, properties maps (or lists of structs of a name and a
value), flags integers. A null, or an empty text, is as if the column was not there; a body may be empty, not null. Of
the properties, names that RocketMQ reserves are left out: those of messages that were read hold them, too.
Neighbours: texts.py (binary arrays of what is given), encode.py (the bytes).
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from mqcommon.arguments import INT_MAX, INT_MIN, wrong_type
from mqcommon.errors import InvalidArgument
from mqcommon.message.message import MAX_PROPERTIES_BYTES
from mqcommon.message.properties import KEYS, TAGS
from sdk.arrow import texts
from sdk.arrow.records import Ints

# A part has so many rows, and bodies of so many bytes or one row: it is worked on for about a millisecond.
PART_ROWS = 8_000
PART_BYTES = 2 * 1024 * 1024

#: What columns are for.
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
    """The columns of ``data`` that messages are made of; ``names`` has the name of each, or None where there is none.

    Raises TypeError or InvalidArgument when ``data`` does not have them.
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
        """The rows from ``start`` on, checked; InvalidArgument names row and column of one that cannot be sent."""
        while start < self.rows:
            count = self._fitting(start)
            yield self._part(start, count)
            start += count

    def _fitting(self, start: int) -> int:
        """How many rows from ``start`` on make a part."""
        bodies = self._columns[BODY].slice(start, PART_ROWS)
        lengths = np.concatenate([texts.lengths(chunk) for chunk in bodies.chunks if len(chunk)])
        too_long = lengths > self._max_body_bytes
        if too_long.any():
            row = int(too_long.argmax())
            raise self._wrong(start + row, BODY, f"{lengths[row]} bytes are more than {self._max_body_bytes}")
        return max(int(np.searchsorted(np.cumsum(lengths), PART_BYTES, side="right")), 1)

    def _part(self, start: int, count: int) -> TableRows:
        rows = {role: _one(column.slice(start, count)) for role, column in self._columns.items()}
        bodies = texts.as_binary(rows[BODY])
        if bodies.null_count:
            row = int(texts.is_valid(bodies).argmin())
            raise self._wrong(start + row, BODY, "it is null; fill it, or leave such rows out")
        pieces = []
        if PROPERTY in rows:
            pieces.append(self._properties(rows[PROPERTY], start))
        if KEY in rows:
            keys = rows[KEY] if texts.is_text(rows[KEY].type) else texts.joined_lists(rows[KEY])
            pieces.append(self._pair(KEYS, texts.as_binary(keys), KEY, start))
        if TAG in rows:
            pieces.append(self._pair(TAGS, texts.as_binary(rows[TAG]), TAG, start))
        own = texts.joined(b"", *pieces) if pieces else None
        if own is not None:
            sizes = texts.lengths(own)
            if (sizes > MAX_PROPERTIES_BYTES).any():
                row = int((sizes > MAX_PROPERTIES_BYTES).argmax())
                text = f"the properties have {sizes[row]} bytes, at most {MAX_PROPERTIES_BYTES} are taken"
                raise self._wrong(start + row, PROPERTY if PROPERTY in rows else KEY if KEY in rows else TAG, text)
        return TableRows(bodies, own, self._flags(rows[FLAG], start) if FLAG in rows else None)

    def _pair(self, name: str, values: pa.Array, role: str, start: int) -> pa.Array:
        row = texts.first_marked(values)
        if row is not None:
            raise self._marked(start + row, role)
        return texts.pairs(name.encode(), values)

    def _properties(self, lists: pa.Array, start: int) -> pa.Array:
        given = texts.Properties(lists)
        for values in (given.names, given.values):
            number = texts.first_marked(values)
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
        return texts.are_properties(kind)
    if role == KEY and texts.is_list(kind):
        return texts.is_text(kind.value_type)
    return texts.is_text(kind) or (role == BODY and texts.is_bytes(kind))


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()

"""Columns as messages take them: the body from the column ``value`` of valueFormat, binary keys as text. Pure.

Neighbours: rows.py (the columns, and messages of rows), formats/ (values to bodies).
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.types import StructType

from skylark.spark_connector.formats.format_spec import FormatSpec
from skylark.spark_connector.formats.value_columns import RowUnwritable, encode_column
from skylark.spark_connector.writing.rows import BODY, KEYS, Layout, refused_row


class Bodies:
    """Converts each batch of a query. Pickled with writers."""

    def __init__(self, spec: FormatSpec | None, schema: StructType, layout: Layout) -> None:
        self._spec = spec
        self._body_at = layout.positions[BODY]
        self._keys_at = layout.positions.get(KEYS)
        self._kind = schema.fields[self._body_at].dataType

    def made(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """``batches`` with bodies and keys; RowRefused for a row that cannot have them."""
        form = None
        if self._spec is not None:
            assert isinstance(self._kind, StructType)  # `layout_of` has checked the type
            form = self._spec.open(self._kind)
        first_row = 0
        for batch in batches:
            try:
                if form is not None:
                    batch = _replaced(batch, self._body_at, encode_column(form, batch.column(self._body_at)))
                if self._keys_at is not None and _is_binary(batch.column(self._keys_at)):
                    batch = _replaced(batch, self._keys_at, _texts(batch.column(self._keys_at)))
            except RowUnwritable as error:
                raise refused_row(first_row + error.row, error.reason) from None
            yield batch
            first_row += batch.num_rows


def _replaced(batch: pa.RecordBatch, at: int, column: pa.Array) -> pa.RecordBatch:
    return batch.set_column(at, batch.schema.names[at], column)


def _is_binary(column: pa.Array) -> bool:
    return bool(pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type))


def _texts(keys: pa.Array) -> pa.Array:
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        for row, key in enumerate(keys.to_pylist()):
            try:
                (key or b"").decode()
            except UnicodeDecodeError:
                raise RowUnwritable(row, f"key {key!r} is no UTF-8; keys of messages are text") from None
        raise

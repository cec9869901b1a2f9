"""The columns of a query: the columns that Spark gets, and the columns that are decoded of records for these.

With the option valueFormat the column ``value`` is a struct in the place of the body. Bodies are decoded last, when
batches are about to be handed to Spark: messages that a filter leaves out, or that are read again, are not decoded.
A query whose schema has no ``value`` decodes no body.
Neighbours: formats/ (values), dead_letters.py (where messages go that cannot be decoded).
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from skylark.mqcommon.errors import SkylarkError, UserError
from skylark.sdk.arrow.schema import COLUMNS, PROPERTIES
from skylark.spark_connector.formats.ddl import check_ddl
from skylark.spark_connector.formats.format import Format
from skylark.spark_connector.formats.format_spec import FormatSpec, has_required
from skylark.spark_connector.formats.value_columns import decode_column
from skylark.spark_connector.options.formats import value_spec
from skylark.spark_connector.options.read import DEAD_LETTER, FAIL, NULL, ReadOptions
from skylark.spark_connector.reading.dead_letters import DeadLetter, DeadLetters
from skylark.spark_connector.schema import BODY_COLUMNS, VALUE, arrow_schema, arrow_type, spark_schema

_ORIGIN = ("topic", "brokerName", "queueId", "queueOffset")
#: By badRows: the columns that are needed of bad rows.
_BAD_ROW_COLUMNS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {FAIL: _ORIGIN, NULL: (), DEAD_LETTER: (*_ORIGIN, "msgId", "tags", "keys", "flag", PROPERTIES)}
)


class BadBody(SkylarkError):
    """The body of a message is no value of valueFormat; the text names queue and offset."""


def default_columns(options: ReadOptions) -> StructType | str:
    """The columns for users who give no schema; Spark parses them where `valueSchema` is DDL."""
    columns = spark_schema(include_properties=options.include_properties, style=options.schema_style)
    spec = value_spec(options)
    if spec is None:
        return columns
    body = BODY_COLUMNS[options.schema_style]
    if (kind := spec.type_of_schema()) is not None:
        return StructType([StructField(VALUE, kind) if field.name == body else field for field in columns])
    ddl = options.value_schema.strip()
    if not ddl:
        raise UserError(
            f"option valueFormat: {spec.kind} needs the fields of the column value, as in"
            ' .option("valueSchema", "id bigint, name string")'
        )
    check_ddl(ddl)
    struct = ddl if ddl.lower().startswith("struct<") else f"struct<{ddl}>"
    return ", ".join(
        f"`{VALUE}` {struct}" if field.name == body else f"`{field.name}` {field.dataType.simpleString()}"
        for field in columns
    )


class ReadColumns:
    """The columns of ``schema``; UserError when a message has no such columns. Pickled with readers."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._spec: FormatSpec | None = None
        spec = value_spec(options) if VALUE in schema.names else None
        if spec is None:
            self.shown = self.stored = arrow_schema(schema, options.schema_style)
            return
        self._spec, self._place = spec, schema.names.index(VALUE)
        self._kind = spec.checked(VALUE, schema[VALUE].dataType)
        if has_required(self._kind):
            raise UserError(
                f"column value is {self._kind.simpleString()} with fields that are NOT NULL, but messages may lack any"
                " field; leave out NOT NULL"
            )
        others = arrow_schema(StructType([one for one in schema if one.name != VALUE]), options.schema_style)
        fields = list(others)
        value = pa.field(VALUE, arrow_type(self._kind))
        #: The columns that Spark gets.
        self.shown = pa.schema([*fields[: self._place], value, *fields[self._place :]])
        self._bad_row_columns = _BAD_ROW_COLUMNS[options.bad_rows]
        body = pa.field("body", pa.binary())
        #: The columns that are decoded of records: the body in the place of the value, and at the end columns about bad
        #: rows.
        self.stored = pa.schema(
            [
                *fields[: self._place],
                body,
                *fields[self._place :],
                *(pa.field(name, COLUMNS[name]) for name in self._bad_row_columns),
            ]
        )

    def finished(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """``batches`` of `stored` as Spark gets them. Raises BadBody where `badRows` says so."""
        if self._spec is None:
            yield from batches
            return
        form = self._spec.open(self._kind)
        with DeadLetters(self._options) as letters:
            for batch in batches:
                yield self._with_values(batch, form, letters)

    def _with_values(self, batch: pa.RecordBatch, form: Format, letters: DeadLetters) -> pa.RecordBatch:
        bodies = batch.column(self._place)
        values, bad = decode_column(form, bodies, self.shown.field(self._place).type)
        columns = batch.columns[: len(self.shown)]
        columns[self._place] = values
        made = pa.RecordBatch.from_arrays(columns, schema=self.shown)
        if not bad or self._options.bad_rows == NULL:
            return made
        rows = sorted(bad)
        found = pa.table(
            {name: batch.column(len(self.shown) + at).take(rows) for at, name in enumerate(self._bad_row_columns)}
        ).to_pylist()
        if self._options.bad_rows == FAIL:
            raise self._bad_body(found[0], bad[rows[0]])
        letters.send(
            [DeadLetter(**one, body=bodies[row].as_py(), reason=bad[row]) for row, one in zip(rows, found, strict=True)]
        )
        good = np.ones(len(batch), dtype=bool)
        good[rows] = False
        return made.filter(pa.array(good))

    def _bad_body(self, found: dict[str, Any], reason: str) -> BadBody:
        topic, broker, queue_id, offset = (found[name] for name in _ORIGIN)
        return BadBody(
            f"topic {topic}, broker {broker}, queue {queue_id}: the body of the message at offset {offset} is no value"
            f" of valueFormat={self._options.value_format}: {reason}. To go on: badRows=null gives such rows without a"
            " value, badRows=deadLetter sends such messages to another topic"
        )

"""JSON and CBOR: bodies with the names of fields in them.

Arrow's own reader decodes whole columns of JSON where that gives the same values as one body after the other. A column
of objects is read at once as lines. Each body begins with ``{`` and ends with ``}``, and within a value no ``{`` may
follow a ``}``, so every body ends where a value ends: as many rows as bodies means one row for each body. Arrow refuses
whatever does not fit the types; then, and for other bodies, each body is read by itself, which finds the bad bodies.
"""

import io
from decimal import Decimal
from typing import Any

import cbor2
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)

from skylark.mqcommon.errors import UserError
from skylark.remoting.protocol.strict_cbor import load_value
from skylark.spark_connector.formats.format import BadValue, Format, shown
from skylark.spark_connector.formats.plain_values import reader_of, writer_of
from skylark.spark_connector.schema import arrow_type

# Types that Arrow's reader takes from JSON as `reader_of` does: its floats may be rounded otherwise, its times have
# other texts.
_ALIKE = (StringType, BooleanType, ByteType, ShortType, IntegerType, LongType, DoubleType)


class JsonFormat(Format):
    """One JSON object a body, in UTF-8."""

    def __init__(self, kind: StructType) -> None:
        _check_keys(kind)
        self._read = reader_of(kind)
        self._write = writer_of(kind, binary_as_text=True)
        self._columns = pa.schema(list(arrow_type(kind))) if _is_alike(kind) else None

    def decode(self, body: bytes) -> Any:
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise BadValue(f"it is no JSON: {error}") from None
        return None if value is None else self._read(value)

    def decode_all(self, bodies: pa.Array) -> pa.Array | None:
        if self._columns is None or not len(bodies):
            return None
        is_object = pc.and_(pc.starts_with(bodies, "{"), pc.ends_with(bodies, "}"))
        if not pc.all(is_object).as_py():
            return None
        lines = b"\n".join(bodies.to_pylist())
        try:
            pa.array([lines], pa.binary()).cast(pa.string())  # Arrow's reader does not check that text is UTF-8
            table = pyarrow.json.read_json(
                pa.BufferReader(lines),
                read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
                parse_options=pyarrow.json.ParseOptions(
                    explicit_schema=self._columns, newlines_in_values=True, unexpected_field_behavior="ignore"
                ),
            )
        except pa.ArrowInvalid:
            return None
        if len(table) != len(bodies):
            return None
        columns = [column.combine_chunks() for column in table.columns]
        if not all(map(_is_finite, columns)):
            return None
        return pa.StructArray.from_arrays(columns, fields=list(self._columns))

    def encode(self, value: dict[str, Any]) -> bytes:
        plain = self._write(value) if self._write else value
        try:
            return orjson.dumps(plain, default=_number, option=orjson.OPT_UTC_Z)
        except TypeError as error:
            raise BadValue(f"{shown(value)} cannot be JSON: {error}") from None


def _number(value: object) -> orjson.Fragment:
    if not isinstance(value, Decimal):
        raise TypeError(f"a {type(value).__name__}")
    return orjson.Fragment(format(value, "f"))


def _check_keys(kind: DataType) -> None:
    match kind:
        case StructType():
            for field in kind.fields:
                _check_keys(field.dataType)
        case ArrayType():
            _check_keys(kind.elementType)
        case MapType():
            if not isinstance(kind.keyType, StringType):
                raise UserError(f"option valueFormat: keys in JSON are strings, and not as in {kind.simpleString()}")
            _check_keys(kind.valueType)


def _is_alike(kind: DataType) -> bool:
    match kind:
        case StructType():
            return bool(kind.fields) and all(_is_alike(field.dataType) for field in kind.fields)
        case ArrayType():
            return _is_alike(kind.elementType)
    return isinstance(kind, _ALIKE)


def _is_finite(column: pa.Array) -> bool:
    """Whether no number is NaN or infinite: Arrow's reader takes such words, and JSON has none."""
    if pa.types.is_struct(column.type):
        return all(_is_finite(column.field(number)) for number in range(column.type.num_fields))
    if pa.types.is_list(column.type):
        return _is_finite(column.values)
    return not pa.types.is_floating(column.type) or pc.all(pc.is_finite(column)).as_py() is not False


class CborFormat(Format):
    """One map a body, as the SDK reads values."""

    def __init__(self, kind: StructType) -> None:
        self._read = reader_of(kind)
        self._write = writer_of(kind)

    def decode(self, body: bytes) -> Any:
        try:
            stream = io.BytesIO(body)
            value = load_value(stream)
        except (cbor2.CBORDecodeError, ValueError, TypeError, OverflowError, MemoryError) as error:
            raise BadValue(f"it is no CBOR: {error}") from None
        if rest := len(body) - stream.tell():
            raise BadValue(f"{rest} bytes follow the CBOR value")
        return None if value is None else self._read(value)

    def encode(self, value: dict[str, Any]) -> bytes:
        try:
            return cbor2.dumps(self._write(value) if self._write else value)
        except (cbor2.CBOREncodeError, ValueError, TypeError) as error:
            raise BadValue(f"{shown(value)} cannot be CBOR: {error}") from None

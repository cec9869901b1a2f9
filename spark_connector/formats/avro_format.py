"""Avro's binary encoding of records, without a header: each body is one record of the schema that is given.

Types are mapped as by Spark's ``from_avro``. Values of unknown logical types have the type in which they are stored.
"""

import io
import json
import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from skylark.mqcommon.errors import UserError
from skylark.spark_connector.formats.format import BadValue, Format, missing, shown
from skylark.spark_connector.formats.plain_values import writer_of

try:
    import fastavro
    import fastavro.schema
except ModuleNotFoundError as error:
    raise missing("avro", error) from None

_PRIMITIVES: Mapping[str, DataType] = MappingProxyType(
    {
        "boolean": BooleanType(),
        "int": IntegerType(),
        "long": LongType(),
        "float": FloatType(),
        "double": DoubleType(),
        "bytes": BinaryType(),
        "string": StringType(),
        "fixed": BinaryType(),
        "enum": StringType(),
    }
)
_LOGICAL: Mapping[str, DataType] = MappingProxyType(
    {"date": DateType(), "timestamp-millis": TimestampType(), "timestamp-micros": TimestampType()}
)
_DECIMAL = "decimal"
_MAX_PRECISION = 38
# What fastavro raises for bytes, or values, that do not fit a schema.
_MISFITS = (EOFError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, struct.error)


class AvroFormat(Format):
    """Records of ``schema``, which is JSON."""

    def __init__(self, schema: str) -> None:
        self._schema, expanded = _parsed(schema)
        #: The type of the records.
        self.kind = _record_type(expanded)
        self._write = writer_of(self.kind)

    def decode(self, body: bytes) -> Any:
        stream = io.BytesIO(body)
        try:
            value = fastavro.schemaless_reader(stream, self._schema, None)
        except _MISFITS as error:
            raise BadValue(f"it is no record of the Avro schema: {type(error).__name__} {error}") from None
        if rest := stream.read():
            raise BadValue(f"{len(rest)} bytes follow the record of the Avro schema")
        return value

    def encode(self, value: dict[str, Any]) -> bytes:
        stream = io.BytesIO()
        try:
            fastavro.schemaless_writer(stream, self._schema, self._write(value) if self._write else value)
        except _MISFITS as error:
            raise BadValue(f"{shown(value)} is no record of the Avro schema: {error}") from None
        return stream.getvalue()


def _parsed(text: str) -> tuple[Any, Any]:
    """The schema, and the same with the definition of each type where its name is used."""
    try:
        schema = _plain(json.loads(text))
        return fastavro.parse_schema(schema), fastavro.schema.expand_schema(schema)
    except (ValueError, TypeError, LookupError, AttributeError, fastavro.schema.SchemaParseException) as error:
        raise UserError(f"option valueSchema is no Avro schema in JSON: {type(error).__name__} {error}") from None


def _plain(schema: Any) -> Any:
    """The schema without logical types that are not known here."""
    match schema:
        case list():
            return [_plain(one) for one in schema]
        case dict():
            known = schema.get("logicalType") in (*_LOGICAL, _DECIMAL)
            return {name: _plain(one) for name, one in schema.items() if known or name != "logicalType"}
    return schema


def _record_type(schema: Any) -> StructType:
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise UserError('option valueSchema: the Avro schema must be a record, as in {"type": "record", ...}')
    fields = [StructField(field["name"], _type_of(field["type"], field["name"])) for field in schema["fields"]]
    if not fields:
        raise UserError(f"option valueSchema: the Avro record {schema['name']} has no fields")
    return StructType(fields)


def _type_of(schema: Any, path: str) -> DataType:
    """Spark's type of an expanded schema; ``path`` is the field in errors."""
    match schema:
        case str() if schema in _PRIMITIVES:
            return _PRIMITIVES[schema]
        case str() if schema != "null":
            raise UserError(f"option valueSchema: field {path} contains itself ({schema}), which Spark's types cannot")
        case list():
            others = [one for one in schema if one != "null"]
            if len(others) == 1:
                return _type_of(others[0], path)
            raise UserError(
                f"option valueSchema: field {path} is a union of {len(others)} types; only null may be added"
            )
        case {"type": "record"}:
            return _record_type(schema)
        case {"type": "array", "items": items}:
            return ArrayType(_type_of(items, path))
        case {"type": "map", "values": values}:
            return MapType(StringType(), _type_of(values, path))
        case {"logicalType": "decimal", "precision": precision}:
            if precision > _MAX_PRECISION:
                raise UserError(f"option valueSchema: field {path} has {precision} digits, and Spark {_MAX_PRECISION}")
            return DecimalType(precision, schema.get("scale", 0))
        case {"logicalType": logical} if logical in _LOGICAL:
            return _LOGICAL[logical]
        case {"type": kind}:
            return _type_of(kind, path)
    raise UserError(f"option valueSchema: field {path} is {schema!r}, which no column can be")

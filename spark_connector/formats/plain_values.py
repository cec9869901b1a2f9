"""Values as JSON and CBOR have them, to and from what Arrow takes and gives for Spark's types.

Nothing is converted that could be a mistake: a number is no string, and 1.5 is no integer. What JSON lacks is text
there: times and dates in ISO 8601, binary in base64. CBOR has its own times, decimals and bytes; text is taken, too. A
missing field is null, and fields that the type does not have are left out. Bounds of numbers are checked by Arrow.
"""

import base64
import binascii
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Context, Decimal, InvalidOperation
from functools import partial
from types import MappingProxyType
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from skylark.mqcommon.errors import UserError
from skylark.spark_connector.formats.format import BadValue, shown

# More digits than a decimal of Spark has.
_EXACT = Context(prec=100)

#: Changes a value that is not None; BadValue when it has another type.
Change = Callable[[Any], Any]


def reader_of(kind: DataType) -> Change:
    """Makes decoded values what Arrow takes for ``kind``; UserError for types that values do not have."""
    match kind:
        case StructType():
            if len(set(kind.names)) < len(kind.names):
                raise UserError(f"column value: {kind.simpleString()} has two fields of the same name")
            fields = [(field.name, reader_of(field.dataType)) for field in kind.fields]
            return partial(_read_struct, fields)
        case ArrayType():
            return partial(_read_list, reader_of(kind.elementType))
        case MapType():
            return partial(_read_map, reader_of(kind.keyType), reader_of(kind.valueType))
        case DecimalType():
            return partial(_read_decimal, kind.scale)
    if type(kind) not in _READERS:
        raise UserError(
            f"option valueFormat: values have no type {kind.simpleString()}; use string or another type, and cast"
        )
    return _READERS[type(kind)]


def _read_struct(fields: list[tuple[str, Change]], value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise BadValue(f"{shown(value)} is no object")
    try:
        return {name: None if (given := value.get(name)) is None else read(given) for name, read in fields}
    except BadValue:
        for name, read in fields:  # again, to name the field
            try:
                _ = None if (given := value.get(name)) is None else read(given)
            except BadValue as error:
                raise BadValue(f"field {name}: {error}") from None
        raise


def _read_list(read: Change, value: Any) -> list[Any]:
    if type(value) is not list:
        raise BadValue(f"{shown(value)} is no array")
    return [None if one is None else read(one) for one in value]


def _read_map(read_key: Change, read: Change, value: Any) -> list[tuple[Any, Any]]:
    if type(value) is not dict:
        raise BadValue(f"{shown(value)} is no object")
    if None in value:
        raise BadValue("a key of a map is null")
    return [(read_key(key), None if one is None else read(one)) for key, one in value.items()]


def _read_class(wanted: type, name: str, value: Any) -> Any:
    if type(value) is not wanted:
        raise BadValue(f"{shown(value)} is no {name}")
    return value


def _read_number(value: Any) -> Any:
    if type(value) not in (int, float):
        raise BadValue(f"{shown(value)} is no number")
    return value


def _read_float(value: Any) -> Any:
    try:
        struct.pack("<f", _read_number(value))
    except OverflowError:  # Arrow would make this infinite
        raise BadValue(f"{shown(value)} is too large for a float") from None
    return value


def _read_decimal(scale: int, value: Any) -> Decimal:
    if type(value) not in (int, float, str, Decimal):
        raise BadValue(f"{shown(value)} is no decimal number")
    try:
        # The shortest text of a float is the number that JSON had.
        number = Decimal(str(value))
        rounded = number.quantize(Decimal(1).scaleb(-scale), context=_EXACT) if number.is_finite() else None
    except (InvalidOperation, ValueError):  # ValueError: an integer of thousands of digits
        raise BadValue(f"{shown(value)} is no decimal number") from None
    if rounded is None:
        raise BadValue(f"{shown(value)} is no decimal number")
    if rounded != number:
        raise BadValue(f"{shown(value)} has more than {scale} decimals")
    return rounded


def _read_binary(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    try:
        return base64.b64decode(_read_class(str, "binary value", value), validate=True)
    except (binascii.Error, ValueError):
        raise BadValue(f"{shown(value)} is no base64") from None


def _read_date(value: Any) -> date:
    if type(value) is date:
        return value
    try:
        return date.fromisoformat(_read_class(str, "date", value))
    except ValueError:
        raise BadValue(f"{shown(value)} is no date; it must be like 2026-01-31") from None


def _read_time(value: Any) -> datetime:
    if not isinstance(value, datetime):
        try:
            value = datetime.fromisoformat(_read_class(str, "time", value))
        except ValueError:
            raise BadValue(f"{shown(value)} is no time; it must be like 2026-01-31T12:00:00Z") from None
    found: datetime = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return found


_integer = partial(_read_class, int, "integer")
_READERS: Mapping[type[DataType], Change] = MappingProxyType(
    {
        StringType: partial(_read_class, str, "string"),
        BooleanType: partial(_read_class, bool, "boolean"),
        ByteType: _integer,
        ShortType: _integer,
        IntegerType: _integer,
        LongType: _integer,
        FloatType: _read_float,
        DoubleType: _read_number,
        BinaryType: _read_binary,
        DateType: _read_date,
        TimestampType: _read_time,
    }
)


def writer_of(kind: DataType, *, binary_as_text: bool = False) -> Change | None:
    """Makes what Arrow gives for ``kind`` plain values: maps are dicts, and binary is base64 if wanted.

    None when values of ``kind`` are plain already.
    """
    again = partial(writer_of, binary_as_text=binary_as_text)
    match kind:
        case StructType():
            changes = {field.name: change for field in kind.fields if (change := again(field.dataType))}
            return partial(_write_struct, changes) if changes else None
        case ArrayType():
            change = again(kind.elementType)
            return partial(_write_list, change) if change else None
        case MapType():
            return partial(_write_map, again(kind.valueType))
        case BinaryType() if binary_as_text:
            return _write_base64
    return None


def _write_struct(changes: dict[str, Change], value: dict[str, Any]) -> dict[str, Any]:
    changed = {name: change(given) for name, change in changes.items() if (given := value[name]) is not None}
    return {**value, **changed}


def _write_list(change: Change, value: list[Any]) -> list[Any]:
    return [None if one is None else change(one) for one in value]


def _write_map(change: Change | None, value: list[tuple[Any, Any]]) -> dict[Any, Any]:
    if change is None:
        return dict(value)
    return {key: None if one is None else change(one) for key, one in value}


def _write_base64(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")

"""Protobuf messages, by the descriptor file that ``protoc --include_imports --descriptor_set_out`` writes.

Types are mapped as by Spark's ``from_protobuf``: enums are their names, uint32 is bigint, uint64 decimal(20,0),
google.protobuf.Timestamp a timestamp. A field with presence that is not set is null; others have their default.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
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

try:
    from google.protobuf.descriptor import FieldDescriptor
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import DecodeError, Message
    from google.protobuf.message_factory import GetMessageClass
except ModuleNotFoundError as error:
    raise missing("protobuf", error) from None

# Descriptors: their classes belong to the C library, or to the library in Python.
_Field = Any
_Message = Any
#: Makes a message, or one of its values, what Arrow takes.
Read = Callable[[Any], Any]

_TIMESTAMP = "google.protobuf.Timestamp"
_UINT64 = DecimalType(20, 0)
_TYPES: Mapping[int, DataType] = MappingProxyType(
    {
        FieldDescriptor.CPPTYPE_INT32: IntegerType(),
        FieldDescriptor.CPPTYPE_INT64: LongType(),
        FieldDescriptor.CPPTYPE_UINT32: LongType(),
        FieldDescriptor.CPPTYPE_UINT64: _UINT64,
        FieldDescriptor.CPPTYPE_FLOAT: FloatType(),
        FieldDescriptor.CPPTYPE_DOUBLE: DoubleType(),
        FieldDescriptor.CPPTYPE_BOOL: BooleanType(),
        FieldDescriptor.CPPTYPE_STRING: StringType(),
        FieldDescriptor.CPPTYPE_ENUM: StringType(),
    }
)


class ProtobufFormat(Format):
    """Messages of the type ``name`` in a file descriptor set."""

    def __init__(self, descriptors: bytes, name: str) -> None:
        descriptor = _descriptor(descriptors, name)
        #: The type of the messages.
        self.kind = _struct_of(descriptor, ())
        self._class = GetMessageClass(descriptor)
        self._read = _reader_of(descriptor)

    def decode(self, body: bytes) -> Any:
        message = self._class()
        try:
            message.ParseFromString(body)
        except DecodeError as error:
            raise BadValue(f"it is no message {self._class.DESCRIPTOR.full_name}: {error}") from None
        return self._read(message)

    def encode(self, value: dict[str, Any]) -> bytes:
        message = self._class()
        try:
            _fill(message, value)
            return message.SerializeToString(deterministic=True)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            name = self._class.DESCRIPTOR.full_name
            raise BadValue(f"{shown(value)} is no message {name}: {type(error).__name__} {error}") from None


def _descriptor(descriptors: bytes, name: str) -> _Message:
    pool = DescriptorPool()
    try:
        files = FileDescriptorSet.FromString(descriptors)
        for file in files.file:
            pool.AddSerializedFile(file.SerializeToString())
    except (DecodeError, TypeError) as error:
        raise UserError(
            f"option valueSchema: its file is no set of descriptors: {error}; make it with protoc --include_imports"
            " --descriptor_set_out=FILE"
        ) from None
    try:
        return pool.FindMessageTypeByName(name)
    except KeyError:
        names = [f"{file.package}.{one.name}".lstrip(".") for file in files.file for one in file.message_type]
        raise UserError(
            f"option valueMessage: {name} is not in the file of valueSchema, which has {', '.join(names)}"
        ) from None


def _struct_of(descriptor: _Message, around: tuple[str, ...]) -> StructType:
    around = (*around, descriptor.full_name)
    if descriptor.full_name in around[:-1]:
        raise UserError(
            f"option valueMessage: {descriptor.full_name} contains itself, by {' and '.join(around[:-1])}, which"
            " Spark's types cannot"
        )
    if not descriptor.fields:
        raise UserError(f"option valueMessage: {descriptor.full_name} has no fields")
    return StructType([StructField(field.name, _type_of(field, around)) for field in descriptor.fields])


def _type_of(field: _Field, around: tuple[str, ...]) -> DataType:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        return MapType(_single_type(entry["key"], around), _single_type(entry["value"], around))
    single = _single_type(field, around)
    return ArrayType(single) if field.is_repeated else single


def _single_type(field: _Field, around: tuple[str, ...]) -> DataType:
    if field.message_type is not None:
        is_time = field.message_type.full_name == _TIMESTAMP
        return TimestampType() if is_time else _struct_of(field.message_type, around)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return BinaryType()
    return _TYPES[field.cpp_type]


def _is_map(field: _Field) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _reader_of(descriptor: _Message) -> Read:
    """Makes a message of this type the value of a struct."""
    fields = [(field.name, field.has_presence, _field_reader(field)) for field in descriptor.fields]

    def read(message: Any) -> dict[str, Any]:
        return {
            name: None if has_presence and not message.HasField(name) else get(message)
            for name, has_presence, get in fields
        }

    return read


def _field_reader(field: _Field) -> Read:
    """Makes a message the value of this field, which is set."""
    get = attrgetter(field.name)
    if _is_map(field):
        entry = field.message_type.fields_by_name
        key, value = _single_reader(entry["key"]), _single_reader(entry["value"])
        return lambda message: [(_read(key, each), _read(value, one)) for each, one in get(message).items()]
    single = _single_reader(field)
    if field.is_repeated:
        return lambda message: [_read(single, one) for one in get(message)]
    return get if single is None else lambda message: single(get(message))


def _read(read: Read | None, value: Any) -> Any:
    return value if read is None else read(value)


def _single_reader(field: _Field) -> Read | None:
    """Makes one value of the field what Arrow takes; None when Arrow takes the value as it is."""
    if field.message_type is not None:
        return _read_time if field.message_type.full_name == _TIMESTAMP else _reader_of(field.message_type)
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, str(number))  # a later version of the enum may have more
    return Decimal if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64 else None


def _read_time(value: Any) -> int:
    """Arrow's timestamp: microseconds since 1970."""
    found: int = value.seconds * 1_000_000 + value.nanos // 1_000
    return found


def _fill(message: Message, value: dict[str, Any]) -> None:
    for field in message.DESCRIPTOR.fields:
        given = value.get(field.name)
        if given is None:
            continue
        if _is_map(field):
            _fill_map(field, getattr(message, field.name), given)
        elif field.is_repeated:
            _fill_list(field, getattr(message, field.name), given)
        elif field.message_type is not None:
            _fill_message(getattr(message, field.name), given)
        else:
            setattr(message, field.name, _stored(field, given))


def _fill_map(field: _Field, target: Any, given: list[tuple[Any, Any]]) -> None:
    entry = field.message_type.fields_by_name
    for key, value in given:
        if value is None:
            raise ValueError(f"field {field.name} has a null, and Protobuf none")
        if entry["value"].message_type is not None:
            _fill_message(target[_stored(entry["key"], key)], value)
        else:
            target[_stored(entry["key"], key)] = _stored(entry["value"], value)


def _fill_list(field: _Field, target: Any, given: list[Any]) -> None:
    for value in given:
        if value is None:
            raise ValueError(f"field {field.name} has a null, and Protobuf none")
        if field.message_type is not None:
            _fill_message(target.add(), value)
        else:
            target.append(_stored(field, value))


def _fill_message(target: Any, value: Any) -> None:
    target.SetInParent()
    if isinstance(value, datetime):
        target.FromDatetime(value.astimezone(UTC))
    else:
        _fill(target, value)


def _stored(field: _Field, value: Any) -> Any:
    if field.enum_type is None:
        return int(value) if isinstance(value, Decimal) else value
    known = field.enum_type.values_by_name.get(value)
    return int(value) if known is None else known.number

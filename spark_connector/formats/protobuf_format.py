"""Protobuf messages, by the descriptor file that ``protoc --include_imports --descriptor_set_out`` writes.

Types are mapped as by Spark's ``from_protobuf``: enums are their names, uint32 is bigint, uint64 decimal(20,0),
google.protobuf.Timestamp a timestamp. A field with presence that is not set is null; others have their default.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
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

from mqcommon.errors import UserError
from spark_connector.formats.format import BadValue, Format, missing, shown

try:
    from google.protobuf.descriptor import FieldDescriptor
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import DecodeError, Message
    from google.protobuf.message_factory import GetMessageClass
except ModuleNotFoundError:
    raise missing("protobuf", "protobuf") from None

# Descriptors: their classes are those of the C library, or of Python.
_Field = Any
_Message = Any

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

    def decode(self, body: bytes) -> Any:
        message = self._class()
        try:
            message.ParseFromString(body)
        except DecodeError as error:
            raise BadValue(f"it is no message {self._class.DESCRIPTOR.full_name}: {error}") from None
        return _value_of(message)

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


def _value_of(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {}
    descriptor: _Message = message.DESCRIPTOR
    for field in descriptor.fields:
        name = field.name
        if field.has_presence and not message.HasField(name):
            found[name] = None
        elif _is_map(field):
            entry = field.message_type.fields_by_name
            key, value = entry["key"], entry["value"]
            pairs = getattr(message, name)
            found[name] = [(_single(key, each), _single(value, pairs[each])) for each in pairs]
        elif field.is_repeated:
            found[name] = [_single(field, one) for one in getattr(message, name)]
        else:
            found[name] = _single(field, getattr(message, name))
    return found


def _single(field: _Field, value: Any) -> Any:
    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            return value.seconds * 1_000_000 + value.nanos // 1_000  # Arrow's: microseconds since 1970
        return _value_of(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name  # a later version of the enum may have more
    return Decimal(value) if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64 else value


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

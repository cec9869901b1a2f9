"""What tests do with formats: bodies to values and back, and a descriptor file."""

from pathlib import Path
from typing import Any

import pyarrow as pa
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from pyspark.sql.types import StructType

from skylark.spark_connector.formats.format_spec import FormatSpec
from skylark.spark_connector.formats.value_columns import decode_column, encode_column
from skylark.spark_connector.schema import arrow_type


def decoded(spec: FormatSpec, kind: StructType, *bodies: bytes) -> tuple[list[Any], dict[int, str]]:
    """The values, and the reasons of bad ones."""
    found = decode_column(spec.open(kind), pa.array(bodies, pa.binary()), arrow_type(kind))
    found.values.validate(full=True)
    return found.values.to_pylist(), dict(found.bad)


def encoded(spec: FormatSpec, kind: StructType, *values: Any) -> list[bytes | None]:
    """The bodies of rows of that type."""
    column = pa.array(values, arrow_type(kind))
    bodies: list[bytes | None] = encode_column(spec.open(kind), column).to_pylist()
    return bodies


def order_descriptors() -> FileDescriptorSet:
    """Descriptors as protoc writes them: ``shop.Order``, and ``shop.Loop``, which contains itself."""
    files = FileDescriptorSet()
    files.file.add().ParseFromString(timestamp_pb2.DESCRIPTOR.serialized_pb)
    file = files.file.add(
        name="order.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    file.enum_type.add(name="State").value.add(name="NEW", number=0)
    file.enum_type[0].value.add(name="SENT", number=1)
    item = file.message_type.add(name="Item")
    item.field.add(name="sku", number=1, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=Field.TYPE_INT32, label=Field.LABEL_OPTIONAL)
    for number, (name, kind, type_name, label) in enumerate(
        [
            ("id", Field.TYPE_INT64, "", Field.LABEL_OPTIONAL),
            ("state", Field.TYPE_ENUM, ".shop.State", Field.LABEL_OPTIONAL),
            ("serial", Field.TYPE_UINT64, "", Field.LABEL_OPTIONAL),
            ("at", Field.TYPE_MESSAGE, ".google.protobuf.Timestamp", Field.LABEL_OPTIONAL),
            ("items", Field.TYPE_MESSAGE, ".shop.Item", Field.LABEL_REPEATED),
            ("codes", Field.TYPE_UINT32, "", Field.LABEL_REPEATED),
            ("counts", Field.TYPE_MESSAGE, ".shop.Order.CountsEntry", Field.LABEL_REPEATED),
            ("photo", Field.TYPE_BYTES, "", Field.LABEL_OPTIONAL),
        ],
        1,
    ):
        order.field.add(name=name, number=number, type=kind, type_name=type_name or None, label=label)
    loop = file.message_type.add(name="Loop")
    loop.field.add(name="again", number=1, type=Field.TYPE_MESSAGE, type_name=".shop.Loop", label=Field.LABEL_OPTIONAL)
    return files


def descriptor_file(folder: Path) -> Path:
    """The file that ``protoc --descriptor_set_out`` would write."""
    path = folder / "order.desc"
    path.write_bytes(order_descriptors().SerializeToString())
    return path

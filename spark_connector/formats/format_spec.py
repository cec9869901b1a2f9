"""A format with its schema: made on the driver, which reads descriptor files, and opened in workers."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from skylark.mqcommon.errors import UserError
from skylark.spark_connector.formats.format import Format

if TYPE_CHECKING:
    from skylark.spark_connector.formats.avro_format import AvroFormat
    from skylark.spark_connector.formats.protobuf_format import ProtobufFormat

JSON, AVRO, CBOR, PROTOBUF = "json", "avro", "cbor", "protobuf"
#: Formats whose values have the types of the column. The other formats have schemas, which say the types.
BY_COLUMN = (JSON, CBOR)


@dataclass(frozen=True)
class FormatSpec:
    """One of the formats: ``schema`` is Avro's; ``descriptors`` and the name of the ``message`` are for Protobuf."""

    kind: str
    schema: str = ""
    descriptors: bytes = field(default=b"", repr=False)
    message: str = ""

    def type_of_schema(self) -> StructType | None:
        """The type of all values; None when the column's type says it. UserError when the schema cannot be used."""
        form = self._by_schema()
        return None if form is None else form.kind

    def open(self, column: StructType) -> Format:
        """The format, for a column of this type."""
        return self._by_schema() or self._by_column(column)

    # The package of a format is imported here, so that only the package of the format in use must be installed.
    def _by_schema(self) -> "AvroFormat | ProtobufFormat | None":
        if self.kind == AVRO:
            from skylark.spark_connector.formats.avro_format import AvroFormat

            return AvroFormat(self.schema)
        if self.kind == PROTOBUF:
            from skylark.spark_connector.formats.protobuf_format import ProtobufFormat

            return ProtobufFormat(self.descriptors, self.message)
        return None

    def _by_column(self, column: StructType) -> Format:
        from skylark.spark_connector.formats.json_cbor import CborFormat, JsonFormat

        return CborFormat(column) if self.kind == CBOR else JsonFormat(column)

    def checked(self, name: str, given: DataType) -> StructType:
        """The type of the column ``name``, if the format has such values; else UserError."""
        if not isinstance(given, StructType) or not given.fields:
            raise UserError(
                f"column {name} is {given.simpleString()}, but with valueFormat={self.kind} it is a struct; make it of"
                ' columns with struct("*")'
            )
        known = self.type_of_schema()
        if known is None:
            self.open(given)  # UserError for types that the format lacks
            return given
        types = {field.name: field.dataType for field in known.fields}
        for one in given.fields:
            if one.name not in types:
                raise UserError(
                    f"column {name} has a field {one.name}, and the schema of {self.kind} {', '.join(types)}"
                )
            if _nullable(one.dataType) != _nullable(types[one.name]):
                raise UserError(
                    f"field {one.name} of column {name} is {one.dataType.simpleString()}, and in the schema of"
                    f" {self.kind} {types[one.name].simpleString()}; cast it"
                )
        return given


def _nullable(kind: DataType) -> DataType:
    """The type with nulls allowed everywhere."""
    match kind:
        case StructType():
            made = StructType()
            for one in kind.fields:
                made.add(one.name, _nullable(one.dataType))
            return made
        case ArrayType():
            return ArrayType(_nullable(kind.elementType))
        case MapType():
            return MapType(_nullable(kind.keyType), _nullable(kind.valueType))
    return kind


def has_required(kind: DataType) -> bool:
    """Whether a field somewhere in ``kind`` may not be null."""
    return _nullable(kind) != kind

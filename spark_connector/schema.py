"""The columns of a message, in Spark's types and in Arrow's.

A user's own schema may have fewer columns, in any order: only those are decoded and sent to the JVM.
The column ``partition`` of ``schemaStyle=kafka`` is a number that depends on the broker's name and the queue's id only,
so it stays the same when brokers and queues are added: `partition_number`.
The Arrow types are those to which Spark converts its own types; a test compares them with Spark.
"""

import zlib
from collections.abc import Mapping
from types import MappingProxyType

import pyarrow as pa
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
    StructField,
    StructType,
    TimestampType,
)

from skylark.mqcommon.errors import UserError
from skylark.sdk.arrow.schema import COLUMNS, PROPERTIES

HEADERS = "headers"
VALUE = "value"

# Values of the option schemaStyle.
ROCKETMQ, KAFKA, EXTERNALS = "rocketmq", "kafka", "externals"

_TIME = pa.timestamp("us", tz="UTC")
_Columns = tuple[tuple[str, DataType, pa.DataType], ...]

# Spark's types of the shared columns.
_SPARK: Mapping[pa.DataType, DataType] = MappingProxyType(
    {
        pa.string(): StringType(),
        pa.binary(): BinaryType(),
        pa.int32(): IntegerType(),
        pa.int64(): LongType(),
        _TIME: TimestampType(),
        COLUMNS[PROPERTIES]: MapType(StringType(), StringType()),
    }
)
_COLUMNS: _Columns = tuple((name, _SPARK[kind], kind) for name, kind in COLUMNS.items())

# The columns of Spark's Kafka source.
_KAFKA: _Columns = (
    ("key", BinaryType(), pa.binary()),
    ("value", BinaryType(), pa.binary()),
    ("topic", StringType(), pa.string()),
    ("partition", IntegerType(), pa.int32()),
    ("offset", LongType(), pa.int64()),
    ("timestamp", TimestampType(), _TIME),
    ("timestampType", IntegerType(), pa.int32()),
    (
        HEADERS,
        ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
        pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ),
)
# The columns of rocketmq-spark; the properties are JSON.
_EXTERNALS: _Columns = (
    ("topic", StringType(), pa.string()),
    ("flag", IntegerType(), pa.int32()),
    ("body", BinaryType(), pa.binary()),
    (PROPERTIES, StringType(), pa.string()),
    ("brokerName", StringType(), pa.string()),
    ("queueId", IntegerType(), pa.int32()),
    ("queueOffset", LongType(), pa.int64()),
    ("bornTimestamp", TimestampType(), _TIME),
    ("storeTimestamp", TimestampType(), _TIME),
)
_STYLES: Mapping[str, _Columns] = MappingProxyType({ROCKETMQ: _COLUMNS, KAFKA: _KAFKA, EXTERNALS: _EXTERNALS})
_OPTIONAL = {(ROCKETMQ, PROPERTIES), (KAFKA, HEADERS)}
#: The column of each style that has the body.
BODY_COLUMNS: Mapping[str, str] = MappingProxyType({ROCKETMQ: "body", KAFKA: VALUE, EXTERNALS: "body"})


def spark_schema(*, include_properties: bool, style: str = ROCKETMQ) -> StructType:
    """The default schema, for users who give none."""
    return StructType(
        [
            StructField(name, spark)
            for name, spark, _ in _STYLES[style]
            if include_properties or (style, name) not in _OPTIONAL
        ]
    )


def arrow_schema(schema: StructType, style: str = ROCKETMQ) -> pa.Schema:
    """The Arrow schema that Spark expects for ``schema``; UserError for unknown columns and wrong types."""
    known = {name: (spark, arrow) for name, spark, arrow in _STYLES[style]}
    fields = []
    for field in schema.fields:
        if field.name not in known:
            raise UserError(f"a message has no column {field.name}; choose from {', '.join(known)}")
        spark, arrow = known[field.name]
        if field.dataType != spark:
            raise UserError(
                f"column {field.name} is {spark.simpleString()}, not {field.dataType.simpleString()};"
                " use that type in the schema and cast the column afterwards"
            )
        fields.append(pa.field(field.name, arrow, nullable=field.nullable))
    return pa.schema(fields)


_ARROW: Mapping[type[DataType], pa.DataType] = MappingProxyType(
    {
        StringType: pa.string(),
        BinaryType: pa.binary(),
        BooleanType: pa.bool_(),
        ByteType: pa.int8(),
        ShortType: pa.int16(),
        IntegerType: pa.int32(),
        LongType: pa.int64(),
        FloatType: pa.float32(),
        DoubleType: pa.float64(),
        DateType: pa.date32(),
        TimestampType: _TIME,
    }
)


def arrow_type(kind: DataType) -> pa.DataType:
    """The Arrow type that Spark expects for a value of ``kind``, which a format has (formats/)."""
    match kind:
        case StructType():
            return pa.struct([pa.field(one.name, arrow_type(one.dataType), one.nullable) for one in kind.fields])
        case ArrayType():
            return pa.list_(pa.field("element", arrow_type(kind.elementType), kind.containsNull))
        case MapType():
            key = pa.field("key", arrow_type(kind.keyType), nullable=False)
            return pa.map_(key, pa.field("value", arrow_type(kind.valueType), kind.valueContainsNull))
        case DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
    return _ARROW[type(kind)]


QUEUE_BITS = 12
MAX_QUEUES = 1 << QUEUE_BITS  # of one broker and topic
_BROKER_BITS = 19


def partition_number(broker_name: str, queue_id: int) -> int:
    """The number of a queue: an int that is not negative."""
    return (zlib.crc32(broker_name.encode()) & ((1 << _BROKER_BITS) - 1)) << QUEUE_BITS | queue_id

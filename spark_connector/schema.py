"""The columns of a message, in Spark's types and in Arrow's.

A user's own schema may have fewer columns, in any order: only those are decoded and sent to the JVM.
The Arrow types are those to which Spark converts its own types; a test compares them with Spark.
"""

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from mqcommon.errors import UserError

PROPERTIES = "properties"

_COLUMNS: tuple[tuple[str, DataType, pa.DataType], ...] = (
    ("topic", StringType(), pa.string()),
    ("brokerName", StringType(), pa.string()),
    ("queueId", IntegerType(), pa.int32()),
    ("queueOffset", LongType(), pa.int64()),
    ("msgId", StringType(), pa.string()),
    ("offsetMsgId", StringType(), pa.string()),
    ("keys", StringType(), pa.string()),
    ("tags", StringType(), pa.string()),
    ("body", BinaryType(), pa.binary()),
    ("flag", IntegerType(), pa.int32()),
    ("sysFlag", IntegerType(), pa.int32()),
    ("bornTimestamp", TimestampType(), pa.timestamp("us", tz="UTC")),
    ("storeTimestamp", TimestampType(), pa.timestamp("us", tz="UTC")),
    ("bornHost", StringType(), pa.string()),
    ("reconsumeTimes", IntegerType(), pa.int32()),
    (PROPERTIES, MapType(StringType(), StringType()), pa.map_(pa.string(), pa.string())),
)


def spark_schema(*, include_properties: bool) -> StructType:
    """The default schema, for users who give none."""
    return StructType(
        [StructField(name, spark) for name, spark, _ in _COLUMNS if include_properties or name != PROPERTIES]
    )


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects for ``schema``; UserError for unknown columns and wrong types."""
    known = {name: (spark, arrow) for name, spark, arrow in _COLUMNS}
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

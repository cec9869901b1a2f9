import pytest
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
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

from skylark.spark_connector.schema import EXTERNALS, KAFKA, ROCKETMQ, arrow_schema, arrow_type, spark_schema


@pytest.mark.parametrize("style", [ROCKETMQ, KAFKA, EXTERNALS])
def test_arrow_types_are_what_spark_expects(style: str) -> None:
    schema = spark_schema(include_properties=True, style=style)
    assert arrow_schema(schema, style).equals(to_arrow_schema(schema, timezone="UTC"))


def test_a_users_schema_keeps_order_and_nullability() -> None:
    schema = StructType().add("queueId", IntegerType(), nullable=False).add("body", BinaryType())
    assert arrow_schema(schema).equals(to_arrow_schema(schema, timezone="UTC"))


def test_types_of_values_are_what_spark_expects() -> None:
    kind = StructType().add("m", MapType(StringType(), ArrayType(DecimalType(20, 3))))
    for number, one in enumerate(
        (BooleanType(), ByteType(), ShortType(), IntegerType(), LongType(), FloatType(), DoubleType(), BinaryType())
    ):
        kind.add(f"f{number}", one)
    kind.add("at", TimestampType()).add("s", StructType().add("d", DateType(), nullable=False))
    assert arrow_type(kind).equals(to_arrow_type(kind, timezone="UTC"), check_metadata=True)


def test_properties_only_when_wanted() -> None:
    assert "properties" not in spark_schema(include_properties=False).names
    assert spark_schema(include_properties=True).names[-1] == "properties"
    assert "headers" not in spark_schema(include_properties=False, style=KAFKA).names
    assert "properties" in spark_schema(include_properties=False, style=EXTERNALS).names

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from mqcommon.errors import UserError
from spark_connector.options.write import WriteOptions
from spark_connector.writing.columns import layout_of

TEXT, BYTES = StringType(), BinaryType()
TOPIC = WriteOptions(topic="flights")
FAST = WriteOptions(topic="flights", dedup=False)


def schema(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


def test_all_columns_have_their_places() -> None:
    fields = {
        "TAGS": TEXT,
        "value": BYTES,
        "keys": ArrayType(TEXT),
        "properties": MapType(TEXT, TEXT),
        "flag": ShortType(),
        "topic": TEXT,
        "queueid": IntegerType(),
        "brokerName": TEXT,
        "deliverTime": LongType(),
    }
    found = layout_of(schema(**fields), WriteOptions(dedup=False))
    names = ["tags", "body", "keys", "properties", "flag", "topic", "queueId", "brokerName", "deliverTime"]
    assert list(found.positions) == names
    assert list(found.positions.values()) == list(range(len(names)))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, r"no column body; name the column with the messages so, as in df\.select"),
        (
            {"body": DoubleType()},
            r"column body is double, but must be binary or string; cast it, as in .*cast\(.binary",
        ),
        ({"body": TEXT, "tags": IntegerType()}, "column tags is int, but must be string; cast it"),
        ({"body": TEXT, "keys": ArrayType(IntegerType())}, "column keys is array<int>"),
        ({"body": TEXT, "flag": LongType()}, "column flag is bigint, but must be int or smallint or tinyint"),
        ({"body": TEXT, "properties": MapType(TEXT, BYTES)}, "column properties is map<string,binary>"),
        ({"body": TEXT, "value": TEXT}, "columns body and value are both the body; drop one of them"),
        ({"body": TEXT, "msgId": TEXT}, r'column msgId cannot be written; brokers set it: .*df\.drop\("msgId"\)'),
        ({"body": TEXT, "tag": TEXT}, "column tag cannot be written; did you mean tags?"),
        ({"body": TEXT, "key": TEXT}, "column key cannot be written; rename it to shardingKey"),
        ({"body": TEXT, "zzz": TEXT}, "column zzz cannot be written; columns are body, topic, tags"),
        ({"body": TEXT, "queueId": IntegerType()}, "columns queueId and brokerName name a queue together"),
        ({"body": TEXT, "delayTimeLevel": IntegerType()}, r'use \.option\("dedup", "false"\)'),
        ({"body": TEXT, "deliverTime": TimestampType()}, r'use \.option\("dedup", "false"\)'),
        (
            {"body": TEXT, "queueId": IntegerType(), "brokerName": TEXT, "shardingKey": TEXT},
            "columns shardingKey and queueId both choose the queue; drop one",
        ),
    ],
)
def test_a_column_that_cannot_be_written_is_named_with_the_remedy(fields: dict[str, DataType], said: str) -> None:
    with pytest.raises(UserError, match=said):
        layout_of(schema(**fields), TOPIC)


def test_times_need_a_zone_and_one_column() -> None:
    with pytest.raises(UserError, match="column deliverTime is timestamp_ntz, but must be timestamp or bigint"):
        layout_of(schema(body=TEXT, deliverTime=TimestampNTZType()), FAST)
    with pytest.raises(UserError, match="both say when to deliver; drop one of them"):
        layout_of(schema(body=TEXT, deliverTime=LongType(), delayTimeLevel=IntegerType()), FAST)


def test_a_topic_is_needed_in_one_of_two_ways() -> None:
    with pytest.raises(UserError, match=r'use \.option\("topic", "name"\), or a column topic'):
        layout_of(schema(body=TEXT), WriteOptions())
    layout_of(schema(body=TEXT, topic=TEXT), WriteOptions())

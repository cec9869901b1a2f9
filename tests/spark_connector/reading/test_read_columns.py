"""The column ``value`` of valueFormat, read as Spark reads it."""

import json
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest
from pyspark.sql.types import ArrayType, BinaryType, LongType, StringType, StructField, StructType

from skylark.mqcommon.errors import ConnectFailed, RouteNotFound, SendFailed, UserError
from skylark.mqcommon.message.message import Message, WithOwnKeys
from skylark.mqcommon.message.properties import encode_properties
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.routes import TopicQueues
from skylark.spark_connector.options.read import ReadOptions
from skylark.spark_connector.reading.batch_reader import RocketMQBatchReader
from skylark.spark_connector.reading.dead_letters import check_dead_letter_topics
from skylark.spark_connector.reading.read_columns import BadBody, ReadColumns, default_columns
from skylark.spark_connector.source import RocketMQDataSource
from tests.sdk.arrow.records import Stored
from tests.spark_connector.cluster import Log, MemoryCluster
from tests.spark_connector.formats.columns import descriptor_file

QUEUE, LETTERS = MessageQueue("t", "a", 0), MessageQueue("t-bad-rows", "a", 0)
VALUE = StructType().add("id", LongType())
SCHEMA = StructType().add("queueOffset", LongType()).add("value", VALUE)
BODIES = (b'{"id":0}', b"rubbish", b'{"id":2}', b'{"id":"3"}')


def cluster_of(*bodies: bytes, tags: Sequence[str] = ()) -> MemoryCluster:
    cluster = MemoryCluster()
    cluster.logs[LETTERS] = Log()
    cluster.logs[QUEUE] = Log(
        records=[
            Stored(
                topic="t",
                queue_id=0,
                queue_offset=at,
                body=body,
                flag=at,
                properties=encode_properties(
                    {"UNIQ_KEY": f"K{at}", "TAGS": (tags or "x" * len(bodies))[at], "KEYS": "k1 k2", "own": "o"}
                ).encode(),
            ).encode()
            for at, body in enumerate(bodies)
        ]
    )
    return cluster


def reader(cluster: MemoryCluster, schema: StructType = SCHEMA, **given: str) -> RocketMQBatchReader:
    options = ReadOptions.parse({"topic": "t", "valueFormat": "json", **given})
    return RocketMQBatchReader(options, schema, lambda _: cluster)


def rows(source: RocketMQBatchReader) -> list[dict[str, Any]]:
    return [row for one in source.partitions() for batch in source.read(one) for row in batch.to_pylist()]


class MemoryProducer:
    """Keeps what it is sent; the first ``failures`` sends find no broker."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Message, bytes]] = []
        self.failures = 0
        self.opened = 0

    def __call__(self, **given: object) -> Self:
        return self

    def __enter__(self) -> Self:
        self.opened += 1
        return self

    def __exit__(self, *error: object) -> None:
        self.opened -= 1

    def send_many(self, topic: str, messages: WithOwnKeys) -> None:
        if self.failures:
            self.failures -= 1
            raise SendFailed("not stored") from ConnectFailed("a:1", "refused")
        for message, key in zip(messages.messages, messages.encoded_keys, strict=True):
            assert isinstance(message, Message)
            self.sent.append((topic, message, key))


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> MemoryProducer:
    made = MemoryProducer()
    monkeypatch.setattr("skylark.sdk.blocking.Producer", made)
    return made


def test_a_query_fails_at_the_first_bad_body_and_names_the_message() -> None:
    said = (
        "topic t, broker a, queue 0: the body of the message at offset 1 is no value of valueFormat=json: it is no JSON"
    )
    with pytest.raises(BadBody, match=said):
        rows(reader(cluster_of(*BODIES)))


def test_a_bad_body_may_be_a_null() -> None:
    found = rows(reader(cluster_of(*BODIES), badRows="null"))
    assert [row["value"] for row in found] == [{"id": 0}, None, {"id": 2}, None]
    assert [row["queueOffset"] for row in found] == [0, 1, 2, 3]


def test_a_bad_body_may_go_to_a_topic_of_its_own(producer: MemoryProducer) -> None:
    producer.failures = 1
    source = reader(cluster_of(*BODIES), badRows="deadLetter", brokerWaitMs="60000")
    assert rows(source) == [{"queueOffset": 0, "value": {"id": 0}}, {"queueOffset": 2, "value": {"id": 2}}]
    assert producer.opened == 0
    topics, messages, keys = zip(*producer.sent, strict=True)
    assert topics == ("t-bad-rows",) * 2
    assert [message.body for message in messages] == [BODIES[1], BODIES[3]]
    assert [(message.tags, message.keys, message.flag) for message in messages] == [
        ("x", "k1 k2", 1),
        ("x", "k1 k2", 3),
    ]
    assert [message.properties["BAD_ROW_ORIGIN"] for message in messages] == ["t:a:0:1", "t:a:0:3"]
    assert "it is no JSON" in messages[0].properties["BAD_ROW_REASON"]
    assert messages[1].properties["BAD_ROW_REASON"] == "field id: '3' is no integer"
    assert messages[1].properties["own"] == "o"
    rows(source)
    assert [key for _, _, key in producer.sent] == [*keys, *keys]
    assert keys[0] != keys[1]


def test_the_topic_of_dead_letters_must_exist_before_anything_is_read() -> None:
    cluster = cluster_of(*BODIES)
    del cluster.logs[LETTERS]
    with pytest.raises(
        RouteNotFound, match=r"no route for topic t-bad-rows: badRows=deadLetter needs it: create it with"
    ):
        reader(cluster, badRows="deadLetter").partitions()


def test_a_nameserver_that_cannot_say_whether_the_topic_of_dead_letters_exists_is_no_missing_topic() -> None:
    class Starting(MemoryCluster):
        def topic_queues(self, topic: str) -> TopicQueues:
            raise RouteNotFound(topic, "servers are starting", is_passing=True)

    options = ReadOptions.parse({"topic": "t", "valueFormat": "json", "badRows": "deadLetter", "brokerWaitMs": "0"})
    with pytest.raises(RouteNotFound, match="servers are starting") as raised:
        check_dead_letter_topics(options, Starting())
    assert raised.value.is_passing


def test_columns_of_values_need_their_fields() -> None:
    options = replace(ReadOptions.parse({"topic": "t", "valueFormat": "json"}), value_schema=" ")
    with pytest.raises(UserError, match="needs the fields of the column value, as in"):
        default_columns(options)


def test_bodies_that_no_query_wants_are_not_decoded() -> None:
    only = StructType().add("queueOffset", LongType())
    assert len(rows(reader(cluster_of(*BODIES), only))) == 4
    # Brokers compare hashes of tags: Aa and BB have the same.
    kept = rows(reader(cluster_of(*BODIES, tags=("Aa", "BB", "Aa", "BB")), subExpression="Aa"))
    assert [row["value"]["id"] for row in kept] == [0, 2]


def test_a_schema_may_have_body_and_value() -> None:
    schema = StructType().add("value", VALUE).add("body", BinaryType()).add("topic", StringType())
    assert rows(reader(cluster_of(BODIES[0]), schema)) == [{"value": {"id": 0}, "body": BODIES[0], "topic": "t"}]


@pytest.mark.parametrize(
    ("style", "names"),
    [
        ("kafka", ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]),
        ("externals", ["topic", "flag", "value", "properties", "brokerName", "queueId", "queueOffset"]),
    ],
)
def test_the_value_is_in_the_place_of_the_body(style: str, names: list[str], tmp_path: Path) -> None:
    given = {"valueFormat": "protobuf", "valueSchema": str(descriptor_file(tmp_path)), "valueMessage": "shop.Item"}
    schema = default_columns(ReadOptions.parse({"topic": "t", "schemaStyle": style, **given}))
    assert isinstance(schema, StructType)
    assert schema.names[: len(names)] == names
    assert schema["value"].dataType.simpleString() == "struct<sku:string>"
    (row,) = rows(reader(cluster_of(b"\x0a\x01s"), schema, schemaStyle=style, **given))
    assert row["value"] == {"sku": "s"}
    assert list(row) == schema.names


def test_ddl_is_given_to_spark_as_it_is() -> None:
    """The worker that is asked for the columns has no JVM that could parse DDL."""
    given = {"topic": "t", "valueFormat": "json", "schemaStyle": "kafka"}
    for ddl in ("id bigint, `a b` array<string>", "STRUCT<id bigint, `a b` array<string>>"):
        schema = RocketMQDataSource({**given, "valueSchema": ddl}).schema()
        assert (
            str(schema)
            .lower()
            .startswith("`key` binary, `value` struct<id bigint, `a b` array<string>>, `topic` string,")
        )


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (
            LongType(),
            r"column value is bigint, but with valueFormat=json it is a struct; make it of columns with struct",
        ),
        (StructType(), "it is a struct"),
        (StructType([StructField("id", LongType(), nullable=False)]), "leave out NOT NULL"),
        (StructType([StructField("l", ArrayType(LongType(), containsNull=False))]), "leave out NOT NULL"),
    ],
)
def test_a_column_value_that_cannot_be_is_refused(kind: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        ReadColumns(ReadOptions.parse({"topic": "t", "valueFormat": "json"}), StructType().add("value", kind))


def test_a_column_may_have_some_fields_of_the_schema() -> None:
    pytest.importorskip("fastavro", reason="the extra formats is not installed")
    fields = [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]
    given = {"valueFormat": "avro", "valueSchema": json.dumps({"type": "record", "name": "R", "fields": fields})}
    assert rows(reader(cluster_of(b"\x02\x02a"), **given)) == [{"queueOffset": 0, "value": {"id": 1}}]
    for kind, said in [
        (StructType().add("x", LongType()), "column value has a field x, and the schema of avro id, name"),
        (StructType().add("id", StringType()), "field id of column value is string, and in the schema of avro bigint"),
    ]:
        with pytest.raises(UserError, match=said):
            reader(MemoryCluster(), StructType().add("value", kind), **given)


def test_workers_need_no_descriptor_file(tmp_path: Path) -> None:
    path = descriptor_file(tmp_path)
    given = {"valueFormat": "protobuf", "valueSchema": str(path), "valueMessage": "shop.Item"}
    schema = StructType().add("value", StructType().add("sku", StringType()))
    columns = ReadColumns(ReadOptions.parse({"topic": "t", **given}), schema)
    path.unlink()
    assert pickle.loads(pickle.dumps(columns)).shown == columns.shown
    with pytest.raises(UserError, match=r"order\.desc cannot be read here, on the driver: No such file"):
        ReadColumns(ReadOptions.parse({"topic": "t", **given}), schema)

"""Real Spark writes structs to a topic and reads them again: DDL, columns and dead letters through the whole chain."""

import pytest
from pyspark.sql import Row, SparkSession

from skylark.sdk.blocking import Producer
from skylark.sdk.testing import Cluster

pytestmark = pytest.mark.spark


def test_structs_are_written_and_read_and_other_bodies_are_dead_letters(spark: SparkSession) -> None:
    with Cluster() as cluster:
        cluster.create_topic("orders", queues=1)
        cluster.create_topic("orders-bad-rows", queues=1)
        given = {"nameserver": cluster.nameserver, "topic": "orders", "valueFormat": "json"}
        frame = spark.range(0, 20, 1, 1).selectExpr(
            "cast(concat('k', id) as binary) key",
            "struct(id, cast(id * 1.5 as decimal(9,2)) price, timestamp_seconds(id) at, array('a', null) tags) value",
        )
        frame.write.format("rocketmq").mode("append").options(**given).save()
        with Producer(cluster.nameserver) as producer:
            producer.send_many("orders", [b'{"id":"20"}'])
        ddl = "id bigint, price decimal(9,2), at timestamp, tags array<string>"
        read = spark.read.format("rocketmq").options(**given, valueSchema=ddl, badRows="deadLetter")
        # Sorted here: Spark's orderBy reads its rows twice, and so sends dead letters twice.
        found = read.option("schemaStyle", "kafka").load().select("key", "value.*").collect()
        assert sorted(found, key=lambda row: row["id"]) == frame.select("key", "value.*").collect()
        letters = spark.read.format("rocketmq").options(nameserver=cluster.nameserver, topic="orders-bad-rows")
        reason = "properties['BAD_ROW_REASON']"
        (letter,) = letters.option("includeProperties", "true").load().selectExpr("body", reason).collect()
        assert letter == Row(bytearray(b'{"id":"20"}'), "field id: '20' is no integer")

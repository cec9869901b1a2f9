"""The Spark job of the quickstart: flights and mean departure delay by carrier, from the messages of a topic.

A program of its own: ``python -m scripts.demo.spark_job --nameserver HOST:PORT --topic flights``.
With ``--result FILE`` it writes its numbers there as JSON, for the comparison with the CSV. With ``--master`` it runs
on a cluster, and with ``--result-topic`` it sends its table to a topic, one message for each carrier.
"""

import argparse
import json
import os
import sys
from pathlib import Path

# Spark starts Python workers: without this they run the system's `python3`, which lacks the connector.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
# Everything on loopback, whatever the host's name resolves to.
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from skylark.spark_connector import register

FLIGHT = "carrier string, dep_delay int"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nameserver", required=True)
    parser.add_argument("--topic", default="flights")
    parser.add_argument("--result", type=Path)
    parser.add_argument("--result-topic", help="write the table of carriers to this topic, too")
    parser.add_argument("--master", default="local[*]", help="for example spark://HOST:PORT")
    given = parser.parse_args()
    builder = SparkSession.builder.master(given.master).appName("flights").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "4")
    # a job as short as this one gains nothing from thorough compilation
    builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    messages = spark.read.format("rocketmq").option("nameserver", given.nameserver).option("topic", given.topic).load()
    flight = f.from_json(messages.body.cast("string"), FLIGHT)
    # both questions below are answered from one read
    columns = flight.carrier.alias("carrier"), flight.dep_delay.alias("delay")
    second = f.unix_timestamp("storeTimestamp").alias("second")
    sent = messages.select("brokerName", "queueId", "msgId", second, *columns).cache()
    by_queue = sent.groupBy("brokerName", "queueId").count().orderBy("brokerName", "queueId").collect()
    by_second = sent.groupBy("second").count().orderBy("second").collect()
    # a message that a retry stored twice has one msgId
    flights = sent.dropDuplicates(["msgId"])
    totals = f.count("*").alias("flights"), f.count("delay").alias("departed"), f.sum("delay").alias("delay")
    by_carrier = flights.groupBy("carrier").agg(*totals).orderBy(f.desc("flights")).collect()
    if given.result_topic:
        rows = flights.groupBy("carrier").agg(*totals).select(f.to_json(f.struct("*")).cast("binary").alias("body"))
        there = rows.write.format("rocketmq").option("nameserver", given.nameserver)
        there.option("topic", given.result_topic).mode("append").save()
    result = {
        "rows": sum(row["count"] for row in by_queue),
        "queues": [list(row) for row in by_queue],
        "stored": [list(row) for row in by_second],
        "carriers": [list(row) for row in by_carrier],
    }
    spark.stop()
    if given.result:
        given.result.write_text(json.dumps(result), encoding="utf-8")
    else:
        print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()

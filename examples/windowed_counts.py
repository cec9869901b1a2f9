"""Messages of each tag in each minute, from a topic to a topic, while they come; Ctrl-C ends it.

    python examples/windowed_counts.py NAMESERVER FROM_TOPIC TO_TOPIC CHECKPOINT

A window is written when the watermark, two minutes before the newest message, has passed it.
"""

import os
import sys

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # before the session starts

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from spark_connector import register


def main(nameserver: str, source: str, target: str, checkpoint: str) -> None:
    spark = SparkSession.builder.appName("messages a minute").getOrCreate()
    register(spark)
    messages = (
        spark.readStream.format("rocketmq")
        .schema("tags string, bornTimestamp timestamp")
        .option("nameserver", nameserver)
        .option("topic", source)
        .load()
    )
    minute = f.window("bornTimestamp", "1 minute")
    counts = messages.withWatermark("bornTimestamp", "2 minutes").groupBy(minute.alias("minute"), "tags").count()
    body = f.to_json(f.struct(f.col("minute.start").alias("from"), "tags", "count"))
    query = (
        counts.select(body.cast("binary").alias("body"), "tags")
        .writeStream.format("rocketmq")
        .option("nameserver", nameserver)
        .option("topic", target)
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
        .start()
    )
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

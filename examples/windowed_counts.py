"""Messages of each tag in each minute, from a topic to a topic, while they come; Ctrl-C ends it.

    python examples/windowed_counts.py NAMESERVER FROM_TOPIC TO_TOPIC CHECKPOINT [WINDOW [LATE]]

A window is written when the watermark, LATE (two minutes) before the newest message, has passed it.
"""

import argparse
import os
import sys

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # before the session starts

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from skylark.spark import register


def main(
    nameserver: str, source: str, target: str, checkpoint: str, window: str = "1 minute", late: str = "2 minutes"
) -> None:
    spark = SparkSession.builder.appName("messages a minute").getOrCreate()
    register(spark)
    messages = (
        spark.readStream.format("rocketmq")
        .schema("tags string, bornTimestamp timestamp")
        .option("nameserver", nameserver)
        .option("topic", source)
        .load()
    )
    spans = f.window("bornTimestamp", window)
    counts = messages.withWatermark("bornTimestamp", late).groupBy(spans.alias("span"), "tags").count()
    body = f.to_json(f.struct(f.col("span.start").alias("from"), "tags", "count"))
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
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("nameserver")
    arguments.add_argument("source")
    arguments.add_argument("target")
    arguments.add_argument("checkpoint")
    arguments.add_argument("window", nargs="?", default="1 minute")
    arguments.add_argument("late", nargs="?", default="2 minutes")
    main(**vars(arguments.parse_args()))

"""Sends the messages of one day from a backup of a broker's directory to a topic again, without a broker on the backup.

    python examples/replay_backup.py DIRECTORY TOPIC 2026-11-20 NAMESERVER TO_TOPIC

The directory must be readable at the same path on all executors. `queryId` recognises the replay, so that it can be
started again without sending a message twice.
"""

import argparse
import os
import sys

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # before the session starts

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from skylark.spark import register


def main(directory: str, topic: str, day: str, nameserver: str, target: str) -> None:
    spark = SparkSession.builder.appName(f"replay of {topic}").getOrCreate()
    register(spark)
    stored = spark.read.format("rocketmq").option("storePath", directory).option("topic", topic).load()
    messages = stored.where(f.to_date("storeTimestamp") == f.lit(day).cast("date")).select("body", "tags", "keys")
    (
        messages.write.format("rocketmq")
        .option("nameserver", nameserver)
        .option("topic", target)
        .option("queryId", f"replay-{topic}-{day}")
        .mode("append")
        .save()
    )
    print(messages.count(), "messages of", day, "are in", target)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("directory")
    arguments.add_argument("topic")
    arguments.add_argument("day")
    arguments.add_argument("nameserver")
    arguments.add_argument("target")
    main(**vars(arguments.parse_args()))

"""All messages that a topic has now, and had not at the last run, to Parquet: run it as often as you like.

    python examples/topic_to_parquet.py NAMESERVER TOPIC DIRECTORY

The checkpoint beside the files holds the offsets, so that each message is in the files once.
"""

import argparse
import os
import sys

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # before the session starts

from pyspark.sql import SparkSession

from skylark.spark import register


def main(nameserver: str, topic: str, directory: str) -> None:
    spark = SparkSession.builder.appName(f"{topic} to Parquet").getOrCreate()
    register(spark)
    messages = (
        spark.readStream.format("rocketmq")
        .option("nameserver", nameserver)
        .option("topic", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "1000000")
        .load()
    )
    query = (
        messages.writeStream.format("parquet")
        .option("path", f"{directory}/messages")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print(spark.read.parquet(f"{directory}/messages").count(), "messages in", directory)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("nameserver")
    arguments.add_argument("topic")
    arguments.add_argument("directory")
    main(**vars(arguments.parse_args()))

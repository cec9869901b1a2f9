"""A job for test_spark_stream_kills.py: reads a topic as a stream, and writes it to a topic or to files.

python -m tests.e2e.spark_stream_job NAMESERVER SOURCE TARGET CHECKPOINT
"""

import sys

from tests.e2e.spark_job import job_session


def main(nameserver: str, source: str, target: str, checkpoint: str) -> None:
    """Ends when all of the source is written; started again, it goes on where it was."""
    spark = job_session("local[2, 4]")  # tasks whose worker is killed are run again
    reader = spark.readStream.format("rocketmq").schema("body binary").option("nameserver", nameserver)
    reader = reader.option("topic", source).option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "1000")
    if "/" in target:
        writer = reader.load().writeStream.format("parquet").option("path", target)
    else:
        writer = (
            reader.load().writeStream.format("rocketmq").options(nameserver=nameserver, topic=target, numRetries="20")
        )
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])

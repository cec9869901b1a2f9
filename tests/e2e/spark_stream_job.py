"""A job for test_spark_stream_kills.py: reads a topic as a stream, and writes it to a topic or to files.

python -m tests.e2e.spark_stream_job NAMESERVER SOURCE TARGET CHECKPOINT [GROUP]
"""

import sys

from tests.e2e.spark_job import job_session


def main(nameserver: str, source: str, target: str, checkpoint: str, group: str = "") -> None:
    """Ends when all of the source is written; started again, it goes on where it was.

    With ``group``, whose offsets it commits, it does not end.
    """
    spark = job_session("local[2, 4]")  # tasks whose worker is killed are run again
    reader = spark.readStream.format("rocketmq").schema("body binary").option("nameserver", nameserver)
    reader = reader.option("topic", source).option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "1000")
    if group:
        reader = reader.options(consumerGroup=group, commitOffsets="true", discoveryIntervalMs="500")
    if "/" in target:
        writer = reader.load().writeStream.format("parquet").option("path", target)
    else:
        writer = (
            reader.load().writeStream.format("rocketmq").options(nameserver=nameserver, topic=target, numRetries="20")
        )
    writer = writer.option("checkpointLocation", checkpoint)
    writer = writer.trigger(processingTime="300 milliseconds") if group else writer.trigger(availableNow=True)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])

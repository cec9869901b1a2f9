"""A job for test_spark_write_kills.py: writes the lines of all files of a directory to a topic, a file an epoch.

python -m tests.e2e.spark_write_job NAMESERVER TOPIC SOURCE CHECKPOINT
"""

import sys

from tests.e2e.spark_job import job_session


def main(nameserver: str, topic: str, source: str, checkpoint: str) -> None:
    """Ends when all files are written; started again, it goes on where it was."""
    spark = job_session()
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(source)
    writer = lines.selectExpr("value body").repartition(2, "body").writeStream.format("rocketmq")
    options = {"nameserver": nameserver, "topic": topic, "checkpointLocation": checkpoint, "numRetries": "20"}
    writer.options(**options).trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])

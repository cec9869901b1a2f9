"""A job for test_tier_large.py: counts the messages of topics in a bucket, and prints them as a JSON object.

python -m tests.e2e.spark_tier_job URL TOPIC...
"""

import json
import sys

from tests.e2e.spark_job import job_session


def main(url: str, *topics: str) -> None:
    """The JVM has the credentials of this process's environment."""
    spark = job_session()
    frame = spark.read.format("rocketmq").options(tierPath=url)
    sys.stdout.write(json.dumps({topic: frame.option("topic", topic).load().count() for topic in topics}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

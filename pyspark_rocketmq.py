"""Spark finds data sources in modules named ``pyspark_*`` that hold a class ``DefaultSource``.

With this module installed, ``spark.read.format("rocketmq")`` works without registering anything.
"""

from spark_connector.source import RocketMQDataSource as DefaultSource

__all__ = ["DefaultSource"]

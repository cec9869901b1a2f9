"""Lets Spark find the data source: it looks for a class ``DefaultSource`` in modules named ``pyspark_*``.

With this module installed, ``spark.read.format("rocketmq")`` works without registration.
"""

from skylark.spark_connector.source import RocketMQDataSource as DefaultSource

__all__ = ["DefaultSource"]

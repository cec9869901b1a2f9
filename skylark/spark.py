"""The data source ``rocketmq`` of Spark, and how far its queries are behind (extra ``spark``).

See docs/guides/spark.md.
"""

from skylark.spark_connector import VERSION, RocketMQDataSource, register
from skylark.spark_connector.lag import Lag, LagListener, TopicLag, lag, prometheus

__all__ = ["VERSION", "Lag", "LagListener", "RocketMQDataSource", "TopicLag", "lag", "prometheus", "register"]

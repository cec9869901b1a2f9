"""Which reader a query gets, by the options and by what PySpark has."""

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSourceReader

from mqcommon.errors import UserError
from spark_connector.batch_reader import PushDownReader, RocketMQBatchReader
from spark_connector.schema import spark_schema
from spark_connector.source import RocketMQDataSource

SCHEMA = spark_schema(include_properties=False)


def source(**options: str) -> RocketMQDataSource:
    return RocketMQDataSource({"nameserver": "h:1", "topic": "t", **options})


def test_push_down_only_when_asked_for() -> None:
    """Spark refuses a reader with `pushFilters` unless its own option allows them."""
    assert type(source().reader(SCHEMA)) is RocketMQBatchReader
    assert RocketMQBatchReader.pushFilters is DataSourceReader.pushFilters
    assert type(source(pushdown="true").reader(SCHEMA)) is PushDownReader


def test_an_old_pyspark_has_no_push_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(DataSourceReader, "pushFilters")
    with pytest.raises((UserError, PySparkException), match=r"pushdown=true needs PySpark 4\.1"):
        source(pushdown="true").reader(SCHEMA)


def test_the_schema_of_each_style() -> None:
    assert source(schemaStyle="kafka").schema().names[:2] == ["key", "value"]
    assert source(schemaStyle="externals").schema().names[-1] == "storeTimestamp"

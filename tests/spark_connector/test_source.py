"""Which reader a query gets, by the options and by what PySpark has."""

import sys
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader

from skylark.mqcommon.errors import UserError
from skylark.spark_connector.reading.batch_reader import PushDownReader, RocketMQBatchReader
from skylark.spark_connector.schema import spark_schema
from skylark.spark_connector.source import RocketMQDataSource
from skylark.spark_connector.stream.admitting_reader import AdmittingStreamReader
from skylark.spark_connector.stream.reader import RefusedStreamReader, RocketMQStreamReader

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


def test_options_of_streams_do_not_disturb_the_schema_and_are_refused_for_batches() -> None:
    """Spark asks for the schema before it says what the source is used for."""
    given = source(maxOffsetsPerTrigger="5")
    assert given.schema() == SCHEMA
    assert type(given.streamReader(SCHEMA)) is AdmittingStreamReader
    with pytest.raises(UserError, match=r"option maxOffsetsPerTrigger is for spark\.readStream"):
        given.reader(SCHEMA)


def test_mistakes_are_told_when_the_stream_begins() -> None:
    """Spark hides errors that the constructor raises."""
    reader = source(endingTimestamp="5").streamReader(SCHEMA)
    assert type(reader) is RefusedStreamReader
    uses: list[Any] = [reader.initialOffset, reader.latestOffset, lambda: reader.partitions({}, {})]
    for use in uses:
        with pytest.raises(UserError, match="option endingTimestamp: a stream has no end"):
            use()


def test_an_old_pyspark_has_streams_without_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(DataSourceStreamReader, "getDefaultReadLimit")
    monkeypatch.delitem(sys.modules, "skylark.spark_connector.stream.admitting_reader")
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)  # there is no such module
    assert type(source().streamReader(SCHEMA)) is RocketMQStreamReader
    reader = source(maxOffsetsPerTrigger="5").streamReader(SCHEMA)
    with pytest.raises(UserError, match=r"maxOffsetsPerTrigger, .* need PySpark 4\.2 or later"):
        reader.initialOffset()

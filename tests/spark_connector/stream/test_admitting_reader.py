"""Limits and triggers, with the reader as Spark uses it."""

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows

from tests.spark_connector.cluster import MemoryCluster
from tests.spark_connector.query import A0, A1, B0, Query


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster()
    cluster.add(A0, 10)
    cluster.add(B0, 20, minimum=100)
    return cluster


def test_a_limit_is_shared_and_kept(cluster: MemoryCluster) -> None:
    query = Query(cluster, maxOffsetsPerTrigger="6")
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(6)
    while query.trigger():
        pass
    assert query.sizes == [6, 6, 6, 6, 6]
    assert query.rows[:6] == [("a", 0, 0), ("a", 0, 1), ("b", 0, 100), ("b", 0, 101), ("b", 0, 102), ("b", 0, 103)]


def test_the_trigger_once_takes_all(cluster: MemoryCluster) -> None:
    query = Query(cluster, maxOffsetsPerTrigger="6", minOffsetsPerTrigger="5")
    query.trigger(ReadAllAvailable())
    assert query.sizes == [30]


def test_available_now_ends_where_the_queues_ended(cluster: MemoryCluster) -> None:
    query = Query(cluster, maxOffsetsPerTrigger="20", minOffsetsPerTrigger="15")
    query.start(available_now=True)
    cluster.grow(A0, 5)
    cluster.grow(A1, 5)
    while query.trigger():
        cluster.grow(B0, 5)
    assert query.sizes == [20, 10]


def test_available_now_from_the_end_reads_nothing(cluster: MemoryCluster) -> None:
    query = Query(cluster, startingOffsets="latest")
    query.start(available_now=True)
    cluster.grow(A0, 5)
    while query.trigger():
        cluster.grow(A0, 5)
    assert query.sizes == [0]
    query.start()
    assert query.trigger()
    assert query.of(A0) == list(range(15, 20))


def test_bytes_are_counted_by_the_mean_size(cluster: MemoryCluster) -> None:
    size = len(cluster.logs[A0].records[0])
    query = Query(cluster, maxBytesPerTrigger=str(7 * size))
    assert query.reader.getDefaultReadLimit() == ReadMaxBytes(7 * size)
    while query.trigger():
        pass
    assert sum(query.sizes) == 30
    assert set(query.sizes[:-1]) <= {6, 7}


def test_a_batch_waits_for_enough_messages_up_to_a_time(cluster: MemoryCluster) -> None:
    query = Query(cluster, minOffsetsPerTrigger="31", maxTriggerDelay="60s")
    assert query.reader.getDefaultReadLimit() == ReadMinRows(31)
    assert query.trigger()  # which keeps the start, and nothing else
    assert not query.trigger()
    cluster.grow(A0, 1)
    assert query.trigger()
    cluster.grow(A0, 1)
    query.now_s = 59
    assert not query.trigger()
    query.now_s = 60
    assert query.trigger()
    assert query.sizes == [0, 31, 1]


def test_without_limits_all_is_read(cluster: MemoryCluster) -> None:
    assert Query(cluster).reader.getDefaultReadLimit() == ReadAllAvailable()


def test_what_waits_is_reported(cluster: MemoryCluster) -> None:
    query = Query(cluster, maxOffsetsPerTrigger="6")
    assert query.reader.reportLatestOffset() is None
    query.trigger()
    assert query.reader.reportLatestOffset() == {"v": 1, "cluster": "cluster", "t|a|0": 10, "t|b|0": 120}

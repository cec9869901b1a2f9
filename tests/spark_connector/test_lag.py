"""How far a query is behind, from progress as Spark writes it."""

import json
from typing import Any

import pytest
from pyspark.sql.streaming.listener import QueryProgressEvent, QueryStartedEvent, QueryTerminatedEvent

from skylark.mqcommon.message.queue import MessageQueue
from skylark.spark_connector.lag import Lag, LagListener, TopicLag, lag, prometheus
from tests.spark_connector.cluster import MemoryCluster
from tests.spark_connector.query import A0, B0, Query

RUN = "00000000-0000-0000-0000-000000000002"
#: Messages of `MemoryCluster` are stored a second after another since 1970.
NOW = "1970-01-01T00:01:40.500Z"
RATE = {"description": "rate", "startOffset": "3", "endOffset": "4", "latestOffset": "4"}


def source(end: Any, latest: Any) -> dict[str, Any]:
    return {"description": "rocketmq", "startOffset": "null", "endOffset": end, "latestOffset": latest}


def of(query: Query) -> dict[str, Any]:
    """The source in ``lastProgress`` after the last trigger."""
    return source(json.dumps(query.log[-1]), json.dumps(query.reader.reportLatestOffset()))


def progress(*sources: dict[str, Any], name: str | None = "orders") -> dict[str, Any]:
    return {"id": "00000000-0000-0000-0000-000000000001", "name": name, "timestamp": NOW, "sources": list(sources)}


def known(found: Lag | None) -> Lag:
    assert found is not None
    return found


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster()
    cluster.add(A0, 60)
    cluster.add(B0, 40)
    cluster.add(MessageQueue("u", "a", 0), 5)
    return cluster


def test_the_lag_of_a_query_with_a_limit(cluster: MemoryCluster) -> None:
    query = Query(cluster, topic="t,u", maxOffsetsPerTrigger="21")
    query.trigger()
    found = known(lag(progress(of(query))))
    taken = {"t": query.log[-1]["t|a|0"] + query.log[-1]["t|b|0"], "u": query.log[-1]["u|a|0"]}
    oldest_ms = 1000 * min(query.log[-1]["t|a|0"], query.log[-1]["t|b|0"])
    assert found.topics["t"].rows == 100 - taken["t"]
    assert found.topics["t"].age_ms == 100_500 - oldest_ms
    assert found.topics["u"].rows == 5 - taken["u"]
    assert (found.query, found.rows, found.skipped_rows, found.away) == ("orders", 84, 0, ())
    assert found.age_ms == max(100_500 - oldest_ms, 100_500 - 1000 * taken["u"])
    assert found.size_bytes == pytest.approx(94 * 84, rel=0.02)


def test_a_query_that_has_read_all_has_no_lag(cluster: MemoryCluster) -> None:
    query = Query(cluster)
    query.trigger()
    found = known(lag(progress(of(query), name=None)))
    assert found == Lag("00000000-0000-0000-0000-000000000001", {"t": TopicLag(0, 0, 0)}, 0, ())
    assert (found.rows, found.age_ms, found.size_bytes) == (0, 0, 0)


def test_messages_that_were_deleted_before_they_were_read_are_counted(cluster: MemoryCluster) -> None:
    query = Query(cluster, maxOffsetsPerTrigger="20", onDataLoss="skip")
    query.trigger()
    cluster.delete_before(A0, 50)
    query.trigger()
    assert known(lag(progress(of(query)))).skipped_rows == 50 - query.log[-2]["t|a|0"]


def test_brokers_that_are_away_are_named(cluster: MemoryCluster) -> None:
    query = Query(cluster)
    query.trigger()
    cluster.away = {"b"}
    cluster.grow(A0, 3)
    assert not query.trigger(), "the stream is held"
    found = known(lag(progress(of(query))))
    assert (found.rows, found.away) == (3, ("broker b",))


@pytest.mark.parametrize("latest", ["None", "null", None])
def test_the_first_batch_after_a_restart_does_not_tell(cluster: MemoryCluster, latest: str | None) -> None:
    """The first batch was planned before the restart, and Spark does not ask the source."""
    query = Query(cluster)
    query.trigger()
    assert lag(progress(source(json.dumps(query.log[-1]), latest))) is None


def test_a_query_that_has_just_started_has_no_progress() -> None:
    assert lag(None) is None


def test_other_sources_have_no_lag(cluster: MemoryCluster) -> None:
    query = Query(cluster, maxOffsetsPerTrigger="21")
    query.trigger()
    assert lag(progress(RATE)) is None
    assert lag(progress(source({"v": 2}, {"v": 2}))) is None
    assert known(lag(progress(RATE, of(query)))).rows == 79


def test_the_json_of_a_progress_tells_the_same(cluster: MemoryCluster) -> None:
    query = Query(cluster, maxOffsetsPerTrigger="21")
    query.trigger()
    parsed = {key: json.loads(value) if key.endswith("Offset") else value for key, value in of(query).items()}
    assert lag(progress(parsed)) == lag(progress(of(query)))


def test_a_topic_that_was_not_looked_at_has_no_age() -> None:
    end = {"v": 1, "cluster": "c", "t|a|0": 3}
    latest = {"v": 1, "cluster": "c", "t|a|0": 8, "u|a|0": 4, "u|a|0|from": 1}
    found = known(lag(progress(source(end, latest))))
    assert found.topics == {"t": TopicLag(5, None, None), "u": TopicLag(3, None, None)}
    assert (found.age_ms, found.size_bytes) == (None, None)


def test_prometheus_gets_lines_of_all_queries() -> None:
    text = prometheus(
        [
            Lag("orders", {"t": TopicLag(7, 1_500, 900), "u": TopicLag(1, None, None)}, 3, ("broker a",)),
            Lag('a "b"', {"t": TopicLag(0, 0, 0)}, 0, ()),
        ]
    )
    lines = [line for line in text.splitlines() if not line.startswith("# HELP")]
    assert lines == [
        "# TYPE skylark_spark_lag_messages gauge",
        'skylark_spark_lag_messages{query="orders",topic="t"} 7',
        'skylark_spark_lag_messages{query="orders",topic="u"} 1',
        'skylark_spark_lag_messages{query="a \\"b\\"",topic="t"} 0',
        "# TYPE skylark_spark_lag_latency gauge",
        'skylark_spark_lag_latency{query="orders",topic="t"} 1500',
        'skylark_spark_lag_latency{query="a \\"b\\"",topic="t"} 0',
        "# TYPE skylark_spark_lag_bytes gauge",
        'skylark_spark_lag_bytes{query="orders",topic="t"} 900',
        'skylark_spark_lag_bytes{query="a \\"b\\"",topic="t"} 0',
        "# TYPE skylark_spark_skipped_messages_total counter",
        'skylark_spark_skipped_messages_total{query="orders"} 3',
        'skylark_spark_skipped_messages_total{query="a \\"b\\""} 0',
        "# TYPE skylark_spark_away gauge",
        'skylark_spark_away{query="orders"} 1',
        'skylark_spark_away{query="a \\"b\\""} 0',
    ]


def test_a_listener_keeps_the_last_lag_of_each_query_that_runs(cluster: MemoryCluster) -> None:
    listener, query = LagListener(), Query(cluster, maxOffsetsPerTrigger="21")
    ids = {"id": "00000000-0000-0000-0000-000000000001", "runId": RUN}
    listener.onQueryStarted(QueryStartedEvent.fromJson({**ids, "name": "orders", "timestamp": NOW, "jobTags": []}))
    for rows in (79, 58):
        query.trigger()
        figures = {"numInputRows": 21, "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0}
        event = {
            **progress({**of(query), **figures}), **figures, **ids, "batchId": 0, "batchDuration": 1, "durationMs": {},
            "eventTime": {}, "stateOperators": [], "sink": {"description": "s", "numOutputRows": 21, "metrics": {}},
            "observedMetrics": {},
        }  # fmt: skip
        listener.onQueryProgress(QueryProgressEvent.fromJson({"progress": event}))
        assert [one.rows for one in listener.lags] == [rows]
    assert 'skylark_spark_lag_messages{query="orders",topic="t"} 58' in listener.prometheus()
    ended = {**ids, "exception": None, "errorClassOnException": None}
    listener.onQueryTerminated(QueryTerminatedEvent.fromJson(ended))
    assert listener.lags == []

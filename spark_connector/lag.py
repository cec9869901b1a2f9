"""How far a query is behind its topics, from Spark's progress: `lag(progress)`, and `LagListener` for Prometheus.

Spark asks only sources in Java for metrics of their own: for sources in Python ``metrics`` in the progress is empty.
But the progress shows the offsets, and our source adds a report to the latest offsets (stream/report.py).
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from threading import Lock
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from skylark.mqcommon.errors import UserError
from skylark.mqcommon.metrics.metric import Metric, column
from skylark.mqcommon.metrics.prometheus_text import whole_page
from skylark.spark_connector.stream.offsets import StreamOffsets
from skylark.spark_connector.stream.report import REPORT, StreamReport

_OF_TOPIC = ("query", "topic")
_ROWS = Metric("skylark_spark_lag_messages", "gauge", "", _OF_TOPIC, "Messages that wait for the query")
_AGE = Metric("skylark_spark_lag_latency", "gauge", "milliseconds", _OF_TOPIC, "Age of the oldest message that waits")
_SIZE = Metric("skylark_spark_lag_bytes", "gauge", "bytes", _OF_TOPIC, "Estimated size of the messages that wait")
_SKIPPED = Metric(
    "skylark_spark_skipped_messages_total", "counter", "", ("query",), "Messages that were gone before they were read"
)
_AWAY = Metric("skylark_spark_away", "gauge", "", ("query",), "Brokers and topics that are away")


@dataclass(frozen=True)
class TopicLag:
    """The messages that wait in a topic. ``age_ms`` of the oldest and ``size_bytes`` of all are None when not known."""

    rows: int
    age_ms: int | None
    size_bytes: int | None


@dataclass(frozen=True)
class Lag:
    """How far a query was behind after a micro-batch. ``query`` is its name, or its id when it has none.

    ``skipped_rows``: messages that were deleted before this run of the query read them. ``away``: servers that did not
    answer ("broker a"), whose waiting messages are not in the figures.
    """

    query: str
    topics: Mapping[str, TopicLag]
    skipped_rows: int
    away: tuple[str, ...]

    @property
    def rows(self) -> int:
        """The messages that wait in all topics."""
        return sum(one.rows for one in self.topics.values())

    @property
    def age_ms(self) -> int | None:
        """The age of the oldest message that waits."""
        return max((one.age_ms for one in self.topics.values() if one.age_ms is not None), default=None)

    @property
    def size_bytes(self) -> int | None:
        """The size of the messages that wait, as brokers store them; None when the size in a topic is not known."""
        sizes = [one.size_bytes for one in self.topics.values()]
        return None if None in sizes else sum(filter(None, sizes))


def lag(progress: Mapping[str, Any] | None) -> Lag | None:
    """The lag after ``progress``: ``query.lastProgress``, or JSON of that. None when the progress has no lag.

    It has none when the query reads no topic here, and in the first micro-batch after a restart: that micro-batch was
    planned before, and brokers are not asked again. Before PySpark 4.2 no progress has a lag.
    """
    if progress is None:
        return None
    read = [one for source in progress["sources"] if (one := _ends_of(source)) is not None]
    if not read:
        return None
    now_ms = int(datetime.fromisoformat(progress["timestamp"]).timestamp() * 1000)
    topics: dict[str, TopicLag] = {}
    for end, latest, report in read:
        rows: dict[str, int] = {}
        for queue, offset in latest.at.items():
            start = end.at.get(queue, latest.began.get(queue, offset))
            rows[queue.topic] = rows.get(queue.topic, 0) + max(offset - start, 0)
        for topic, count in rows.items():
            # A query may read a topic twice: the slower source counts.
            if topic not in topics or topics[topic].rows < count:
                topics[topic] = _topic_lag(topic, count, report, now_ms)
    return Lag(
        str(progress.get("name") or progress["id"]),
        dict(sorted(topics.items())),
        sum(report.skipped_rows for _, _, report in read),
        tuple(sorted({name for _, _, report in read for name in report.away})),
    )


def _topic_lag(topic: str, rows: int, report: StreamReport, now_ms: int) -> TopicLag:
    if not rows:
        return TopicLag(0, 0, 0)
    oldest_ms, mean_bytes = report.oldest_ms.get(topic), report.mean_bytes.get(topic)
    return TopicLag(
        rows,
        None if oldest_ms is None else max(now_ms - oldest_ms, 0),
        None if mean_bytes is None else round(rows * mean_bytes),
    )


def _ends_of(source: Mapping[str, Any]) -> tuple[StreamOffsets, StreamOffsets, StreamReport] | None:
    """The ends of the micro-batch, the ends of the queues, and the report; None for other sources."""
    end, latest = _parsed(source["endOffset"]), _parsed(source["latestOffset"])
    if end is None or latest is None:
        return None
    try:
        report = StreamReport.from_dict(latest.get(REPORT, {}))
        return StreamOffsets.from_dict(end), StreamOffsets.from_dict(latest), report
    except UserError:
        return None


def _parsed(offset: Any) -> dict[str, Any] | None:
    """Offsets, which are text in ``lastProgress`` and a value in its JSON; None when there are none."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:  # "None", as PySpark writes null
            return None
    return offset if isinstance(offset, dict) else None


def prometheus(lags: Iterable[Lag]) -> str:
    """The lags in the text format of Prometheus."""
    known = list(lags)
    rows = [((one.query, topic), found) for one in known for topic, found in one.topics.items()]
    return whole_page(
        [
            column(_ROWS, [(labels, found.rows) for labels, found in rows]),
            column(_AGE, [(labels, found.age_ms) for labels, found in rows if found.age_ms is not None]),
            column(_SIZE, [(labels, found.size_bytes) for labels, found in rows if found.size_bytes is not None]),
            column(_SKIPPED, [((one.query,), one.skipped_rows) for one in known]),
            column(_AWAY, [((one.query,), len(one.away)) for one in known]),
        ]
    )


class LagListener(StreamingQueryListener):
    """Keeps the last lag of each query that runs: ``spark.streams.addListener(listener)``."""

    def __init__(self) -> None:
        self._lags: dict[str, Lag] = {}
        self._changing = Lock()

    @property
    def lags(self) -> list[Lag]:
        """The last lag of each running query that has reported a lag."""
        with self._changing:
            return list(self._lags.values())

    def prometheus(self) -> str:
        """The lags in the text format of Prometheus."""
        return prometheus(self.lags)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Called by Spark when a query has started; there is no lag yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Called by Spark after each micro-batch, and every 10 s without one."""
        found = lag(event.progress)
        if found is not None:
            with self._changing:
                self._lags[str(event.progress.runId)] = found

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Called by Spark when a query has ended."""
        with self._changing:
            self._lags.pop(str(event.runId), None)

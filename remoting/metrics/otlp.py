"""Columns as OpenTelemetry's own data, and its exporter for OTLP over HTTP. Import it only when it is used.

The SDK's observable instruments have no histograms, and would ask for each value with a callback in another thread. So
a collection, made on the event loop, becomes the SDK's `MetricsData` here, in a thread, and OpenTelemetry's exporter
encodes and sends that.
"""

import time
from collections.abc import Iterable, Mapping, Sequence

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    HistogramDataPoint,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Histogram as HistogramData
from opentelemetry.sdk.metrics.export import Metric as MetricData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from skylark.mqcommon.metrics.metric import Column, Histogram, Value

_SCOPE = InstrumentationScope("broker-meter")
# Data points of one request, so that a collector's limit of some MiB is not reached.
POINTS = 5_000

_Key = tuple[str, tuple[str, ...]]


class Push:
    """Sends columns to ``url``. ``in_delta``: counters and histograms by how much they grew since the last success."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        timeout_s: float,
        common: Sequence[tuple[str, str]],
        *,
        in_delta: bool,
    ) -> None:
        self._exporter = OTLPMetricExporter(endpoint=url, headers=dict(headers), timeout=timeout_s)
        self._common = dict(common)
        self._in_delta = in_delta
        self._start_ns = time.time_ns()
        self._before: dict[_Key, Value] = {}
        self._before_ns = self._start_ns

    def send(self, columns: Iterable[Column]) -> bool:
        """Send all columns, in several requests if there are many values; whether all were taken. For a thread."""
        now_ns = time.time_ns()
        seen: dict[_Key, Value] = {}
        for part in _parts(columns):
            metrics = [self._data(column, now_ns, seen) for column in part]
            scope = ScopeMetrics(_SCOPE, metrics, "")
            data = MetricsData([ResourceMetrics(Resource.get_empty(), [scope], "")])
            # `_before` moves only when all parts were taken. After a failure the collector may get the growth of some
            # parts twice, but never loses any.
            if self._exporter.export(data) is not MetricExportResult.SUCCESS:
                return False
        if self._in_delta:
            self._before, self._before_ns = seen, now_ns
        return True

    def close(self) -> None:
        """Close the connection to the collector."""
        self._exporter.shutdown()

    def _data(self, column: Column, now_ns: int, seen: dict[_Key, Value]) -> MetricData:
        metric = column.metric
        temporality = AggregationTemporality.DELTA if self._in_delta else AggregationTemporality.CUMULATIVE
        start_ns = self._before_ns if self._in_delta else self._start_ns
        numbers, histograms = [], []
        for texts, value in zip(column.labels, column.values, strict=True):
            attributes = self._common | dict(zip(metric.labels, texts, strict=True))
            if self._in_delta and metric.kind != "gauge":
                key = metric.name, texts
                seen[key] = value
                value = _grown(value, self._before.get(key))
            if isinstance(value, Histogram):
                histograms.append(
                    HistogramDataPoint(
                        attributes,
                        start_ns,
                        now_ns,
                        sum(value.counts),
                        value.total,
                        value.counts,
                        value.bounds,
                        float("-inf"),
                        float("inf"),
                    )
                )
            else:
                numbers.append(NumberDataPoint(attributes, start_ns, now_ns, value))
        data: Gauge | Sum | HistogramData
        if metric.kind == "gauge":
            data = Gauge(numbers)
        elif metric.kind == "counter":
            data = Sum(numbers, temporality, is_monotonic=True)
        else:
            data = HistogramData(histograms, temporality)
        return MetricData(metric.name, metric.help, metric.unit, data)


def _grown(value: Value, before: Value | None) -> Value:
    """By how much ``value`` grew since the last success. A smaller value means that the counter was made again."""
    if isinstance(value, Histogram):
        if not isinstance(before, Histogram):
            return value
        grown = value.copy()
        grown.counts = [count - old for count, old in zip(value.counts, before.counts, strict=True)]
        grown.total = value.total - before.total
        return grown
    if before is None or isinstance(before, Histogram) or value < before:
        return value
    return value - before


def _parts(columns: Iterable[Column]) -> Iterable[list[Column]]:
    part: list[Column] = []
    room = POINTS
    for column in columns:
        for start in range(0, len(column.values), POINTS):
            piece = Column(column.metric, column.labels[start : start + POINTS], column.values[start : start + POINTS])
            if len(piece.values) > room:
                yield part
                part, room = [], POINTS
            part.append(piece)
            room -= len(piece.values)
    if part:
        yield part

"""A stand-in for a collector, made of OpenTelemetry's own protobuf classes, gets the values."""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric as Received

from mqcommon.metrics.buckets import Histogram
from mqcommon.metrics.metric import Column, Metric, column, single
from remoting.metrics.otlp import POINTS, Push

COMMON = [("cluster", "c"), ("node_id", "broker-a")]
LAG = Metric("rocketmq_consumer_lag_messages", "gauge", "", ("topic",), "Lag")
PUT = Metric("rocketmq_messages_in_total", "counter", "", ("topic",), "In")
TIME = Metric("rocketmq_rpc_latency", "histogram", "milliseconds", ("code",), "Time")


class Collector:
    """What arrived, request by request."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Received]] = []
        self.headers: dict[str, str] = {}
        self.url = ""

    def take(self, headers: dict[str, str], body: bytes) -> None:
        self.headers = headers
        request = ExportMetricsServiceRequest()
        request.ParseFromString(gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body)
        metrics = [m for r in request.resource_metrics for scope in r.scope_metrics for m in scope.metrics]
        self.requests.append({metric.name: metric for metric in metrics})


@contextmanager
def collecting(status: int = 200) -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.take({name.lower(): value for name, value in self.headers.items()}, body)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.url = f"http://127.0.0.1:{server.server_port}/v1/metrics"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


def texts(point: object) -> dict[str, str]:
    return {pair.key: pair.value.string_value for pair in point.attributes}  # type: ignore[attr-defined]


def test_the_collector_gets_kinds_units_labels_and_values() -> None:
    times = Histogram((1.0, 10.0))
    times.add(0.5)
    times.add(100.0)
    with collecting() as collector:
        push = Push(collector.url, {"Token": "abc"}, 5, COMMON, in_delta=False)
        columns = [column(LAG, [(("T",), 7)]), column(PUT, [(("T",), 9)]), column(TIME, [(("send",), times)])]
        assert push.send(columns)
        push.close()
    (got,) = collector.requests
    assert collector.headers["token"] == "abc"
    (lag,) = got[LAG.name].gauge.data_points
    assert (lag.as_int, texts(lag)) == (7, {"cluster": "c", "node_id": "broker-a", "topic": "T"})
    total = got[PUT.name].sum
    assert total.is_monotonic
    assert total.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    assert [point.as_int for point in total.data_points] == [9]
    (time,) = got[TIME.name].histogram.data_points
    assert got[TIME.name].unit == "milliseconds"
    assert (list(time.explicit_bounds), list(time.bucket_counts)) == ([1.0, 10.0], [1, 0, 1])
    assert (time.count, time.sum) == (2, 100.5)


def test_in_delta_only_what_has_grown_is_pushed() -> None:
    times = Histogram((1.0,))
    with collecting() as collector:
        push = Push(collector.url, {}, 5, COMMON, in_delta=True)
        for total in (5, 8, 2):
            times.add(0.5)
            assert push.send(
                [column(PUT, [(("T",), total)]), single(TIME_ALL, times.copy()), column(LAG, [(("T",), 4)])]
            )
        push.close()
    sums = [got[PUT.name].sum for got in collector.requests]
    assert sums[0].aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
    # The third is a counter that was made again.
    assert [points.data_points[0].as_int for points in sums] == [5, 3, 2]
    assert [got[TIME_ALL.name].histogram.data_points[0].count for got in collector.requests] == [1, 1, 1]
    assert [got[LAG.name].gauge.data_points[0].as_int for got in collector.requests] == [4, 4, 4]


TIME_ALL = Metric("skylark_put_latency", "histogram", "milliseconds", (), "Time")


def test_many_values_go_in_several_requests() -> None:
    labels = [(f"t{number}",) for number in range(POINTS + 1)]
    with collecting() as collector:
        push = Push(collector.url, {}, 5, COMMON, in_delta=False)
        assert push.send([Column(LAG, labels, range(len(labels)))])
        push.close()
    assert [len(got[LAG.name].gauge.data_points) for got in collector.requests] == [POINTS, 1]


def test_a_collector_that_refuses_is_reported() -> None:
    with collecting(status=400) as collector:
        push = Push(collector.url, {}, 5, COMMON, in_delta=False)
        assert not push.send([column(LAG, [(("T",), 7)])])
        push.close()

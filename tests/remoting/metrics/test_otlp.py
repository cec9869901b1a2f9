"""A stand-in for a collector, made of OpenTelemetry's own protobuf classes, gets the values."""

from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

from skylark.mqcommon.metrics.metric import Column, Histogram, Metric, column, single
from skylark.mqcommon.metrics.prometheus_text import page
from skylark.remoting.metrics.otlp import POINTS, Push
from skylark.remoting.net.steps import finish
from tests.support.collector import collecting
from tests.support.scrape import samples

COMMON = [("cluster", "c"), ("node_id", "broker-a")]
LAG = Metric("rocketmq_consumer_lag_messages", "gauge", "", ("topic",), "Lag")
PUT = Metric("rocketmq_messages_in_total", "counter", "", ("topic",), "In")
TIME = Metric("rocketmq_rpc_latency", "histogram", "milliseconds", ("code",), "Time")


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


def test_prometheus_and_the_collector_get_the_same_values() -> None:
    times = Histogram()
    times.add(3.5, 7)
    labels = [(f't"{number}\\\n',) for number in range(50)]
    columns = [
        Column(LAG, labels, range(50)), Column(PUT, labels, range(100, 150)), column(TIME, [(("send",), times)]),
    ]  # fmt: skip
    with collecting() as collector:
        push = Push(collector.url, {}, 5, COMMON, in_delta=False)
        assert push.send(columns)
        push.close()
    (got,) = collector.requests
    pushed = {
        (name, frozenset(texts(point).items())): float(point.as_int)
        for name, points in ((LAG.name, got[LAG.name].gauge.data_points), (PUT.name, got[PUT.name].sum.data_points))
        for point in points
    }
    (time,) = got[TIME.name].histogram.data_points
    before, own = 0, texts(time)
    for bound, count in zip((*time.explicit_bounds, "+Inf"), time.bucket_counts, strict=True):
        before += count
        pushed[f"{TIME.name}_bucket", frozenset({**own, "le": str(bound)}.items())] = before
    pushed[f"{TIME.name}_sum", frozenset(own.items())] = time.sum
    pushed[f"{TIME.name}_count", frozenset(own.items())] = time.count
    assert samples(b"".join(finish(page(columns, COMMON))).decode()) == pushed


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


def test_without_values_there_is_no_request() -> None:
    with collecting() as collector:
        push = Push(collector.url, {}, 5, COMMON, in_delta=False)
        assert push.send([]) and push.send([column(LAG, [])])
        push.close()
    assert collector.requests == []

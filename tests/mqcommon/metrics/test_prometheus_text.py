"""Prometheus' own parsers read what is written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics_families
from prometheus_client.parser import text_string_to_metric_families

from skylark.mqcommon.metrics.metric import Column, Histogram, Metric, column, single
from skylark.mqcommon.metrics.prometheus_text import SLICE, TextFormat, format_for, page
from skylark.remoting.net.steps import finish

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\x85\u2028\u2029\x0b\x0c\x1c\x1d\x1e"))
LAG = Metric("lag", "gauge", "", ("topic", "group"), "Lag")
TIME = Metric("time", "histogram", "milliseconds", ("code",), "Time")
SENT = Metric("sent_total", "counter", "bytes", ("topic",), "Sent")
# As Prometheus 3 and Prometheus 2 ask by default, and a Prometheus whose configuration prefers the classic text.
OF_PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
OF_PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
CLASSIC_FIRST = "text/plain;version=0.0.4;q=0.6,application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.2"


def parsed(columns: list[Column], common: list[tuple[str, str]]) -> list[tuple[str, dict[str, str], float]]:
    text = b"".join(finish(page(columns, common))).decode()
    return [
        (sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]


@given(st.lists(st.tuples(st.tuples(TEXT, TEXT), st.integers(0, 2**53))), TEXT)
def test_labels_come_back_as_they_were(rows: list[tuple[tuple[str, str], int]], cluster: str) -> None:
    found = parsed([column(LAG, rows)], [("cluster", cluster)])
    assert found == [
        ("lag", {"cluster": cluster, "topic": topic, "group": group}, value) for (topic, group), value in rows
    ]


def test_a_histogram_has_sums_of_its_buckets() -> None:
    times = Histogram((1.0, 10.0))
    times.add(0.5, 3)
    times.add(1.0)
    times.add(5.0)
    times.add(70.0)
    found = parsed([column(TIME, [(('a"b',), times)])], [])
    buckets = [(labels["le"], value) for name, labels, value in found if name == "time_bucket"]
    assert buckets == [("1.0", 4), ("10.0", 5), ("+Inf", 6)]
    assert [(name, labels, value) for name, labels, value in found if name != "time_bucket"] == [
        ("time_sum", {"code": 'a"b'}, 77.5),
        ("time_count", {"code": 'a"b'}, 6),
    ]


def test_many_lines_are_rendered_in_slices() -> None:
    labels = [(f"t{number}", "g") for number in range(2 * SLICE + 1)]
    turns = list(page([Column(LAG, labels, range(len(labels)))], []))
    assert len(turns) == 3
    assert len(parsed([Column(LAG, labels, range(len(labels)))], [])) == len(labels)


def test_a_metric_without_values_is_not_on_the_page() -> None:
    assert finish(page([Column(LAG)], [])) == []
    assert parsed([single(Metric("up", "gauge", "", (), "Up"), 1)], []) == [("up", {}, 1.0)]


@given(st.lists(st.tuples(TEXT, st.integers(0, 2**53)), unique_by=lambda row: row[0]), TEXT)
def test_open_metrics_has_the_same_values_and_ends_with_a_mark(rows: list[tuple[str, int]], cluster: str) -> None:
    times = Histogram((1.0, 10.0))
    times.add(5.0)
    columns = [
        column(SENT, [((topic,), value) for topic, value in rows]),
        column(LAG, [((topic, "g"), value) for topic, value in rows]),
        column(TIME, [(("10",), times)]),
    ]
    text = b"".join(finish(page(columns, [("cluster", cluster)], TextFormat.OPEN_METRICS))).decode()
    families = list(open_metrics_families(text))
    assert text.endswith("\n# EOF\n")
    assert [family.name for family in families if family.type == "counter"] == (["sent"] if rows else [])
    found = [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]
    assert found == parsed(columns, [("cluster", cluster)])


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        (OF_PROMETHEUS_3, TextFormat.OPEN_METRICS),
        (OF_PROMETHEUS_2, TextFormat.OPEN_METRICS),
        (CLASSIC_FIRST, TextFormat.CLASSIC),
        ("application/openmetrics-text; version=1.0.0", TextFormat.OPEN_METRICS),
        ("Application/OpenMetrics-Text", TextFormat.OPEN_METRICS),
        ("application/openmetrics-text;version=0.0.1", TextFormat.CLASSIC),
        ("application/openmetrics-text;version=1.0.0;q=0", TextFormat.CLASSIC),
        ("application/openmetrics-text;version=1.0.0;q=most", TextFormat.CLASSIC),
        ("text/html,*/*", TextFormat.CLASSIC),
        ("", TextFormat.CLASSIC),
        (";;q=1,,=", TextFormat.CLASSIC),
    ],
)
def test_a_client_gets_the_format_that_it_prefers(accept: str, chosen: TextFormat) -> None:
    assert format_for(accept) is chosen


@given(st.text())
def test_any_header_chooses_a_format(accept: str) -> None:
    assert format_for(accept) in TextFormat

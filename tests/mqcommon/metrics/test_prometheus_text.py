"""Prometheus' own parser reads what is written."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from mqcommon.metrics.metric import Column, Histogram, Metric, column, single
from mqcommon.metrics.prometheus_text import SLICE, page
from remoting.net.steps import finish

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\x85\u2028\u2029\x0b\x0c\x1c\x1d\x1e"))
LAG = Metric("lag", "gauge", "", ("topic", "group"), "Lag")
TIME = Metric("time", "histogram", "milliseconds", ("code",), "Time")


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

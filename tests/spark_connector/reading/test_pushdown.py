"""Push-down against a plain model: rows that pass the filters are read, whatever the filters are."""

import operator
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
)

from skylark.mqcommon.message.queue import MessageQueue
from skylark.spark_connector.options.read import ReadOptions
from skylark.spark_connector.reading.batch_reader import PushDownReader
from skylark.spark_connector.reading.planning import plan
from skylark.spark_connector.reading.pushdown import CLOCK_SLACK_MS, Only, wanted_by
from skylark.spark_connector.schema import partition_number, spark_schema
from tests.spark_connector.cluster import MemoryCluster

QUEUES = [MessageQueue(topic, broker, queue) for topic in "tu" for broker in "ab" for queue in range(2)]
COUNT = 200  # messages of a queue, one a second
COMPARE: MappingProxyType[type[Any], Callable[[Any, Any], bool]] = MappingProxyType(
    {
        EqualTo: operator.eq,
        EqualNullSafe: operator.eq,
        GreaterThan: operator.gt,
        GreaterThanOrEqual: operator.ge,
        LessThan: operator.lt,
        LessThanOrEqual: operator.le,
    }
)


def moment(us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)


def row(queue: MessageQueue, offset: int) -> dict[str, Any]:
    return {
        "topic": queue.topic,
        "brokerName": queue.broker_name,
        "queueId": queue.queue_id,
        "queueOffset": offset,
        "storeTimestamp": moment(offset * 1_000_000),
    }


def passes(one: Any, values: dict[str, Any]) -> bool:
    """Whether a row passes a filter in Spark, for columns that are never null."""
    if isinstance(one, Not):
        return not passes(one.child, values)
    value = values[one.attribute[0]]
    if isinstance(one, IsNotNull):
        return True
    if isinstance(one, In):
        return value in one.value
    return COMPARE[type(one)](value, one.value)


VALUES: MappingProxyType[str, st.SearchStrategy[Any]] = MappingProxyType(
    {
        "topic": st.sampled_from("tux"),
        "brokerName": st.sampled_from("abx"),
        "queueId": st.integers(0, 2),
        "queueOffset": st.integers(0, COUNT),
        "storeTimestamp": st.integers(-1_000_000, COUNT * 1_000_000 + 1).map(moment),
    }
)


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    column = draw(st.sampled_from(sorted(VALUES)))
    values = VALUES[column]
    kind = draw(st.sampled_from([*COMPARE, In, IsNotNull]))
    if kind is IsNotNull:
        return IsNotNull((column,))
    if kind is In:
        return In((column,), tuple(draw(st.lists(values, max_size=3))))
    one: Filter = kind((column,), draw(values))
    return Not(one) if draw(st.booleans()) and draw(st.booleans()) else one


@pytest.fixture(scope="module")
def cluster() -> MemoryCluster:
    cluster = MemoryCluster()
    for queue in QUEUES:
        cluster.add(queue, COUNT)
    return cluster


@given(st.lists(filters(), max_size=4))
def test_no_row_that_passes_is_left_out(cluster: MemoryCluster, given_filters: list[Filter]) -> None:
    ranges = plan(cluster, ReadOptions.parse({"topic": "t,u"}), wanted_by(given_filters, "rocketmq"))
    read = {(one.queue, offset) for one in ranges for offset in range(one.start, one.end)}
    rows = {(queue, offset) for queue in QUEUES for offset in range(COUNT)}
    needed = {(q, n) for q, n in rows if all(passes(one, row(q, n)) for one in given_filters)}
    assert needed <= read <= rows


def test_queues_and_times_are_narrowed(cluster: MemoryCluster) -> None:
    only = wanted_by(
        [
            EqualTo(("topic",), "t"),
            In(("queueId",), (1, 5)),
            EqualTo(("brokerName",), "b"),
            GreaterThan(("storeTimestamp",), moment(100_000_000)),
            LessThan(("storeTimestamp",), moment(110_000_000)),
        ],
        "rocketmq",
    )
    slack = CLOCK_SLACK_MS // 1000
    (found,) = plan(cluster, ReadOptions.parse({"topic": "t,u"}), only)
    assert (found.queue, found.start, found.end) == (MessageQueue("t", "b", 1), 100 - slack, 111 + slack)


def test_the_columns_of_kafkas_style(cluster: MemoryCluster) -> None:
    wanted = QUEUES[2]
    number = partition_number(wanted.broker_name, wanted.queue_id)
    only = wanted_by([EqualTo(("partition",), number), EqualTo(("topic",), "t"), EqualTo(("queueId",), 9)], "kafka")
    assert [queue for queue in QUEUES if only.needs(queue)] == [wanted]
    assert wanted_by([LessThan(("timestamp",), moment(5000))], "kafka") == Only(end_ms=6)


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(("topic",), None),
        In(("topic",), ("t", None)),
        EqualTo(("queueId",), "1"),
        EqualTo(("properties", "topic"), "t"),
        StringContains(("topic",), "t"),
        GreaterThan(("storeTimestamp",), datetime(2026, 1, 1)),
    ],
)
def test_what_is_not_understood_needs_everything(one: Filter) -> None:
    assert wanted_by([one], "rocketmq") == Only()


@pytest.mark.parametrize(
    ("given_filter", "style", "expression"),
    [
        (EqualTo(("tags",), "A"), "rocketmq", "A"),
        (In(("tags",), ("B", "A")), "rocketmq", "A || B"),
        (EqualTo(("tags",), "A"), "externals", "*"),
        (EqualTo(("tags",), "a b"), "rocketmq", "*"),
        (EqualTo(("tags",), "*"), "rocketmq", "*"),
        (In(("tags",), ("A", "B||C")), "rocketmq", "*"),
    ],
)
def test_tags_become_the_filter_where_they_can(given_filter: Filter, style: str, expression: str) -> None:
    options = ReadOptions.parse({"topic": "t", "schemaStyle": style})
    assert wanted_by([given_filter], style).with_tags(options).sub_expression == expression


def test_a_users_filter_stays() -> None:
    options = ReadOptions.parse({"topic": "t", "subExpression": "B"})
    assert Only(tags=frozenset("A")).with_tags(options) is options


def test_the_reader_gives_all_filters_back(cluster: MemoryCluster) -> None:
    options = ReadOptions.parse({"topic": "t,u"})
    reader = PushDownReader(options, spark_schema(include_properties=False), lambda _: cluster)
    given_filters: list[Filter] = [EqualTo(("topic",), "t"), Not(EqualTo(("topic",), "u"))]
    assert list(reader.pushFilters(given_filters)) == given_filters
    assert {one.queue.topic for part in reader.partitions() for one in part.value.ranges} == {"t"}

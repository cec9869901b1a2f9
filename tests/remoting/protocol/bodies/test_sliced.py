"""Bodies made in slices are the bodies that are made at once."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqcommon.message.queue import MessageQueue
from remoting.net.steps import finish
from remoting.protocol.bodies import Body, Dialect, encode_body
from remoting.protocol.bodies.connections import Connection, ProducerConnection
from remoting.protocol.bodies.kvtable import KVTable
from remoting.protocol.bodies.offsets import ConsumerOffsetTable
from remoting.protocol.bodies.sliced import SLICE, encode_steps
from remoting.protocol.bodies.topic import TopicConfig, TopicConfigTable, TopicList, TopicOffset, TopicStatsTable

MUCH = 1 << 24


def bodies(count: int) -> list[Body]:
    return [
        TopicList([f"t{n}" for n in range(count)], "a:1"),
        TopicConfigTable(topic_config_table={f"t{n}": TopicConfig(f"t{n}") for n in range(count)}),
        TopicStatsTable({MessageQueue("t", "b", n): TopicOffset(0, n) for n in range(count)}, 1.5),
        ConsumerOffsetTable({f"t{n}@g": {0: n, 1: 2} for n in range(count)}),
        ProducerConnection([Connection(f"c{n}", "a:1", "JAVA", 1) for n in range(count)]),
        KVTable({f"k{n}": "é" for n in range(count)}),
    ]


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("count", [0, 1, SLICE, SLICE + 1, 2 * SLICE, 2 * SLICE + 1])
def test_the_bytes_are_those_of_a_body_made_at_once(dialect: Dialect, count: int) -> None:
    for body in bodies(count):
        assert finish(encode_steps(body, dialect, MUCH)) == (encode_body(body, dialect), 0)


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=30), st.sampled_from(Dialect))
def test_any_table(table: dict[str, str], dialect: Dialect) -> None:
    grown = {f"{key}{n}": value for key, value in table.items() for n in range(50)}
    assert finish(encode_steps(KVTable(grown), dialect, MUCH)).data == encode_body(KVTable(grown), dialect)


def test_it_yields_after_each_slice() -> None:
    names = TopicList([f"t{n}" for n in range(10 * SLICE)])
    assert len(list(encode_steps(names, Dialect.STANDARD, MUCH))) == 10


@pytest.mark.parametrize("dialect", Dialect)
def test_what_is_too_long_is_cut_to_whole_entries(dialect: Dialect) -> None:
    names = [f"topic-{n:05d}" for n in range(10 * SLICE)]
    found: Any = finish(encode_steps(TopicList(names), dialect, 40_000))
    assert len(found.data) <= 40_000
    assert 0 < found.left_out < len(names)
    assert found.data == encode_body(TopicList(names[: -found.left_out]), dialect)

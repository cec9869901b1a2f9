"""Bodies that are cut to fit: what is left is readable, and a body that fits is as it always was."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import FrameTooLarge, ProtocolError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.net.steps import finish
from skylark.remoting.protocol import bounded_body
from skylark.remoting.protocol.body import Body, KVTable
from skylark.remoting.protocol.bounded_body import (
    CHUNK_ENTRIES,
    BodyLimits,
    CutBody,
    _has_at_most,
    decode_limited,
    encode_within,
)
from skylark.remoting.protocol.command import CBOR, JSON
from skylark.remoting.protocol.dialect import Dialect, decode_body, dumps, encode_body
from skylark.remoting.protocol.requests.clients import Connection, ConsumerData, HeartbeatData, ProducerConnection
from skylark.remoting.protocol.requests.offsets import ConsumerOffsetTable
from skylark.remoting.protocol.requests.topics import (
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicOffset,
    TopicStatsTable,
)

LIMITS = BodyLimits(max_bytes=1_000, max_entries=20, relaxed_bytes=100)


@pytest.mark.parametrize("codec", [JSON, CBOR])
def test_a_body_within_its_limits_is_read(codec: int) -> None:
    body = KVTable({f"{n}": "v" for n in range(19)})
    data = encode_body(body, Dialect.CBOR if codec == CBOR else Dialect.STANDARD)
    assert decode_limited(KVTable, data, codec, LIMITS) == body


@pytest.mark.parametrize("codec", [JSON, CBOR])
def test_too_many_entries_are_not_made_objects_of(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(ConsumerData, "from_wire", lambda obj: made.append(obj))
    body = HeartbeatData("c", consumer_data_set=[ConsumerData("") for _ in range(5)])
    data = encode_body(body, Dialect.CBOR if codec == CBOR else Dialect.STANDARD)
    with pytest.raises(ProtocolError, match="more than 20 entries"):
        decode_limited(HeartbeatData, data, codec, LIMITS)
    assert made == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b'{"table":{}}' + b" " * 1_000, "1012 bytes"), (b'{"table":{1:"' + b"x" * 100 + b'"}}', "too long")],
)
def test_too_many_bytes_are_not_parsed(data: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        decode_limited(KVTable, data, JSON, LIMITS)


VALUES = st.recursive(
    st.none() | st.integers(), lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner)
)


def _entries(value: Any) -> int:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return len(inner) + sum(map(_entries, inner))


@given(VALUES, st.integers(0, 20))
def test_entries_are_counted_at_all_depths(value: Any, most: int) -> None:
    assert _has_at_most(value, most) == (_entries(value) <= most)


TEXTS = st.text(max_size=20)
BODIES: st.SearchStrategy[Any] = st.one_of(
    st.builds(KVTable, st.dictionaries(TEXTS, st.text(max_size=300), max_size=30)),
    st.builds(TopicList, st.lists(TEXTS, max_size=60), st.none() | TEXTS),
    st.builds(
        ConsumerOffsetTable,
        st.dictionaries(TEXTS, st.dictionaries(st.integers(0, 99), st.integers(0, 2**60), max_size=5), max_size=30),
    ),
    st.builds(
        TopicStatsTable,
        st.dictionaries(
            st.builds(MessageQueue, TEXTS, TEXTS, st.integers(0, 9)),
            st.builds(TopicOffset, st.integers(0, 9)),
            max_size=9,
        ),
    ),
    st.builds(
        lambda names: TopicConfigTable(topic_config_table={name: TopicConfig(name) for name in names}),
        st.lists(TEXTS, unique=True, max_size=30),
    ),
)


def encoded(body: Body, dialect: Dialect, limit: int) -> CutBody:
    return finish(encode_within(body, dialect, limit))


@given(BODIES, st.sampled_from(Dialect))
def test_what_fits_is_what_it_always_was(body: Body, dialect: Dialect) -> None:
    data, left_out, _ = encoded(body, dialect, 1_000_000)
    assert (data, left_out) == (encode_body(body, dialect), 0)


@given(BODIES, st.sampled_from(Dialect), st.integers(0, 3_000))
def test_what_does_not_fit_is_left_out(body: Body, dialect: Dialect, limit: int) -> None:
    try:
        data, left_out, total = encoded(body, dialect, limit)
    except FrameTooLarge:
        assert limit < 500
        return
    assert len(data) <= limit
    found = decode_body(type(body), data, CBOR if dialect is Dialect.CBOR else JSON)
    tables = [name for name in body.__slots__ if isinstance(getattr(body, name), dict | list)]  # type: ignore[attr-defined]
    assert sum(len(getattr(found, name)) for name in tables) == total - left_out
    assert all(each in getattr(body, name) for name in tables for each in getattr(found, name))


@pytest.mark.parametrize("dialect", Dialect)
def test_as_much_as_fits_is_kept(dialect: Dialect) -> None:
    whole = TopicList([f"topic-{number}" for number in range(200_000)])
    data, left_out, total = encoded(whole, dialect, 1_000_000)
    assert 990_000 < len(data) <= 1_000_000
    assert total == 200_000
    assert (
        decode_body(TopicList, data, CBOR if dialect is Dialect.CBOR else JSON).topic_list
        == whole.topic_list[:-left_out]
    )


def test_one_value_that_cannot_be_sent_leaves_the_others() -> None:
    data, left_out, _ = encoded(KVTable({"a": "1", "b": "x" * 5_000}), Dialect.STANDARD, 1_000)
    assert (data, left_out) == (b'{"table":{"a":"1"}}', 1)


def test_one_large_value_does_not_keep_out_those_after_it() -> None:
    data, left_out, _ = encoded(KVTable({"a": "x" * 5_000, "b": "2"}), Dialect.STANDARD, 1_000)
    assert (data, left_out) == (b'{"table":{"b":"2"}}', 1)


def test_little_is_encoded_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def noting(value: Any, dialect: Dialect) -> bytes:
        data = dumps(value, dialect)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(bounded_body, "dumps", noting)
    table = KVTable({str(number): "x" * 100_000 for number in range(1_000)})
    assert len(encoded(table, Dialect.STANDARD, 1_000_000).data) < 1_000_000
    assert sum(sizes) < 5_000_000


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("count", [0, 1, CHUNK_ENTRIES, 3 * CHUNK_ENTRIES + 1])
def test_many_entries_are_encoded_as_they_always_were(dialect: Dialect, count: int) -> None:
    bodies: list[Body] = [
        TopicConfigTable(topic_config_table={f"t{n}": TopicConfig(f"t{n}") for n in range(count)}),
        TopicStatsTable({MessageQueue("t", "b", n): TopicOffset(0, n) for n in range(count)}, 1.5),
        ProducerConnection([Connection(f"c{n}", "a:1", "JAVA", 1) for n in range(count)]),
    ]
    for body in bodies:
        assert encoded(body, dialect, 1 << 24) == (encode_body(body, dialect), 0, count)


def test_others_may_work_after_a_chunk_and_change_the_table() -> None:
    table = {f"k{n}": "v" for n in range(10 * CHUNK_ENTRIES)}
    steps = encode_within(KVTable(table), Dialect.STANDARD, 1 << 24)
    assert len(list(encode_within(KVTable(table), Dialect.STANDARD, 1 << 24))) >= 10
    next(steps)
    before = dict(table)
    table.clear()
    assert finish(steps).data == encode_body(KVTable(before), Dialect.STANDARD)

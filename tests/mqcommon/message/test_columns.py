"""One table of the layout: structs of it, the codec and the readers of many records say the same of every record."""

import struct
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message.columns import MIN_RUN, Fixed, RunReader, Shape, alike, record_starts
from skylark.mqcommon.message.flags import BORN_HOST_V6, HOSTS_V6, STORE_HOST_V6
from skylark.mqcommon.message.layout import (
    FIXED_BYTES,
    HEAD_FIELDS,
    HEAD_V4,
    HEADS,
    MAGIC_V1,
    MAX_OVERHEAD_BYTES,
    MIN_RECORD,
    STORE_TIME,
    TAIL_BYTES_V1,
    Raw,
)
from skylark.mqcommon.message.record import BatchHead, Record, decode_record, encode_record, topic_field

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TOPICS = st.sampled_from(["t", "TopicTest", "t" * 127, "t" * 128, "t" * 255])
NAMES = [name for name, _ in HEAD_FIELDS]


@st.composite
def records(draw: st.DrawFn) -> Record:
    """Records of all kinds of hosts, both magics, any flag."""
    kinds = draw(st.sampled_from([0, BORN_HOST_V6, STORE_HOST_V6, HOSTS_V6]))
    born = draw(st.binary(min_size=20, max_size=20))[: 20 if kinds & BORN_HOST_V6 else 8]
    store = draw(st.binary(min_size=20, max_size=20))[: 20 if kinds & STORE_HOST_V6 else 8]
    sys_flag = draw(INT32) & ~HOSTS_V6 | kinds
    raw = encode_record(
        *topic_field(draw(TOPICS)), draw(INT32), draw(INT64), draw(INT64), draw(st.binary(max_size=9)),
        draw(st.binary(max_size=9)), draw(INT32), sys_flag, draw(INT64), born, draw(INT64), store, draw(INT32),
        draw(INT64),
    )  # fmt: skip
    return decode_record(raw)


def encoded(record: Record) -> bytes:
    return encode_record(
        *topic_field(record.topic), record.queue_id, record.queue_offset, record.physical_offset, record.body,
        record.properties, record.flag, record.sys_flag, record.born_timestamp, record.born_host,
        record.store_timestamp, record.store_host, record.reconsume_times, record.prepared_transaction_offset,
    )  # fmt: skip


def field(record: Record, name: str) -> Any:
    return len(record.body) if name == "body_length" else getattr(record, name)


@given(records(), st.sets(st.sampled_from(NAMES), min_size=1))
def test_any_fields_of_the_table_are_those_of_the_codec(record: Record, wanted: set[str]) -> None:
    raw, head = encoded(record), HEADS[record.sys_flag & HOSTS_V6]
    names = [name for name in NAMES if name in wanted]
    assert head.reader(*names).unpack_from(raw) == tuple(field(record, name) for name in names)
    assert head.all.unpack_from(raw) == tuple(field(record, name) for name in NAMES)
    assert raw[head.size :].startswith(record.body)
    (*found, body) = struct.unpack_from(f"{head.format(*names)}{len(record.body)}s", raw)
    assert (found, body) == ([field(record, name) for name in names], record.body)
    assert STORE_TIME[record.sys_flag & HOSTS_V6].unpack_from(raw) == (record.store_timestamp,)
    for name in names:
        assert bytes(raw[at] for at in head.places(name)) == raw[head.span(name)]
        assert head.reader(Raw(name)).unpack_from(raw) == (raw[head.span(name)],)


@given(records())
def test_the_lengths_of_the_table_are_those_of_the_codec(record: Record) -> None:
    text = len(record.body) + len(record.topic) + len(record.properties)
    assert MIN_RECORD <= record.size - text <= MAX_OVERHEAD_BYTES
    tail = len(topic_field(record.topic)[1])
    hosts = len(record.born_host) + len(record.store_host)
    assert record.size == FIXED_BYTES + hosts + len(record.body) + tail + len(record.properties)
    if record.magic == MAGIC_V1:
        assert record.size == HEADS[record.sys_flag & HOSTS_V6].size + TAIL_BYTES_V1 + text


@given(records())
def test_the_head_of_a_batch_is_that_of_the_codec(record: Record) -> None:
    raw = encoded(record._replace(prepared_transaction_offset=0))
    batch = BatchHead(
        record.magic, record.queue_id, record.sys_flag, record.born_timestamp, record.born_host,
        record.store_timestamp, record.store_host, record.reconsume_times,
    )  # fmt: skip
    packed = batch.pack(
        record.size, batch.magic, record.body_crc, batch.queue_id, record.flag, record.queue_offset,
        record.physical_offset, batch.common, len(record.body),
    )  # fmt: skip
    assert packed == raw[: HEADS[record.sys_flag & HOSTS_V6].size]


# Many of one size, with what runs may differ in, and any others between them.
groups = st.lists(st.tuples(records(), st.integers(1, 60), st.integers(0, 60), INT32), max_size=4)


def written(groups: list[tuple[Record, int, int, int]]) -> list[Record]:
    """``count`` records like the first of each group; the one at ``odd`` has another sysFlag."""
    found = []
    for first, count, odd, flag in groups:
        for number in range(count):
            sys_flag = flag & ~HOSTS_V6 | first.sys_flag & HOSTS_V6 if number == odd else first.sys_flag
            found.append(first._replace(queue_offset=number, sys_flag=sys_flag))
    return found


@given(groups)
def test_starts_are_where_the_records_are(groups: list[tuple[Record, int, int, int]]) -> None:
    stored = [encoded(record) for record in written(groups)]
    data = b"".join(stored)
    starts = record_starts(data)
    assert list(record_starts(data, check_magics=False)) == list(starts)
    assert list(starts) == [sum(map(len, stored[:number])) for number in range(len(stored))]


def test_records_of_one_size_need_no_walk_and_damage_in_them_is_found() -> None:
    raw = encode_record(*topic_field("t"), 0, 0, 0, bytes(2000), b"", 0, 0, 0, bytes(8), 0, bytes(8), 0, 0)
    count, size = 2 * MIN_RUN, len(raw)
    assert isinstance(record_starts(raw * count), range)
    longer = raw[:2] + b"\xff\xff" + raw[4:]
    with pytest.raises(ProtocolError, match=f"record 5 at byte {5 * size}: .* of its bytes are missing"):
        record_starts(raw * 5 + longer + raw * (count - 6))
    wrong = raw[:4] + b"????" + raw[8:]
    with pytest.raises(ProtocolError, match=f"record 5 at byte {5 * size}: its magic is not a record's"):
        record_starts(raw * 5 + wrong + raw * count)
    assert len(record_starts(raw * 5 + wrong + raw, check_magics=False)) == 7
    with pytest.raises(ProtocolError, match=r"record 1 .* a size of 0 bytes is too small"):
        record_starts(raw + bytes(size))
    with pytest.raises(ProtocolError, match=r"record 1 .* 5 bytes are too few"):
        record_starts(raw + bytes(5))


@given(st.lists(st.binary(min_size=4, max_size=4), min_size=1, max_size=40), st.lists(st.integers(0, 3), max_size=4))
def test_alike_counts_up_to_the_first_that_differs(rows: list[bytes], places: list[int]) -> None:
    same = [all(row[place] == rows[0][place] for place in places) for row in rows]
    expected = same.index(False) if False in same else len(rows)
    assert alike(b"".join(rows), 4, len(rows), places) == expected


def learn(raw: bytes, body_bytes: int) -> Shape[int]:
    """The queue offset of each record; all must have the tail of the first."""
    tail_at = HEAD_V4.size + body_bytes
    record = struct.Struct(f"{HEAD_V4.format('queue_offset')}{body_bytes}x{len(raw) - tail_at}s")
    return Shape(record, (Fixed(1, tail_at, raw[tail_at:]),), body_bytes)


def same_shape(record: Record, first: Record) -> bool:
    return (record.size, record.magic, record.sys_flag, len(record.body), record.topic, record.properties) == (
        first.size, first.magic, first.sys_flag, len(first.body), first.topic, first.properties,
    )  # fmt: skip


PLAIN = decode_record(encode_record(*topic_field("t"), 0, 0, 0, b"b", b"p1", 0, 0, 0, bytes(8), 0, bytes(8), 0, 0))
OTHER = PLAIN._replace(properties=b"p2")


@given(groups)
@example([(PLAIN, 20, 60, 0), (OTHER, 1, 60, 0), (PLAIN, 11, 2, 1)])
# A record that differs in its fixed bytes, before a record that differs in its head: the first of the two ends the run.
@example([(PLAIN, 10, 60, 0), (OTHER, 1, 60, 0), (PLAIN, 9, 60, 0), (PLAIN, 12, 0, 1)])
def test_runs_are_of_records_with_one_shape(groups: list[tuple[Record, int, int, int]]) -> None:
    rows = written(groups)
    reader = RunReader(learn, 64)
    at = 0
    while at < len(rows):
        first = rows[at]
        if first.magic != MAGIC_V1 or first.sys_flag & HOSTS_V6:
            at += 1
            continue
        data = b"".join([encoded(record) for record in rows[at : at + reader.reach]])
        run = reader.read(data[: len(data) // first.size * first.size], first.size, len(first.body))
        few = rows[at : at + min(len(data) // first.size, MIN_RUN)]
        if run is None:
            assert len(few) < MIN_RUN or not all(same_shape(record, first) for record in few)
            at += 1
            continue
        assert run.records >= MIN_RUN and run.known == len(first.body)
        assert all(same_shape(record, first) for record in rows[at : at + run.records])
        assert run.columns[0] == tuple(record.queue_offset for record in rows[at : at + run.records])
        at += run.records


def test_the_reach_grows_with_whole_runs_and_falls_back() -> None:
    reader = RunReader(learn, 64)
    raw = encoded(PLAIN)
    reaches = []
    for count in (32, 64, 64):
        assert reader.read(raw * count, len(raw), 1) is not None
        reaches.append(reader.reach)
    assert reaches == [64, 64, 64]
    reader.refuse()
    assert reader.reach == 32
    reader.read(raw * 32, len(raw), 1)
    assert reader.reach == 64
    assert reader.read(raw * 9 + bytes(len(raw) * 3), len(raw), 1) is not None
    assert reader.reach == 32

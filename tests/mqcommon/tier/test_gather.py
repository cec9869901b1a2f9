"""What gather finds in a file of the log, compared with a plain search through all of its bytes."""

import zlib
from collections.abc import Iterable
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.broker.store.log.valid_record import valid_record
from skylark.mqcommon.message.batch import encode_batch
from skylark.mqcommon.message.flags import (
    BORN_HOST_V6,
    STORE_HOST_V6,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    WRAPPED,
)
from skylark.mqcommon.message.layout import BLANK_MAGIC, HEAD_V4, MAGIC_V1, MAGIC_V2, MIN_RECORD, SIZE_MAGIC
from skylark.mqcommon.message.record import Record, decode_record, encode_record, topic_field
from skylark.mqcommon.message.record_keys import record_keys
from skylark.mqcommon.tier import file_rows as file_rows_module
from skylark.mqcommon.tier.file_rows import TooDamaged
from skylark.mqcommon.tier.gather import Gathered, gather
from skylark.mqcommon.tier.index_builder import DisorderedQueue
from skylark.mqcommon.tier.key_hash import key_hash
from tests.support.amounts import amount

FILE, START = 4096, 3 * 4096
TOPICS = ("orders", "t", "x" * 200, "größe")
HOURS = {"t": 24, "größe": 24}
HOSTS = {4: b"\x7f\0\0\x01\0\0\x2a\x9f", 16: bytes(15) + b"\x01\0\0\x2a\x9f"}
KEYS = st.sampled_from(
    [
        "",
        "UNIQ_KEY\x01{u}\x02",
        "KEYS\x01a b {u}\x02",
        "UNIQ_KEY\x01{u}\x02KEYS\x01k{u}\x02",
        "TAGS\x01UNIQ_KEY\x02UNIQ_KEY\x01{u}\x02KEYS\x01\x02",
        "KEYS\x01one\x02KEYS\x01two\x02",
        "XUNIQ_KEY\x01no\x02",
        "UNIQ_KEY\x01{u}",
        "KEYS\x01 \x02",
        "UNIQ_KEY\x01\x02A\x01b\x02",
    ]
)

message = st.tuples(
    st.sampled_from(TOPICS),
    st.integers(0, 2),
    st.sampled_from(
        [
            0,
            BORN_HOST_V6,
            STORE_HOST_V6,
            BORN_HOST_V6 | STORE_HOST_V6,
            TRANSACTION_COMMIT,
            TRANSACTION_PREPARED,
            TRANSACTION_ROLLBACK,
            WRAPPED,
        ]
    ),
    st.integers(0, 300),
    KEYS,
)


def file_of(messages: Iterable[tuple[str, int, int, int, str]]) -> bytes:
    """A file of the log with these messages (topic, queue, sysFlag, bytes of the body, properties), and a filler."""
    out = bytearray()
    ends: dict[tuple[str, int], int] = {}
    for number, (topic, queue_id, sys_flag, size, keys) in enumerate(messages):
        magic, field = topic_field(topic)
        properties = keys.replace("{u}", f"{number:032X}").encode()
        body, count = number.to_bytes(2, "big") * size, 1
        if sys_flag == WRAPPED:
            body, count = encode_batch([(0, b"in", properties)] * 2), 2
            properties += b"\x02INNER_NUM\x012\x02"
        queued = sys_flag & TRANSACTION_MASK in (0, TRANSACTION_COMMIT)
        offset = ends.get((topic, queue_id), 5) if queued else 0
        record = encode_record(
            *(magic, field, queue_id, offset, START + len(out), body, properties, 0, sys_flag, 1),
            *(
                HOSTS[16 if sys_flag & BORN_HOST_V6 else 4],
                1_000 + number,
                HOSTS[16 if sys_flag & STORE_HOST_V6 else 4],
            ),
            *(0, 0),
        )
        if len(out) + len(record) + SIZE_MAGIC.size > FILE:
            break
        out += record
        if queued:
            ends[topic, queue_id] = offset + count
    out += SIZE_MAGIC.pack(FILE - len(out), BLANK_MAGIC)
    return bytes(out.ljust(FILE, b"\0"))


def searched(view: bytes) -> list[Record]:
    """All sound records, by a search at each byte."""
    found, at = [], 0
    while at + MIN_RECORD <= len(view):
        size, magic = SIZE_MAGIC.unpack_from(view, at)
        record = None
        if magic in (MAGIC_V1, MAGIC_V2):
            record, _ = valid_record(view[at : at + size], START + at)
        if record is not None:
            found.append(record)
        at += record.size if record is not None else 1
    return found


def check(view: bytes, rows: Gathered) -> None:
    """All sound records are in the objects once, and everything else is in the rest."""
    records = {record.physical_offset: record for record in searched(view)}
    objects = {number: b"".join(rows.pieces(number)) for number in rows.classes}
    made = bytearray(FILE)
    found = []
    for queue in rows.queues:
        last = -1
        for row in range(queue.first, queue.end):
            at, position, size = int(rows.physical[row]), int(rows.positions[row]), int(rows.sizes[row])
            data = objects[queue.retention_class][position : position + size]
            record = records[at]
            assert decode_record(data) == record
            assert (record.topic, record.queue_id) == (queue.topic, queue.queue_id)
            assert (record.queue_offset, record.store_timestamp) == (rows.offsets[row], rows.stored_ms[row])
            assert last < at
            last = at
            made[at - START : at - START + size] = data
            found.append(at)
        is_queued = record.sys_flag & TRANSACTION_MASK in (0, TRANSACTION_COMMIT)
        assert is_queued or queue.hidden
        assert queue.retention_class == HOURS.get(queue.topic, 0)
    assert sorted(found) == sorted(records)
    assert sum(map(len, objects.values())) == sum(record.size for record in records.values())
    for start, data in rows.rest:
        made[start - START : start - START + len(data)] = data
    assert bytes(made) == view and zlib.crc32(view) == rows.crc
    order = [(queue.retention_class, queue.hidden, queue.topic.encode(), queue.queue_id) for queue in rows.queues]
    assert order == sorted(order)
    assert all(before.end == queue.first for before, queue in pairwise(rows.queues))
    hidden = {int(at) for queue in rows.queues if queue.hidden for at in rows.physical[queue.first : queue.end]}
    keys = {
        (key_hash(record.topic, key), at)
        for at, record in records.items()
        if at not in hidden
        for key in record_keys(record)
    }
    places = {
        (HOURS.get(records[at].topic, 0), position): at
        for at, position in zip(rows.physical.tolist(), rows.positions.tolist(), strict=True)
    }
    columns = zip(rows.key_hashes.tolist(), rows.key_classes.tolist(), rows.key_positions.tolist(), strict=True)
    assert {(hash_, places[number, position]) for hash_, number, position in columns} == keys
    assert len(rows.key_hashes) == len(keys)


def gathered(view: bytes, at_once_bytes: int = FILE, step_bytes: int = FILE) -> Gathered:
    """``at_once_bytes`` and ``step_bytes``: how records are searched from several places at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_rows_module, "AT_ONCE_BYTES", at_once_bytes)
        patch.setattr(file_rows_module, "STEP_BYTES", step_bytes)
        return gather(view, START, lambda topic: HOURS.get(topic, 0))


AT_ONCE, STEP = st.sampled_from([500, 2_000, FILE]), st.sampled_from([100, 150, FILE])


@settings(max_examples=amount(25, 2_000), deadline=None)
@given(st.lists(message, max_size=60), AT_ONCE, STEP)
def test_each_record_is_in_its_object_once_and_the_file_comes_back(
    messages: list[tuple[str, int, int, int, str]], at_once_bytes: int, step_bytes: int
) -> None:
    view = file_of(messages)
    check(view, gathered(view, at_once_bytes, step_bytes))


@settings(max_examples=amount(25, 2_000), deadline=None)
@given(
    st.lists(message, min_size=5, max_size=40),
    st.lists(st.tuples(st.integers(0, FILE - 1), st.integers(1, 200), st.binary(min_size=0, max_size=4)), max_size=4),
    AT_ONCE,
    STEP,
)
def test_damage_anywhere_takes_no_other_record(
    messages: list[tuple[str, int, int, int, str]],
    damages: list[tuple[int, int, bytes]],
    at_once_bytes: int,
    step_bytes: int,
) -> None:
    view = bytearray(file_of(messages))
    for at, size, data in damages:
        damaged = (data or b"\0") * size
        view[at : at + len(damaged)] = damaged[: FILE - at]
    try:
        rows = gathered(bytes(view), at_once_bytes, step_bytes)
    except DisorderedQueue:
        # A changed offset: such a file is refused.
        return
    check(bytes(view), rows)


# UTF-8, and not; with zeros, and what no topic may be; of up to 127 bytes, and longer.
RAW_TOPICS = [
    b"t",
    b"tt",
    b"a",
    b"a\0",
    b"\0",
    b"..",
    b"q/r",
    "größe".encode(),
    b"\xff\xfe",
    b"\xc3",
    b"x" * 127,
    b"y" * 255,
]

raw_message = st.tuples(
    st.sampled_from(RAW_TOPICS),
    st.booleans(),
    st.sampled_from([0, BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6]),
    st.sampled_from([0, 1, 80]),
    st.sampled_from([b"", b"KEYS\x01a bb\x02", b"UNIQ_KEY\x01" + b"U" * 32 + b"\x02KEYS\x01k\x02"]),
    # Which bit of the record is wrong, after its size.
    st.none() | st.integers(32, 8 * MIN_RECORD - 1),
)


def raw_records(messages: Iterable[tuple[bytes, bool, int, int, bytes, int | None]]) -> tuple[bytes, list[int]]:
    """(records one after the other, where each begins): (topic, long length, sysFlag, bytes of the body, ...)."""
    out, starts = b"", []
    for number, (topic, is_long, sys_flag, size, properties, bit) in enumerate(messages):
        magic, length = (MAGIC_V2, 2) if is_long or len(topic) > 127 else (MAGIC_V1, 1)
        field, place = len(topic).to_bytes(length, "big") + topic, START + len(out)
        born, stored = (HOSTS[16 if sys_flag & flag else 4] for flag in (BORN_HOST_V6, STORE_HOST_V6))
        record = bytearray(
            encode_record(
                magic, field, 0, number, place, b"b" * size, properties, 0, sys_flag, 1, born, 7, stored, 0, 0
            )
        )
        if bit is not None:
            record[bit // 8] ^= 1 << bit % 8
        starts.append(len(out))
        out += record
    return out, starts


@settings(max_examples=amount(40, 4_000), deadline=None)
@given(st.lists(raw_message, min_size=1, max_size=25), st.sampled_from([50, 200, 1_000]), st.randoms(), AT_ONCE, STEP)
def test_columns_find_what_decoding_one_record_after_the_other_finds(
    messages: list[tuple[bytes, bool, int, int, bytes, int | None]],
    block_bytes: int,
    random: Random,
    at_once_bytes: int,
    step_bytes: int,
) -> None:
    view, starts = raw_records(messages)
    blocks = [(at, min(at + block_bytes, len(view))) for at in range(0, len(view), block_bytes)]
    unproved = [block for block in blocks if random.random() < 0.5]
    wanted = []
    for at in starts:
        size, magic = SIZE_MAGIC.unpack_from(view, at)
        if magic in (MAGIC_V1, MAGIC_V2) and size >= MIN_RECORD:
            check_crc = any(low < at + size and at < high for low, high in unproved)
            record, _ = valid_record(view[at : at + size], START + at, check_crc=check_crc)
            if record is not None:
                wanted.append(record)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_rows_module, "ROWS_AT_ONCE", 7)
        patch.setattr(file_rows_module, "ROWS_BYTES", block_bytes)
        patch.setattr(file_rows_module, "AT_ONCE_BYTES", at_once_bytes)
        patch.setattr(file_rows_module, "STEP_BYTES", step_bytes)
        rows = file_rows_module.file_rows(view, START, unproved)
    columns = (rows.starts, rows.sizes, rows.offsets, rows.stored_ms)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == [
        (record.physical_offset - START, record.size, record.queue_offset, record.store_timestamp) for record in wanted
    ]
    queues = [rows.queues[number] for number in rows.queue.tolist()]
    assert [(queue.topic, queue.queue_id) for queue in queues] == [(each.topic, each.queue_id) for each in wanted]
    keys = zip(rows.starts[rows.key_rows].tolist(), rows.key_hashes.tolist(), strict=True)
    assert sorted(keys) == sorted(
        (record.physical_offset - START, key_hash(record.topic, key))
        for record in wanted
        for key in record_keys(record)
    )


def test_few_bytes_of_properties_are_copied_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []
    real = file_rows_module.key_hashes

    def key_hashes(data: Any, starts: Any, lengths: Any, seeds: Any) -> Any:
        copied.append(len(data))
        return real(data, starts, lengths, seeds)

    monkeypatch.setattr(file_rows_module, "key_hashes", key_hashes)
    monkeypatch.setattr(file_rows_module, "ROWS_BYTES", 500)
    view = file_of([("t", 0, 0, 0, "KEYS\x01" + 100 * "k" + "\x02")] * 15)
    check(view, gathered(view))
    assert copied and max(copied) < 500


def test_what_looks_like_a_record_in_a_body_is_not_taken_for_one() -> None:
    # The body of the first message is a record whose head has its right place in the log.
    at = START + HEAD_V4.size
    inside = encode_record(*topic_field("x"), 0, 7, at, bytes(9), b"", 0, 0, 1, HOSTS[4], 9, HOSTS[4], 0, 0)
    out = b""
    for body in (inside, b"second"):
        place = START + len(out)
        out += encode_record(*topic_field("t"), 0, len(out), place, body, b"", 0, 0, 1, HOSTS[4], 9, HOSTS[4], 0, 0)
    found = out.find(inside)
    assert START + found == at
    rows = gathered(out.ljust(FILE, b"\0"), FILE, found)
    assert [queue.topic for queue in rows.queues] == ["t"] and len(rows.physical) == 2


def test_a_short_topic_beside_a_long_one_is_read_at_the_end_of_the_file() -> None:
    view = b""
    for topic in ("x" * 200, "t"):
        place = START + len(view)
        view += encode_record(*topic_field(topic), 0, 7, place, b"", b"", 0, 0, 1, HOSTS[4], 9, HOSTS[4], 0, 0)
    assert [queue.topic for queue in gathered(view).queues] == ["x" * 200, "t"]


def test_a_topic_that_ends_with_a_zero_is_not_another_topic() -> None:
    view = bytearray(file_of([("tt", 0, 0, 5, ""), ("t", 0, 0, 5, "")]))
    at = searched(bytes(view))[0].physical_offset - START
    view[view.index(b"tt", at) + 1] = 0
    rows = gathered(bytes(view))
    check(bytes(view), rows)
    assert len(rows.physical) == 1


def test_records_of_a_topic_made_again_hide_those_before() -> None:
    first = file_of([("t", 0, 0, 5, "KEYS\x01k\x02")] * 3 + [("orders", 0, 0, 5, "")])
    end = sum(record.size for record in searched(first))
    again = encode_record(*topic_field("t"), 0, 0, START + end, b"new", b"", 0, 0, 1, HOSTS[4], 9, HOSTS[4], 0, 0)
    view = first[:end] + again + bytes(FILE - end - len(again))
    rows = gathered(view)
    check(view, rows)
    assert [(queue.topic, queue.end - queue.first, queue.hidden) for queue in rows.queues] == [
        ("orders", 1, False),
        ("t", 1, False),
        ("t", 3, True),
    ]


def test_offsets_that_go_back_to_another_than_0_refuse_the_file() -> None:
    first = file_of([("t", 0, 0, 5, "")] * 3)
    end = sum(record.size for record in searched(first))
    again = encode_record(*topic_field("t"), 0, 3, START + end, b"new", b"", 0, 0, 1, HOSTS[4], 9, HOSTS[4], 0, 0)
    with pytest.raises(DisorderedQueue, match="offset 3 after 7"):
        gathered(first[:end] + again + bytes(FILE - end - len(again)))


def test_bodies_are_compared_only_where_no_sum_has_proved_them() -> None:
    view = bytearray(file_of([("t", 0, 0, 50, "")] * 10))
    record = searched(bytes(view))[4]
    at = record.physical_offset - START
    view[at + 100] ^= 1
    assert len(gather(bytes(view), START, lambda topic: 0, []).physical) == 10
    assert len(gather(bytes(view), START, lambda topic: 0, [(0, at)]).physical) == 10
    assert len(gather(bytes(view), START, lambda topic: 0, [(at + record.size - 1, FILE)]).physical) == 9


def test_a_crc_with_a_bit_too_many_is_a_wrong_crc() -> None:
    view = bytearray(file_of([("t", 0, 0, 50, "")] * 10))
    view[searched(bytes(view))[4].physical_offset - START + HEAD_V4.starts["body_crc"]] ^= 0x80
    assert len(gather(bytes(view), START, lambda topic: 0, [(0, FILE)]).physical) == 9


def test_known_places_are_not_searched() -> None:
    view = file_of([("t", 0, 0, 50, "")] * 10)
    starts = gathered(view).physical[::2] - START
    rows = gather(view, START, lambda topic: 0, [], starts)
    assert (rows.physical - START).tolist() == starts.tolist() and not rows.rest


def test_a_file_with_much_that_is_no_record_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_rows_module, "MAX_REST_BYTES", 1000)
    with pytest.raises(TooDamaged):
        gathered(b"\x55" * FILE)
    assert len(gathered(bytes(FILE)).physical) == 0


def test_a_record_whose_size_has_changed_hides_none_of_those_after_it() -> None:
    view = bytearray(file_of([("t", 0, 0, 20, "")] * 10))
    records = searched(bytes(view))
    at = records[3].physical_offset - START
    # The record seems to end where a later record ends, or amid a record.
    for more in (records[4].size + records[5].size, 7, -3):
        view[at : at + 4] = (records[3].size + more).to_bytes(4, "big")
        rows = gathered(bytes(view))
        check(bytes(view), rows)
        assert len(rows.physical) == 9

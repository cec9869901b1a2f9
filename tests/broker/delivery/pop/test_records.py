"""Records of the revive log are read back, RocketMQ's too; anything else is an error of one kind."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.delivery.pop.records import (
    ACK,
    BATCH_ACK,
    CHECKPOINT,
    RELEASED,
    Ack,
    Key,
    PopCheckpoint,
    Queue,
    decode,
    encode,
)
from skylark.mqcommon.errors import ProtocolError

KEYS = st.builds(
    Key, st.builds(Queue, st.text("ab%_", min_size=1), st.text("T+%", min_size=1), st.integers(0, 9)),
    st.integers(0, 1 << 60), st.integers(0, 1 << 45),
)  # fmt: skip


@given(
    KEYS, st.lists(st.integers(1, 50), max_size=32), st.none() | st.integers(RELEASED, 1 << 60),
    st.integers(0, 7),
    st.booleans(), st.dictionaries(st.integers(0, 9), st.integers(0, 1 << 45), max_size=3),
)  # fmt: skip
def test_a_check_point_is_read_back(
    key: Key, steps: list[int], position: int | None, acked: int, is_ordered: bool, visible: dict[int, int]
) -> None:
    offsets = [key.start + sum(steps[:place]) for place in range(len(steps) + 1)]
    counts = tuple(range(len(offsets))) if is_ordered else ()
    record = PopCheckpoint(key, 60_000, tuple(offsets), position, acked, is_ordered, counts, visible, key, not acked)
    assert decode(CHECKPOINT, encode(record, "broker-a")) == record
    in_a_row = PopCheckpoint(key, 1, range(key.start, key.start + 3))
    assert decode(CHECKPOINT, encode(in_a_row, "broker-a")) == in_a_row


@given(KEYS, st.lists(st.integers(0, 1 << 60), min_size=1, max_size=32))
def test_an_acknowledgement_is_read_back(key: Key, offsets: list[int]) -> None:
    assert decode(BATCH_ACK, encode(Ack(key, offsets), "broker-a")) == Ack(key, offsets)


def test_records_of_rocketmq() -> None:
    key = Key(Queue("g", "T", 2), 10, 1_700_000_000_000)
    fields = {"so": 10, "pt": 1_700_000_000_000, "q": 2, "t": "T", "c": "g", "bn": "b"}
    ck = {**fields, "it": 1, "bm": 0, "n": 2, "ro": 0, "d": [0, 3], "rp": None}
    assert decode(CHECKPOINT, json.dumps(ck).encode()) == PopCheckpoint(key, 1, (10, 13))
    assert decode(ACK, json.dumps({**fields, "ao": 13}).encode()) == Ack(key, [13])


@pytest.mark.parametrize("tag", [CHECKPOINT, ACK, b"x"])
@given(body=st.binary(max_size=20) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(
    lambda value: json.dumps(value).encode()
))  # fmt: skip
def test_anything_else_is_one_kind_of_error(tag: bytes, body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(tag, body)

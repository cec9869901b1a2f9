"""Which light queues a record is in, by its properties."""

from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.message.layout import MAGIC_V1
from skylark.mqcommon.message.light import in_each_queue, is_in, light_places, offsets_property
from skylark.mqcommon.message.record import Record, decode_record, encode_record, topic_field

HOST = bytes(4) + (10911).to_bytes(4, "big")
SUFFIX = b"MSG_REGION\x01r\x02CLUSTER\x01c\x02TRACE_ON\x01true\x02"


def record(properties: bytes) -> Record:
    _, tail = topic_field("t")
    data = encode_record(MAGIC_V1, tail, 3, 7, 4096, b"x", properties, 0, 0, 1, HOST, 2, HOST, 0, 0)
    return decode_record(data)


names = st.lists(st.sampled_from("abcdefgh").map("%LMQ%".__add__), min_size=1, max_size=5, unique=True)


@given(names, st.data())
def test_the_offsets_that_a_broker_writes_are_read(queues: list[str], data: st.DataObject) -> None:
    offsets = [data.draw(st.integers(0, 2**62)) for _ in queues]
    own = f"TAGS\x01a\x02INNER_MULTI_DISPATCH\x01{','.join(queues)}\x02".encode()
    properties = own + SUFFIX + offsets_property(offsets)
    assert light_places(properties) == list(zip(queues, offsets, strict=True))
    stored = record(properties)
    found: list[Record] = []
    in_each_queue(found.append)(stored)
    assert [(at.topic, at.queue_id, at.queue_offset) for at in found] == [
        ("t", 3, 7),
        *((name, 0, offset) for name, offset in zip(queues, offsets, strict=True)),
    ]
    assert all(is_in(stored, at.topic, at.queue_id, at.queue_offset) for at in found)
    assert not is_in(stored, "t", 3, 8)
    assert not is_in(stored, queues[0], 1, offsets[0])
    assert not is_in(stored, queues[0], 0, offsets[0] + 1)


@given(names, st.lists(st.integers(0, 100), max_size=5))
def test_what_a_producer_writes_is_no_place(queues: list[str], offsets: list[int]) -> None:
    own = f"INNER_MULTI_DISPATCH\x01{','.join(queues)}\x02".encode() + offsets_property(offsets)
    assert light_places(own + SUFFIX) == []


@given(st.binary(max_size=60))
def test_any_properties_are_read(properties: bytes) -> None:
    light_places(properties)
    light_places(b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02INNER_MULTI_QUEUE_OFFSET\x01" + properties)
    light_places(b"INNER_MULTI_DISPATCH\x01" + properties + b"\x02INNER_MULTI_QUEUE_OFFSET\x015\x02")


def test_names_and_numbers_that_do_not_fit() -> None:
    for value, offsets in (
        (b"%LMQ%a", b"1,2"),
        (b"%LMQ%a,b", b"1,2"),
        (b"%LMQ%a", b"1x1"),
        (b"%LMQ%a", b"-1"),
        (b"", b"1"),
    ):
        properties = b"INNER_MULTI_DISPATCH\x01%s\x02INNER_MULTI_QUEUE_OFFSET\x01%s\x02" % (value, offsets)
        assert light_places(properties) == []

"""Messages of a pop that are alike: they are read and encoded together as one by one."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message.flags import COMPRESSED
from skylark.mqcommon.message.ids import encode_host
from skylark.mqcommon.message.layout import HEAD_V4
from skylark.mqcommon.message.record import encode_record, topic_field
from skylark.mqproxy.deliveries import Delivery, PoppedRun, deliveries_of
from skylark.mqproxy.stored import MessageEncoder
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.mqproxy.wire.fields import LAST_MS
from skylark.remoting.protocol.requests.pops import PopMessageResponseHeader

TOPIC = wire.Resource(resource_namespace="shop", name="orders")
NOW_MS = 1_700_000_000_000
KEYS = st.binary(min_size=12, max_size=12).filter(lambda key: b"\x02" not in key)
# Encoded properties before and after the unique key, which is the last of its name.
AFTER = st.sampled_from([b"", b"TAGS\x01tea\x02", b"XUNIQ_KEY\x01\x02", b"junk"])
BEFORE = AFTER | st.just(b"UNIQ_KEY\x01an older key\x02")
LONGS = st.integers(0, 2**63 - 1)


def record(number: int, key: bytes = b"", **others: Any) -> bytes:
    magic, topic = topic_field("orders")
    fields = {
        "queue_id": 3,
        "queue_offset": 100 + number,
        "physical_offset": 7_000 + 400 * number,
        "body": b"%08d" % number,
        "properties": b"TAGS\x01tea\x02UNIQ_KEY\x01%s\x02" % (key or b"%012d" % number),
        "flag": 0,
        "sys_flag": 0,
        "born_timestamp": NOW_MS,
        "born_host": encode_host("10.0.0.1", 9),
        "store_timestamp": NOW_MS + number,
        "store_host": encode_host("10.0.0.2", 10_911),
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
        **others,
    }
    return encode_record(magic, topic, **fields)


def popped(records: Sequence[bytes], starts: str = "0 3 100", *, is_ordered: bool = False) -> Sequence[Delivery]:
    header = PopMessageResponseHeader(NOW_MS, 60_000, 0, 0, starts)
    return deliveries_of(b"".join(records), header, "orders", "billing", "broker-ä", is_ordered=is_ordered)


def encoded(found: Sequence[Delivery]) -> list[bytes]:
    encoder = MessageEncoder(TOPIC)
    made = encoder.popped_run(found) if isinstance(found, PoppedRun) else [*map(encoder.popped, found)]
    assert not encoder.odd
    return made


@given(
    st.lists(st.tuples(KEYS, st.binary(min_size=5, max_size=5), LONGS, LONGS), min_size=2, max_size=5), BEFORE, AFTER
)
def test_messages_that_are_alike_are_encoded_as_one_by_one(
    rows: list[tuple[bytes, bytes, int, int]], before: bytes, after: bytes
) -> None:
    records = [
        record(
            number,
            body=body,
            properties=b"%s\x02UNIQ_KEY\x01%s\x02%s" % (before, key, after),
            queue_offset=offset,
            physical_offset=place,
        )
        for number, (key, body, offset, place) in enumerate(rows)
    ]
    found = popped(records)
    assert isinstance(found, PoppedRun) and len(found) == len(rows)
    assert encoded(found) == encoded([*found])
    assert [each.receipt.offset for each in found] == [offset for _, _, offset, _ in rows]


def test_messages_without_a_unique_key_are_named_by_their_places() -> None:
    found = popped([record(number, properties=b"TAGS\x01tea\x02") for number in range(3)])
    assert isinstance(found, PoppedRun)
    assert encoded(found) == encoded([*found])


@pytest.mark.parametrize(
    "other",
    [
        {"properties": b"TAGS\x01tea\x02UNIQ_KEY\x01ends\x02so\x01 now\x02"},  # as long as the others
        {"properties": b"TAGS\x01oat\x02UNIQ_KEY\x01%012d\x02" % 1},
        {"body": b"of another size"},
        {"sys_flag": COMPRESSED},
        {"born_host": encode_host("10.0.0.3", 9)},
        {"reconsume_times": 1},
        {"store_timestamp": LAST_MS + 1},
        {"flag": 1},
    ],
)
def test_a_message_that_differs_otherwise_is_read_by_itself(other: dict[str, Any]) -> None:
    found = popped([record(0), record(1, **other), record(2)])
    assert not isinstance(found, PoppedRun)
    assert [each.receipt.offset for each in found] == [100, 101, 102]


@pytest.mark.parametrize(("starts", "is_ordered"), [("0 3 100;0 4 7", False), ("1 3 100", False), ("0 3 100", True)])
def test_messages_of_several_queues_or_with_other_counts_are_read_one_by_one(starts: str, is_ordered: bool) -> None:
    records = [record(number, properties=b"POP_CK\x01100 1 2 0 1 broker-a 3 100\x02") for number in range(3)]
    found = popped(records, starts, is_ordered=is_ordered)
    assert not isinstance(found, PoppedRun) and len(found) == 3


def test_a_damaged_body_is_found() -> None:
    damaged = bytearray(record(1))
    damaged[HEAD_V4.size] ^= 1
    with pytest.raises(ProtocolError, match="CRC"):
        popped([record(0), bytes(damaged), record(2)])

"""Messages of a pop that are alike: they are read and encoded together as one by one."""

import re
import zlib
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message.flags import (
    BORN_HOST_V6,
    COMPRESSED,
    COMPRESSION_ZLIB,
    INNER_BATCH,
    NEED_UNWRAP,
    STORE_HOST_V6,
)
from skylark.mqcommon.message.ids import encode_host
from skylark.mqcommon.message.layout import HEAD_V4
from skylark.mqcommon.message.record import encode_record, topic_field
from skylark.mqproxy import deliveries as module
from skylark.mqproxy import stored
from skylark.mqproxy.deliveries import Delivery, InOrder, PoppedRun, Receipt, ReceiptRun, deliveries_of
from skylark.mqproxy.statuses import Refused
from skylark.mqproxy.stored import MessageEncoder
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.mqproxy.wire.fields import FIRST_MS, LAST_MS
from skylark.remoting.protocol.pop_info import parse_handle
from skylark.remoting.protocol.requests.pops import PopMessageResponseHeader
from skylark.sdk.consumer.damaged import log_left_out
from tests.support.amounts import amount

TOPIC = wire.Resource(resource_namespace="shop", name="orders")
NOW_MS = 1_700_000_000_000
KEYS = st.binary(min_size=12, max_size=12).filter(lambda key: b"\x02" not in key)
# Encoded properties before and after the unique key, which is the last of its name.
AFTER = st.sampled_from([b"", b"TAGS\x01tea\x02", b"XUNIQ_KEY\x01\x02", b"junk"])
BEFORE = AFTER | st.just(b"UNIQ_KEY\x01an older key\x02")
LONGS = st.integers(0, 2**63 - 1)
ANY_LONGS = st.integers(-(2**63), 2**63 - 1)
V4, V6 = encode_host("10.0.0.2", 10_911), encode_host("2001:db8::2", 10_911)
# Bodies, keys, and all properties have few sizes, so that records often have one size and differ all the same.
PAIRS = (
    *(b"UNIQ_KEY\x01key1\x02", b"UNIQ_KEY\x01k\x01\xffe\x02", b"UNIQ_KEY\x01a\x02\x02b\x02", b"UNIQ_KEY\x01\x02"),
    *(
        b"TAGS\x01tea\x02",
        b"TAGS\x01oat\x02",
        b"DELAY\x013\x02",
        b"_SYS_MSG_PRIORITY_\x017\x02",
        b"TRAN_MSG\x01true\x02",
    ),
    *(b"XUNIQ_KEY\x01x\x02", b"__BORNHOST\x01h\x02", b"\x02", b"\x01", b"UNIQ_KEY", b"\xff"),
)
PROPERTIES = st.lists(st.sampled_from(PAIRS), max_size=4).map(b"".join)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "topic": st.sampled_from(["orders", "orderz", "o" * 130]),
    "queue_id": st.sampled_from([3, 4, -1]),
    "queue_offset": ANY_LONGS,
    "physical_offset": ANY_LONGS,
    "body": st.sampled_from([b"apple", b"lemon", b"", b"melons"]),
    "properties": PROPERTIES,
    "flag": st.sampled_from([0, 7]),
    "sys_flag": st.sampled_from(
        [0, 0, 2, 4, 8, COMPRESSED, BORN_HOST_V6, STORE_HOST_V6, INNER_BATCH, NEED_UNWRAP, 0x300]
    ),
    "born_timestamp": st.sampled_from([NOW_MS, 0, FIRST_MS, FIRST_MS - 1]),
    "store_timestamp": st.sampled_from([NOW_MS, LAST_MS, LAST_MS + 1, -1]),
    "reconsume_times": st.sampled_from([0, 1, -2, 2**31 - 1]),
    "prepared_transaction_offset": st.sampled_from([0, 9]),
}


@st.composite
def popped_bytes(draw: st.DrawFn) -> bytes:
    """The records of an answer to a pop: most fields are the same in all, and a few bytes may be damaged."""
    common = {name: draw(values) for name, values in FIELDS.items()}
    if draw(st.integers(0, 2)):
        common |= {
            "sys_flag": draw(st.sampled_from([0, 2, 8, 0x300])),
            "born_timestamp": NOW_MS,
            "store_timestamp": NOW_MS,
        }
    records = []
    for _ in range(draw(st.integers(2, 4))):
        own = {name: draw(FIELDS[name]) for name in ("queue_offset", "physical_offset")}
        if draw(st.integers(0, 4)) == 0:
            name = draw(st.sampled_from(sorted(FIELDS)))
            own[name] = draw(FIELDS[name])
        fields = {**common, **own}
        magic, topic = topic_field(fields.pop("topic"))
        hosts = {
            name: V6 if fields["sys_flag"] & bit else V4
            for name, bit in (("born_host", BORN_HOST_V6), ("store_host", STORE_HOST_V6))
        }
        records.append(encode_record(magic, topic, **fields, **hosts))
    data = bytearray(b"".join(records))
    if draw(st.integers(0, 3)) == 0:
        data[draw(st.integers(0, len(data) - 1))] ^= draw(st.integers(1, 255))
    return bytes(data)


class Alone(stored._Alike):
    """What one message has in common with no other."""

    def includes(self, *_: Any) -> bool:
        return False


def record(number: int, key: bytes = b"", topic: str = "orders", **others: Any) -> bytes:
    magic, topic_part = topic_field(topic)
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
    return encode_record(magic, topic_part, **fields)


def popped(
    records: Sequence[bytes], starts: str = "0 3 100", places: str | None = None, *, is_ordered: bool = False
) -> Sequence[Delivery]:
    header = PopMessageResponseHeader(NOW_MS, 60_000, 0, 0, starts, places)
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


def answers(data: bytes) -> tuple[list[bytes], list[int], list[tuple[str, int, int]]] | None:
    """The encoded messages of a pop, the offsets of those without a time, and their receipts; None for no answer."""
    header = PopMessageResponseHeader(NOW_MS, 60_000, 0, 0, "0 3 100")
    try:
        found = deliveries_of(data, header, "orders", "billing", "broker-a", is_ordered=False)
        encoder = MessageEncoder(TOPIC)
        made = encoder.popped_run(found) if isinstance(found, PoppedRun) else [*map(encoder.popped, found)]
    except ProtocolError:
        return None
    receipts = [(str(each.receipt), each.attempt, each.invisible_ms) for each in found]
    return made, [message.queue_offset for message in encoder.odd], receipts


@settings(max_examples=amount(60, 3_000))
@given(popped_bytes())
def test_any_messages_are_encoded_as_if_each_were_alone(data: bytes) -> None:
    together = answers(data)
    with patch.object(module, "columns_of", lambda data: None), patch.object(stored, "_Alike", Alone):
        assert answers(data) == together


USUAL = b"TAGS\x01tea\x02UNIQ_KEY\x01000000000000\x02KEYS\x01a\x02"


def alone(found: Sequence[Delivery]) -> list[bytes]:
    return [MessageEncoder(TOPIC).popped(each) for each in found]


@pytest.mark.parametrize(
    "other",
    [
        USUAL.replace(b"000000000000", b"0000"),
        USUAL.replace(b"000000000000", b"0" * 20),
        USUAL.replace(b"000000000000", b""),
        USUAL.replace(b"000000000000", b"0000\x02SEE\x01its"),
        USUAL.replace(b"tea", b"oat"),
        USUAL.replace(b"KEYS\x01a", b"KEYS\x01b"),
        USUAL.replace(b"UNIQ_KEY", b"uniq_key"),
        b"UNIQ_KEY\x01000000000000\x02TAGS\x01tea\x02KEYS\x01a\x02",
        USUAL + b"UNIQ_KEY\x01once more",
        b"",
    ],
)
def test_properties_of_neighbours_are_not_mixed_up(other: bytes) -> None:
    for both in ((USUAL, other), (other, USUAL)):
        found = popped([record(number, properties=properties) for number, properties in enumerate(both)])
        assert encoded(found) == alone(found)


def test_deliveries_of_one_message_by_several_pops_have_their_own_receipts() -> None:
    (first,) = popped([record(0)])
    later = first._replace(receipt=first.receipt._replace(pop_text="7 1 1 0 0 broker-a 3"))
    longer = first._replace(invisible_ms=1)
    assert encoded([first, later, longer, first]) == alone([first, later, longer, first])


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


def test_a_part_of_a_record_at_the_end_is_left_out() -> None:
    assert [each.receipt.offset for each in popped([record(0), record(1), record(2)[:-1]])] == [100, 101]


@pytest.mark.parametrize(
    "fields",
    [
        {"sys_flag": COMPRESSED | COMPRESSION_ZLIB, "body": zlib.compress(b"packed")},
        # Without a body no CRC shows that the fields after the hosts are elsewhere.
        {"sys_flag": BORN_HOST_V6, "born_host": V6, "body": b""},
        {"sys_flag": STORE_HOST_V6, "store_host": V6, "body": b""},
        {"sys_flag": NEED_UNWRAP},
        {"born_timestamp": FIRST_MS - 1},
        {"store_timestamp": LAST_MS + 1},
    ],
)
def test_messages_that_are_not_plain_are_read_one_by_one_though_they_are_alike(fields: dict[str, Any]) -> None:
    found = popped([record(number, **fields) for number in range(3)])
    assert not isinstance(found, PoppedRun) and len(found) == 3


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topic", "orderz"),
        ("queue_id", 4),
        ("flag", 7),
        ("sys_flag", 8),
        ("born_host", V6[-8:]),
        ("store_host", V6[-8:]),
        ("reconsume_times", 1),
        ("prepared_transaction_offset", 9),
        ("properties", b"TAGS\x01oat\x02UNIQ_KEY\x01000000000000\x02KEYS\x01a\x02"),
        ("properties", b"TAGS\x01tea\x02UNIQ_KEY\x01000000000000\x02KEYS\x01b\x02"),
        ("properties", b"TAGS\x01tea\x02UNIQ_KEY\x01000000\x02\x02a\x01bc\x02KEYS\x01a\x02"),
    ],
)
def test_messages_are_alike_if_they_differ_in_no_other_field(name: str, value: Any, number: int) -> None:
    records = [record(each, properties=USUAL) for each in range(3)]
    assert isinstance(popped(records), PoppedRun)
    records[number] = record(number, **{"properties": USUAL, name: value})
    assert len(records[number]) == len(records[number - 1])
    assert not isinstance(popped(records), PoppedRun)


@pytest.mark.parametrize(("starts", "is_ordered"), [("0 3 100;0 4 7", False), ("1 3 100", False), ("0 3 100", True)])
def test_messages_of_several_queues_or_with_other_counts_are_read_one_by_one(starts: str, is_ordered: bool) -> None:
    records = [record(number, properties=b"POP_CK\x01100 1 2 0 1 broker-a 3 100\x02") for number in range(3)]
    found = popped(records, starts, is_ordered=is_ordered)
    assert not isinstance(found, PoppedRun) and len(found) == 3


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def offsets(found: Sequence[Delivery]) -> list[int]:
    return [each.receipt.offset for each in found]


AGAIN = b"POP_CK\x01100 1 2 0 1 broker-a 3 100\x02"
# (the queues, offsets and records of a pop, whose second record is damaged; the offsets that are delivered)
DAMAGED_POPS = {
    "one queue": ("0 3 100", "0 3 100,101,102", [record(each) for each in range(3)], [100, 102]),
    "two queues": (
        "0 3 100;0 4 7",
        "0 3 100,101;0 4 7",
        [*map(record, range(2)), record(2, queue_id=4, queue_offset=7)],
        [100, 7],
    ),
    "retries": ("1 3 100", "1 3 100,101,102", [record(each, properties=AGAIN) for each in range(3)], [100, 102]),
}


@pytest.mark.parametrize("name", DAMAGED_POPS)
def test_a_damaged_message_is_left_out_of_a_pop_and_logged_once(name: str, caplog: pytest.LogCaptureFixture) -> None:
    log_left_out.cache_clear()
    starts, places, records, left = DAMAGED_POPS[name]
    records = [flipped(each, HEAD_V4.size) if number == 1 else each for number, each in enumerate(records)]
    assert [offsets(popped(records, starts, places)) for _ in range(2)] == [left, left]
    (line,) = caplog.messages
    assert line.startswith("message 101 of queue 3 of topic ") and "body does not match its CRC" in line
    assert line.endswith("To examine the broker's store, stop the broker and run: broker verifyStore")


# (at which byte the second of three messages is damaged, how often they were delivered before: what is delivered, and
# given up)
IN_ORDER = [
    (HEAD_V4.size, "", [100], []),
    (HEAD_V4.size, "0 3 0", [100], []),
    (HEAD_V4.size, "0 3 1", [100, 102], [101]),
    (HEAD_V4.size, "0 qo3%101 2;0 3 0", [100, 102], [101]),
    # Where the next record begins is not known: the messages after the damaged message come again.
    (HEAD_V4.places("magic")[0], "0 3 0", [100], []),
    (HEAD_V4.places("magic")[0], "0 3 1", [100], [101]),
    (HEAD_V4.places("size")[-1], "0 3 1", [100], [101]),
]


@pytest.mark.parametrize(("at", "counts", "left", "given_up"), IN_ORDER)
def test_an_order_waits_once_for_a_damaged_message_and_then_goes_on_without_it(
    at: int, counts: str, left: list[int], given_up: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    log_left_out.cache_clear()
    records = [record(0), flipped(record(1), at), record(2), record(3, queue_id=4, queue_offset=7)]
    header = PopMessageResponseHeader(NOW_MS, 60_000, 0, 0, "0 3 100;0 4 7", "0 3 100,101,102;0 4 7", counts)
    found = deliveries_of(b"".join(records), header, "orders", "billing", "broker-a", is_ordered=True)
    assert isinstance(found, InOrder)
    assert offsets(found) == [*left, *([7] if at == HEAD_V4.size else [])], "other queues do not wait"
    assert [receipt.offset for receipt in found.given_up] == given_up
    assert [str(receipt).split()[6:] for receipt in found.given_up] == [["3", "101", "0"]] * len(given_up)
    (line,) = caplog.messages
    assert ("goes on without it" if given_up else "wait until it is delivered again") in line


@pytest.mark.parametrize("places", [None, "0 3 100", "0 3 100,x,102", "0 3 100,99,102", f"0 3 100,{2**62},102"])
def test_an_order_gives_up_no_message_that_its_pop_cannot_have(places: str | None) -> None:
    records = [record(0), flipped(record(1), HEAD_V4.size), record(2)]
    header = PopMessageResponseHeader(NOW_MS, 60_000, 0, 0, "0 3 100", places, "0 3 1")
    found = deliveries_of(b"".join(records), header, "orders", "billing", "broker-a", is_ordered=True)
    assert isinstance(found, InOrder)
    assert (offsets(found), [receipt.offset for receipt in found.given_up]) == ([100, 102], [101])


@pytest.mark.parametrize("starts", ["0 3 " + "9" * 5_000, "0 " + "9" * 5_000 + " 100"])
def test_an_answer_whose_numbers_are_too_long_cannot_be_read(starts: str) -> None:
    with pytest.raises(ProtocolError, match="cannot be read"):
        popped([record(0), record(1)], starts)


# Parts of receipts: numbers as clients get them, and what Python also takes for a number.
PARTS = st.sampled_from(
    ["0", "7", "65536", str(2**63 - 1), str(2**63), "", "-1", "+1", "1_0", "1\n", "\u0661", "\xb2", "x"]
)
HEADS = st.sampled_from(
    [f"0 {NOW_MS} 60000 0 0 broker-a 0", f"5 {NOW_MS} 60000 0 0 broker-b 0", f"0 {NOW_MS} 1 0 0 c 0"]
)
RECEIPTS = st.tuples(HEADS | PARTS, PARTS, PARTS).map(" ".join) | st.just("")
GOOD_RECEIPTS = st.tuples(HEADS, st.sampled_from("579"), st.sampled_from("07")).map(" ".join)


def is_receipt(text: str, now_ms: int) -> bool:
    parts = re.fullmatch("(.*) ([0-9]+) ([0-9]+)", text, re.DOTALL)
    if parts is None or int(parts[3]) >= 2**63:
        return False
    try:
        pop = parse_handle(parts[1])
    except ValueError:
        return False
    is_in_time = pop.pop_time + pop.invisible_time > now_ms
    return pop.offset is None and is_in_time and 0 <= int(parts[2]) - pop.start_offset < 65_536


@pytest.mark.parametrize(
    "odd", ["", "-1", "+7", "1_0", "7\n", "\u0661", "\xb2", "x", "7.0", "9" * 600, f"{2**63}", f"{2**64}"]
)
@pytest.mark.parametrize("form", [f"0 {NOW_MS} 60000 0 0 broker-a 0 %s 7", f"0 {NOW_MS} 60000 0 0 broker-a 0 7 %s"])
def test_a_receipt_with_what_is_no_number_is_refused_wherever_it_stands(form: str, odd: str) -> None:
    good = f"0 {NOW_MS} 60000 0 0 broker-a 0 5 7"
    for texts in ([form % odd], [form % odd, good], [good, form % odd], [good, form % odd, good]):
        with pytest.raises(Refused):
            Receipt.parse_all(texts, NOW_MS)


@pytest.mark.parametrize(
    "odd",
    [
        ["5 7;", "5 7"],
        ["5 7 8", "5"],
        ["5", "7 8 9"],
        [f"5 7;0 {NOW_MS} 60000 0 0 broker-a 0 6 8", "5 7"],
        ["5 7", f"0 {NOW_MS} 60000 0 0 broker-a 0 5 7"],
    ],
)
def test_receipts_whose_parts_stand_in_other_receipts_are_refused(odd: list[str]) -> None:
    texts = [f"0 {NOW_MS} 60000 0 0 broker-a 0 {rest}" for rest in odd]
    for each in (texts, texts[::-1]):
        with pytest.raises(Refused):
            Receipt.parse_all(each, NOW_MS)


def test_receipts_of_one_pop_are_read_as_a_run() -> None:
    texts = [f"3 {NOW_MS} 60000 0 0 broker-a 0 {offset} {offset * 300}" for offset in (5, 4, 9)]
    found = Receipt.parse_all(texts, NOW_MS)
    assert isinstance(found, ReceiptRun) and found.bits == 0b1000110
    assert [*map(str, found)] == texts and found[1:] == [*found][1:] and found[-1] == [*found][-1]
    others = [*texts, f"3 {NOW_MS} 60000 0 0 broker-b 0 5 7"]
    assert [*map(str, Receipt.parse_all(others, NOW_MS))] == others


def test_a_receipt_names_an_offset_that_its_pop_can_have() -> None:
    def read(offset: int) -> Receipt:
        return Receipt.parse(f"8 {NOW_MS} 60000 0 0 broker-a 0 {offset} 7", NOW_MS)

    assert [read(offset).offset for offset in (8, 65_543)] == [8, 65_543]
    for offset in (7, 65_544):
        with pytest.raises(Refused, match="cannot have"):
            read(offset)


def test_a_receipt_is_of_use_until_its_message_is_shown_again() -> None:
    texts = [f"0 {NOW_MS} {hidden_ms} 0 0 broker-a 0 5 7" for hidden_ms in (90_000, 60_000, 90_000)]
    assert len(Receipt.parse_all(texts, NOW_MS + 59_999)) == 3
    with pytest.raises(Refused, match="expired"):
        Receipt.parse_all(texts, NOW_MS + 60_000)


@given(st.lists(RECEIPTS, max_size=1), st.lists(GOOD_RECEIPTS, max_size=3), st.integers(0, 3))
@example([f"0 {NOW_MS} 60000 0 0 broker-a 0 1_0 7"], [f"0 {NOW_MS} 60000 0 0 broker-a 0 5 7"], 1)
def test_receipts_of_one_call_are_read_as_one_by_one(odd: list[str], good: list[str], at: int) -> None:
    texts, now_ms = [*good[:at], *odd, *good[at:]], NOW_MS + 1 if at else NOW_MS
    if all(is_receipt(text, now_ms) for text in texts):
        found = Receipt.parse_all(texts, now_ms)
        assert [*map(str, found)] == [re.sub(r" 0*(?=[0-9])", " ", text) for text in texts]
        assert [*found] == [Receipt.parse(text, now_ms) for text in texts]
    else:
        with pytest.raises(Refused):
            Receipt.parse_all(texts, now_ms)

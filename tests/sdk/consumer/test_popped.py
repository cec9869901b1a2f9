"""The messages in a broker's answer to a pop, and their leases."""

import pytest

from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message.layout import HEAD_V4
from skylark.mqcommon.message.properties import POP_HANDLE
from skylark.remoting.protocol.pop_info import NORMAL, RETRY_V1, PopHandle
from skylark.remoting.protocol.requests.pops import PopMessageResponseHeader
from skylark.sdk.consumer.damaged import log_left_out
from skylark.sdk.consumer.popped import DamagedMessage, bits_by_lease, received
from tests.sdk.fakes import record

FIRST = 1_000_000
# Two queues of the topic, and one of the retry topic.
HEADER = PopMessageResponseHeader(1_000, 60_000, 0, 0, f"0 0 {FIRST};0 1 7;1 0 2")
LATER, FAR_BEFORE = (str(PopHandle(start, 1_000, 60_000, 0, NORMAL, "broker-a", 0, FIRST)) for start in (FIRST + 1, 0))


@pytest.mark.parametrize("handle", ["", "odd", LATER, FAR_BEFORE, f"{FIRST} {2**63} 60000 0 0 broker-a 0 {FIRST}"])
def test_a_senders_own_handle_property_costs_no_message_of_the_pop(handle: str) -> None:
    odd = record("t", 0, FIRST, b"odd", POP_CK=handle)
    data = odd + record("t", 1, 7, b"good")
    messages = received(data, HEADER, "t", "g", "broker-a", "")
    leases = [(lease.queue_id, lease.start_offset, bits) for lease, bits in bits_by_lease(messages).items()]
    assert leases == [(0, FIRST, 1), (1, 7, 1)]


def test_a_message_that_comes_again_has_the_lease_of_its_handle() -> None:
    again = PopHandle(2, 1_000, 60_000, 0, RETRY_V1, "broker-a", 0, 3)
    data = record("t", 0, FIRST, b"new") + record("t", 0, 3, b"again", **{POP_HANDLE: str(again)})
    first, second = received(data, HEADER, "t", "g", "broker-a", "")
    assert (first.lease.retry, first.lease.start_offset) == (NORMAL, FIRST)
    assert second.lease.handle(3) == again


def changed(whole: bytes, at: int) -> bytes:
    return whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]


def again(offset: int, body: bytes) -> bytes:
    handle = PopHandle(2, 1_000, 60_000, 0, RETRY_V1, "broker-a", 0, offset)
    return record("t", 0, offset, body, **{POP_HANDLE: str(handle)})


BODY, SIZE, MAGIC = HEAD_V4.size, HEAD_V4.places("size")[-1], HEAD_V4.places("magic")[0]
PROPERTIES = BODY + len(b"x") + len(b"\x01t")
QUEUE = HEAD_V4.places("queue_id")[0]
# What the broker says, the records, the number of the damaged one, and its place.
POPS = {
    "one queue": ("0 0 5", "0 0 5,6,7", [record("t", 0, offset, b"x") for offset in (5, 6, 7)], 1, (NORMAL, 0, 6)),
    "several queues": (
        "0 0 5;0 1 8", "0 0 5,7;0 1 8", [record("t", *place, b"x") for place in ((0, 5), (0, 7), (1, 8))], 1,
        (NORMAL, 0, 7),
    ),
    "a message that comes again": (
        "1 0 2", "1 0 2,3,4", [again(offset, b"x") for offset in (2, 3, 4)], 2, (RETRY_V1, 0, 4),
    ),
    "both": ("0 1 8;1 0 2", "0 1 8;1 0 2", [record("t", 1, 8, b"x"), again(2, b"x")], 0, (NORMAL, 1, 8)),
}  # fmt: skip


@pytest.mark.parametrize("says_offsets", [True, False])
@pytest.mark.parametrize("at", [BODY, PROPERTIES, SIZE, MAGIC])
@pytest.mark.parametrize("name", POPS)
def test_a_damaged_message_costs_no_other_its_delivery(name: str, at: int, says_offsets: bool) -> None:
    starts, offsets, records, bad, place = POPS[name]
    header = PopMessageResponseHeader(1_000, 60_000, 0, 0, starts, offsets if says_offsets else None)
    if name == "a message that comes again" and at == PROPERTIES:
        at -= 2  # of messages with properties the length of the topic
    data = b"".join(changed(each, at) if number == bad else each for number, each in enumerate(records))
    damaged: list[DamagedMessage] = []
    found = received(data, header, "t", "g", "broker-a", "", damaged.append)
    # Where a record ends that has another size or magic is not known, nor what comes after it.
    last = bad if at in (SIZE, MAGIC) else len(records)
    assert [each.queue_offset for each in found] == [
        received(each, header, "t", "g", "broker-a", "")[0].queue_offset
        for number, each in enumerate(records[:last])
        if number != bad
    ]
    (message,) = damaged
    if says_offsets:
        assert (message.lease.retry, message.lease.queue_id, message.offset) == place


def test_a_message_of_a_queue_that_was_not_popped_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    log_left_out.cache_clear()
    data = changed(record("t", 0, FIRST, b"odd"), QUEUE) + record("t", 1, 7, b"good")
    for _ in range(2):
        (message,) = received(data, HEADER, "t", "g", "broker-a", "")
        assert (message.queue_id, message.body) == (1, b"good")
    (line,) = caplog.messages
    assert "was not popped" in line and line.endswith("broker verifyStore")


@pytest.mark.parametrize("starts", ["0 0", "0 x 5", "0 0 x"])
def test_an_answer_without_the_offsets_of_its_queues_cannot_be_read(starts: str) -> None:
    with pytest.raises(ProtocolError, match="cannot be read"):
        received(record("t", 0, 5, b"x"), PopMessageResponseHeader(1_000, 60_000, 0, 0, starts), "t", "g", "b", "")

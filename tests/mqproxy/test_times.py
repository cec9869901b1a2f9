"""Times that protobuf does not have, both ways: one odd message never costs another its delivery."""

import logging
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message.flags import COMPRESSED
from skylark.mqcommon.message.ids import encode_host
from skylark.mqcommon.message.message import MessageExt, decode_messages
from skylark.mqcommon.message.properties import encode_properties
from skylark.mqcommon.message.record import encode_record, topic_field
from skylark.mqproxy.deliveries import Delivery, Receipt
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.polls import Poll
from skylark.mqproxy.sending import BORN_TIMESTAMP, DELIVER_AT, sdk_messages
from skylark.mqproxy.service import Calls, OddTimes
from skylark.mqproxy.statuses import Refused
from skylark.mqproxy.stored import MessageEncoder, stored_message
from skylark.mqproxy.times import ms_of
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.sdk.consumer.damaged import log_left_out
from tests.support.clock import ManualClock

HOST = encode_host("127.0.0.1", 10911)
NOW_MS = 1_700_000_000_000
TOPIC = wire.Resource(name="orders")
LONGS = st.integers(-(2**63), 2**63 - 1)
# Milliseconds, as others write them: microseconds, nanoseconds, and the ends of all ranges.
ODD = [NOW_MS * 1_000, NOW_MS * 1_000_000, 253_402_300_800_000, -62_135_596_800_001, 2**63 - 1, -(2**63)]
EVEN = [0, -1, NOW_MS, 253_402_300_799_999, -62_135_596_800_000]


def stored(
    born_ms: int = NOW_MS, store_ms: int = NOW_MS, times: int = 0, *, sys_flag: int = 0, **properties: str
) -> MessageExt:
    magic, topic = topic_field("orders")
    data = encode_record(
        magic, topic, 0, 1, 0, b"x", encode_properties(properties).encode(), 0, sys_flag, born_ms, HOST, store_ms, HOST,
        times, 0,
    )  # fmt: skip
    (message,) = decode_messages(data)
    return message


def delivery(message: MessageExt) -> Delivery:
    receipt = Receipt.parse(f"1 {NOW_MS} 60000 0 0 broker-a 0 1 7", NOW_MS)
    return Delivery(cast(Any, message), receipt, message.reconsume_times + 1, 60_000)


def received_message(message: MessageExt) -> wire.Message:
    """The message as a client receives it."""
    return wire.ReceiveMessageResponse.FromString(MessageEncoder(TOPIC).popped(delivery(message))).message


@pytest.mark.parametrize("ms", ODD)
def test_a_time_that_protobuf_does_not_have_is_left_out(ms: int) -> None:
    system = received_message(stored(ms, ms, TIMER_DELIVER_MS=str(ms))).system_properties
    assert not any(map(system.HasField, ("born_timestamp", "store_timestamp", "delivery_timestamp")))


@pytest.mark.parametrize("ms", EVEN)
def test_others_are_there(ms: int) -> None:
    system = received_message(stored(ms, ms)).system_properties
    assert (system.born_timestamp.ToMilliseconds(), system.store_timestamp.ToMilliseconds()) == (ms, ms)


@given(LONGS, LONGS, st.integers(-(2**31), 2**31 - 1), LONGS.map(str) | st.text(max_size=30))
def test_no_stored_number_keeps_a_message_from_being_handed_out(
    born_ms: int, store_ms: int, times: int, deliver_at: str
) -> None:
    message = stored(born_ms, store_ms, times, **{DELIVER_AT: deliver_at})
    assert received_message(message).body == b"x"


def test_a_message_that_cannot_be_shown_is_an_error() -> None:
    bad = stored(sys_flag=COMPRESSED)
    with pytest.raises(ProtocolError, match="compressed body is cut short"):
        stored_message(bad, TOPIC)


def test_a_message_that_cannot_be_shown_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    log_left_out.cache_clear()
    bad, good = stored(sys_flag=COMPRESSED), stored(UNIQ_KEY="good")
    calls = Calls(ProxyOptions(), cast(Any, None), cast(Any, None), 0)
    (pulled,) = calls._readable([bad, good], TOPIC)
    assert wire.PullMessageResponse.FromString(pulled).message.system_properties.message_id == "good"
    poll = Poll(cast(Any, None), "client", cast(Any, None), (), is_renewed=False)
    (popped,) = calls._handed_out(poll, [delivery(bad), kept := delivery(good)], TOPIC)
    assert wire.ReceiveMessageResponse.FromString(popped).message.system_properties.message_id == "good"
    assert poll.unsent is not None and list(poll.unsent) == [kept]
    assert [text.partition(", ")[0] for text in caplog.messages] == [
        "message 1 of queue 0 of topic orders at broker  is damaged and left out"
    ] * 2


def test_odd_times_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    clock = ManualClock()
    odd = OddTimes(clock)
    encoder = MessageEncoder(TOPIC)
    encoder.pulled(stored(ODD[0], UNIQ_KEY="an-id"))
    encoder.pulled(stored())
    assert len(encoder.odd) == 1
    odd.note([])
    assert not caplog.messages
    for _ in range(3):
        odd.note(encoder.odd)
    clock.advance(60_000)
    odd.note(encoder.odd)
    assert [text.split()[0] for text in caplog.messages] == ["1", "3"]
    assert "an-id of topic orders" in caplog.text


def sent(**times: tuple[int, int]) -> wire.Message:
    message = wire.Message(topic=TOPIC, system_properties=wire.SystemProperties(message_id="an-id"), body=b"x")
    for name, (seconds, nanos) in times.items():
        field = getattr(message.system_properties, name)
        field.seconds, field.nanos = seconds, nanos
    return message


@pytest.mark.parametrize("time", [(2**63 - 1, 0), (-(2**63), 0), (253_402_300_800, 0), (0, -1), (0, 2**31 - 1)])
def test_a_client_is_told_of_a_delivery_time_that_is_none_and_its_born_time_is_left_out(time: tuple[int, int]) -> None:
    with pytest.raises(Refused, match="between the years") as caught:
        sdk_messages([sent(delivery_timestamp=time)], ProxyOptions(), "127.0.0.1", NOW_MS)
    assert caught.value.code == wire.ILLEGAL_DELIVERY_TIME
    (made,) = sdk_messages([sent(born_timestamp=time)], ProxyOptions(), "127.0.0.1", NOW_MS)
    assert BORN_TIMESTAMP not in (made.properties or {})


@given(LONGS, st.integers(-(2**31), 2**31 - 1))
def test_every_time_of_a_client_is_read_or_none(seconds: int, nanos: int) -> None:
    field = sent(born_timestamp=(seconds, nanos)).system_properties.born_timestamp
    found = ms_of(field)
    assert found is None or found == seconds * 1_000 + nanos // 1_000_000

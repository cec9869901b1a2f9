"""What becomes of a message that is not to be delivered yet: it waits, and is the same message when it comes out."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.writing.deferred import Deferral, deliver_time, from_level, from_timer, slot_of
from skylark.broker.writing.stored_properties import Incoming, is_timed
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.message.ids import RecallHandle, UniqueKeys
from skylark.mqcommon.message.properties import find_property
from skylark.mqcommon.message.record import Record, decode_record, encode_record, topic_field
from skylark.mqcommon.names import SCHEDULE_TOPIC, TIMER_TOPIC
from skylark.remoting.protocol.codes import ResponseCode
from tests.broker.meta.support import options
from tests.support.clock import ManualClock

HOST = bytes(8)
MAX_S = 10


def message(properties: bytes, topic: str = "t", queue_id: int = 3) -> Incoming:
    return Incoming(topic, queue_id, b"body", properties, 7, 1, 11, HOST, 2)


def deferred(properties: bytes, topic: str = "t", clock: ManualClock | None = None, **changes: Any) -> Incoming:
    """The message with these properties after it was deferred."""
    broker_options = options(timer_max_delay_sec=MAX_S, **changes)
    into = message(properties, topic)
    Deferral(broker_options, UniqueKeys("127.0.0.1", 1, 1), clock or ManualClock()).defer(into)
    return into


def stored(message: Incoming) -> Record:
    return decode_record(
        encode_record(
            *topic_field(message.topic), message.queue_id, 5, 700, message.body, message.properties, message.flag,
            message.sys_flag, message.born_timestamp, message.born_host, 9, HOST, message.reconsume_times, 0,
        )
    )  # fmt: skip


@given(st.integers(1, 30), st.lists(st.sampled_from([b"TAGS\x01a\x02", b"K\x01v\x02", b"REAL_TOPIC\x01old\x02"])))
def test_into_a_level_and_out_of_it(level: int, others: list[bytes]) -> None:
    rest = b"".join(others)
    into = deferred(b"DELAY\x01%d\x02" % level + rest)
    assert (into.topic, into.queue_id) == (SCHEDULE_TOPIC, min(level, 18) - 1)
    kept = rest.replace(b"REAL_TOPIC\x01old\x02", b"")
    assert from_level(stored(into)) == message(kept + b"REAL_TOPIC\x01t\x02REAL_QID\x013\x02")


@pytest.mark.parametrize(
    "properties",
    [
        *(b"", b"DELAY\x010\x02", b"DELAY\x01-1\x02", b"NODELAY\x013\x02", b"TAGS\x01a\x02"),
        # a time in the past, or of a message that was delivered
        *(b"TIMER_DELIVER_MS\x015\x02", b"TIMER_DELAY_SEC\x010\x02", b"TIMER_DELAY_MS\x01-7\x02"),
        b"TIMER_DELAY_SEC\x013\x02TIMER_OUT_MS\x019\x02",
    ],
)
def test_a_message_that_asks_for_nothing_is_left_as_it_is(properties: bytes) -> None:
    assert not is_timed(properties, ManualClock().now_ms())
    assert deferred(properties) == message(properties)


def test_levels_above_the_highest_mean_the_highest() -> None:
    into = deferred(b"DELAY\x0118\x02", message_delay_level="1s 2s")
    assert (into.queue_id, find_property(into.properties, b"DELAY")) == (1, b"2")


@pytest.mark.parametrize(
    "properties",
    [
        b"DELAY\x013\x02",
        b"REAL_QID\x010\x02",
        b"REAL_TOPIC\x01t\x02",
        b"REAL_TOPIC\x01t\x02REAL_QID\x01-1\x02",
        b"REAL_TOPIC\x01t\x02REAL_QID\x0199999999999\x02",
        b"REAL_TOPIC\x01SCHEDULE_TOPIC_XXXX\x02REAL_QID\x010\x02",
        b"REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010\x02",
        b"REAL_TOPIC\x01RMQ_SYS_TRANS_OP_HALF_TOPIC\x02REAL_QID\x010\x02",
    ],
)
def test_a_message_that_does_not_say_where_to_go_is_an_error(properties: bytes) -> None:
    for out in (from_level, from_timer):
        with pytest.raises(ValueError, match="as its own"):
            out(stored(message(properties, SCHEDULE_TOPIC)))


@pytest.mark.parametrize(
    "text",
    [b"TIMER_DELAY_SEC\x013\x02", b"TIMER_DELAY_MS\x013000\x02", b"TIMER_DELIVER_MS\x01%d\x02",
     b"__STARTDELIVERTIME\x01%d\x02"],
)  # fmt: skip
def test_a_timed_message_waits_in_a_slot_with_its_own_topic_and_queue(text: bytes) -> None:
    clock = ManualClock()
    due = clock.now_ms() + 3_000
    into = deferred((text % due if b"%" in text else text) + b"UNIQ_KEY\x01k\x02", clock=clock)
    slot = (due - 1) // 1_000 * 1_000
    assert (into.topic, into.queue_id) == (TIMER_TOPIC, 0)
    names = (b"TIMER_OUT_MS", b"REAL_TOPIC", b"REAL_QID", b"UNIQ_KEY")
    assert [find_property(into.properties, name) for name in names] == [b"%d" % slot, b"t", b"3", b"k"]
    assert into.recall == RecallHandle("t", "broker-a", slot + 1, "k")
    out = from_timer(stored(into))
    assert (out.topic, out.queue_id, out.origin) == ("t", 3, 701)


def test_a_delay_level_counts_more_than_a_time() -> None:
    assert deferred(b"TIMER_DELAY_SEC\x013\x02DELAY\x011\x02").topic == SCHEDULE_TOPIC


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"TIMER_DELAY_MS\x01%d\x02" % (MAX_S * 1_000 + 1), "bigger than the max delay 10000ms"),
        (b"TIMER_DELAY_SEC\x01soon\x02", "TIMER_DELAY_SEC is b'soon', which is no time"),
        (b"TIMER_DELIVER_MS\x01" + b"9" * 500 + b"\x02", "which is no time"),
        (b"TIMER_DELIVER_MS\x015\x02TIMER_DEL_UNIQKEY\x01k\x02", "needs the time of a message"),
        (b"TIMER_DEL_UNIQKEY\x01k\x02", "needs the time of a message"),
    ],
)
def test_a_wrong_time_is_refused(text: bytes, said: str) -> None:
    with pytest.raises(RequestRefused, match=said) as caught:
        deferred(text)
    assert caught.value.code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize(
    ("named", "kept"),
    [(b"t+k", b"t+k"), (b"t+k+1", b"t+k+1"), (b"k", b"t+k")],
    ids=["5.3", "a plus in the key", "before 5.3"],
)
def test_a_recall_names_a_message_of_its_own_topic(named: bytes, kept: bytes) -> None:
    into = deferred(b"TIMER_DELAY_SEC\x013\x02TIMER_DEL_UNIQKEY\x01%b\x02" % named)
    assert find_property(into.properties, b"TIMER_DEL_UNIQKEY") == kept
    assert into.recall is None


@pytest.mark.parametrize("named", [b"secret+k", b"+k", b"T+k", b"t2+k"])
def test_a_recall_of_a_message_of_another_topic_is_refused(named: bytes) -> None:
    with pytest.raises(RequestRefused, match="sent to t cannot recall") as caught:
        deferred(b"TIMER_DELAY_SEC\x013\x02TIMER_DEL_UNIQKEY\x01%b\x02" % named)
    assert caught.value.code == ResponseCode.MESSAGE_ILLEGAL


def test_timed_messages_are_refused_when_the_wheel_is_off() -> None:
    with pytest.raises(RequestRefused, match="timerWheelEnable is false"):
        deferred(b"TIMER_DELAY_SEC\x013\x02", timer_wheel_enable=False)


@pytest.mark.parametrize(("deliver_ms", "slot"), [(5_000, 4_000), (5_001, 5_000), (5_999, 5_000)])
def test_the_end_of_a_slot_is_never_before_the_time(deliver_ms: int, slot: int) -> None:
    assert slot_of(deliver_ms, 1_000) == slot
    assert slot + 1_000 >= deliver_ms


def test_the_first_of_several_times_counts() -> None:
    assert deliver_time(b"TIMER_DELIVER_MS\x0199\x02TIMER_DELAY_SEC\x012\x02", 100) == 2_100


@pytest.mark.parametrize("text", ["", "x", "djEgYQ==", "%%%", "djEgdCBiIHggaw=="])
def test_text_that_is_no_recall_handle(text: str) -> None:
    with pytest.raises(ValueError, match="recall handle is invalid"):
        RecallHandle.decode(text)

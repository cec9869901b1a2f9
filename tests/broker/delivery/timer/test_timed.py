"""What becomes of a message that asks for a time of delivery, and of one that does so wrongly."""

import pytest

from broker.delivery.timer.timed import TimerRules, deliver_time, from_timer, recall_names, slot_of, to_timer
from broker.writing.stored_properties import is_timed
from broker.writing.writer import Incoming
from mqcommon.errors import RequestRefused
from mqcommon.message.ids import RecallHandle, UniqueKeys
from mqcommon.message.properties import find_property
from mqcommon.names import SCHEDULE_TOPIC, TIMER_TOPIC
from remoting.protocol.codes import ResponseCode
from tests.broker.delivery.timer.support import Timers
from tests.broker.store.support import HOST
from tests.support.clock import ManualClock

MAX_MS = 10_000


def put(properties: bytes, *, topic: str = "t", is_enabled: bool = True, clock: ManualClock | None = None) -> Incoming:
    rules = TimerRules(is_enabled, 1_000, lambda: MAX_MS, "b")
    intercept = to_timer(rules, UniqueKeys("127.0.0.1", 1, 1), clock or ManualClock())
    return intercept(Incoming(topic, 3, b"x", properties, 0, 0, 1, HOST, 0))


@pytest.mark.parametrize(
    "text", [b"TIMER_DELAY_SEC\x013\x02", b"TIMER_DELAY_MS\x013000\x02", b"TIMER_DELIVER_MS\x01%d\x02",
             b"__STARTDELIVERTIME\x01%d\x02"],
)  # fmt: skip
def test_it_waits_in_a_slot_with_its_own_topic_and_queue(text: bytes) -> None:
    clock = ManualClock()
    due = clock.now_ms() + 3_000
    found = put((text % due if b"%" in text else text) + b"UNIQ_KEY\x01k\x02", clock=clock)
    slot = (due - 1) // 1_000 * 1_000
    assert (found.topic, found.queue_id) == (TIMER_TOPIC, 0)
    names = (b"TIMER_OUT_MS", b"REAL_TOPIC", b"REAL_QID", b"UNIQ_KEY")
    assert [find_property(found.properties, name) for name in names] == [b"%d" % slot, b"t", b"3", b"k"]
    assert RecallHandle.decode(found.recall_handle) == RecallHandle("t", "b", slot + 1, "k")


@pytest.mark.parametrize(
    "text",
    [b"TIMER_DELIVER_MS\x015\x02", b"TIMER_DELAY_SEC\x010\x02", b"TIMER_DELAY_MS\x01-7\x02",
     b"TIMER_DELAY_SEC\x013\x02TIMER_OUT_MS\x019\x02", b"TAGS\x01a\x02"],
)  # fmt: skip
def test_a_time_in_the_past_or_one_that_was_delivered_is_plain(text: bytes) -> None:
    assert not is_timed(text, ManualClock().now_ms())
    assert put(text).topic == "t"


def test_a_delay_level_counts_more() -> None:
    assert put(b"TIMER_DELAY_SEC\x013\x02", topic=SCHEDULE_TOPIC).topic == SCHEDULE_TOPIC


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"TIMER_DELAY_MS\x01%d\x02" % (MAX_MS + 1), "bigger than the max delay 10000ms"),
        (b"TIMER_DELAY_SEC\x01soon\x02", "TIMER_DELAY_SEC is b'soon', which is no time"),
        (b"TIMER_DELIVER_MS\x01" + b"9" * 500 + b"\x02", "which is no time"),
        (b"TIMER_DELIVER_MS\x015\x02TIMER_DEL_UNIQKEY\x01k\x02", "needs the time of a message"),
    ],
)
def test_a_wrong_time_is_refused(text: bytes, said: str) -> None:
    with pytest.raises(RequestRefused, match=said) as caught:
        put(text)
    assert caught.value.code == ResponseCode.MESSAGE_ILLEGAL


def test_all_are_refused_when_the_wheel_is_off() -> None:
    with pytest.raises(RequestRefused, match="timerWheelEnable is false"):
        put(b"TIMER_DELAY_SEC\x013\x02", is_enabled=False)


@pytest.mark.parametrize(("deliver_ms", "slot"), [(5_000, 4_000), (5_001, 5_000), (5_999, 5_000)])
def test_the_end_of_a_slot_is_never_before_the_time(deliver_ms: int, slot: int) -> None:
    assert slot_of(deliver_ms, 1_000) == slot
    assert slot + 1_000 >= deliver_ms


def test_the_first_of_several_times_counts() -> None:
    assert deliver_time(b"TIMER_DELIVER_MS\x0199\x02TIMER_DELAY_SEC\x012\x02", 100) == 2_100


async def test_a_message_without_its_topic_is_not_delivered() -> None:
    timers = Timers()
    async with timers.running():
        timers.send(b"a", 5_000)
        (record,) = timers.records(TIMER_TOPIC)
        assert from_timer(record).topic == "t"
        with pytest.raises(ValueError, match="of topic ''"):
            from_timer(record._replace(properties=b"REAL_QID\x010\x02"))


def test_recalls_name_a_message_by_its_topic_and_key_or_by_its_key() -> None:
    assert recall_names(b"UNIQ_KEY\x01k\x02REAL_TOPIC\x01t\x02") == (b"t+k", b"k")
    assert recall_names(b"REAL_TOPIC\x01t\x02") == ()


@pytest.mark.parametrize("text", ["", "x", "djEgYQ==", "%%%", "djEgdCBiIHggaw=="])
def test_what_is_no_handle(text: str) -> None:
    with pytest.raises(ValueError, match="recall handle is invalid"):
        RecallHandle.decode(text)

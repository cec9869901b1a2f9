"""A message on its way into a level and out of it is the same message."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.delivery.delay.waiting import due_time, from_level, to_level
from broker.store.queue.delay_levels import DEFAULT, DelayLevels
from broker.writing.writer import Incoming
from mqcommon.message.properties import find_property
from mqcommon.message.record import Record, decode_record, encode_record, topic_field
from mqcommon.names import SCHEDULE_TOPIC

HOST = bytes(8)
into = to_level(DEFAULT)


def stored(message: Incoming) -> Record:
    return decode_record(
        encode_record(
            *topic_field(message.topic), message.queue_id, 5, 700, message.body, message.properties, message.flag,
            message.sys_flag, message.born_timestamp, message.born_host, 9, HOST, message.reconsume_times, 0,
        )
    )  # fmt: skip


def message(properties: bytes, topic: str = "t", queue_id: int = 3) -> Incoming:
    return Incoming(topic, queue_id, b"body", properties, 7, 1, 11, HOST, 2)


@given(st.integers(1, 30), st.lists(st.sampled_from([b"TAGS\x01a\x02", b"K\x01v\x02", b"REAL_TOPIC\x01old\x02"])))
def test_there_and_back(level: int, others: list[bytes]) -> None:
    rest = b"".join(others)
    delayed = into(message(b"DELAY\x01%d\x02" % level + rest))
    assert (delayed.topic, delayed.queue_id) == (SCHEDULE_TOPIC, min(level, 18) - 1)
    back = from_level(stored(delayed))
    kept = rest.replace(b"REAL_TOPIC\x01old\x02", b"")
    assert back == message(kept + b"REAL_TOPIC\x01t\x02REAL_QID\x013\x02")


@pytest.mark.parametrize("properties", [b"", b"DELAY\x010\x02", b"DELAY\x01-1\x02", b"NODELAY\x013\x02"])
def test_without_a_level_nothing_changes(properties: bytes) -> None:
    assert into(message(properties)) == message(properties)


def test_levels_above_the_highest_mean_the_highest() -> None:
    delayed = to_level(DelayLevels((1, 2)))(message(b"DELAY\x0118\x02"))
    assert (delayed.queue_id, find_property(delayed.properties, b"DELAY")) == (1, b"2")


@pytest.mark.parametrize(
    "properties",
    [
        b"DELAY\x013\x02",
        b"REAL_TOPIC\x01t\x02",
        b"REAL_TOPIC\x01t\x02REAL_QID\x01-1\x02",
        b"REAL_TOPIC\x01t\x02REAL_QID\x0199999999999\x02",
        b"REAL_TOPIC\x01SCHEDULE_TOPIC_XXXX\x02REAL_QID\x010\x02",
        b"REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010\x02",
    ],
)
def test_a_message_that_does_not_say_where_to_go_is_an_error(properties: bytes) -> None:
    with pytest.raises(ValueError, match="as its own"):
        from_level(stored(message(properties, SCHEDULE_TOPIC)))


def test_a_time_that_is_too_far_away_is_now() -> None:
    assert [due_time(due, 1_000, 500) for due in (900, 1_500, 1_501)] == [900, 1_500, 1_000]

"""The arguments of a send that ask for a time of delivery."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mqcommon.errors import InvalidArgument
from sdk import Message
from sdk.producer.timed import timed

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def test_times_are_properties_in_milliseconds_rounded_up() -> None:
    message = Message("t", b"x", tags="a")
    at = timed(message, NOON + timedelta(microseconds=1), None)
    assert at.properties == {"TAGS": "a", "TIMER_DELIVER_MS": str(int(NOON.timestamp()) * 1000 + 1)}
    assert timed(message, None, timedelta(microseconds=1500)).properties == {"TAGS": "a", "TIMER_DELAY_MS": "2"}
    assert message.properties == {"TAGS": "a"}, "the user's message stays as it is"


@pytest.mark.parametrize(
    ("deliver_at", "delay", "error", "said"),
    [
        (NOON, timedelta(1), InvalidArgument, "give one of them"),
        (NOON.replace(tzinfo=None), None, InvalidArgument, "has no time zone"),
        (1_700_000_000, None, TypeError, "deliver_at must be a datetime"),
        (None, 5, TypeError, "delay must be a timedelta"),
        (None, timedelta(seconds=-1), InvalidArgument, "must not be negative"),
    ],
)
def test_wrong_arguments(deliver_at: Any, delay: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        timed(Message("t"), deliver_at, delay)


def test_a_delay_level_and_a_time() -> None:
    with pytest.raises(InvalidArgument, match="has a delay_level"):
        timed(Message("t", delay_level=3), NOON, None)

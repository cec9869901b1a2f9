"""Which exception goes where, and after which pause."""

import re
from typing import Any

import pytest

from skylark import RetryPolicy
from skylark.sdk.consumer.retry_policy import LEVEL_DELAYS_S, Failure, Fate, Pause, reason_of


class OwnError(ValueError):
    """An error class of a user."""


def test_without_a_choice_everything_is_tried_again_as_rocketmq_does() -> None:
    policy = RetryPolicy()
    assert policy.attempts == 17
    assert [policy.fate(error) for error in (None, ValueError(), KeyboardInterrupt())] == [Fate.RETRY] * 3
    assert policy.pause(0) == policy.pause(9) == Pause(0, None)


def test_the_most_derived_class_decides() -> None:
    policy = RetryPolicy(dead_letter_on=ValueError, drop_on=(OwnError,), retry_on=UnicodeError)
    found = [policy.fate(error) for error in (ValueError(), OwnError(), UnicodeError(), KeyError())]
    assert found == [Fate.DEAD_LETTER, Fate.DROP, Fate.RETRY, Fate.RETRY]
    most = RetryPolicy(dead_letter_on=Exception, retry_on=(ConnectionError, TimeoutError))
    assert most.fate(ConnectionResetError()) is Fate.RETRY and most.fate(KeyError()) is Fate.DEAD_LETTER


def test_each_failure_has_its_pause_and_the_last_one_is_for_all_later_ones() -> None:
    policy = RetryPolicy(delays_ms=(200, 5_000, 61_000))
    assert [policy.pause(times) for times in (0, 1, 2, 3)] == [
        Pause(1, 200), Pause(2, 5_000), Pause(6, 61_000), Pause(6, 61_000),
    ]  # fmt: skip
    assert policy.pause(0, delay_level=9) == Pause(9, None), "what the handler asks for comes first"
    assert RetryPolicy(delays_ms=[LEVEL_DELAYS_S[-1] * 1_000]).pause(0).level == 18


@pytest.mark.parametrize(
    ("chosen", "error", "text"),
    [
        ({"attempts": 0}, ValueError, "attempts"),
        ({"delays_ms": 5}, TypeError, "delays_ms must be a sequence of numbers"),
        ({"delays_ms": [1, "2"]}, TypeError, "delays_ms[1] must be a number"),
        ({"delays_ms": [1, True]}, TypeError, "delays_ms[1] must be a number"),
        ({"delays_ms": [0]}, ValueError, "delays_ms[0] must be at least 1 and at most 2 hours, not 0"),
        ({"delays_ms": [7_200_001]}, ValueError, "at most 2 hours"),
        ({"drop_on": "ValueError"}, TypeError, "drop_on must be an exception class, or a tuple of them"),
        ({"drop_on": [ValueError]}, TypeError, "drop_on must be an exception class, or a tuple of them"),
        ({"drop_on": (ValueError, 1)}, TypeError, "drop_on must be an exception class, or a tuple of them"),
        ({"drop_on": KeyError, "retry_on": KeyError}, ValueError, "KeyError is in retry_on and in drop_on"),
    ],
)
def test_what_cannot_be_meant_is_refused(chosen: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)):
        RetryPolicy(**chosen)


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def test_a_reason_names_class_text_and_place() -> None:
    try:
        raise OwnError("no amount\nat all")
    except OwnError as error:
        failure = Failure.raised(error)
        assert failure.error is error
    assert re.fullmatch(r".*OwnError: no amount\nat all \(test_retry_policy\.py:\d+\)", failure.reason, re.S)
    assert reason_of(KeyError("k")) == "KeyError: 'k'"
    assert "MuteError" in reason_of(MuteError())

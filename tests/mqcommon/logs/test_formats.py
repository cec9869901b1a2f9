"""Lines of text and of JSON."""

import json
import logging
import sys

from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.logs.formats import MAX_MESSAGE_CHARS, JsonFormatter, LineFormatter, fields_of

FORMATTER = LineFormatter("%(levelname)s - %(message)s")


def record(message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("x", logging.WARNING, "", 0, message, args, None)


@given(st.text())
def test_a_message_is_one_line_whatever_stands_in_it(text: str) -> None:
    line = FORMATTER.format(record("topic %s", text))
    assert line.startswith("WARNING - topic ")
    assert "\n" not in line and "\r" not in line


def test_a_long_message_is_cut() -> None:
    line = FORMATTER.format(record("topic %s", "x" * 10_000_000))
    assert len(line) < MAX_MESSAGE_CHARS + 100
    assert line.endswith("... (10000006 characters)")


def failed(error: Exception) -> logging.LogRecord:
    one = record("failed")
    try:
        raise error
    except type(error):
        one.exc_info = sys.exc_info()
    return one


def test_a_traceback_follows_whole() -> None:
    lines = FORMATTER.format(failed(KeyError("oops"))).splitlines()
    assert (lines[0], lines[-1]) == ("WARNING - failed", "    KeyError: 'oops'")


@given(st.text())
def test_an_error_that_shows_a_peers_text_makes_no_event(text: str) -> None:
    lines = FORMATTER.format(failed(ValueError(f"bad: {text}"))).splitlines()
    assert [line for line in lines if not line.startswith("    ")] == ["WARNING - failed"]


def test_terminals_are_not_controlled() -> None:
    assert FORMATTER.format(record("topic %s", "\x1b[2J\u2028x\u202ey")) == "WARNING - topic \\x1b[2J\\u2028x\\u202ey"


@given(st.text())
def test_json_is_one_line_that_any_parser_reads(text: str) -> None:
    line = JsonFormatter().format(record("torn: file=%s offset=%d of %s", text, 7, "x"))
    assert len(line.splitlines()) == 1
    document = json.loads(line)
    assert (document["level"], document["logger"]) == ("WARNING", "x")
    assert document["fields"]["offset"] == 7
    assert document["fields"]["file"] == text or len(text) > MAX_MESSAGE_CHARS
    assert document["time"].endswith("Z")


def test_json_has_the_traceback_in_a_field() -> None:
    document = json.loads(JsonFormatter().format(failed(KeyError("oops"))))
    assert "KeyError: 'oops'" in document["exception"]


def test_fields_are_what_the_message_names_and_what_is_given_beside_it() -> None:
    assert fields_of(record("100%% of %s: a=%s b=%5.1f %d", "x", "y", 1.5, 3)) == {"a": "y", "b": 1.5}
    assert fields_of(record("%(topic)s is new", {"topic": "t"})) == {"topic": "t"}
    assert fields_of(record("a=%s", float("nan"))) == {"a": "nan"}
    one = record("plain")
    one.broker = "broker-a"
    assert fields_of(one) == {"broker": "broker-a"}

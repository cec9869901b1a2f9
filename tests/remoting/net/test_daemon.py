"""What every daemon does with its log."""

import logging
import sys

from hypothesis import given
from hypothesis import strategies as st

from remoting.net.daemon import MAX_MESSAGE_CHARS, LineFormatter

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


def test_a_traceback_follows_whole() -> None:
    one = record("failed")
    try:
        raise KeyError("oops")
    except KeyError:
        one.exc_info = sys.exc_info()
    lines = FORMATTER.format(one).splitlines()
    assert (lines[0], lines[-1]) == ("WARNING - failed", "KeyError: 'oops'")

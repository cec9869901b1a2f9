"""Warnings in a program that has not set up logging."""

import io
import logging
import subprocess
import sys

import pytest

from skylark.sdk.last_resort import LINES, WINDOW_S, LastResort

PROGRAM = """
import logging, sys
import skylark.sdk.runtime
{setup}
logging.getLogger("skylark.sdk.consumer.workers").error("the handler failed with message %s", "m1")
logging.getLogger("skylark").info("nothing to tell")
"""


@pytest.mark.parametrize(
    ("setup", "shown"),
    [
        ("", True),
        ("logging.getLogger('mine').addHandler(logging.StreamHandler())", True),
        ("logging.basicConfig(level=logging.CRITICAL)", False),
        ("logging.getLogger('skylark').addHandler(logging.FileHandler('/dev/null'))", False),
        ("logging.getLogger('skylark').setLevel(logging.CRITICAL)", False),
    ],
)
def test_a_program_without_logging_sees_warnings(setup: str, shown: bool) -> None:
    command = [sys.executable, "-c", PROGRAM.format(setup=setup)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stderr
    assert ("ERROR skylark.sdk.consumer.workers: the handler failed with message m1" in said) is shown
    assert len(said.splitlines()) == shown


def test_the_same_is_told_a_few_times_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    now, stream = [0.0], io.StringIO()
    last_resort = LastResort(lambda: now[0], stream)

    def log(text: str) -> None:
        last_resort.emit(logging.LogRecord("sdk.x", logging.ERROR, __file__, 1, text, ("m",), None))

    for _ in range(LINES + 7):
        log("failed with %s")
    assert stream.getvalue().count("failed with m") == LINES
    log("another with %s")
    assert stream.getvalue().count("another with m") == 1
    now[0] = WINDOW_S
    log("failed with %s")
    assert stream.getvalue().count("failed with m") == LINES + 1
    assert "(7 more like that were not shown)" in stream.getvalue()


def test_a_package_may_tell_more_of_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    stream = io.StringIO()
    last_resort = LastResort(stream=stream, lines=20)
    for _ in range(25):
        last_resort.emit(logging.LogRecord("sdk.x", logging.ERROR, __file__, 1, "lost %s", ("m",), None))
    assert stream.getvalue().count("lost m") == 20


def test_a_stream_that_is_closed_hurts_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    stream = io.StringIO()
    stream.close()
    LastResort(stream=stream).emit(logging.LogRecord("sdk.x", logging.ERROR, __file__, 1, "text", (), None))


# The daemons of a test cluster do not warn: their test looks at them itself.
WARN = """
import logging
{setup}
import trio
from skylark import Producer
from skylark.sdk.testing import Cluster

for name in ("mqcommon.x", "remoting.net.client", "sdk.client", "broker.x", "namesrv.x"):
    logging.getLogger("skylark." + name).warning("a warning of %s", name)
"""


@pytest.mark.parametrize(("setup", "lines"), [("", 3), ("logging.basicConfig()", 5)])
def test_warnings_of_daemons_in_a_test_are_shown_to_those_who_set_up_logging(setup: str, lines: int) -> None:
    run = subprocess.run([sys.executable, "-c", WARN.format(setup=setup)], capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr.count("a warning of")) == ("", lines)
    assert setup or "broker.x" not in run.stderr

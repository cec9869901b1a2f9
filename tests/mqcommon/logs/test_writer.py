"""The thread that writes the log."""

import errno
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from skylark.mqcommon.logs.writer import LogWriter
from tests.support.waiting import DEADLINE_S

LINE = logging.Formatter("%(message)s")


class Place:
    """Where lines are written; ``free`` lets writes go on, ``full`` makes them fail."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.free = threading.Event()
        self.free.set()
        self.began = threading.Event()
        self.failed = threading.Event()
        self.full = False

    def write(self, data: bytes) -> None:
        self.began.set()
        assert self.free.wait(DEADLINE_S)
        if self.full:
            self.failed.set()
            raise OSError(errno.ENOSPC, "No space left on device")
        self.lines += data.decode().splitlines()


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place()
    yield place
    place.free.set()


def logger_of(writer: LogWriter) -> logging.Logger:
    logger = logging.Logger("one")
    logger.addHandler(writer)
    return logger


def test_lines_are_written_in_order_and_all_at_the_end(place: Place) -> None:
    writer = LogWriter(place.write, LINE, place="log", complaints=None)
    logger = logger_of(writer)
    for number in range(2_000):
        logger.warning("line %d", number)
    writer.close()
    assert place.lines == [f"line {number}" for number in range(2_000)]
    logger.warning("too late")
    writer.close()
    assert len(place.lines) == 2_000


def test_lines_that_come_too_fast_are_counted(place: Place) -> None:
    writer = LogWriter(place.write, LINE, place="log", complaints=None, max_waiting=10)
    logger = logger_of(writer)
    place.free.clear()
    logger.warning("first")
    assert place.began.wait(DEADLINE_S)
    for number in range(100):
        logger.warning("line %d", number)
    place.free.set()
    writer.close()
    assert place.lines[:11] == ["first", *(f"line {number}" for number in range(10))]
    assert place.lines[11:] == ["90 lines are missing here: they came faster than they could be written"]


def test_a_full_disk_loses_lines_only_and_says_so(place: Place) -> None:
    complaints: list[bytes] = []
    writer = LogWriter(place.write, LINE, place="some.log", complaints=complaints.append)
    logger = logger_of(writer)
    place.full = True
    logger.warning("one")
    assert place.failed.wait(DEADLINE_S)
    place.full = False
    logger.warning("two")
    writer.close()
    assert place.lines == ["1 lines are missing here: they could not be written", "two"]
    assert complaints == [
        b"some.log cannot be written, lines are lost until it can be: [Errno 28] No space left on device\n"
    ]


def test_arguments_are_shown_as_they_were(place: Place) -> None:
    writer = LogWriter(place.write, LINE, place="log", complaints=None)
    logger = logger_of(writer)
    place.free.clear()
    logger.warning("first")
    assert place.began.wait(DEADLINE_S)
    values = [1]
    logger.warning("values %s", values)
    values.append(2)
    place.free.set()
    writer.close()
    assert place.lines == ["first", "values [1]"]


def test_a_caller_never_sees_an_error(place: Place) -> None:
    class Bad:
        def __str__(self) -> str:
            raise RuntimeError("no")

    class BadFormatter(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            if record.getMessage() == "bad":
                raise RuntimeError("no")
            return record.getMessage()

    writer = LogWriter(place.write, BadFormatter(), place="log", complaints=None)
    logger = logger_of(writer)
    logger.warning("%s", Bad())
    logger.warning("%d", "text")
    logger.warning("bad")
    logger.warning("good \ud800")
    writer.close()
    assert place.lines == [
        "%s (its arguments cannot be shown: RuntimeError)",
        "%d (its arguments cannot be shown: TypeError)",
        "a line of one cannot be shown: RuntimeError('no')",
        "good \\ud800",
    ]


STUCK = """
import logging
from skylark.mqcommon.logs import writer
from skylark.mqcommon.logs.options import LogOptions
from skylark.mqcommon.logs.writer import start_log

writer.CLOSE_TIMEOUT_S = 0.1
log = start_log(LogOptions())
for number in range(3_000):
    logging.getLogger("x").info("line %d %s", number, "x" * 200)
log.close()
print("done")
"""


def test_a_process_ends_though_nobody_reads_its_log() -> None:
    process = subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.read() == "done\n"
    assert process.wait(DEADLINE_S) == 0
    process.stdout.close()
    assert process.stderr is not None
    process.stderr.close()

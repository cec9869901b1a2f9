"""scripts/test --repeat: its table, and that its processes end with it."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.daemons import ROOT
from scripts.repeat import Failure, Row, failure_of, files_of, hang_of, table

SUMMARY = """
=========================== short test summary info ============================
FAILED tests/x/test_y.py::test_it[a b] - AssertionError: 3 is not 4
ERROR tests/x/test_y.py::test_other - OSError
1 failed, 1 error in 0.1s
"""
# A file of tests that says when it runs, and then hangs.
WAITS = """
import select
def test_it():
    open("{began}", "w").close()
    select.select([], [], [])
"""


@pytest.mark.parametrize(
    ("exit_code", "output", "failure"),
    [
        (0, "3 passed", None),
        (5, "no tests ran", None),
        (1, SUMMARY, Failure("tests/x/test_y.py::test_it[a b]", "AssertionError: 3 is not 4")),
        (2, "ERROR tests/x/test_y.py\n", Failure("tests/x/test_y.py", "")),
        (3, "one\nINTERNALERROR> two\n\n", Failure("-", "exit code 3: INTERNALERROR> two")),
        (-11, "", Failure("-", "signal 11: ")),
    ],
)
def test_the_first_failure_of_a_run_is_named_with_its_reason(
    exit_code: int, output: str, failure: Failure | None
) -> None:
    assert failure_of(exit_code, output) == failure


def test_a_run_that_hangs_names_the_test_that_started_last() -> None:
    output = "tests/test_y.py::test_a PASSED       [ 50%]\ntests/test_y.py::test_b[1] "
    assert hang_of(output, 600) == Failure("tests/test_y.py::test_b[1]", "no end after 600 s")


def test_a_row_has_the_first_of_its_failures() -> None:
    row = Row("tests/test_y.py")
    for failure in (None, Failure("tests/test_y.py::test_a", "first"), Failure("tests/test_y.py::test_b", "second")):
        row.add(failure)
    lines = table([row, Row("tests/test_z.py", runs=3)]).splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["tests/test_y.py", "3", "2", "test_a", "first"],
        ["tests/test_z.py", "3", "0"],
    ]


def test_a_folder_stands_for_its_files_of_tests(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    files = [tmp_path / "inner" / "test_b.py", tmp_path / "test_a.py"]
    for file in (*files, tmp_path / "conftest.py"):
        file.touch()
    assert files_of([str(tmp_path), f"{files[1]}::test_x"]) == [*map(str, files), f"{files[1]}::test_x"]
    with pytest.raises(FileNotFoundError, match="nowhere"):
        files_of(["nowhere"])


def test_nothing_stays_of_a_repetition_that_was_killed(tmp_path: Path) -> None:
    began = tmp_path / "began"
    os.mkfifo(began)
    reading = os.open(began, os.O_RDONLY | os.O_NONBLOCK)
    waits = tmp_path / "test_waits.py"
    waits.write_text(WAITS.format(began=began))
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    command = [sys.executable, "-m", "scripts.repeat", "--repeat", "1", "--busy", "2", str(waits)]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL) as run:
        poll = select.poll()
        poll.register(reading)
        assert poll.poll(60_000)
        children = [int(pid) for pid in Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()]
        handles = [os.pidfd_open(pid) for pid in children]
        run.send_signal(signal.SIGKILL)
    assert len(children) == 4  # the watcher, the loops, and pytest
    assert os.listdir(temporary) != []
    for handle in handles:
        assert select.select([handle], [], [], 60)[0]
        os.close(handle)
    assert os.listdir(temporary) == []
    os.close(reading)

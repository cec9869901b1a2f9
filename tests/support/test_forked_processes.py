"""Forked processes of tests tell all that a run in one process tells, also when one of them is killed."""

import os
import subprocess
import sys
from pathlib import Path

from scripts.daemons import ROOT
from tests.support.forked_processes import grouped

CONFTEST = """
import os
import pytest
from tests.support.forked_processes import ForkedProcesses

def pytest_configure(config):
    config.pluginmanager.register(ForkedProcesses(2, lambda nodeid: nodeid.partition("::")[0]))

@pytest.fixture(scope="session", autouse=True)
def shared():
    with open(os.environ["BEGINS"], "a") as begins:
        begins.write(f"{os.getpid()}\\n")
    yield
    with open(os.environ["ENDS"], "a") as ends:
        ends.write(f"{os.getpid()}\\n")
"""
TURNS = """
from tests.support.forked_processes import ForkedProcesses

def pytest_configure(config):
    config.pluginmanager.register(ForkedProcesses(2, lambda nodeid: nodeid, turns={}, timeout_s={}))
"""
CHECKED = """
from tests.support.checked import Checked

def pytest_configure(config):
    config.pluginmanager.register(Checked(["false"]))
"""
TESTS = """
import os, signal, sys, warnings

def test_one(tmp_path):
    tmp_path.joinpath("file").write_text("x")
    warnings.warn("a warning of {name}")

def test_another():
    print("printed by {name}")
    os.write(1, b"written by {name}\\n")
    assert "{name}" == "b"

def test_killed():
    if "{name}" == "b":
        os.kill(os.getpid(), signal.SIGKILL)

def test_last():
    pass
"""


def run(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    """Run the tests of ``folder``; the exit code and the lines that were printed."""
    command = [sys.executable, "-m", "pytest", "-p", "no:hypothesispytest", "-p", "no:cacheprovider", *arguments]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "BEGINS": str(folder / "begins"),
        "ENDS": str(folder / "ends"),
    }
    done = subprocess.run(
        [*command, str(folder)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout.splitlines()


def write(folder: Path, *names: str) -> None:
    (folder / "conftest.py").write_text(CONFTEST)
    for name in names:
        (folder / f"test_{name}.py").write_text(TESTS.replace("{name}", name))


def test_results_output_and_warnings_are_told_and_a_killed_process_has_failed_its_test(tmp_path: Path) -> None:
    write(tmp_path, "a", "b", "c")
    exit_code, printed = run(tmp_path, "-rf", "--basetemp", str(tmp_path / "given"))
    assert exit_code == 1
    assert "3 failed, 9 passed, 3 warnings" in printed[-1]
    failed = {line.split()[1] for line in printed if line.startswith("FAILED")}
    assert failed == {"test_a.py::test_another", "test_c.py::test_another", "test_b.py::test_killed"}
    assert "the process of tests ended while it ran this test: signal 9" in printed
    assert len(list(tmp_path.glob("given/p*/test_one[0-9]/file"))) == 3
    for name in "ac":
        assert f"printed by {name}" in printed
        assert f"written by {name}" in printed
    for name in "abc":
        assert any(f"UserWarning: a warning of {name}" in line for line in printed)
    # What tests share ends once in each process that was not killed. One process may have run all that was left.
    ended = (tmp_path / "ends").read_text().split()
    assert 1 <= len(set(ended)) == len(ended) <= 2


def test_a_run_that_stops_ends_what_tests_share(tmp_path: Path) -> None:
    write(tmp_path, "a", "c")
    exit_code, printed = run(tmp_path, "-x")
    assert exit_code == 1
    assert any("stopping after" in line for line in printed)
    begun, ended = ((tmp_path / name).read_text().split() for name in ("begins", "ends"))
    assert sorted(ended) == sorted(begun)


def test_no_test_runs_when_the_check_before_it_fails(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CHECKED)
    (tmp_path / "test_it.py").write_text("def test_it(): pass\n")
    exit_code, printed = run(tmp_path)
    assert exit_code == 1
    assert "false has failed, so no test has run" in printed[-1]
    assert "passed" not in "".join(printed)


def test_each_turn_of_a_group_has_a_process_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(TURNS.format(3, None))
    pids = tmp_path / "pids"
    test = f"import os\ndef test_it():\n    print(os.getpid(), file=open({str(pids)!r}, 'a'))\n    assert {{}}\n"
    for name, is_right in (("a", True), ("b", False)):
        (tmp_path / f"test_{name}.py").write_text(test.format(is_right))
    exit_code, printed = run(tmp_path)
    assert exit_code == 1
    assert "3 failed, 3 passed" in printed[-1]
    assert len(set(pids.read_text().split())) == 6


def test_a_test_that_hangs_fails_and_its_threads_are_shown(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(TURNS.format(1, 0.1))
    (tmp_path / "test_it.py").write_text("import select\ndef test_hangs():\n    select.select([], [], [])\n")
    exit_code, printed = run(tmp_path)
    assert exit_code == 1
    assert "1 failed" in printed[-1]
    assert "the process of tests ended while it ran this test: signal 6" in printed
    # A slow machine may not have come to the test's own line.
    assert any("Fatal Python error: Aborted" in line for line in printed)


def test_groups_begin_in_the_order_of_their_first_tests() -> None:
    assert grouped(["b", "a", "b", "c", "a"]) == [[0, 2], [1, 4], [3]]

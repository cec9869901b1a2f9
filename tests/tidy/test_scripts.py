"""The shell scripts parse, can be run, and explain what is missing; mutants fit the code, and nightly are noticed."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from pathlib import Path
from tempfile import gettempdir

import pytest

from scripts.mutants import MUTANTS, Mutant, is_noticed
from scripts.packages import copy_tree
from tests import conftest
from tests.tidy.tree import ROOT

SCRIPTS = sorted(
    path
    for path in [*(ROOT / "scripts").iterdir(), ROOT / ".ci" / "run"]
    if path.suffix in ("", ".sh") and path.is_file()
)


def bash(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the functions of scripts/venv.sh at hand."""
    text = f"set -euo pipefail; . scripts/venv.sh; {command}"
    env = {"HOME": "/nowhere", "PATH": os.environ["PATH"], "TMPDIR": gettempdir(), **environment}
    return subprocess.run(["bash", "-c", text], cwd=ROOT, env=env, capture_output=True, text=True)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_script_parses_and_can_be_run(path: Path) -> None:
    head = path.read_text(encoding="utf-8").split("\n", 1)[0]
    if path.suffix == ".sh":
        assert not head.startswith("#!"), "a sourced file is not run"
    else:
        assert head.startswith("#!/usr/bin/env ") and os.access(path, os.X_OK)
    if path.suffix == ".sh" or head.endswith("bash"):
        assert subprocess.run(["bash", "-n", path], capture_output=True).returncode == 0


def test_a_step_tells_its_time_and_hides_its_output() -> None:
    run = bash('step "making it" echo noise')
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.splitlines()[0] == "making it ..." and "making it: done in" in run.stdout
    assert "noise" not in run.stdout


def test_commands_at_once_run_side_by_side_and_one_failure_is_the_failure_of_all(tmp_path: Path) -> None:
    there, back = tmp_path / "there", tmp_path / "back"
    for each in (there, back):
        os.mkfifo(each)
    # Each of the two waits for the other.
    asks, answers = f"asks() {{ echo >{there}; read -r <{back}; }}", f"answers() {{ read -r <{there}; echo >{back}; }}"
    run = bash(f'{asks}; {answers}; at_once asks answers; echo made; at_once false "step again echo" || echo $?')
    lines = run.stdout.splitlines()
    assert (run.returncode, lines[0], lines[-1]) == (0, "made", "1")
    assert lines[1] == "again ..."


def test_a_step_fits_the_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 30, 0, 0))
    end = tmp_path / "end"
    os.mkfifo(end)
    text = f". scripts/venv.sh; step 'making it' bash -c 'echo a line that is longer than the terminal; cat {end}'"
    with subprocess.Popen(["bash", "-c", text], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs):
        os.close(theirs)
        shown = b""
        while b"a line" not in shown:
            shown += os.read(ours, 4096)
        end.write_text("the step ends\n")
        os.close(ours)
    assert max(len(line) for line in shown.decode().split("\r\033[K")) == 29


def test_a_failed_step_shows_its_output_and_ends_the_script() -> None:
    run = bash('step "making it" bash -c "echo boom >&2; exit 3"; echo went on')
    assert run.returncode == 3
    assert "making it: failed after" in run.stderr and "boom" in run.stderr
    assert "went on" not in run.stdout


def test_a_step_leaves_the_traps_of_its_caller() -> None:
    run = bash("trap 'echo mine' INT; step it true; trap -p INT")
    assert run.stdout.endswith("trap -- 'echo mine' SIGINT\n")


def test_a_bad_python_is_named(tmp_path: Path) -> None:
    run = bash("find_python", PYTHON="/nowhere/python")
    assert run.returncode == 1
    assert run.stderr == "PYTHON=/nowhere/python is no Python 3.11 or newer; set it to one, or unset it\n"
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")  # what the version check of an old one comes to
    old.chmod(0o755)
    run = bash(f"PATH={tmp_path}; find_python")
    assert run.returncode == 1 and "needs Python 3.11 or newer, and none was found:" in run.stderr


def test_missing_java_is_explained() -> None:
    run = bash("PATH=/nowhere; explain_java || echo without")
    assert "apt-get install openjdk-17-jre-headless" in run.stdout and run.stdout.endswith("without\n")


def test_missing_programs_are_named_together(tmp_path: Path) -> None:
    for name in ("node", "chromium"):
        (tmp_path / name).touch(0o755)
    run = bash(f"PATH={tmp_path}; require_programs")
    assert run.returncode == 1
    assert "not found, and without them tests would be left out: java npm chromedriver\n" in run.stderr


def test_a_run_of_all_tests_needs_java() -> None:
    run = bash("PATH=/nowhere; require_java")
    assert run.returncode == 1 and "scripts/test --fast, which needs none" in run.stderr


def test_a_version_of_python_whose_shim_does_not_run_is_looked_for_among_those_of_pyenv(tmp_path: Path) -> None:
    shims, versions = tmp_path / "shims", tmp_path / "pyenv" / "versions"
    for path, text in (
        (shims / "python3.12", "echo 'command not found in this version' >&2; exit 127"),
        (versions / "3.12.0" / "bin" / "python", "exit 1"),  # cannot be started
        (versions / "3.12.1" / "bin" / "python", "exit 0"),
    ):
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    path = f"{shims}:{os.environ['PATH']}"
    run = bash("find_version 3.12", PATH=path, PYENV_ROOT=str(tmp_path / "pyenv"))
    assert run.stdout == f"{versions}/3.12.1/bin/python\n"
    assert bash("find_version 3.99", PATH=path, PYENV_ROOT=str(tmp_path / "pyenv")).returncode == 1


def test_contributors_find_each_script() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("\n## Scripts\n")[2]
    named = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
    scripts = [path.relative_to(ROOT).as_posix() for path in SCRIPTS if path.suffix == ""]
    assert sorted(named) == sorted(scripts)


@pytest.mark.parametrize("name", ["setup", "release", "quickstart", "spark_package"])
def test_a_script_says_how_it_is_used_before_it_does_anything(name: str) -> None:
    run = subprocess.run([ROOT / "scripts" / name, "--help"], capture_output=True, text=True, cwd="/")
    assert (run.returncode, run.stderr) == (0, "") and run.stdout.startswith(f"usage: scripts/{name}")


@pytest.mark.parametrize("name", ["setup", "release"])
def test_a_script_with_an_unknown_argument_does_nothing(name: str) -> None:
    run = subprocess.run([ROOT / "scripts" / name, "--quick"], capture_output=True, text=True, cwd="/")
    assert (run.returncode, run.stdout) == (2, "") and "unknown argument --quick" in run.stderr


def test_files_that_conftest_names_exist() -> None:
    assert [name for name in (*conftest.LONGEST, *conftest.SLOW) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.file)
def test_each_mutant_changes_one_place(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text().count(mutant.old) == 1 and mutant.old != mutant.new
    assert (ROOT / mutant.tests).exists()


@pytest.mark.nightly
def test_each_mutant_is_noticed(tmp_path_factory: pytest.TempPathFactory) -> None:
    tree = tmp_path_factory.mktemp("mutants")
    copy_tree(tree)
    assert [mutant for mutant in MUTANTS if not is_noticed(tree, mutant)] == []

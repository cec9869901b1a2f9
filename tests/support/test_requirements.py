"""Runs of tests on machines that lack a program, or whose Java changes."""

import os
import subprocess
import sys
from pathlib import Path

from scripts.daemons import ROOT

TESTS = """
import os
from pathlib import Path
import pytest

@pytest.mark.needs("Node")
@pytest.mark.parametrize("number", range(3))
def test_node(number):
    raise AssertionError("not to be run")

def test_other():
    pass

@pytest.mark.spark
@pytest.mark.parametrize("number", range(4))
def test_spark(number):
    assert number == 0, "a JVM cannot load its classes"
"""
UPGRADE = """
@pytest.fixture(autouse=True)
def upgrade(request):
    if request.node.name == "test_spark[1]":
        java = Path(os.environ["PATH"], "java")
        java.rename(java.with_name("old"))
        java.write_text("newer")
        java.chmod(0o755)
"""


def run(folder: Path, text: str, *programs: str) -> tuple[int, list[str]]:
    """Run tests where only these programs are found; the exit code and what was printed."""
    for program in programs:
        (folder / program).touch(0o755)
    test = folder / "test_it.py"
    test.write_text(text)
    environment = {**os.environ, "PATH": str(folder), "JAVA_HOME": ""}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:xdist",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        str(test),
    ]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    return done.returncode, done.stdout.splitlines()


def test_a_missing_program_skips_its_group_and_the_last_lines_say_so(tmp_path: Path) -> None:
    exit_code, printed = run(tmp_path, TESTS)
    assert exit_code == 0
    assert printed[-2:] == [
        "4 tests of Spark: no Java, so they are left out (Debian, Ubuntu: apt-get install openjdk-17-jre-headless)",
        "3 tests of the Node client of RocketMQ 5: no Node, so they are left out"
        " (Debian, Ubuntu: apt-get install nodejs npm)",
    ]


def test_an_upgrade_of_java_is_one_line_and_the_run_fails(tmp_path: Path) -> None:
    exit_code, printed = run(tmp_path, TESTS + UPGRADE, "java")
    assert not [line for line in printed if "FAILED" in line]
    assert printed[-1] == (
        "3 tests of Spark: Java was upgraded or removed while they ran, so they are left out: run them again"
    )
    assert exit_code == 1

"""Standard output that is full, gone, or has an encoding without some characters."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

# As the console command does it, without a server.
PROGRAM = r"""
import sys
from skylark.mqcommon.daemons.output import run_guarded

def command(prog_name):
    print(sys.argv[1] * int(sys.argv[2]))
    sys.stdout.flush()

try:
    run_guarded(command, "skylark")
except BrokenPipeError:
    sys.exit(4)
"""


def run(text: str, times: int = 1, **more: Any) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-c", PROGRAM, text, str(times)]
    return subprocess.run(command, env=env, stderr=subprocess.PIPE, text=True, timeout=60, check=False, **more)


@pytest.mark.parametrize("times", [1, 100_000])
def test_a_full_output_is_said_in_one_line(times: int) -> None:
    """Also when the interpreter writes the last output at its end."""
    with open("/dev/full", "w") as full:
        found = run("x", times, stdout=full)
    assert (found.returncode, found.stderr) == (1, "skylark: the output cannot be written: No space left on device\n")


def test_a_reader_that_has_gone_is_left_to_the_command() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as gone:
        assert run("x", stdout=gone).returncode in (4, 120)


def test_what_cannot_be_encoded_is_escaped_as_in_json() -> None:
    found = run('"é 😀 ok"', stdout=subprocess.PIPE)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout == '"\\u00e9 \\ud83d\\ude00 ok"\n' and json.loads(found.stdout) == "é 😀 ok"


@pytest.mark.parametrize("arguments", [["help"], ["--version"]])
def test_mqadmin_says_that_its_output_is_full(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "skylark.mqadmin", *arguments]
        found = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert found.returncode != 0
    assert found.stderr == "mqadmin: the output cannot be written: No space left on device\n"

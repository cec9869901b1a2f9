"""Forked daemons behave as executed ones."""

import marshal
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.daemons import BIN, Daemon, DaemonFailed, broker_daemon, execute, namesrv_daemon, wait_ready
from tests.support.warm_daemons import PYTHON, Forked, WarmDaemons

WAYS = {"executed": execute, "forked": Daemon.launch}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(Daemon, "launch", WAYS[request.param])
    return str(request.param)


def test_a_daemon_serves_in_a_session_of_its_own_until_sigterm(way: str, tmp_path: Path) -> None:
    namesrv = namesrv_daemon(tmp_path)
    namesrv.start()
    try:
        wait_ready([namesrv])
        assert isinstance(namesrv._process, Forked) == (way == "forked")
        assert namesrv.runs
        assert namesrv.exit_code is None
        assert os.getsid(namesrv.pid) == namesrv.pid
        namesrv.terminate()
        namesrv.wait_stopped()
        assert namesrv.exit_code == 0
    finally:
        if namesrv.runs:
            namesrv.kill()


def test_a_killed_daemon_has_the_exit_code_of_its_signal(way: str, tmp_path: Path) -> None:
    namesrv = namesrv_daemon(tmp_path)
    namesrv.start()
    namesrv.kill()
    assert namesrv.exit_code == -signal.SIGKILL


def test_what_is_wrong_with_the_environment_is_in_the_log(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCKETMQ_INIT_AUTHENTICATION_USER", "no JSON")
    broker = broker_daemon(tmp_path, "broker-a", "127.0.0.1:1")
    broker.start()
    with pytest.raises(DaemonFailed, match=r"exit code 1:\n(.|\n)*initAuthenticationUser"):
        broker.wait_stopped()


def test_a_forked_daemon_ends_with_the_process_of_the_tests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    warm = WarmDaemons()
    monkeypatch.setattr(Daemon, "launch", warm.start)
    namesrv = namesrv_daemon(tmp_path)
    namesrv.start()
    ended = os.pidfd_open(namesrv.pid)
    warm.close()
    assert select.select([ended], [], [], 60)[0]
    os.close(ended)


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmDaemons]:
    programs = WarmDaemons("json")
    yield programs
    programs.close()


@pytest.fixture(params=["executed", "forked"])
def python(request: pytest.FixtureRequest, warm: WarmDaemons) -> str:
    return sys.executable if request.param == "executed" else str(warm.programs() / PYTHON)


PROGRAM = """import os, sys
print(sys.argv, sys.path[0], os.getcwd(), __file__, __name__)
sys.stderr.write(sys.stdin.read())
sys.exit({code})
"""
WAITS = """import os, sys
print(os.getpid(), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(("code", "told"), [("7", 7), ("None", 0), ("'a word'", 1), ("[][0]", 1)])
def test_a_program_finds_what_it_has_from_its_caller(python: str, tmp_path: Path, code: str, told: int) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(code=code))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for command in ([program], ["-m", "program"]):
        ran = subprocess.run(
            [python, *command, "one"],
            input="typed", cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ran.stdout == f"{[str(program), 'one']} {tmp_path} {tmp_path} {program} __main__\n"
        assert (ran.stderr.startswith("typed"), ran.returncode) == (True, told)
        assert ("a word" in ran.stderr, "IndexError" in ran.stderr) == ("word" in code, "0]" in code)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_program_ends_by_the_signals_of_its_caller(
    python: str, warm: WarmDaemons, tmp_path: Path, number: signal.Signals
) -> None:
    program = tmp_path / "program.py"
    program.write_text(WAITS)
    with subprocess.Popen([python, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert (pid == process.pid) == (python == sys.executable)
        ended = os.pidfd_open(pid)
        process.send_signal(number)
        assert process.wait() == -number
    assert select.select([ended], [], [], 60)[0]
    os.close(ended)


def test_who_ends_before_it_knows_its_process_costs_no_other(warm: WarmDaemons, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(WAITS)
    warm.programs()
    asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    asked.connect(warm._address)
    what = marshal.dumps(([PYTHON, str(program)], dict(os.environ), str(tmp_path), False))
    (stdin, typing), (output, stdout) = os.pipe(), os.pipe()
    socket.send_fds(asked, [what], [stdin, stdout, stdout])
    pid = int(os.read(output, 100))
    ended = os.pidfd_open(pid)
    # The number of the process has arrived, and stays unread.
    assert select.select([asked], [], [], 60)[0]
    asked.close()
    assert select.select([ended], [], [], 60)[0]
    for each in (stdin, typing, output, stdout, ended):
        os.close(each)
    subprocess.run([warm.programs() / PYTHON, "-m", "json.tool", "--help"], capture_output=True, check=True)


def test_code_on_the_command_line_is_executed(warm: WarmDaemons) -> None:
    command = [warm.programs() / PYTHON, "-c", "import os; print(os.getpid())"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert int(process.stdout.read()) == process.pid


def test_a_console_script_is_forked() -> None:
    scripts = WarmDaemons()
    try:
        shown = [
            subprocess.run([folder / "mqadmin", "topicList", "--help"], capture_output=True, check=True).stdout
            for folder in (BIN, scripts.programs())
        ]
        assert shown[0] == shown[1] != b""
    finally:
        scripts.close()

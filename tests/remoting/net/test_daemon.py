"""The life of a daemon: its log, its exit code, and what systemd is told."""

import json
import logging
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
import trio.testing

from skylark.mqcommon.daemons.memory import MemoryLimit
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.logs.options import LogOptions
from skylark.remoting.net import daemon
from skylark.remoting.net.daemon import Ready, run_daemon
from tests.support.waiting import DEADLINE_S

logger = logging.getLogger(__name__)


@pytest.fixture(autouse=True)
def _process_is_left_as_it_was() -> Iterator[None]:
    import gc
    import resource

    level, files = logging.getLogger().level, resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    logging.getLogger().setLevel(level)
    resource.setrlimit(resource.RLIMIT_NOFILE, files)
    gc.unfreeze()


async def serve(stopping: trio.Event, ready: Ready) -> None:
    ready("serves")
    os.kill(os.getpid(), signal.SIGTERM)
    await stopping.wait()
    logger.info("ended: port=%d", 7)


def test_a_daemon_logs_to_stderr_until_it_is_told_to_stop(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_daemon(serve, name="x", logs=LogOptions()) == 0
    lines = capfd.readouterr().err.splitlines()
    assert lines[0].endswith("INFO skylark.remoting.net.daemon - SIGTERM: stopping")
    assert lines[1].endswith("INFO tests.remoting.net.test_daemon - ended: port=7")


def test_a_hangup_stops_a_daemon_that_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    async def hang_up(stopping: trio.Event, ready: Ready) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        await stopping.wait()
        # The shell and the kernel may both send it.
        os.kill(os.getpid(), signal.SIGHUP)
        await trio.testing.wait_all_tasks_blocked()
        logger.info("ended")

    assert run_daemon(hang_up, name="x", logs=LogOptions(), stops_at_hangup=True) == 0
    stopped, ended = capfd.readouterr().err.splitlines()
    assert stopped.endswith("SIGHUP: stopping") and ended.endswith("ended")


def test_the_log_goes_to_a_file_in_json_with_the_levels_that_were_set(tmp_path: Path) -> None:
    path = tmp_path / "log" / "x.log"
    logs = LogOptions(log_file=str(path), log_format="json", log_levels="remoting=ERROR")
    assert run_daemon(serve, name="x", logs=logs) == 0
    logging.getLogger("skylark.remoting").setLevel(logging.NOTSET)
    (line,) = path.read_text().splitlines()
    assert '"fields": {"port": 7}' in line


def test_a_log_file_that_cannot_be_opened_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    for name in (str(tmp_path / "file" / "log"), str(tmp_path), "a\0b"):
        assert run_daemon(serve, name="x", logs=LogOptions(log_file=name)) == 1
        (line,) = capfd.readouterr().err.splitlines()
        assert line.startswith("x: logFile: ")


def test_a_users_mistake_is_one_line_on_stderr_and_in_the_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def refuse(stopping: trio.Event, ready: Ready) -> None:
        raise UserError("take another port")

    path = tmp_path / "x.log"
    assert run_daemon(refuse, name="x", logs=LogOptions(log_file=str(path))) == 1
    assert capfd.readouterr().err == "x: take another port\n"
    assert path.read_text().endswith("CRITICAL skylark.remoting.net.daemon - x: take another port\n")
    for logs in (LogOptions(log_format="json"), LogOptions(log_format="json", log_file=str(tmp_path))):
        assert run_daemon(refuse, name="x", logs=logs) == 1
        (line,) = capfd.readouterr().err.splitlines()
        said = json.loads(line)
        assert (said["level"], said["logger"]) == ("CRITICAL", "x")
        assert "take another port" in said["message"] or said["message"].startswith("logFile: ")


def test_too_few_open_files_are_one_line(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "open_files_limit", lambda: 63)
    assert run_daemon(serve, name="x", logs=LogOptions()) == 1
    assert capfd.readouterr().err == ("x: open files: limit=63: a daemon needs 64 at least; raise ulimit -n to 65536\n")


def test_memory_is_told_at_the_start_and_when_it_is_short(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "memory.stat").write_text(f"anon {95 << 20}")
    monkeypatch.setattr(daemon, "memory_limit", lambda: MemoryLimit(100 << 20, str(tmp_path), 2))
    monkeypatch.setattr(daemon, "GIVE_BACK_INTERVAL_S", 0)

    async def until_told(stopping: trio.Event, ready: Ready) -> None:
        told = ""
        deadline = trio.current_time() + DEADLINE_S
        while "memory is short: 95 % of 100 MiB" not in told:
            told += capfd.readouterr().err
            assert trio.current_time() < deadline, told
            await trio.sleep(0.01)
        assert f"memory: limit=100 MiB ({tmp_path}): little; give this process 128 MiB or more" in told

    assert run_daemon(until_told, name="x", logs=LogOptions()) == 0


def test_an_unexpected_error_is_logged_with_its_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    async def fail(stopping: trio.Event, ready: Ready) -> None:
        raise RuntimeError("oops")

    assert run_daemon(fail, name="x", logs=LogOptions()) == 1
    text = capfd.readouterr().err
    assert "x ends, by an error that was not expected" in text
    assert "RuntimeError: oops" in text


@dataclass
class Told:
    receiver: socket.socket

    def texts(self) -> list[str]:
        found = []
        while True:
            try:
                found.append(self.receiver.recv(1000).decode())
            except BlockingIOError:
                return found


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        receiver.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        yield Told(receiver)


def test_systemd_is_told(told: Told) -> None:
    async def serve_and_see(stopping: trio.Event, ready: Ready) -> None:
        ready("serves at x:1")
        os.kill(os.getpid(), signal.SIGTERM)
        await stopping.wait()
        await trio.testing.wait_all_tasks_blocked()

    assert run_daemon(serve_and_see, name="x", logs=LogOptions()) == 0
    texts = told.texts()
    assert texts[0] == "READY=1\nSTATUS=serves at x:1"
    assert "STOPPING=1\nSTATUS=stopping" in texts


def test_sighup_opens_the_log_file_again(tmp_path: Path) -> None:
    path = tmp_path / "x.log"

    async def rename(stopping: trio.Event, ready: Ready) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        while "opened again" not in path.read_text():
            await trio.lowlevel.checkpoint()

    assert run_daemon(rename, name="x", logs=LogOptions(log_file=str(path))) == 0
    assert f"log file {path} opened again" in path.read_text()

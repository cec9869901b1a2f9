"""`skylark dev`, mostly as a process: it says when it is ready, ends gracefully, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest
from click.testing import CliRunner

from skylark.cli.dev.command import _greeting, _remove
from skylark.cli.dev.servers import Addresses
from skylark.cli.main import skylark

pytestmark = pytest.mark.process

PORTS = [f"{option}=0" for option in ("--port", "--broker-port", "--grpc-port", "--console-port")]


@contextmanager
def dev(home: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process whose temporary directories are in ``home``, and what it has printed when it was ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "skylark", "dev", *PORTS, *options],
        env={**os.environ, "TMPDIR": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process:
        try:
            lines = []
            while line := process.stdout.readline():
                lines.append(line)
                if "Ctrl-C" in line:
                    break
            yield process, "".join(lines)
        finally:
            process.kill()


def end(process: subprocess.Popen[str], number: signal.Signals) -> str:
    """End the process; what it has said on stderr, without warnings about pauses of a busy machine."""
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    return "".join(line for line in said.splitlines(True) if "this process was stopped for" not in line)


def start_and_stop(home: Path) -> None:
    with dev(home) as (process, shown):
        assert "Skylark is ready." in shown and "http://" in shown
        assert [file.name[:12] for file in home.iterdir()] == ["skylark-dev-"]
        assert end(process, signal.SIGINT) == ""
    assert list(home.iterdir()) == []


def test_ctrl_c_ends_all_of_it_and_nothing_is_left(tmp_path: Path) -> None:
    start_and_stop(tmp_path)


def test_a_closed_terminal_and_a_second_signal_leave_nothing(tmp_path: Path) -> None:
    with dev(tmp_path) as (process, _):
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        # 130: the second signal came when the servers had stopped.
        assert process.returncode in (0, 130)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
def test_twenty_starts_and_stops_leave_nothing(tmp_path: Path) -> None:
    for _ in range(20):
        start_and_stop(tmp_path)


def test_the_three_lines_send_a_message_and_a_given_directory_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    with dev(tmp_path, "--data", str(data)) as (process, shown):
        lines = [line for line in shown.splitlines() if line.startswith("    ")]
        assert len(lines) == 3
        exec(dedent("\n".join(lines)))
        assert "SEND_OK" in capsys.readouterr().out
        for command, word in (("send", "broker-a/"), ("tail", "hello")):
            (line,) = [line for line in shown.splitlines() if f"skylark {command} " in line]
            arguments = line.partition(" skylark ")[2].split()
            result = CliRunner().invoke(skylark, [*arguments, *(["--no-follow"] if command == "tail" else [])])
            assert (result.exit_code, word in result.output) == (0, True), result.output
        end(process, signal.SIGTERM)
    assert [file.name for file in tmp_path.iterdir()] == ["data"]
    assert str(data) in shown and (data / "logs" / "skylark.log").stat().st_size > 0


def test_the_shell_lines_name_a_nameserver_that_the_commands_would_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    def lines(namesrv: str) -> list[str]:
        shown = _greeting(Addresses(namesrv, "", "", ""), Path("/data"), is_kept=True)
        return [line for line in shown.splitlines() if "skylark send" in line or "skylark tail" in line]

    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    assert [" -n " in line for line in lines("127.0.0.1:9876")] == [False, False]
    assert all(line.endswith(" -n 127.0.0.1:19876") for line in lines("127.0.0.1:19876"))
    monkeypatch.setenv("NAMESRV_ADDR", "production:9876")
    assert all(line.endswith(" -n 127.0.0.1:9876") for line in lines("127.0.0.1:9876"))


def test_two_servers_cannot_have_one_port() -> None:
    result = CliRunner().invoke(skylark, ["dev", "--port", "19999", "--console-port", "19999"])
    assert (result.exit_code, "a port of its own" in result.output) == (2, True)


def test_a_temporary_directory_that_stays_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    _remove(tmp_path / "nowhere")
    assert capsys.readouterr().err.startswith(f"{tmp_path / 'nowhere'} could not be removed: ")


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The command would change how this process takes SIGTERM.
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    (tmp_path / "file").write_text("in the way")
    result = CliRunner().invoke(skylark, ["dev", *PORTS, "--data", str(tmp_path / "file" / "data")])
    assert result.exit_code == 1
    assert result.output.endswith("Not a directory; name a directory that you may write with --data\n")

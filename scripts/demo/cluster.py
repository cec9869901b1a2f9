"""Daemons as processes of their own: start, wait until ready, kill, stop gracefully, each by its own process id."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

HOST = "127.0.0.1"
READY_TIMEOUT_S = 20
STOP_TIMEOUT_S = 20
POLL_S = 0.01
BIN = Path(sys.executable).parent
ROOT = Path(__file__).resolve().parents[2]


class DaemonFailed(Exception):
    """A daemon ended, or did not come up or stop in time; the text has the end of its log."""


@dataclass
class Daemon:
    """One NameServer or broker: its command line, where it listens, where its log goes."""

    name: str
    command: list[str]
    port: int
    log: Path
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def addr(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process; `wait_ready` tells when it serves."""
        if _listens(self.port):
            raise DaemonFailed(f"{self.name}: port {self.port} is in use; choose others, see scripts/quickstart --help")
        with self.log.open("ab") as log:
            # a session of its own: Ctrl-C is for the quickstart, which then stops it gracefully
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT, start_new_session=True
            )

    def ready(self) -> bool:
        """Whether it listens; DaemonFailed when it has ended."""
        if not self.runs:
            raise DaemonFailed(f"{self.name} ended at once (exit code {self._exit_code}):\n{self._log_end()}")
        return _listens(self.port)

    def kill(self) -> None:
        """kill -9: nothing of it is tidied up."""
        os.kill(self.pid, signal.SIGKILL)
        assert self._process is not None
        self._process.wait()

    def terminate(self) -> None:
        """Ask it to stop gracefully."""
        if self.runs:
            os.kill(self.pid, signal.SIGTERM)

    def wait_stopped(self) -> None:
        """Wait for the end of a graceful stop; DaemonFailed when it was not one."""
        if self._process is None:
            return
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise DaemonFailed(f"{self.name} did not stop within {STOP_TIMEOUT_S} s:\n{self._log_end()}") from None
        if self._exit_code:
            raise DaemonFailed(f"{self.name} stopped with exit code {self._exit_code}:\n{self._log_end()}")

    @property
    def _exit_code(self) -> int | None:
        return self._process.returncode if self._process else None

    def _log_end(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:]
        return "\n".join(f"    {line}" for line in lines) or "    (it logged nothing)"


def wait_ready(daemons: Iterable[Daemon]) -> None:
    """Until all of them listen."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    for daemon in daemons:
        while not daemon.ready():
            if time.monotonic() > deadline:
                raise DaemonFailed(f"{daemon.name} does not listen at {daemon.addr} after {READY_TIMEOUT_S} s")
            time.sleep(POLL_S)


def stop(daemons: Iterable[Daemon]) -> list[str]:
    """Stop those that run, all at once; what went wrong."""
    running = [daemon for daemon in daemons if daemon.runs]
    for daemon in running:
        daemon.terminate()
    problems = []
    for daemon in running:
        try:
            daemon.wait_stopped()
        except DaemonFailed as error:
            problems.append(str(error))
    return problems


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0

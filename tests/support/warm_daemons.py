"""Daemons forked from a process that has imported their modules: a start costs a tenth of the time.

A process of tests starts some hundred daemons, and two thirds of a start is the import of modules. A forked daemon has
its own session, log, environment and process id as an executed daemon, and dies by signals as an executed daemon does.
The commands themselves are run by test_warm_daemons.py beside this file, by test_start.py and test_machine_limits.py in
tests/e2e, and nightly by the quickstart. The Python programs of the manual are forked, too.
"""

import gc
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import IO

from scripts.daemons import ROOT, Process, execute
from scripts.rolling import names

# Console script → its module, and another module that it needs when it serves.
COMMANDS = {
    "broker": ("skylark.broker.cli", "skylark.broker.broker"),
    "controller": ("skylark.namesrv.controller.cli", "skylark.namesrv.controller.controller"),
    "mqproxy": ("skylark.mqproxy.cli", "skylark.mqproxy.daemon"),
    "namesrv": ("skylark.namesrv.cli", "skylark.namesrv.namesrv"),
}
# The command of a program that has its file as the first argument.
PYTHON = "python"
MAX_BYTES = 1 << 17
# How long a fork, and the end of the process that forks, may take: it imports the daemons' modules first.
ANSWER_S = 120.0
# In the environment of a daemon: a module whose ``install`` gives it another disk.
DISK = "TEST_DISK"


class Forked:
    """A daemon that was forked; like a `subprocess.Popen`."""

    def __init__(self, args: Sequence[str], reports: socket.socket) -> None:
        self.args = args
        self.returncode: int | None = None
        # First the process id, then, once, the exit code.
        self._reports = reports
        reports.settimeout(ANSWER_S)
        self.pid = int(reports.recv(MAX_BYTES))

    def poll(self) -> int | None:
        return self._exit_code(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._exit_code(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _exit_code(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self._reports.settimeout(timeout)
            try:
                self.returncode = int(self._reports.recv(MAX_BYTES))
            except (BlockingIOError, TimeoutError):
                return None
            self._reports.close()
        return self.returncode


class WarmDaemons:
    """Starts daemons by forks of a process that has imported their modules.

    The process begins with the first daemon at the latest, and ends with the process of the tests.
    With ``imported``, names of modules, it starts Python programs instead, which find these modules imported.
    """

    def __init__(self, *imported: str) -> None:
        self._imported = imported
        self._asks: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self, command: Sequence[str], log: IO[bytes], cwd: Path, environment: Mapping[str, str] = os.environ
    ) -> Process:
        """Start a program in a session of its own, with its output in ``log``.

        Programs that are not warm are executed.
        """
        if not self._is_warm(command):
            return execute(command, log, cwd, environment)
        self.begin()
        reports, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            what = json.dumps([command, dict(environment), str(cwd)]).encode()
            socket.send_fds(self._asks, [what], [theirs.fileno(), log.fileno()])
        return Forked(command, reports)

    def begin(self) -> None:
        """Start the process that forks daemons, unless it has started: processes forked from this one share it."""
        if self._asks is not None:
            return
        self._asks, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), *self._imported],
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
                start_new_session=True,
            )

    def _is_warm(self, command: Sequence[str]) -> bool:
        if self._imported:
            return command[0] == PYTHON
        path = Path(command[0])
        return path.parent == Path(sys.executable).parent and path.name in COMMANDS

    def close(self) -> None:
        """End that process, and the daemons that still run."""
        if self._asks is not None and self._process is not None:
            # Processes that were forked from this one may have the socket, too.
            self._asks.shutdown(socket.SHUT_RDWR)
            self._asks.close()
            # Processor time of the process, and of all daemons, counts as this process's.
            try:
                self._process.wait(ANSWER_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                raise


def serve(asks: socket.socket, modules: Iterable[str]) -> None:
    """Fork a daemon for each packet, and report how each ends, until the tests close the socket.

    Daemons that run then are killed: the tests may have been killed themselves, and nobody else would end them.
    """
    for module in modules:
        import_module(module)
    # A daemon would else look through all objects of all modules when it ends, and copy their pages by that.
    gc.freeze()
    running: set[int] = set()
    with selectors.DefaultSelector() as selector:

        def fork() -> bool:
            what, fds, _, _ = socket.recv_fds(asks, MAX_BYTES, 2)
            if not what:
                return False
            pid = os.fork()
            if pid == 0:
                selector.close()
                asks.close()
                _become(*json.loads(what), log=fds[1])
            running.add(pid)
            os.close(fds[1])
            reports = socket.socket(fileno=fds[0])
            reports.send(b"%d" % pid)
            ended = os.pidfd_open(pid)
            selector.register(ended, selectors.EVENT_READ, partial(report, pid, ended, reports))
            return True

        def report(pid: int, ended: int, reports: socket.socket) -> bool:
            selector.unregister(ended)
            os.close(ended)
            _, status = os.waitpid(pid, 0)
            running.remove(pid)
            with reports:
                reports.send(b"%d" % os.waitstatus_to_exitcode(status), socket.MSG_NOSIGNAL)
            return True

        selector.register(asks, selectors.EVENT_READ, fork)
        while all([key.data() for key, _ in selector.select()]):
            pass
    for pid in running:
        os.kill(pid, signal.SIGKILL)


def _become(command: Sequence[str], environment: Mapping[str, str], cwd: str, *, log: int) -> None:
    """Turn this process into the daemon."""
    os.setsid()
    with open(os.devnull, "rb") as nothing:
        for source, target in ((nothing.fileno(), 0), (log, 1), (log, 2)):
            os.dup2(source, target)
    os.closerange(3, 1 << 16)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = list(command)
    if command[0] == PYTHON:
        sys.argv = list(command[1:])
        sys.path[0] = cwd
        runpy.run_path(command[1], run_name="__main__")
        sys.exit()
    if DISK in environment:
        import_module(environment[DISK]).install(environment)
    if names.NAMES in environment:
        names.install(environment)
    module, _ = COMMANDS[Path(command[0]).name]
    import_module(f"{module.rpartition('.')[0]}.__main__").main()


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:] or chain.from_iterable(COMMANDS.values()))

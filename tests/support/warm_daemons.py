"""Daemons forked from a process that has imported their modules: a start costs a tenth of the time.

A process of tests starts some hundred daemons, and two thirds of a start is the import of modules. A forked daemon has
its own session, log, environment and process id as an executed daemon, and dies by signals as an executed daemon does.
The commands themselves are run by test_warm_daemons.py beside this file, by test_start.py and test_machine_limits.py in
tests/e2e, and nightly by the quickstart. The Python programs of the manual are forked, too. So are Spark's Python
processes, by like_python.py: half of the processor time of a test with Spark was imports in them.
"""

import atexit
import gc
import io
import marshal
import os
import runpy
import secrets
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import IO, NoReturn

from scripts.daemons import BIN, ROOT, Process, execute
from scripts.rolling import names

# Console script → its module, and another module that it needs when it serves or asks.
COMMANDS = {
    "broker": ("skylark.broker.cli", "skylark.broker.broker"),
    "mqadmin": ("skylark.mqadmin.cli", "skylark"),
    "controller": ("skylark.namesrv.controller.cli", "skylark.namesrv.controller.controller"),
    "mqproxy": ("skylark.mqproxy.cli", "skylark.mqproxy.daemon"),
    "namesrv": ("skylark.namesrv.cli", "skylark.namesrv.namesrv"),
}
# The command of a program that has its file as the first argument.
PYTHON = "python"
LIKE_PYTHON = Path(__file__).with_name("like_python.py")
MAX_BYTES = 1 << 17
# So many may ask before the first fork.
MOST_WAITING = 100
# Process, user and group at the other end of a socket.
PEER = struct.Struct("3i")
# How long a fork, and the end of the process that forks, may take: it imports the daemons' modules first.
ANSWER_S = 120.0
# In the environment of the tests: the folder of the programs that are forked.
PROGRAMS = "TEST_PROGRAMS"
# In the environment of a daemon: a module whose ``install`` gives it another disk.
DISK = "TEST_DISK"


def warm(name: str) -> str:
    """The path of a program: a console script or ``python``. A run with several processes of tests forks it."""
    return str(Path(os.environ.get(PROGRAMS, BIN)) / name)


class Forked:
    """A daemon that was forked; like a `subprocess.Popen`. It is killed when this process ends."""

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
        # The socket's end is the sign for that process to end.
        self._life: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._address = ""
        self._folder = Path()

    def start(
        self, command: Sequence[str], log: IO[bytes], cwd: Path, environment: Mapping[str, str] = os.environ
    ) -> Process:
        """Start a program in a session of its own, with its output in ``log``.

        Programs that are not warm are executed.
        """
        if not self._is_warm(command):
            return execute(command, log, cwd, environment)
        self.begin()
        asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        asked.connect(self._address)
        what = marshal.dumps(([*command], dict(environment), str(cwd), True))
        with open(os.devnull, "rb") as nothing:
            socket.send_fds(asked, [what], [nothing.fileno(), log.fileno(), log.fileno()])
        return Forked(command, asked)

    def programs(self) -> Path:
        """A folder with ``python``, which runs like this Python: a module or a file in a fork, and otherwise executed.

        Without ``imported`` the folder has the console scripts, too.
        """
        self.begin()
        return self._folder

    def begin(self) -> None:
        """Start the process that forks daemons, unless it has started: processes forked from this one share it."""
        if self._life is not None:
            return
        self._folder = folder = Path(tempfile.mkdtemp(prefix="warm"))
        # An abstract address: the path of a folder for temporary files may be too long for the path of a socket.
        self._address = f"\0skylark-tests-{secrets.token_hex(8)}"
        program = folder / PYTHON
        # Isolated and without site-packages: the program itself imports nothing.
        text = f"#!{sys.executable} -IS\n{LIKE_PYTHON.read_text(encoding='utf-8')}"
        program.write_text(f"{text}\n\nmain({sys.executable!r}, {self._address!r})\n", encoding="utf-8")
        program.chmod(0o700)
        for name in () if self._imported else COMMANDS:
            (folder / name).symlink_to(PYTHON)
        self._life, theirs = socket.socketpair()
        with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asks:
            asks.bind(self._address)
            asks.listen(MOST_WAITING)
            inherited = (theirs.fileno(), asks.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, *map(str, inherited), *self._imported],
                pass_fds=inherited,
                cwd=ROOT,
                # Spark's Python processes must agree on hashes of texts.
                env={**os.environ, "PYTHONHASHSEED": "0"},
                start_new_session=True,
            )

    def _is_warm(self, command: Sequence[str]) -> bool:
        if self._imported:
            return command[0] == PYTHON
        path = Path(command[0])
        return path.parent == BIN and path.name in COMMANDS

    def close(self) -> None:
        """End that process, and the daemons that still run."""
        if self._life is not None and self._process is not None:
            # Processes that were forked from this one may have the socket, too.
            self._life.shutdown(socket.SHUT_RDWR)
            self._life.close()
            # Processor time of the process, and of all daemons, counts as this process's.
            try:
                self._process.wait(ANSWER_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                raise
            # The watcher of the run removes it, too, and must not meet another that does.
            shutil.rmtree(self._folder)


class Forks:
    """Forks a process for each connection, and tells each other end how the process ends.

    A packet is a question for a fork, or the number of a signal for the process that was forked. A process whose
    connection closes is killed: the tests may have been killed themselves, and nobody else would end the process.
    """

    def __init__(self, asks: socket.socket, selector: selectors.BaseSelector) -> None:
        self.serves = True
        self._asks = asks
        self._selector = selector
        # Numbers of the processes that run, and their handles.
        self._running: dict[int, int] = {}
        selector.register(asks, selectors.EVENT_READ, self._accept)

    def stop(self) -> None:
        """Fork no more, and kill the processes that run."""
        self.serves = False
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)

    def _accept(self) -> None:
        connection, _ = self._asks.accept()
        _, user, _ = PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
        if user != os.getuid():
            connection.close()  # anyone on this machine may connect
            return
        self._selector.register(connection, selectors.EVENT_READ, partial(self._fork, connection))

    def _fork(self, connection: socket.socket) -> None:
        what, fds, _, _ = socket.recv_fds(connection, MAX_BYTES, 3)
        if not what:
            self._selector.unregister(connection)
            connection.close()
            return
        pid = os.fork()
        if pid == 0:
            self._selector.close()
            self._asks.close()
            connection.close()
            _become(*marshal.loads(what), streams=fds)
        for each in fds:
            os.close(each)
        self._running[pid] = ended = os.pidfd_open(pid)
        _tell(connection, pid)
        self._selector.modify(connection, selectors.EVENT_READ, partial(self._signal, connection, ended))
        self._selector.register(ended, selectors.EVENT_READ, partial(self._report, connection, pid))

    def _signal(self, connection: socket.socket, process: int) -> None:
        if connection.fileno() < 0:
            return  # the process has ended at the same time
        try:
            number = connection.recv(MAX_BYTES)
        except ConnectionResetError:
            number = b""  # whoever asked has ended without reading the number of its process
        signal.pidfd_send_signal(process, int(number) if number else signal.SIGKILL)
        if not number:
            self._selector.unregister(connection)

    def _report(self, connection: socket.socket, pid: int) -> None:
        ended = self._running.pop(pid)
        self._selector.unregister(ended)
        os.close(ended)
        _, status = os.waitpid(pid, 0)
        if connection in self._selector.get_map():
            self._selector.unregister(connection)
        with connection:
            _tell(connection, os.waitstatus_to_exitcode(status))


def _tell(connection: socket.socket, number: int) -> None:
    with suppress(ConnectionError):  # who asked has ended
        connection.send(b"%d" % number, socket.MSG_NOSIGNAL)


def serve(life: socket.socket, asks: socket.socket, modules: Iterable[str]) -> None:
    """Fork a process for each connection until the tests close ``life``; then kill those that still run."""
    for module in modules:
        import_module(module)
    # Brokers with batch queues import it once they serve.
    with suppress(ImportError):
        import_module("numpy")
    # A daemon would else look through all objects of all modules when it ends, and copy their pages by that.
    gc.freeze()
    with selectors.DefaultSelector() as selector:
        forks = Forks(asks, selector)
        selector.register(life, selectors.EVENT_READ, forks.stop)
        while forks.serves:
            for key, _ in selector.select():
                key.data()


def _become(
    command: Sequence[str], environment: Mapping[str, str], cwd: str, has_session: bool, *, streams: Sequence[int]
) -> NoReturn:
    """Turn this process into the daemon, or into another program of Python's."""
    if has_session:
        os.setsid()
    else:
        # Spark's Python processes make a group of their own, which the first of a session cannot.
        os.setpgid(0, 0)
    for target, source in enumerate(streams):
        os.dup2(source, target)
    os.closerange(3, 1 << 16)
    os.chdir(cwd)
    own = _python_path()
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = [cwd, *_python_path(), *sys.path[1 + len(own) :]]
    # The streams of this process until now would be taken for the file, or for the pipe, that they were.
    sys.stdin = os.fdopen(0, closefd=False)
    output = io.FileIO(1, "w", closefd=False)
    is_unbuffered = bool(environment.get("PYTHONUNBUFFERED"))
    sys.stdout = io.TextIOWrapper(output if is_unbuffered else io.BufferedWriter(output), write_through=is_unbuffered)
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = list(command)
    exit_code = 0
    try:
        _run(command)
    except SystemExit as end:
        exit_code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if exit_code and not isinstance(end.code, int):
            sys.stderr.write(f"{end.code}\n")
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        exit_code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    # The end of an interpreter visits all objects of all modules, and copies their pages by that.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if not stream.closed:
            stream.flush()
    if exit_code < 0:
        signal.signal(-exit_code, signal.SIG_DFL)
        os.kill(os.getpid(), -exit_code)
    os._exit(exit_code)


def _python_path() -> list[str]:
    return [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]


def _run(command: Sequence[str]) -> None:
    if command[0] != PYTHON:
        if DISK in os.environ:
            import_module(os.environ[DISK]).install(os.environ)
        if names.NAMES in os.environ:
            names.install(os.environ)
        module, _ = COMMANDS[Path(command[0]).name]
        import_module(f"{module.rpartition('.')[0]}.__main__").main()
    elif command[1] == "-m":
        sys.argv = list(command[2:])
        runpy.run_module(command[2], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(command[1:])
        sys.path[0] = os.path.dirname(os.path.realpath(command[1]))
        runpy.run_path(command[1], run_name="__main__")


if __name__ == "__main__":
    inherited_life, inherited_asks = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    serve(inherited_life, inherited_asks, sys.argv[3:] or chain.from_iterable(COMMANDS.values()))

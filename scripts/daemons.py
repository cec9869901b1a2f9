"""NameServers and brokers as separate processes on loopback; each is signalled by its own process id.

The quickstart, the end-to-end tests and some benches start their clusters with it.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, ClassVar, Protocol

HOST = "127.0.0.1"
# Below the range of ports for outgoing connections, so that no other process takes a port while its daemon is down, and
# no client that tries it connects to itself.
FREE_PORTS = range(20_000, 32_000)


class ReservedPort:
    """A port that no other process gets from `reserve` while this object lives.

    A socket is bound to it and does not listen. A daemon can listen there all the same: both have SO_REUSEADDR.
    """

    def __init__(self, wanted: int) -> None:
        """Raises OSError when the port is in use or reserved."""
        self.number = wanted
        self._holder = socket.socket()
        self._holder.bind((HOST, wanted))
        self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def __del__(self) -> None:
        self._holder.close()


_kept: list[tuple[ReservedPort, ReservedPort]] = []


def reserve() -> ReservedPort:
    """A port on which nothing listens."""
    while True:
        with suppress(OSError):
            return ReservedPort(random.choice(FREE_PORTS))


def reserve_pair() -> tuple[ReservedPort, ReservedPort]:
    """A port and the next one, on which nothing listens: a broker's ports for clients and for slaves."""
    while True:
        with suppress(OSError):
            number = random.choice(FREE_PORTS)
            return ReservedPort(number), ReservedPort(number + 1)


def free_port() -> int:
    """As `reserve_pair`, the first port; both are reserved until this process ends."""
    _kept.append(reserve_pair())
    return _kept[-1][0].number


def reserve_if_free(wanted: int) -> tuple[int, ReservedPort | None]:
    """``wanted``, by default any port; reserved if it is free. If it is not free, the daemon will say so."""
    if not wanted:
        port = reserve()
        return port.number, port
    with suppress(OSError):
        return wanted, ReservedPort(wanted)
    return wanted, None


def in_use(port: int) -> bool:
    """Whether something listens there."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


READY_TIMEOUT_S = 30
STOP_TIMEOUT_S = 20
POLL_S = 0.01
BIN = Path(sys.executable).parent
ROOT = Path(__file__).resolve().parents[1]
# Both daemons log this when they begin to answer requests.
READY_LINE = b" serves at "


class Process(Protocol):
    """The methods of `subprocess.Popen` that are used."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...


def execute(command: Sequence[str], log: IO[bytes], cwd: Path, environment: Mapping[str, str] = os.environ) -> Process:
    """Start a program whose output goes to ``log``."""
    # A session of its own: Ctrl-C reaches only the parent, which stops this process gracefully.
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=cwd, env=environment, start_new_session=True
    )


class DaemonFailed(Exception):
    """A daemon ended, or did not come up or stop in time; the text has the end of its log."""


@dataclass
class Daemon:
    """One NameServer or broker: its command line, where it listens, where its log goes."""

    name: str
    command: Sequence[str]
    port: int
    log: Path
    #: The reservations that keep other processes from the daemon's ports while it is down.
    reservation: object = field(default=None, repr=False)
    #: Variables that the process has besides those of this process.
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    _process: Process | None = field(default=None, repr=False)
    _log_start: int = 0
    #: Starts a process; tests have a faster way.
    launch: ClassVar[Callable[[Sequence[str], IO[bytes], Path, Mapping[str, str]], Process]] = execute

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

    @property
    def exit_code(self) -> int | None:
        return self._process.poll() if self._process else None

    def start(self) -> None:
        """Start the process; `ready` is True once it serves."""
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = Daemon.launch(self.command, log, ROOT, {**os.environ, **self.environment})

    def ready(self) -> bool:
        """Whether the daemon answers requests. Raises DaemonFailed when it has ended."""
        serves = READY_LINE in self.logged
        if not self.runs:
            raise DaemonFailed(f"{self.name} ended with exit code {self.exit_code}:\n{self.log_end()}")
        return serves

    def kill(self) -> None:
        """kill -9: the process cannot clean up."""
        self._signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()

    def freeze(self) -> None:
        """SIGSTOP: its connections stay open, but it does not answer."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def terminate(self) -> None:
        """Ask the daemon to stop gracefully; `wait_stopped` checks that it does."""
        if self.runs:
            self._signal(signal.SIGTERM)

    def wait_stopped(self) -> None:
        """Wait for the end of a graceful stop. Raises DaemonFailed when the stop is not graceful."""
        if self._process is None:
            return
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise DaemonFailed(f"{self.name} did not stop within {STOP_TIMEOUT_S} s:\n{self.log_end()}") from None
        if self.exit_code == -signal.SIGTERM and READY_LINE not in self.logged:
            return  # the daemon was stopped before it handled signals
        if self.exit_code:
            raise DaemonFailed(f"{self.name} stopped with exit code {self.exit_code}:\n{self.log_end()}")

    def rss_bytes(self) -> int:
        """The daemon's resident memory."""
        pages = Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def anonymous_bytes(self) -> int:
        """The daemon's memory without the pages of files: what it has mapped of its log is no memory that it needs."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        return int(status.partition("RssAnon:")[2].split()[0]) * 1024

    @property
    def logged(self) -> bytes:
        """The daemon's log since its last start."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read()

    def log_end(self) -> str:
        """The last lines of the daemon's log."""
        lines = self.logged.decode(errors="replace").splitlines()[-20:]
        return "\n".join(f"    {line}" for line in lines) or "    (it logged nothing)"

    def _signal(self, number: int) -> None:
        os.kill(self.pid, number)


def namesrv_daemon(home: Path, name: str = "namesrv", port: int = 0, *options: str) -> Daemon:
    """A NameServer whose files are in ``home``."""
    port, reservation = reserve_if_free(port)
    command = [
        str(BIN / "namesrv"),
        "--listen-port",
        str(port),
        "--bind-address",
        HOST,
        "--kv-config-path",
        str(home / f"{name}.json"),
        *options,
    ]
    return Daemon(name, command, port, home / f"{name}.log", reservation)


def broker_daemon(home: Path, name: str, nameserver: str, port: int = 0, *options: str) -> Daemon:
    """A broker whose store is in ``home``; ``options`` go to its command line."""
    reservation: object = None
    if port:
        port, reservation = reserve_if_free(port)
        with suppress(OSError):  # the port for slaves; if it is in use, the broker will say so
            reservation = reservation, ReservedPort(port + 1)
    else:
        reservation = reserve_pair()
        port = reservation[0].number
    command = [
        str(BIN / "broker"),
        "--listen-port",
        str(port),
        "--bind-address",
        HOST,
        "--broker-ip1",
        HOST,
        # By default this is the listen port minus 2, which another daemon may have when free_port chose the ports.
        "--fast-listen-port",
        "0",
        "--broker-name",
        name,
        "--namesrv-addr",
        nameserver,
        "--store-path-root-dir",
        str(home / name),
        # The broker must not depend on how full this machine's disk is, nor on the hour.
        "--disk-max-used-space-ratio",
        "95",
        "--disk-space-clean-forcibly-ratio",
        "100",
        "--disk-space-warning-level-ratio",
        "100",
        "--clean-file-forcibly-enable",
        "false",
        "--file-reserved-time",
        "1000000",
        *options,
    ]
    return Daemon(name, command, port, home / f"{name}.log", reservation)


def proxy_daemon(home: Path, name: str, nameserver: str, *options: str) -> Daemon:
    """A proxy in a process of its own; ``options`` go to its command line."""
    port = reserve()
    command = [
        str(BIN / "mqproxy"),
        "--namesrv-addr",
        nameserver,
        "--bind-address",
        HOST,
        "--grpc-server-port",
        str(port.number),
        *options,
    ]
    return Daemon(name, command, port.number, home / f"{name}.log", port)


def wait_ready(daemons: Iterable[Daemon]) -> None:
    """Wait until all daemons answer requests."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    for daemon in daemons:
        while not daemon.ready():
            if time.monotonic() > deadline:
                raise DaemonFailed(f"{daemon.name} is not ready after {READY_TIMEOUT_S} s:\n{daemon.log_end()}")
            time.sleep(POLL_S)


@contextmanager
def serving(*daemons: Daemon) -> Iterator[None]:
    """Daemons that serve in the block.

    At its end running daemons are stopped, the last first, and problems are printed.
    """
    try:
        for daemon in daemons:
            daemon.start()
        wait_ready(daemons)
        yield
    finally:
        for problem in stop(reversed(daemons)):
            sys.stderr.write(f"{problem}\n")


def stop(daemons: Iterable[Daemon]) -> list[str]:
    """Stop the running daemons, all at once; returns the problems."""
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

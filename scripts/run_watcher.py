"""A run of tests leaves nothing behind, also when it is killed: neither processes nor temporary files.

A run puts a mark into its environment, and every process that it starts inherits the mark, directly or not. A second
process, the watcher, waits for the end of the run; then it kills all processes with the mark and removes the run's
temporary directory. Process groups, sessions and parents do not suffice: daemons have sessions of their own, and the
children of a killed process become children of init.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Begins the name of an environment variable; the name of the temporary directory ends it.
MARK = "_SKYLARK_RUN_"
PREFIX = "skylark-"
# A process that ends by itself may do so for this long; then it is killed, and counts as left behind.
GRACE_S = 10
POLL_S = 0.05
# Messages of the run to the watcher: it has ended, or was interrupted.
END, END_NOW = b"end", b"end now"
# The watcher's end of the pipe through which the run and its forks tell it of themselves.
TOLD = 0


class Watched:
    """The current process is a run from here on: it has a temporary directory, and processes that end with it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        mark = MARK + self.folder.name.removeprefix(PREFIX)
        # Isolated and without site-packages: nothing of the tree under test is imported.
        self._watcher = subprocess.Popen(
            [sys.executable, "-IS", __file__, str(os.getpid()), mark, str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
        self._replaced = {name: os.environ.get(name) for name in (mark, "TMPDIR")}
        os.environ.update({mark: "1", "TMPDIR": str(self.folder)})
        tempfile.tempdir = None
        # /proc shows the environment of the last exec: a child that was only forked has no mark there.
        os.register_at_fork(after_in_child=self._tell_fork)

    def end(self, *, now: bool = False) -> list[str]:
        """End and remove all that is left; returns the command lines of processes that did not end by themselves.

        ``now``: processes get no time to end by themselves.
        """
        for name, value in self._replaced.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        tempfile.tempdir = None
        left_behind, _ = self._watcher.communicate((END_NOW if now else END) + b"\n")
        return left_behind.decode(errors="replace").splitlines()

    def _tell_fork(self) -> None:
        assert self._watcher.stdin is not None
        with suppress(OSError, ValueError):  # this run has ended, and the fork belongs to none
            os.write(self._watcher.stdin.fileno(), b"%d\n" % os.getpid())


def watch(run_pid: int, mark: str, folder: str) -> None:
    """Wait until the run ends, or says that it does; then end its processes and remove its files."""
    processes = Processes(mark)
    run = os.pidfd_open(run_pid)
    poll = select.poll()
    poll.register(run, select.POLLIN)
    poll.register(TOLD, select.POLLIN)
    messages: set[bytes] = set()
    has_ended = os.getppid() != run_pid
    while not has_ended:
        ready = {fd for fd, _ in poll.poll()}
        messages |= processes.told()
        has_ended = run in ready or END in messages or END_NOW in messages
        if not processes.more_may_be_told:
            with suppress(KeyError):
                poll.unregister(TOLD)
    if END in messages:
        processes.wait(GRACE_S)
    for line in processes.kill(GRACE_S):
        sys.stdout.write(line + "\n")
    remove(folder)


class Processes:
    """The processes of a run: processes with its mark, and processes that the run's own process has forked.

    Each forked process tells its number through a pipe. It may come to that only after the run has ended, so the end of
    the pipe is waited for: a forked process has the pipe from its first moment on.
    """

    def __init__(self, mark: str) -> None:
        self._mark = f"{mark}=1".encode()
        # Handles, as the number of an ended process may be given to a new process.
        self._forks: dict[int, int] = {}
        os.set_blocking(TOLD, False)
        self._line = b""
        self.more_may_be_told = True

    def told(self) -> set[bytes]:
        """Read what the pipe has: numbers of forked processes, and messages, which are returned."""
        messages = set()
        with suppress(BlockingIOError):
            while self.more_may_be_told:
                part = os.read(TOLD, 4096)
                self.more_may_be_told = part != b""
                *lines, self._line = (self._line + part).split(b"\n")
                for line in lines:
                    if line.isdigit():
                        self._add_fork(int(line))
                    else:
                        messages.add(line)
        return messages

    def wait(self, timeout_s: float) -> None:
        """Wait until all processes have ended, or the time is over."""
        deadline = time.monotonic() + timeout_s
        while (any(self._running()) or self.more_may_be_told) and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def kill(self, timeout_s: float) -> list[str]:
        """Kill until no process is left, as processes may start others meanwhile; returns their command lines.

        ``timeout_s``: how long forked processes have to tell their numbers.
        """
        deadline = time.monotonic() + timeout_s
        killed: dict[int, str] = {}
        # A process in the middle of an exec has no environment to look at.
        rounds_without = 0
        while rounds_without < 3 or (self.more_may_be_told and time.monotonic() < deadline):
            rounds_without += 1
            for pid, handle in self._running():
                rounds_without = 0
                with suppress(OSError):
                    command = Path("/proc", str(pid), "cmdline").read_bytes().replace(b"\0", b" ")
                    killed.setdefault(pid, f"{pid}: {command.decode(errors='replace')}".replace("\n", " ")[:200])
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            time.sleep(POLL_S)
        return list(killed.values())

    def _add_fork(self, pid: int) -> None:
        with suppress(ProcessLookupError):
            self._forks[os.pidfd_open(pid)] = pid

    def _running(self) -> Iterator[tuple[int, int]]:
        """Numbers and handles of the processes; a handle is valid until the next one is asked for."""
        self.told()
        for handle, pid in list(self._forks.items()):
            if select.select([handle], [], [], 0)[0]:
                os.close(handle)
                del self._forks[handle]
            else:
                yield pid, handle
        for name in os.listdir("/proc"):
            if name.isdigit():
                with _handle(int(name)) as handle:
                    if handle and self._mark in _environment(name):
                        yield int(name), handle


@contextmanager
def _handle(pid: int) -> Iterator[int]:
    """A handle of the process; 0 when there is no such process any more."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        yield 0
        return
    try:
        yield handle
    finally:
        os.close(handle)


def _environment(pid: str) -> list[bytes]:
    """The environment of a process; empty for a process that has ended, or belongs to another user."""
    try:
        return Path("/proc", pid, "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def mounted_in(folder: str) -> list[str]:
    """Where in ``folder`` disks are mounted, the inner ones first."""
    places = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    return sorted((each for each in places if each.startswith(f"{folder}/")), key=len, reverse=True)


def remove(folder: str) -> None:
    """Remove the temporary directory, also what a test has made unreadable, or has mounted there."""
    for place in mounted_in(folder):
        subprocess.run(["umount", place], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for path, names, _ in os.walk(folder):
        for name in names:
            inner = os.path.join(path, name)
            if not os.path.islink(inner):
                os.chmod(inner, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    watch(int(sys.argv[1]), sys.argv[2], sys.argv[3])

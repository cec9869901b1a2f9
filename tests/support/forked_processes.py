"""Several processes of tests, which are forked from the process that has imported and collected all of them.

An import and a collection of all tests costs nine seconds of processor time. pytest-xdist pays them in each process,
and again for the tests that it tells the others about; here the first process pays them, once.
"""

import os
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn, cast

import pytest

# A group is what one process runs in a row: positions of tests among all tests.
Group = Sequence[int]
# What a process tells about a test that has ended: its reports, and the warnings in it as arguments of pytest's hook.
Told = tuple[list[dict[str, Any]], list[dict[str, Any]]]


@dataclass(eq=False)
class Process:
    """A process of tests as the first process sees it."""

    pid: int
    # Readable once the process has ended.
    handle: int
    connection: "Connection[Any, Any]"
    # Tests that the process has and that have not ended; the first one runs.
    positions: deque[int] = field(default_factory=deque)
    has_group: bool = False
    # When the process was heard last, by the monotonic clock: since then the first test runs.
    since_s: float = field(default_factory=time.monotonic)


class ForkedProcesses:
    """A plugin of pytest: ``count`` processes run the tests, a group at a time, in the order in which groups begin.

    Tests with the same ``group_of`` their node id are a group. A forked process calls ``begin`` before all tests. A
    process that ends while it runs a test has failed this test, and another one takes its place. With several ``turns``
    each group runs so often, each time in a new process, and a test that takes ``timeout_s`` has failed, too.
    """

    def __init__(
        self,
        count: int,
        group_of: Callable[[str], str],
        begin: Callable[[], None] | None = None,
        *,
        turns: int = 1,
        timeout_s: float | None = None,
    ) -> None:
        self._count = count
        self._group_of = group_of
        self._begin = begin
        self._turns = turns
        self._timeout_s = timeout_s
        self._processes: list[Process] = []
        self._waiting: deque[Group] = deque()
        self._stops = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        options = session.config.option
        if options.collectonly or options.usepdb or session.testsfailed or not session.items:
            return None  # pytest's own loop says what is wrong, and a debugger needs the terminal
        if options.basetemp is not None:
            # Emptied once, not by each process.
            session.config._tmp_path_factory.getbasetemp()
        for group in grouped(self._group_of(item.nodeid) for item in session.items):
            self._waiting.extend([group] * self._turns)
        session.testscollected *= self._turns
        try:
            for _ in range(min(self._count, len(self._waiting))):
                self._fork(session)
            while self._processes:
                self._attend(session)
        finally:
            for process in self._processes:
                os.kill(process.pid, signal.SIGKILL)
                self._reap(process)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        return True

    def _fork(self, session: pytest.Session) -> None:
        ours, theirs = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Threads of libraries are not in the child; none of them runs Python, or holds a lock between tests.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            ours.close()
            for process in self._processes:
                process.connection.close()
                os.close(process.handle)
            self._run(session, theirs)
        theirs.close()
        self._processes.append(Process(pid, os.pidfd_open(pid), ours))

    def _run(self, session: pytest.Session, connection: "Connection[Any, Any]") -> NoReturn:
        """Be a process of tests."""
        code = 1
        try:
            _leave_terminal(session.config)
            if self._begin is not None:
                self._begin()
            Runner(session, connection).run()
            code = 0
        except (ConnectionError, EOFError):
            pass  # the first process has ended, or ends
        except BaseException:
            connection.send(traceback.format_exc())
        finally:
            # Nothing of the first process's end belongs into this process: no summary, no finalizer.
            os._exit(code)

    def _attend(self, session: pytest.Session) -> None:
        """Wait for something that a process says, or for the end of one."""
        connections = [each for process in self._processes for each in (process.connection, process.handle)]
        ready = wait(connections, None if self._timeout_s is None else 1.0)
        for process in list(self._processes):
            seconds = time.monotonic() - process.since_s
            if self._timeout_s is not None and process.positions and seconds > self._timeout_s:
                os.kill(process.pid, signal.SIGABRT)  # pytest's faulthandler says where each thread stands
                process.since_s = inf
            if process.connection in ready or process.handle in ready:
                try:
                    # What a process has said before its end counts.
                    while process.connection.poll():
                        self._hear(session, process, process.connection.recv())
                    if process.handle in ready:
                        # No end of the connection comes while a process that the test has forked holds it.
                        raise EOFError
                except (EOFError, ConnectionError):
                    self._processes.remove(process)
                    self._has_ended(session, process, self._reap(process))

    def _hear(self, session: pytest.Session, process: Process, said: Told | str | None) -> None:
        process.since_s = time.monotonic()
        if said is None:
            is_over = self._turns > 1 and process.has_group
            group = self._waiting.popleft() if self._waiting and not is_over else ()
            process.has_group = True
            process.positions.extend(group)
            process.connection.send(group)
        elif isinstance(said, str):
            sys.stderr.write(said)
        else:
            self._show(session, process.positions.popleft(), *said)

    def _stop(self) -> None:
        """Let each process end after its next test."""
        self._stops = True
        self._waiting.clear()
        for process in self._processes:
            with suppress(ConnectionError):
                process.connection.send(())

    def _show(
        self,
        session: pytest.Session,
        position: int,
        reports: Iterable[dict[str, Any]],
        warned: Iterable[dict[str, Any]],
    ) -> None:
        item, hook = session.items[position], session.config.hook
        for each in warned:
            hook.pytest_warning_recorded.call_historic(kwargs=each)
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for data in reports:
            report = hook.pytest_report_from_serializable(config=item.config, data=data)
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if (session.shouldfail or session.shouldstop) and not self._stops:
            self._stop()

    def _has_ended(self, session: pytest.Session, process: Process, exit_code: int) -> None:
        if exit_code == 0 and (self._stops or not process.positions):
            if self._waiting:
                self._fork(session)
            return
        how = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
        if not process.positions:
            raise RuntimeError(f"a process of tests ended between tests: {how}")
        position = process.positions.popleft()
        item = session.items[position]
        text = f"the process of tests ended while it ran this test: {how}"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
        data = session.config.hook.pytest_report_to_serializable(config=session.config, report=report)
        self._show(session, position, [data], [])
        if process.positions and not self._stops:
            self._waiting.appendleft(tuple(process.positions))
        if self._waiting:
            self._fork(session)

    def _reap(self, process: Process) -> int:
        process.connection.close()
        os.close(process.handle)
        _, status = os.waitpid(process.pid, 0)
        return os.waitstatus_to_exitcode(status)


class Runner:
    """Runs the groups that the first process gives out; the plugin that tells the first process what came of it."""

    def __init__(self, session: pytest.Session, connection: "Connection[Any, Any]") -> None:
        self._session = session
        self._connection = connection
        self._reports: list[dict[str, Any]] = []
        self._warnings: list[dict[str, Any]] = []

    def run(self) -> None:
        session = self._session
        session.config.pluginmanager.register(self)
        self._warnings.clear()  # of the first process: pytest tells them to each new plugin
        positions = deque(self._next_group())
        while positions:
            item = session.items[positions.popleft()]
            # What two tests share lives on between them, so the next test must be known before this one ends.
            if self._connection.poll():
                positions.clear()  # the run stops
            elif not positions:
                positions.extend(self._next_group())
            following = session.items[positions[0]] if positions else None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            self._connection.send((self._reports, self._warnings))
            self._reports, self._warnings = [], []
            if session.shouldfail or session.shouldstop:
                return  # and what tests share has ended

    def _next_group(self) -> Group:
        self._connection.send(None)
        return cast(Group, self._connection.recv())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        config = self._session.config
        self._reports.append(config.hook.pytest_report_to_serializable(config=config, report=report))

    def pytest_warning_recorded(
        self,
        warning_message: warnings.WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        warned = warning_message
        # Its text only: a warning may hold what cannot be sent to another process.
        text = warnings.WarningMessage(str(warned.message), warned.category, warned.filename, warned.lineno)
        self._warnings.append({"warning_message": text, "when": when, "nodeid": nodeid, "location": location})


def grouped(keys: Iterable[str]) -> list[Group]:
    """Positions with the same key, in the order in which keys appear."""
    groups: dict[str, list[int]] = {}
    for position, key in enumerate(keys):
        groups.setdefault(key, []).append(position)
    return list(groups.values())


def _leave_terminal(config: pytest.Config) -> None:
    """Give a forked process what it must not share with the first one: output, temporary files, random numbers."""
    plugins = config.pluginmanager
    for name in ("terminalreporter", "terminalprogress-plugin"):
        if plugins.has_plugin(name):
            plugins.unregister(name=name)
    capture: Any = plugins.get_plugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    folder = tempfile.mkdtemp(prefix="p")
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    factory: Any = config._tmp_path_factory
    if factory._given_basetemp is not None:
        factory._basetemp = factory.getbasetemp() / os.path.basename(folder)
        factory._basetemp.mkdir()
    random.seed()

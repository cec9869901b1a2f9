"""A parent restarts and stops its children whatever they do, and whether or not anybody reads its stderr."""

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from skylark.mqcommon.logs.copier import LineCopier
from skylark.remoting.net import children
from skylark.remoting.net.children import FROZEN_S, run_child

MEGABYTE = 1 << 20


class Child:
    """A child with this program, and what it has told."""

    def __init__(self, program: str) -> None:
        self.command = [sys.executable, "-c", program]
        self.lines: list[bytes] = []
        self.stopping = trio.Event()
        self.copy: Callable[[bytes], object] = self.lines.append
        self.has_started = trio.Event()
        self.serves = 0

    def started(self, process: trio.Process) -> None:
        self.has_started.set()

    def served(self) -> None:
        self.serves += 1

    async def run(self) -> int:
        return await run_child(
            self.command, "name", started=self.started, serves=self.served, stopping=self.stopping,
            copy=self.copy, in_json=False,
        )  # fmt: skip

    @property
    def said(self) -> bytes:
        return b"".join(self.lines)


async def test_lines_have_the_name_of_the_child_and_its_end_is_told() -> None:
    child = Child("print('one'); print('two', end=''); raise SystemExit(3)")
    assert await child.run() == 3
    assert child.said == b"name one\nname two\n"


async def test_the_end_of_a_child_is_told_though_its_own_child_holds_the_pipe() -> None:
    child = Child("import subprocess; print(subprocess.Popen(['sleep', '600']).pid)")
    try:
        assert await child.run() == 0
    finally:
        os.kill(int(child.said.split()[1]), signal.SIGKILL)


SIGNS = """
import os, signal, socket, time
def tell(text):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(text, b"\\0" + os.environ["NOTIFY_SOCKET"][1:].encode())
signal.signal(signal.SIGTERM, signal.SIG_IGN)
tell(b"READY=1")
while not os.path.exists({done!r}):
    if {has_signs}:
        tell(b"EXTEND_TIMEOUT_USEC=1")
    time.sleep(0.02)
"""


class HeardNotices(children.Notices):
    """Tells a test of each message."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = trio.Event()

    async def next(self) -> list[bytes]:
        lines = await super().next()
        self.heard.set()
        return lines


@pytest.fixture
def notices(monkeypatch: pytest.MonkeyPatch) -> list[HeardNotices]:
    made: list[HeardNotices] = []

    def make() -> HeardNotices:
        made.append(HeardNotices())
        return made[-1]

    monkeypatch.setattr(children, "Notices", make)
    return made


async def sign_of_life(notices: list[HeardNotices]) -> None:
    notices[0].heard = trio.Event()
    await notices[0].heard.wait()
    await trio.testing.wait_all_tasks_blocked()


async def test_a_child_that_stops_is_killed_only_when_it_gives_no_sign_of_life(
    tmp_path: Path, notices: list[HeardNotices], mock_clock: trio.testing.MockClock
) -> None:
    child, codes = Child(SIGNS.format(done=str(tmp_path / "done"), has_signs=True)), list[int]()
    async with trio.open_nursery() as nursery:

        async def run() -> None:
            codes.append(await child.run())

        nursery.start_soon(run)
        await child.has_started.wait()
        await sign_of_life(notices)
        child.stopping.set()
        for _ in range(5):
            await sign_of_life(notices)
            mock_clock.jump(FROZEN_S - 1)
        assert child.serves == 1 and not codes
        (tmp_path / "done").touch()
    assert codes == [0]


async def test_a_child_that_is_frozen_is_killed_when_it_is_to_stop(
    tmp_path: Path, notices: list[HeardNotices], mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    child, codes = Child(SIGNS.format(done=str(tmp_path / "done"), has_signs=False)), list[int]()
    async with trio.open_nursery() as nursery:

        async def run() -> None:
            codes.append(await child.run())

        nursery.start_soon(run)
        await child.has_started.wait()
        await notices[0].heard.wait()
        mock_clock.jump(10 * FROZEN_S)
        await trio.testing.wait_all_tasks_blocked()
        child.stopping.set()
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(FROZEN_S + 1)
    assert codes == [-signal.SIGKILL]
    assert "name stops and has given no sign of life" in caplog.text


# --- lines


async def test_nobody_reads_stderr_and_a_child_that_prints_much_is_restarted_and_stopped_all_the_same() -> None:
    is_read = threading.Event()
    written: list[bytes] = []

    def write(lines: bytes) -> None:
        is_read.wait()
        written.append(lines)

    copier = LineCopier(write)
    child = Child(f"import sys; sys.stdout.write(('x' * 99 + chr(10)) * {3 * MEGABYTE // 100}); print('last')")
    child.copy = copier.put
    for _ in range(2):
        assert await child.run() == 0
    is_read.set()
    copier.close()
    assert len(b"".join(written)) <= MEGABYTE + 1_000


def test_lines_that_nobody_reads_are_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    is_read, written = threading.Event(), list[bytes]()

    def write(lines: bytes) -> None:
        is_read.wait()
        written.append(lines)

    copier = LineCopier(write, max_waiting_bytes=10)
    for number in range(10):
        copier.put(b"%d\n\n" % number)
    is_read.set()
    with caplog.at_level(logging.WARNING):
        copier.close()
    assert written == [b"0\n\n", b"1\n\n", b"2\n\n"]
    assert "14 lines of child processes are missing here" in caplog.text


def test_a_closed_stderr_loses_lines_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    def write(lines: bytes) -> None:
        raise BrokenPipeError

    copier = LineCopier(write)
    copier.put(b"a\nb\n")
    copier.close()
    assert "2 lines of child processes are missing" in caplog.text


ENDS = """
import trio
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.logs.options import LogOptions
from skylark.mqcommon.daemons import start_report
from skylark.remoting.net.daemon import run_daemon

start_report.PRINT_TIMEOUT_S = 0.1

async def refuse(stopping, ready):
    raise UserError("take another port")

raise SystemExit(run_daemon(refuse, name="x", logs=LogOptions()))
"""


def test_a_daemon_whose_stderr_nobody_reads_ends_with_its_exit_code() -> None:
    reader, writer = os.pipe()
    try:
        os.set_blocking(writer, False)
        with pytest.raises(BlockingIOError):
            while True:
                os.write(writer, bytes(4096))
        os.set_blocking(writer, True)
        daemon = subprocess.Popen([sys.executable, "-c", ENDS], stderr=writer)
        try:
            assert daemon.wait(60) == 1
        finally:
            daemon.kill()
            daemon.wait()
    finally:
        os.close(reader)
        os.close(writer)


async def copied(*pieces: bytes, in_json: bool = False) -> list[bytes]:
    """What is copied of the output of a child, which comes in these pieces."""
    found: list[bytes] = []
    send, receive = trio.testing.memory_stream_one_way_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(children._copy_lines, receive, "a", found.append, in_json=in_json))
        for piece in pieces:
            await send.send_all(piece)
            await trio.testing.wait_all_tasks_blocked()
        await send.aclose()
    return found


async def test_lines_are_copied_when_they_are_whole_and_the_last_one_at_the_end() -> None:
    assert await copied(b"one\ntw", b"o", b" more\nth", b"ree") == [b"a one\n", b"a two more\n", b"a three\n"]


async def test_a_line_without_an_end_is_copied_in_parts() -> None:
    size = children._LINE_BYTES
    assert await copied(b"x" * size, b"y" * 10, b"z\n") == [b"a " + b"x" * size + b"y" * 10 + b"\n", b"a z\n"]


async def test_lines_in_json_have_the_name_of_the_child_as_a_field() -> None:
    lines = await copied(b'{"level": "INFO"}\nTraceback\n', in_json=True)
    assert lines == [b'{"instance": "a", "level": "INFO"}\na Traceback\n']

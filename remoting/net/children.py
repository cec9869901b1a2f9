"""A daemon that starts other daemons: their processes, and what a child does when its parent is gone.

A child tells its parent with the messages of systemd (sd_notify) that it serves and, while it stops, that it is alive;
a stopping child without a sign of life is killed. The child's log comes through a pipe, each line with the child's
name. When the parent is killed, the parent's end of the child's stdin closes, and the child stops. Nothing here waits
for the reader of the parent's stderr.
"""

import logging
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

import trio

from skylark.mqcommon.daemons.systemd import Notices

logger = logging.getLogger(__name__)

# In the environment of a child.
SUPERVISED = "_SKYLARK_SUPERVISED"
_LINE_BYTES = 64 * 1024
# How long a child may take to end when its parent fails.
_END_S = 2.0
# A child that stops gives a sign of life every 10 s (systemd.py). A child without a sign of life for this time is
# frozen.
FROZEN_S = 30.0
# How long the last lines of a child that has ended are read: its own children may hold the pipe open.
LAST_LINES_S = 1.0


async def run_child(
    command: Sequence[str],
    name: str,
    *,
    started: Callable[[trio.Process], object],
    serves: Callable[[], object],
    stopping: trio.Event,
    copy: Callable[[bytes], object],
    environ: Mapping[str, str] = os.environ,
    in_json: bool,
) -> int:
    """Run ``command`` until it ends; returns its exit code.

    When ``stopping`` is set, the child gets SIGTERM, and SIGKILL once it is frozen. ``started`` is called with the
    process when it runs, ``serves`` when the child has told that it is ready (as systemd is told). ``copy`` gets its
    lines, which begin with ``name``, and must not wait. ``in_json``: its log has one JSON object a line.
    """
    async with Notices() as notices:
        own = {**environ, "NOTIFY_SOCKET": notices.address, SUPERVISED: "1"}
        for variable in ("WATCHDOG_USEC", "WATCHDOG_PID"):
            own.pop(variable, None)
        process = await trio.lowlevel.open_process(
            list(command),
            env=own,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        started(process)
        assert process.stdin is not None and process.stdout is not None

        output, copied, sign_of_life = process.stdout, trio.Event(), trio.CancelScope()

        async def listen() -> None:
            while True:
                lines = await notices.next()
                if stopping.is_set():
                    sign_of_life.deadline = trio.current_time() + FROZEN_S
                if b"READY=1" in lines:
                    serves()

        async def copy_output() -> None:
            await _copy_lines(output, name, copy, in_json=in_json)
            copied.set()

        async def stop() -> None:
            await stopping.wait()
            process.terminate()
            sign_of_life.deadline = trio.current_time() + FROZEN_S
            with sign_of_life:
                await trio.sleep_forever()
            logger.error("%s stops and has given no sign of life for %.0f s: killing it", name, FROZEN_S)
            process.kill()

        try:
            async with trio.open_nursery() as nursery:
                for task in (listen, copy_output, stop):
                    nursery.start_soon(task)
                code = await process.wait()
                with trio.move_on_after(LAST_LINES_S):
                    await copied.wait()
                nursery.cancel_scope.cancel()
        finally:
            if process.returncode is None:
                await _end(process)
            await process.stdin.aclose()
            await process.stdout.aclose()
    return code


async def _end(process: trio.Process) -> None:
    """End the child when the parent fails or must stop at once: no child outlives its parent."""
    process.terminate()
    with trio.CancelScope(shield=True):
        with trio.move_on_after(_END_S):
            await process.wait()
            return
        process.kill()
        await process.wait()


async def stop_with_supervisor(stopping: trio.Event) -> None:
    """In a child: set ``stopping`` when its parent is gone. Returns when it is set."""
    if SUPERVISED not in os.environ:
        return
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            async with trio.lowlevel.FdStream(os.dup(0)) as stream:
                while await stream.receive_some(1):
                    pass
            if not stopping.is_set():
                logger.warning("the supervisor is gone: stopping")
                stopping.set()

        nursery.start_soon(watch)
        await stopping.wait()
        nursery.cancel_scope.cancel()


def end_text(code: int) -> str:
    """How a process ended, in words."""
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


async def _copy_lines(
    stream: trio.abc.ReceiveStream, name: str, copy: Callable[[bytes], object], *, in_json: bool
) -> None:
    """Give ``copy`` what the child prints, line by line, each with the child's name."""
    rest = b""
    mark = name.encode()
    while data := await stream.receive_some(_LINE_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > _LINE_BYTES:
            lines, rest = [*lines, rest], b""
        marked = [_marked(line, mark, in_json=in_json) for line in lines]
        if marked:
            copy(b"".join(marked))
    if rest:
        copy(_marked(rest, mark, in_json=in_json))


def _marked(line: bytes, mark: bytes, *, in_json: bool) -> bytes:
    if in_json and line.startswith(b"{"):
        return b'{"instance": "%s", %s\n' % (mark, line[1:])
    return b"%s %s\n" % (mark, line)

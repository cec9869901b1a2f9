"""A daemon that starts other daemons: their processes, and what a child does when its parent is gone.

A child tells its parent that it serves as it would tell systemd (sd_notify). Its log comes through a pipe, each line
with the child's name. When the parent is killed, its end of the child's stdin closes, and the child stops.
"""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

import trio

from mqcommon.daemons.systemd import Notices

logger = logging.getLogger(__name__)

# In the environment of a child.
SUPERVISED = "SKYLARK_SUPERVISED"
_LINE_BYTES = 64 * 1024
# How long a child may take to end when its parent fails.
_END_S = 2.0


async def run_child(
    command: Sequence[str],
    name: str,
    *,
    started: Callable[[trio.Process], object],
    serves: Callable[[], object],
    environ: Mapping[str, str] = os.environ,
    in_json: bool,
) -> int:
    """Run ``command`` until it ends; returns its exit code. ``in_json``: its log has one JSON object a line."""
    async with Notices() as notices:
        own = {**environ, "NOTIFY_SOCKET": notices.address, SUPERVISED: "1"}
        for variable in ("WATCHDOG_USEC", "WATCHDOG_PID"):
            own.pop(variable, None)
        process = await trio.lowlevel.open_process(
            list(command), env=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        started(process)
        assert process.stdin is not None and process.stdout is not None

        async def listen() -> None:
            await notices.until_ready()
            serves()

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(listen)
                await _copy_lines(process.stdout, name, in_json=in_json)
                code = await process.wait()
                nursery.cancel_scope.cancel()
        finally:
            if process.returncode is None:
                await _end(process)
            await process.stdin.aclose()
            await process.stdout.aclose()
    return code


async def _end(process: trio.Process) -> None:
    """The parent fails, or is told to stop at once: no child outlives it."""
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


async def _copy_lines(stream: trio.abc.ReceiveStream, name: str, *, in_json: bool) -> None:
    """Copy what the child prints to stderr, line by line, each with the child's name."""
    rest = b""
    mark = name.encode()
    while data := await stream.receive_some(_LINE_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > _LINE_BYTES:
            lines, rest = [*lines, rest], b""
        marked = [_marked(line, mark, in_json=in_json) for line in lines]
        if marked:
            # A reader of stderr that is slow must not keep the parent from anything else.
            await trio.to_thread.run_sync(_print, b"".join(marked))
    if rest:
        await trio.to_thread.run_sync(_print, _marked(rest, mark, in_json=in_json))


def _marked(line: bytes, mark: bytes, *, in_json: bool) -> bytes:
    if in_json and line.startswith(b"{"):
        return b'{"instance": "%s", %s\n' % (mark, line[1:])
    return b"%s %s\n" % (mark, line)


def _print(data: bytes) -> None:
    sys.stderr.buffer.write(data)
    sys.stderr.buffer.flush()

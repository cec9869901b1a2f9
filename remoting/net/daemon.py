"""Common to all daemons: their log, a graceful stop on SIGTERM and SIGINT, a clear line for a user's mistake.

SIGHUP opens the log file again, after logrotate has renamed it. Systemd is told when the daemon serves and stops.
"""

import gc
import logging
import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio

from skylark.mqcommon.daemons.malloc import give_back_freed_memory
from skylark.mqcommon.daemons.memory import LITTLE_BYTES, MIB, MemoryWatch, memory_limit
from skylark.mqcommon.daemons.open_files import open_files_limit, raise_open_files
from skylark.mqcommon.daemons.systemd import Systemd
from skylark.mqcommon.errors import SkylarkError, leaves
from skylark.mqcommon.logs.options import LogOptions

if TYPE_CHECKING:  # `broker --help` need not load it
    from skylark.mqcommon.logs.rotated_file import RotatedFile

logger = logging.getLogger(__name__)

# With fewer open files a daemon cannot open its sockets and its store.
LEAST_OPEN_FILES = 64
# Memory of closed connections goes back to the kernel within this time.
GIVE_BACK_INTERVAL_S = 15.0

#: Called once the daemon serves, with a few words about where.
Ready = Callable[[str], None]
Main = Callable[[trio.Event, Ready], Awaitable[None]]


def run_daemon(main: Main, *, name: str, logs: LogOptions, stops_at_hangup: bool = False) -> int:
    """Run ``main(stopping, ready)`` until it returns; returns the exit code of the process.

    The first SIGTERM or SIGINT sets ``stopping``, a second one ends the process at once. A SkylarkError prints one
    line on stderr, in the log's format, and another error is logged with its traceback; the exit code is then 1.
    ``stops_at_hangup``: SIGHUP sets ``stopping``, too, instead of opening the log file again.
    """
    from skylark.mqcommon.daemons.start_report import StartReport
    from skylark.mqcommon.logs.writer import start_log

    report = StartReport(name, logs.log_format)
    try:
        log = start_log(logs)
    except SkylarkError as error:
        report.fail(str(error))
        return 1
    code, mistakes = 0, list[str]()
    raise_open_files()
    if (files := open_files_limit()) < LEAST_OPEN_FILES:
        report.fail(f"open files: limit={files}: a daemon needs {LEAST_OPEN_FILES} at least; raise ulimit -n to 65536")
        log.close()
        return 1
    # Objects that exist now live until the end: the garbage collector need not look at them again.
    gc.freeze()
    try:
        trio.run(_with_signals, main, Systemd(), log.file, stops_at_hangup)
    except* SkylarkError as group:
        mistakes = [str(error) for error in leaves(group)]
        if log.file is not None:
            for text in mistakes:
                logger.critical("%s: %s", name, text)
        code = 1
    except* KeyboardInterrupt:
        code = 130
    except* Exception as group:
        logger.critical("%s ends, by an error that was not expected", name, exc_info=group)
        code = 1
    finally:
        log.close()
    for text in mistakes:
        report.fail(text)
    return code


async def _with_signals(main: Main, systemd: Systemd, log_file: "RotatedFile | None", stops_at_hangup: bool) -> None:
    stopping = trio.Event()
    async with trio.open_nursery() as nursery:
        await nursery.start(_watch_signals, stopping, nursery.cancel_scope, stops_at_hangup)
        nursery.start_soon(_watch_memory)
        if log_file is not None and not stops_at_hangup:
            await nursery.start(_watch_hangup, log_file)
        if systemd.is_there:
            nursery.start_soon(_tell_systemd, systemd, stopping)
        await main(stopping, systemd.ready)
        nursery.cancel_scope.cancel()


async def _tell_systemd(systemd: Systemd, stopping: trio.Event) -> None:
    """Send systemd a sign of life in each interval; tell it at once that the daemon stops."""
    while True:
        with trio.move_on_after(systemd.interval_s):
            await stopping.wait()
            systemd.stopping()
            break
        systemd.alive()
    while True:
        systemd.alive()
        await trio.sleep(systemd.interval_s)


async def _watch_hangup(log_file: "RotatedFile", *, task_status: trio.TaskStatus[None]) -> None:
    with trio.open_signal_receiver(signal.SIGHUP) as received:
        task_status.started()
        async for _ in received:
            log_file.reopen()
            logger.info("log file %s opened again", log_file.path)


async def _watch_memory() -> None:
    """Log the memory limit; give freed memory back, and log when memory runs short."""
    limit = memory_limit()
    if limit.limit_bytes < LITTLE_BYTES:
        logger.warning("memory: limit=%s: little; give this process %d MiB or more", limit, LITTLE_BYTES // MIB)
    elif limit.version:
        logger.info("memory: limit=%s", limit)
    watch = MemoryWatch(limit)
    while True:
        await trio.sleep(GIVE_BACK_INTERVAL_S)
        await trio.to_thread.run_sync(give_back_freed_memory)
        if text := watch.check():
            logger.warning(text)


async def _watch_signals(
    stopping: trio.Event,
    everything: trio.CancelScope,
    stops_at_hangup: bool,
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    hangup = (signal.SIGHUP,) if stops_at_hangup else ()
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, *hangup) as received:
        task_status.started()
        async for number in received:
            if stopping.is_set():
                # When a terminal is closed, the shell and the kernel each send SIGHUP.
                if number == signal.SIGHUP:
                    continue
                logger.warning("second %s: stopping at once", signal.Signals(number).name)
                everything.cancel()
                return
            logger.info("%s: stopping", signal.Signals(number).name)
            stopping.set()

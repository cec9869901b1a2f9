"""Common to all daemons: logging to stderr, graceful stop on SIGTERM and SIGINT, a clear line for a user's mistake."""

import gc
import logging
import resource
import signal
import sys
from collections.abc import Awaitable, Callable

import trio

from mqcommon.errors import SkylarkError
from mqcommon.memory import give_back_freed_memory

logger = logging.getLogger(__name__)

GC_THRESHOLD = 50_000
# Memory of closed connections goes back to the kernel within this time.
GIVE_BACK_INTERVAL_S = 15.0

# A log message is one line of at most this length, whatever text of a peer it shows.
MAX_MESSAGE_CHARS = 2_000

Main = Callable[[trio.Event], Awaitable[None]]


def run_daemon(main: Main, *, name: str, log_level: str = "INFO") -> int:
    """Run ``main(stopping)`` until it returns; returns the exit code of the process.

    The first SIGTERM or SIGINT sets ``stopping``, a second one ends the process at once. A SkylarkError prints one
    line on stderr; the exit code is then 1.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(name)s - %(message)s"))
    logging.basicConfig(handlers=[handler], level=log_level.upper())
    code = 0
    # The usual soft limit of 1024 open files is meant for programs that use select.
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    # Objects that exist now live until the end. Under load the loop makes a thousand short-lived tuples a millisecond:
    # looking for cycles after every 700 of them would waste time.
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 50)
    try:
        trio.run(_with_signals, main)
    except* SkylarkError as group:
        for error in _leaves(group):
            sys.stderr.write(f"{name}: {error}\n")
        code = 1
    except* KeyboardInterrupt:
        code = 130
    return code


async def _with_signals(main: Main) -> None:
    stopping = trio.Event()
    async with trio.open_nursery() as nursery:
        await nursery.start(_watch_signals, stopping, nursery.cancel_scope)
        nursery.start_soon(_give_back_memory)
        await main(stopping)
        nursery.cancel_scope.cancel()


async def _give_back_memory() -> None:
    while True:
        await trio.sleep(GIVE_BACK_INTERVAL_S)
        await trio.to_thread.run_sync(give_back_freed_memory)


async def _watch_signals(
    stopping: trio.Event, everything: trio.CancelScope, *, task_status: trio.TaskStatus[None]
) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
        task_status.started()
        async for number in received:
            if stopping.is_set():
                logger.warning("second %s: stopping at once", signal.Signals(number).name)
                everything.cancel()
                return
            logger.info("%s: stopping", signal.Signals(number).name)
            stopping.set()


class LineFormatter(logging.Formatter):
    """Keeps a message on one line of bounded length; tracebacks are printed whole."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        message = record.message
        if len(message) > MAX_MESSAGE_CHARS:
            message = f"{message[:MAX_MESSAGE_CHARS]}... ({len(message)} characters)"
        record.message = message.replace("\n", "\\n").replace("\r", "\\r")
        return super().formatMessage(record)


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]

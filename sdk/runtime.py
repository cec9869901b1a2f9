"""Services of the process for a client: checks of its event loop and of forks, its id, threads for long work.

After a fork the child has the parent's sockets but not its other threads. Its requests would mix with the parent's on
the same connections, and their answers would never arrive. So every call checks that the process is still the process
that opened the client. It compares a counter of forks, which is cheaper than asking for the process id. `survived` logs
unexpected errors of a client's tasks; `off_loop` runs work that would block the event loop in a thread;
`keep_freed_memory` lets the process reuse memory that large answers have freed.
"""

import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, NoReturn, TypeVar

import sniffio
import trio

from skylark.sdk.last_resort import print_warnings_of

logger = logging.getLogger(__name__)
print_warnings_of("skylark.mqcommon", "skylark.remoting", "skylark.sdk")


class Forks:
    """The number of forks between the process that imported this module and this one."""

    def __init__(self) -> None:
        self.count = 0

    def _in_child(self) -> None:
        self.count += 1

    def watch(self) -> None:
        """Count the forks of this process from now on; Windows has none."""
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._in_child)


FORKS = Forks()
FORKS.watch()


class Home:
    """The process that a client was opened in."""

    __slots__ = ("forks", "pid")

    def __init__(self) -> None:
        self.forks = FORKS.count
        self.pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether the caller runs in the process that opened the client."""
        return self.forks == FORKS.count

    def check(self, what: str = "this client") -> None:
        """Raise RuntimeError in a child of the process that opened the client; the text calls the client ``what``."""
        if self.forks != FORKS.count:
            raise RuntimeError(
                f"{what} was opened in process {self.pid} before a fork, and its connections belong to that process: "
                f"open another in process {os.getpid()}, after the fork"
            )


#: The module whose clients run in an event loop, by the loop's library; "" for threads without a loop.
_MODULES = {"trio": "skylark", "asyncio": "skylark.aio", "": "skylark.blocking"}


def check_loop(library: str) -> None:
    """Raise RuntimeError, which names the right module, unless the caller runs in ``library``: trio or asyncio."""
    try:
        found = sniffio.current_async_library()
    except sniffio.AsyncLibraryNotFoundError:
        found = ""
    if found != library:
        raise RuntimeError(
            f"the classes of {_MODULES[library]} need {library}, but this is {found or 'no running event loop'}: use"
            f" the classes of {_MODULES.get(found, _MODULES[''])}, which have the same methods"
        )


def note_blocked_loop() -> None:
    """Log that opening a client blocks the event loop of this thread, if there is one.

    Not in a notebook, whose event loop runs nothing else.
    """
    if "ipykernel" in sys.modules:
        return
    # Not sniffio, which looks at context variables: threads of asyncio.to_thread inherit them.
    if trio.lowlevel.in_trio_run():
        log_blocked_loop("trio")
    elif "asyncio" in sys.modules and sys.modules["asyncio"]._get_running_loop() is not None:
        log_blocked_loop("asyncio")


@cache
def log_blocked_loop(library: str) -> None:
    """Log, once in a process, that a client blocks an event loop of ``library``.

    No warning: a program may open such clients before its loop has other work.
    """
    logger.info(
        "opening a client of skylark.blocking blocks the event loop of this thread (%s), and so do calls in it: use the"
        " classes of %s there, which have the same methods",
        library,
        _MODULES[library],
    )


class AsyncOnly:
    """A base class for clients that are opened by ``async with``: a plain ``with`` raises an error with the remedy."""

    # Type checkers find a plain ``with`` because these methods are missing.
    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            """Raise TypeError, which names ``async with`` and the class for threads."""
            name = type(self).__name__
            raise TypeError(f"open this {name} by 'async with'; for threads there is skylark.blocking.{name}")

        def __exit__(self, *error: object) -> None:
            """Never called: a plain ``with`` looks for this method before it calls `__enter__`."""


@contextmanager
def survived(what: str, note: Callable[[Exception | None], None] | None = None) -> Iterator[None]:
    """Log an unexpected error with its traceback and go on: one failed request must not end the client.

    ``what`` says in the log what has failed. ``note`` is called with the error, or with None when there was none.
    """
    try:
        yield
    except Exception as error:
        logger.exception("%s failed; the client goes on", what)
        if note is not None:
            note(error)
    else:
        if note is not None:
            note(None)


class SendsFailed(ExceptionGroup[Exception]):
    """The unseen errors of `Producer.send_nowait`, raised by `Producer.flush` or at the end of the producer."""


def raise_or_log(lost: SendsFailed, error: BaseException | None) -> None:
    """At the end of a client: raise ``lost``; only log it when the block has raised ``error``, which propagates."""
    if error is None:
        raise lost
    logger.error("at the end of a producer: %s: %s", lost, "; ".join(map(str, lost.exceptions[:3])))


T = TypeVar("T")

_limiters: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("skylark_off_loop")


async def off_loop(work: Callable[[], T]) -> T:
    """The result of ``work``. When the caller is cancelled, the thread finishes by itself, and counts until then."""
    try:
        limiter = _limiters.get()
    except LookupError:
        # These threads compute and do not wait: more threads than processors would only compete.
        limiter = trio.CapacityLimiter(os.cpu_count() or 1)
        _limiters.set(limiter)
    # A separate limiter: trio's default limiter is for the program, whose long calls would keep this work waiting.
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)


def local_ip() -> str:
    """The source address of this machine's outgoing packets; 127.0.0.1 when it has no network.

    Connecting a UDP socket sends nothing: it only makes the kernel choose a source address.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1, an address that no host has
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def make_client_id() -> str:
    """A unique client id; the ids of two clients in one process differ in the nanoseconds."""
    return f"{local_ip()}@{os.getpid()}#{time.monotonic_ns()}"


# Up to twice as much free memory stays in the process.
_BLOCK_BYTES = 8 << 20


@cache
def keep_freed_memory() -> None:
    """Let malloc keep up to 16 MiB of free memory. This works with glibc; other C libraries behave as before.

    glibc gives free memory at the end of its heap back to the system when there are more than 256 KiB of it, so that
    each pull of a MiB faulted in new pages: up to a third of its time. What glibc keeps is twice the size of the
    largest block that was mapped on its own and freed (M_MMAP_THRESHOLD in mallopt(3)).
    """
    # The pages of this block are never touched: it takes no memory, and some microseconds.
    bytes(_BLOCK_BYTES)

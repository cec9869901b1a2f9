"""Checks that a client runs in trio and in the process that opened it; `survived` logs unexpected errors of its tasks.
`off_loop` runs work in a thread that would hold up the event loop.

After a fork the child has the parent's sockets but not its other threads. Its requests would mix with the parent's on
the same connections, and their answers would never arrive. So every call checks that the process is still the one that
opened the client. It compares a counter of forks, which is cheaper than asking for the process id.
"""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import sniffio
import trio

from sdk.last_resort import print_warnings_of

logger = logging.getLogger(__name__)
print_warnings_of("mqcommon", "remoting", "sdk")


class Forks:
    """The number of forks between the process that imported this module and this one."""

    def __init__(self) -> None:
        self.count = 0

    def _in_child(self) -> None:
        self.count += 1

    def watch(self) -> None:
        """Count the forks of this process from now on."""
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
        """Whether this is that process."""
        return self.forks == FORKS.count

    def check(self, what: str = "this client") -> None:
        """Raise RuntimeError in a child of that process."""
        if self.forks != FORKS.count:
            raise RuntimeError(
                f"{what} was opened in process {self.pid} before a fork, and its connections belong to that process: "
                f"open another in process {os.getpid()}, after the fork"
            )


def check_trio() -> None:
    """Raise RuntimeError when the caller does not run in trio."""
    try:
        library = sniffio.current_async_library()
    except sniffio.AsyncLibraryNotFoundError:
        library = "no event loop"
    if library != "trio":
        others = "sdk.aio" if library == "asyncio" else "sdk.blocking"
        raise RuntimeError(
            f"the classes of sdk need trio, but this is {library}: use those of {others}, which have the same methods"
        )


@contextmanager
def survived(what: str, note: Callable[[Exception | None], None] | None = None) -> Iterator[None]:
    """Log an unexpected error with its traceback and go on: one failed request must not end the client.

    ``note`` is called with the error, or with None when there was none.
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
    """The errors of `Producer.send_nowait` that nobody has seen, from `Producer.flush` or the end of the producer."""


def raise_or_log(lost: SendsFailed, error: BaseException | None) -> None:
    """At the end of a client: raise what is lost; log it when its block has raised ``error``, which goes on."""
    if error is None:
        raise lost
    logger.error("at the end of a producer: %s: %s", lost, "; ".join(map(str, lost.exceptions[:3])))


T = TypeVar("T")

_limiters: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("skylark_off_loop")


async def off_loop(work: Callable[[], T]) -> T:
    """The result of ``work``. When the caller is cancelled, its thread finishes by itself, and counts until then."""
    try:
        limiter = _limiters.get()
    except LookupError:
        limiter = trio.CapacityLimiter(os.cpu_count() or 1)
        _limiters.set(limiter)
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)

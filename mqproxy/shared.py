"""One run of some work, for all tasks that need its result."""

import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio

from skylark.mqcommon.errors import SkylarkError
from skylark.mqproxy.statuses import Refused

logger = logging.getLogger(__name__)

T = TypeVar("T")


class SharedResult(Generic[T]):
    """The result or the error of some work, for all tasks that wait for it."""

    __slots__ = ("_ended", "_waiting", "error", "has_ended", "value")

    def __init__(self) -> None:
        self.has_ended = False
        #: The result; None before the work has ended, and when it has failed.
        self.value: T | None = None
        #: Why there is no result; None before the work has ended, and when there is one.
        self.error: Exception | None = None
        # How many tasks wait, and what they wait for: made for the first of them.
        self._waiting = 0
        self._ended: trio.Event | None = None

    def put(self, value: T) -> None:
        """End with a result. Waiting tasks run after the caller's turn."""
        self.value = value
        self._end()

    def fail(self, what: str, error: Exception) -> None:
        """End with an error. When nobody waits, an error that was not expected is logged as the error of ``what``."""
        if not self._waiting and not isinstance(error, (Refused, SkylarkError)):
            logger.error("%s that nobody waits for failed by an error that was not expected", what, exc_info=error)
        self.error = error
        self._end()

    async def wait(self) -> T:
        """The result, once there is one; raises the error of the work."""
        if not self.has_ended:
            if self._ended is None:
                self._ended = trio.Event()
            self._waiting += 1
            try:
                await self._ended.wait()
            finally:
                self._waiting -= 1
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # `put` has set it, maybe to None

    def _end(self) -> None:
        self.has_ended = True
        if self._ended is not None:
            self._ended.set()


class Shared(Generic[T]):
    """A run of ``work`` as a task of ``nursery``. A waiting task that is cancelled does not end the run."""

    __slots__ = ("_result",)

    def __init__(self, nursery: trio.Nursery, work: Callable[[], Awaitable[T]]) -> None:
        self._result = SharedResult[T]()
        nursery.start_soon(self._run, work)

    async def result(self) -> T:
        """The result, once the run has ended; raises the error of the run, a SkylarkError if ``nursery`` has ended."""
        return await self._result.wait()

    async def _run(self, work: Callable[[], Awaitable[T]]) -> None:
        try:
            self._result.put(await work())
        except Exception as error:
            self._result.fail("a request", error)
        finally:
            if not self._result.has_ended:
                # The nursery has ended.
                self._result.fail("a request", given_up())


def given_up() -> SkylarkError:
    """The error of work that the proxy has ended."""
    return SkylarkError("the proxy has given up the request")

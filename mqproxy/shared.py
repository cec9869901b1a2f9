"""One run of some work, for all tasks that need its result."""

import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio

from skylark.mqcommon.errors import SkylarkError
from skylark.mqproxy.statuses import Refused

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Shared(Generic[T]):
    """A run of ``work`` as a task of ``nursery``. A waiting task that is cancelled does not end the run."""

    __slots__ = ("_ended", "_error", "_scope", "_value", "_waiting")

    def __init__(self, nursery: trio.Nursery, work: Callable[[], Awaitable[T]]) -> None:
        self._ended = trio.Event()
        self._scope = trio.CancelScope()
        self._value: T | None = None
        # The tasks that wait for the result.
        self._waiting = 0
        # The error of a run that is cancelled.
        self._error: Exception | None = given_up()
        nursery.start_soon(self._run, work)

    @property
    def has_failed(self) -> bool:
        """Whether the run has ended without a result."""
        return self._ended.is_set() and self._error is not None

    def cancel(self) -> None:
        """End the run; whoever waits for its result gets a SkylarkError."""
        self._scope.cancel()

    async def result(self) -> T:
        """The result, once the run has ended; raises the error of the run."""
        self._waiting += 1
        try:
            await self._ended.wait()
        finally:
            self._waiting -= 1
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # set together with the missing error

    async def _run(self, work: Callable[[], Awaitable[T]]) -> None:
        try:
            with self._scope:
                self._value = await work()
                self._error = None
        except Exception as error:
            self._error = error
            if not self._waiting:
                log_unexpected("a request", error)
        finally:
            self._ended.set()


def given_up() -> SkylarkError:
    """The error of work that the proxy has ended."""
    return SkylarkError("the proxy has given up the request")


def log_unexpected(what: str, error: Exception) -> None:
    """Log the error of ``what``, for whose result nobody waits, unless errors of this kind are expected."""
    if not isinstance(error, (Refused, SkylarkError)):
        logger.error("%s that nobody waits for failed by an error that was not expected", what, exc_info=error)

"""Failures that keep a consumer from doing all of its work now: `consumer.problem`, and calls of ``on_problem``.

Each part of a consumer reports an error under the name of what fails, and reports None under that name when it works
again. The part also logs the failure.
"""

import logging
from collections.abc import Callable
from inspect import iscoroutinefunction

import trio

from skylark.mqcommon.arguments import shown
from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.sdk.consumer.outcome import check_handler

logger = logging.getLogger(__name__)

# A problem that ends and begins again calls ``on_problem`` at most once in this time.
QUIET_S = 60.0
# The bound of simultaneous problems: each queue of a member may have one. More are not remembered.
MAX_PROBLEMS = 1_000


@lazy_dataclass(frozen=True, slots=True)
class Problem:
    """A failure that lasts: ``what`` fails, with the last ``error``."""

    what: str
    error: Exception

    def __str__(self) -> str:
        # The text of a KeyError, for instance, is the key alone.
        kind = "" if isinstance(self.error, SkylarkError) else f"{type(self.error).__name__}: "
        return f"{self.what}: {kind}{self.error}"


OnProblem = Callable[[Problem], object]


def check_on_problem(on_problem: object) -> None:
    """TypeError unless ``on_problem`` is None or a plain function of one argument."""
    if on_problem is None:
        return
    check_handler("on_problem", on_problem)
    if iscoroutinefunction(on_problem):
        raise TypeError(f"on_problem is called where nothing may wait: it cannot be the async {shown(on_problem)}")


class Problems:
    """The problems of one consumer. ``on_problem`` is called with each problem that begins."""

    def __init__(self, on_problem: OnProblem | None = None) -> None:
        check_on_problem(on_problem)
        self._on_problem = on_problem
        self._now: dict[str, Problem] = {}
        self._called_at: dict[str, float] = {}

    @property
    def first(self) -> Problem | None:
        """The oldest problem that is still open."""
        return next(iter(self._now.values()), None)

    def report(self, what: str, error: Exception | None) -> None:
        """Report that ``what`` fails with ``error``; None: it works."""
        if error is None:
            self._now.pop(what, None)
        elif what in self._now:
            self._now[what] = Problem(what, error)
        elif len(self._now) < MAX_PROBLEMS:
            problem = self._now[what] = Problem(what, error)
            self._call(problem)

    def reporter(self, what: str) -> Callable[[Exception | None], None]:
        """A function that reports about ``what``, for a part that only knows its own errors."""
        return lambda error: self.report(what, error)

    def _call(self, problem: Problem) -> None:
        if self._on_problem is None:
            return
        now = trio.current_time()
        called_at = self._called_at.get(problem.what)
        if called_at is not None and now < called_at + QUIET_S:
            return
        self._called_at.pop(problem.what, None)
        self._called_at[problem.what] = now
        if len(self._called_at) > MAX_PROBLEMS:
            del self._called_at[next(iter(self._called_at))]
        try:
            self._on_problem(problem)
        except Exception:
            logger.exception("on_problem failed with %s", problem)

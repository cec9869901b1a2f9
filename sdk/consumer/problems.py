"""What keeps a consumer from doing all of its work now: `consumer.problem`, and the calls of ``on_problem``.

The parts of a consumer note an error under the name of what fails, and note None there when it works again. Everything
is logged as well, by the part that it happens to.
"""

import logging
from collections.abc import Callable
from inspect import iscoroutinefunction

import trio

from skylark.mqcommon.arguments import shown
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.sdk.consumer.outcome import check_handler

logger = logging.getLogger(__name__)

# What fails, works and fails again is told once in this time.
QUIET_S = 60.0
# More at the same time are not remembered: each queue of a member may be one.
MAX_PROBLEMS = 1_000


@lazy_dataclass(frozen=True, slots=True)
class Problem:
    """``what`` fails, and the ``error`` that it failed with last."""

    what: str
    error: Exception

    def __str__(self) -> str:
        return f"{self.what}: {self.error}"


OnProblem = Callable[[Problem], object]


def check_on_problem(on_problem: object) -> None:
    """TypeError unless ``on_problem`` is None or a plain function of one argument."""
    if on_problem is None:
        return
    check_handler("on_problem", on_problem)
    if iscoroutinefunction(on_problem):
        raise TypeError(f"on_problem is called where nothing may wait: it cannot be the async {shown(on_problem)}")


class Problems:
    """The problems of one consumer. ``on_problem`` is called with each that begins."""

    def __init__(self, on_problem: OnProblem | None = None) -> None:
        check_on_problem(on_problem)
        self._on_problem = on_problem
        self._now: dict[str, Problem] = {}
        self._told_at: dict[str, float] = {}

    @property
    def first(self) -> Problem | None:
        """The one that began first, of those that are not over."""
        return next(iter(self._now.values()), None)

    def note(self, what: str, error: Exception | None) -> None:
        """``what`` fails with ``error``; None: it works."""
        if error is None:
            self._now.pop(what, None)
        elif what in self._now:
            self._now[what] = Problem(what, error)
        elif len(self._now) < MAX_PROBLEMS:
            problem = self._now[what] = Problem(what, error)
            self._tell(problem)

    def noting(self, what: str) -> Callable[[Exception | None], None]:
        """`note` of ``what``, for a part that knows only whether it works."""
        return lambda error: self.note(what, error)

    def _tell(self, problem: Problem) -> None:
        if self._on_problem is None:
            return
        now = trio.current_time()
        told_at = self._told_at.get(problem.what)
        if told_at is not None and now < told_at + QUIET_S:
            return
        self._told_at.pop(problem.what, None)
        self._told_at[problem.what] = now
        if len(self._told_at) > MAX_PROBLEMS:
            del self._told_at[next(iter(self._told_at))]
        try:
            self._on_problem(problem)
        except Exception:
            logger.exception("on_problem failed with %s", problem)

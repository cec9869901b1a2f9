"""What a report lacks, and what could not be done at one of several servers; asking several servers at once.

A function that asks several servers returns what it has found out, and tells the rest to its ``on_problem``: a callable
that takes a `ReportProblem`, such as ``problems.append``.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from skylark.mqcommon.errors import RouteNotFound, SkylarkError, UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.sdk.admin.failures import explain

if TYPE_CHECKING:
    from skylark.sdk.admin.client import Admin
    from skylark.sdk.endpoint import Answers

T = TypeVar("T")


@lazy_dataclass(frozen=True, slots=True)
class ReportProblem:
    """One thing that a report lacks, or that could not be done at one server. ``str`` makes one line of it.

    ``about``: what was asked or done. Without an error, ``about`` is the whole text, and the problem is a warning: the
    report is complete but for details.
    """

    about: str
    error: SkylarkError | None = None

    def __str__(self) -> str:
        if self.error is None:
            return self.about
        return f"{self.about}: {explain(self.error)}" if self.about else explain(self.error)


OnProblem = Callable[[ReportProblem], None]
#: Takes a line that says how far a long operation is.
OnProgress = Callable[[str], None]


async def ask_each(
    keys: Iterable[str], ask: Callable[[str], Awaitable[T]], on_progress: OnProgress | None = None
) -> "Answers[T]":
    """Await ``ask`` for each key, several at a time, and tell how many have answered."""
    from skylark.sdk.endpoint import ask_all

    # The number of all is told, so keys that come from a generator are counted first.
    every = list(keys)
    done = 0

    async def counted(key: str) -> T:
        nonlocal done
        try:
            return await ask(key)
        finally:
            done += 1
            if on_progress is not None:
                on_progress(f"{done} of {len(every)} answered")

    return await ask_all(every, counted)


def note_unanswered(kind: str, answers: "Answers[T]", on_problem: OnProblem) -> None:
    """Tell of each server that has not answered; ``kind`` says what the servers are, as in ``broker``."""
    for addr, error in answers.errors.items():
        on_problem(ReportProblem(f"{kind} {addr}", error))


async def note_absent_queues(admin: "Admin", topics: Iterable[str], on_problem: OnProblem) -> None:
    """Tell once of each broker that is away and has queues of one of ``topics``: a report lacks these queues."""
    from skylark.sdk.routes import absent_text

    told: set[str] = set()
    for topic in topics:
        try:
            absent = (await admin.topic_route(topic)).absent_brokers or ()
        except RouteNotFound:
            continue  # a light queue, or a topic that was deleted meanwhile: nothing is missing
        new = [one for one in absent if one.broker_name not in told]
        told.update(one.broker_name for one in new)
        if new:
            on_problem(ReportProblem("", UserError(f"topic {topic}: {absent_text(new)}: its queues are not shown")))

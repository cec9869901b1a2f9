"""Problems of reports: gaps, and failures at one of several servers; asking several servers at once.

A function that asks several servers returns the answers, and calls its ``on_problem`` with a `ReportProblem` for each
failure; ``problems.append`` can be an ``on_problem``.
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
    """A gap in a report, or a failure at one server. ``str`` makes one line of a problem.

    ``about``: the question or the change. Without an error, ``about`` is the whole text, and the problem is a warning:
    only details of the report are missing.
    """

    about: str
    error: SkylarkError | None = None

    def __str__(self) -> str:
        if self.error is None:
            return self.about
        return f"{self.about}: {explain(self.error)}" if self.about else explain(self.error)


OnProblem = Callable[[ReportProblem], None]
#: Called with a line about the progress of a long operation.
OnProgress = Callable[[str], None]


async def ask_each(
    keys: Iterable[str], ask: Callable[[str], Awaitable[T]], on_progress: OnProgress | None = None
) -> "Answers[T]":
    """Await ``ask`` for each key, several at a time, and report how many have answered."""
    from skylark.sdk.endpoint import ask_all

    # The progress has the total, so keys from a generator are counted first.
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


def report_unanswered(kind: str, answers: "Answers[T]", on_problem: OnProblem) -> None:
    """Report each server that has not answered; ``kind`` says what the servers are, as in ``broker``."""
    for addr, error in answers.errors.items():
        on_problem(ReportProblem(f"{kind} {addr}", error))


async def report_absent_queues(admin: "Admin", topics: Iterable[str], on_problem: OnProblem) -> None:
    """Report once each broker that is away and has queues of one of ``topics``: a report lacks these queues."""
    from skylark.sdk.routes import absent_text

    reported: set[str] = set()
    for topic in topics:
        try:
            absent = (await admin.topic_route(topic)).absent_brokers or ()
        except RouteNotFound:
            continue  # a light queue, or a topic that was deleted meanwhile: nothing is missing
        new = [one for one in absent if one.broker_name not in reported]
        reported.update(one.broker_name for one in new)
        if new:
            on_problem(ReportProblem("", UserError(f"topic {topic}: {absent_text(new)}: its queues are not shown")))

"""Dead letters of a group: reports of letters, of letters sent again, and of letters written to a file."""

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Final

from skylark.mqcommon.errors import UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.sdk.admin.dead_letters import DeadLetter, DeadLetterChoice, DeadLetterCounts
from skylark.sdk.admin.reports.problems import OnProblem, OnProgress, ReportProblem
from skylark.sdk.admin.reports.report import named

if TYPE_CHECKING:
    from skylark.sdk.admin.client import Admin

#: The most dead letters that a dry run lists; a dry run counts all.
MOST_LISTED: Final = 1_000


@lazy_dataclass(frozen=True, slots=True)
class DeadLetterReport:
    """A dead letter: how often the group got it, and the client, time and reason of the last failure."""

    #: The topic that the message was sent to.
    topic: str
    msg_id: str
    deliveries: int
    #: How many times the message was taken out of the dead letters.
    resent_times: int
    failed_ms: int = field(metadata=named("failTime"))
    #: Empty when unknown, like the reason.
    fail_client: str
    fail_reason: str


@lazy_dataclass(frozen=True, slots=True)
class ResentLetters:
    """The result of `resend_dead_letters`: counts, and for a dry run the first letters."""

    group: str
    is_dry_run: bool = field(metadata=named("dryRun"))
    read: int
    chosen: int
    #: Chosen letters that were left out, as they had been sent again before.
    skipped: int
    #: Names of brokers that cannot remember which chosen letters were sent again.
    forgetful: tuple[str, ...]
    sent: int
    letters: tuple[DeadLetterReport, ...]


@lazy_dataclass(frozen=True, slots=True)
class ExportedLetters:
    """The result of `export_dead_letters`."""

    group: str
    file: str
    read: int
    written: int


def letter_report(letter: DeadLetter) -> DeadLetterReport:
    """The report of ``letter``. If the time of the failure is unknown, the report has the store time."""
    failure = letter.failure
    return DeadLetterReport(
        letter.topic,
        letter.message.msg_id,
        letter.deliveries,
        letter.resent_times,
        failure.time_ms or letter.message.store_timestamp,
        failure.client,
        failure.reason,
    )


async def resend_dead_letters(
    admin: "Admin",
    group: str,
    choice: DeadLetterChoice,
    *,
    rate: float,
    to_topic: bool = False,
    again: bool = False,
    dry_run: bool = False,
    on_problem: OnProblem,
    on_progress: OnProgress | None = None,
) -> ResentLetters:
    """Deliver dead letters to ``group`` again, as `Admin.resend_dead_letters`. Ids without a letter are problems."""
    letters: list[DeadLetterReport] = []

    def list_letter(letter: DeadLetter) -> None:
        if dry_run and len(letters) < MOST_LISTED:
            letters.append(letter_report(letter))

    counts = await admin.resend_dead_letters(
        group,
        ids=_ids(choice),
        from_ms=choice.from_ms,
        to_ms=choice.to_ms,
        matches=choice.matches,
        rate=rate,
        to_topic=to_topic,
        again=again,
        dry_run=dry_run,
        on_letter=list_letter,
        on_progress=_as_lines(on_progress),
    )
    _report_missing(counts, group, on_problem)
    sent = 0 if dry_run else counts.done
    return ResentLetters(
        group, dry_run, counts.read, counts.chosen, counts.skipped, tuple(counts.forgetful), sent, tuple(letters)
    )


async def export_dead_letters(
    admin: "Admin",
    group: str,
    file: str,
    choice: DeadLetterChoice,
    *,
    file_format: str | None = None,
    on_problem: OnProblem,
    on_progress: OnProgress | None = None,
) -> ExportedLetters:
    """Write dead letters to ``file``, as `Admin.export_dead_letters`. Ids without a letter are problems."""
    counts = await admin.export_dead_letters(
        group,
        file,
        file_format=file_format,
        ids=_ids(choice),
        from_ms=choice.from_ms,
        to_ms=choice.to_ms,
        matches=choice.matches,
        on_progress=_as_lines(on_progress),
    )
    _report_missing(counts, group, on_problem)
    return ExportedLetters(group, file, counts.read, counts.done)


def _ids(choice: DeadLetterChoice) -> Sequence[str] | None:
    return None if choice.ids is None else list(choice.ids)


def _as_lines(on_progress: OnProgress | None) -> Callable[[DeadLetterCounts], None]:
    def report(counts: DeadLetterCounts) -> None:
        if on_progress is not None:
            on_progress(f"{counts.read} of {counts.total} dead letters read, {counts.done} done")

    return report


def _report_missing(counts: DeadLetterCounts, group: str, on_problem: OnProblem) -> None:
    for one in counts.missing:
        on_problem(ReportProblem("", UserError(f"group {group} has no dead letter {one}")))

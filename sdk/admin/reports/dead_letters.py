"""Dead letters of a group: which there are, what was sent to the group again, and what was written to a file."""

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

#: A dry run lists so many dead letters; it counts all.
MOST_LISTED: Final = 1_000


@lazy_dataclass(frozen=True, slots=True)
class DeadLetterReport:
    """A dead letter: how often the group got it, and who failed with it last, when and why."""

    #: The topic that the message was sent to.
    topic: str
    msg_id: str
    deliveries: int
    #: How many times the message was taken out of the dead letters.
    resent_times: int
    failed_ms: int = field(metadata=named("failTime"))
    #: Empty when nobody has said so, as the reason is.
    fail_client: str
    fail_reason: str


@lazy_dataclass(frozen=True, slots=True)
class ResentLetters:
    """What `resend_dead_letters` has done, or would do: counts, and in a dry run the first letters."""

    group: str
    is_dry_run: bool = field(metadata=named("dryRun"))
    read: int
    chosen: int
    #: Letters of the choice that were sent before.
    skipped: int
    #: Names of brokers that cannot remember what is sent again by choice.
    forgetful: tuple[str, ...]
    sent: int
    letters: tuple[DeadLetterReport, ...]


@lazy_dataclass(frozen=True, slots=True)
class ExportedLetters:
    """What `export_dead_letters` has written."""

    group: str
    file: str
    read: int
    written: int


def letter_report(letter: DeadLetter) -> DeadLetterReport:
    """The report of ``letter``. Without the time of the failure it has that of its being stored."""
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
    """Deliver dead letters to ``group`` again, as `Admin.resend_dead_letters` does. Ids without a letter are told."""
    letters: list[DeadLetterReport] = []

    def note(letter: DeadLetter) -> None:
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
        on_letter=note,
        on_progress=_told(on_progress),
    )
    _note_missing(counts, group, on_problem)
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
    """Write dead letters to ``file``, as `Admin.export_dead_letters` does. Ids without a letter are told."""
    counts = await admin.export_dead_letters(
        group,
        file,
        file_format=file_format,
        ids=_ids(choice),
        from_ms=choice.from_ms,
        to_ms=choice.to_ms,
        matches=choice.matches,
        on_progress=_told(on_progress),
    )
    _note_missing(counts, group, on_problem)
    return ExportedLetters(group, file, counts.read, counts.done)


def _ids(choice: DeadLetterChoice) -> Sequence[str] | None:
    return None if choice.ids is None else list(choice.ids)


def _told(on_progress: OnProgress | None) -> Callable[[DeadLetterCounts], None]:
    def tell(counts: DeadLetterCounts) -> None:
        if on_progress is not None:
            on_progress(f"{counts.read} of {counts.total} dead letters read, {counts.done} done")

    return tell


def _note_missing(counts: DeadLetterCounts, group: str, on_problem: OnProblem) -> None:
    for one in counts.missing:
        on_problem(ReportProblem("", UserError(f"group {group} has no dead letter {one}")))

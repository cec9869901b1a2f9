"""resendDlq and exportDlq: dead letters of a group, delivered to it again or written to a file. Not RocketMQ's."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.params import Timestamp, option
from skylark.mqadmin.render import Table, time_text
from skylark.mqadmin.session import Session
from skylark.mqcommon.visible import visible

if TYPE_CHECKING:
    from skylark.sdk.admin.dead_letters import DeadLetterChoice, Matches
    from skylark.sdk.admin.reports.dead_letters import ExportedLetters, ResentLetters

_TABLE = Table(
    (
        ("#Topic", "topic"), ("#MsgId", "msg_id"), ("#Deliveries", "deliveries"), ("#Resent", "resent_times"),
        ("#Failed at", lambda row: time_text(row.failed_ms)), ("#Client", "fail_client"),
        ("#Reason", lambda row: visible(row.fail_reason)),
    ),
    "%-24s  %-32s  %-11s  %-7s  %-23s  %-32s  %s",
)  # fmt: skip


def _choice() -> tuple[click.Option, ...]:
    """The options that choose dead letters."""
    return (
        option("g", "consumerGroup", "consumer group name", required=True),
        click.Option(["--id", "ids"], metavar="ID", multiple=True, help="message id or unique key; may be given again"),
        click.Option(["--from", "begin"], type=Timestamp(), metavar="TIME", help="died at or after this time"),
        click.Option(["--to", "end"], type=Timestamp(), metavar="TIME", help="died before this time"),
        click.Option(["--reason"], metavar="TEXT", help="dead letters whose reason contains this text"),
    )


def _chosen(ids: tuple[str, ...], begin: int | None, end: int | None, reason: str | None) -> "DeadLetterChoice":
    from skylark.sdk.admin.dead_letters import DeadLetterChoice

    listed = [part.strip() for one in ids for part in one.split(",") if part.strip()]
    return DeadLetterChoice(listed if ids else None, begin, end, _with_reason(reason))


def _with_reason(text: str | None) -> "Matches | None":
    return None if text is None else lambda letter: text in letter.failure.reason


def _resent_lines(found: "ResentLetters") -> Iterator[str]:
    if found.is_dry_run:
        yield from _TABLE.lines(found.letters)
        if found.chosen > len(found.letters):
            yield f"... and {found.chosen - len(found.letters)} more"
        yield f"{found.chosen} of {found.read} dead letters of {found.group} would be sent again"
    else:
        yield f"{found.sent} of {found.read} dead letters of {found.group} were sent again"
    if found.skipped:
        yield f"left out, since sent again before: {found.skipped} (--again sends these, too)"
    for name in found.forgetful:
        yield (
            f"broker {name} cannot remember what is sent again by choice (RocketMQ's brokers and earlier versions of "
            "Skylark cannot): the next resend of the same choice repeats it"
        )


@command(
    "resendDlq",
    *_choice(),
    click.Option(
        ["--rate"],
        type=click.FloatRange(min=0, min_open=True),
        default=100.0,
        show_default=True,
        metavar="NUMBER",
        help="how many messages a second at most",
    ),
    click.Option(
        ["--all-groups", "--allGroups", "all_groups"],
        is_flag=True,
        help="send to the topics that the messages came from: all groups that read them get them",
    ),
    click.Option(["--again"], is_flag=True, help="also dead letters that were sent again before"),
    click.Option(["--dry-run", "--dryRun", "dry_run"], is_flag=True, help="show what would be sent, and send nothing"),
    show=_resent_lines,
)
async def resend_dlq(
    session: Session,
    consumer_group: str,
    ids: tuple[str, ...],
    begin: int | None,
    end: int | None,
    reason: str | None,
    rate: float,
    all_groups: bool,
    again: bool,
    dry_run: bool,
) -> "ResentLetters":
    """Deliver dead letters to their group again.

    Brokers remember dead letters that were sent again: they are left out, unless --again is given. Without --id,
    --from, --to and --reason all others are sent. The messages go to the group's retry topic, so that other groups do
    not get them; they keep their ids, and their attempts are counted anew. Groups that consume in order or pop need
    --all-groups. The dead letters stay in their topic.
    """
    from skylark.sdk.admin.reports.dead_letters import resend_dead_letters

    return await resend_dead_letters(
        session.admin,
        consumer_group,
        _chosen(ids, begin, end, reason),
        rate=rate,
        to_topic=all_groups,
        again=again,
        dry_run=dry_run,
        on_problem=session.report_problem,
        on_progress=session.progress,
    )


def _exported_lines(found: "ExportedLetters") -> Iterator[str]:
    yield f"{found.written} of {found.read} dead letters of {found.group} are in {found.file}"


@command(
    "exportDlq",
    *_choice(),
    option("f", "file", "the file, whose name ends in .jsonl or .parquet unless there is a --format", required=True),
    click.Option(["--format", "file_format"], type=click.Choice(["jsonl", "parquet"]), help="how the file is written"),
    show=_exported_lines,
)
async def export_dlq(
    session: Session,
    consumer_group: str,
    ids: tuple[str, ...],
    begin: int | None,
    end: int | None,
    reason: str | None,
    file: str,
    file_format: str | None,
) -> "ExportedLetters":
    """Write dead letters to a file, as JSON lines or Parquet (which needs the extra arrow).

    Each row has the message, and the last failure: failReason, failClient, failTime.
    """
    from skylark.sdk.admin.reports.dead_letters import export_dead_letters

    return await export_dead_letters(
        session.admin,
        consumer_group,
        file,
        _chosen(ids, begin, end, reason),
        file_format=file_format,
        on_problem=session.report_problem,
        on_progress=session.progress,
    )


FAMILIES = {"Messages": (resend_dlq, export_dlq)}

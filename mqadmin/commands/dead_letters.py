"""resendDlq and exportDlq: dead letters of a group, delivered to it again or written to a file. Not RocketMQ's."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.params import Timestamp, option
from skylark.mqadmin.render import Table, time_text
from skylark.mqadmin.session import Session
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.visible import visible

if TYPE_CHECKING:
    from skylark.sdk.admin.dead_letters import DeadLetter, DeadLetterCounts, Matches

# A dry run lists so many dead letters; it counts all.
MAX_LISTED = 1_000
_TABLE = Table(
    (
        ("#Topic", "topic"), ("#MsgId", "msgId"), ("#Deliveries", "deliveries"), ("#Resent", "resentTimes"),
        ("#Failed at", "failTime"), ("#Client", "failClient"), ("#Reason", "failReason"),
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
        click.Option(["--reason"], metavar="TEXT", help="those whose reason has this text"),
    )


def _chosen(ids: tuple[str, ...], begin: int | None, end: int | None, reason: str | None) -> dict[str, Any]:
    """The choice as `Admin` takes it."""
    listed = [part.strip() for one in ids for part in one.split(",") if part.strip()]
    return {"ids": listed if ids else None, "from_ms": begin, "to_ms": end, "matches": _with_reason(reason)}


def _with_reason(text: str | None) -> "Matches | None":
    return None if text is None else lambda letter: text in letter.failure.reason


def _row(letter: "DeadLetter") -> dict[str, Any]:
    failure = letter.failure
    return {
        "topic": letter.topic,
        "msgId": letter.message.msg_id,
        "deliveries": letter.deliveries,
        "resentTimes": letter.resent_times,
        "failTime": failure.time_ms or letter.message.store_timestamp,
        "failClient": failure.client,
        "failReason": failure.reason,
    }


def _say_progress(session: Session) -> Any:
    def say(counts: "DeadLetterCounts") -> None:
        session.progress(f"{counts.read} of {counts.total} dead letters read, {counts.done} done")

    return say


def _say_missing(session: Session, counts: "DeadLetterCounts", group: str) -> None:
    for one in counts.missing:
        session.fail(UserError(f"group {group} has no dead letter {one}"))


def _resent_lines(result: Mapping[str, Any]) -> Iterator[str]:
    if result["dryRun"]:
        rows = [
            {**row, "failTime": time_text(row["failTime"]), "failReason": visible(row["failReason"])}
            for row in result["letters"]
        ]
        yield from _TABLE.lines(rows)
        if result["chosen"] > len(rows):
            yield f"... and {result['chosen'] - len(rows)} more"
        yield f"{result['chosen']} of {result['read']} dead letters of {result['group']} would be sent again"
    else:
        yield f"{result['sent']} of {result['read']} dead letters of {result['group']} were sent again"
    if result["skipped"]:
        yield f"left out, since sent again before: {result['skipped']} (--again sends these, too)"
    for name in result["forgetful"]:
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
) -> dict[str, Any]:
    """Deliver dead letters to their group again.

    Brokers remember dead letters that were sent again: they are left out, unless --again is given. Without --id,
    --from, --to and --reason all others are sent. They go to the group's retry topic, so that other groups do not get
    them, keep their ids, and have all attempts before them. Groups that consume in order or pop need --all-groups. The
    dead letters stay in their topic.
    """
    letters: list[dict[str, Any]] = []

    def note(letter: "DeadLetter") -> None:
        if dry_run and len(letters) < MAX_LISTED:
            letters.append(_row(letter))

    counts = await session.admin.resend_dead_letters(
        consumer_group,
        **_chosen(ids, begin, end, reason),
        rate=rate,
        to_topic=all_groups,
        again=again,
        dry_run=dry_run,
        on_letter=note,
        on_progress=_say_progress(session),
    )
    _say_missing(session, counts, consumer_group)
    return {
        "group": consumer_group,
        "dryRun": dry_run,
        "read": counts.read,
        "chosen": counts.chosen,
        "skipped": counts.skipped,
        "forgetful": counts.forgetful,
        "sent": 0 if dry_run else counts.done,
        "letters": letters,
    }


def _exported_lines(result: Mapping[str, Any]) -> Iterator[str]:
    yield f"{result['written']} of {result['read']} dead letters of {result['group']} are in {result['file']}"


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
) -> dict[str, Any]:
    """Write dead letters to a file, as JSON lines or Parquet (which needs the extra arrow).

    Each has its message, and who failed with it last, when and why: failReason, failClient, failTime.
    """
    counts = await session.admin.export_dead_letters(
        consumer_group,
        file,
        file_format=file_format,
        **_chosen(ids, begin, end, reason),
        on_progress=_say_progress(session),
    )
    _say_missing(session, counts, consumer_group)
    return {"group": consumer_group, "file": file, "read": counts.read, "written": counts.done}


FAMILIES = {"Messages": (resend_dlq, export_dlq)}

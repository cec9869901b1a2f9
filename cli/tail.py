"""The command `skylark tail`: prints the messages of a topic as they arrive."""

import re
import sys
from typing import TYPE_CHECKING, Any

import click

from skylark.cli.durations import LAST, StartingPoint
from skylark.mqadmin.command import AdminCommand, cluster_options, run_work, settings_of
from skylark.mqadmin.session import SdkClients, Session
from skylark.mqcommon.daemons.start import import_quietly

if TYPE_CHECKING:
    from skylark.sdk.consumer.expression import Sql

# "*", or tags between "||"; anything else is a condition of SQL.
_TAGS = re.compile(r"[^\s|=<>()']+(?:\s*\|\|\s*[^\s|=<>()']+)*")


@click.command(
    "tail", cls=AdminCommand, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.argument("topic")
@click.option("--group", metavar="GROUP", help="read as this group would: from its offsets, which stay as they are")
@click.option(
    "--from",
    "start",
    type=StartingPoint(),
    metavar="first|last|-10m|TIME",
    help="begin at the oldest message, at the end, or at a time; default: last, or the group's offsets",
)
@click.option("--filter", "text", metavar="EXPRESSION", help="tags, as in 'TagA || TagB', or a condition of SQL92")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="end after N messages")
@click.option("--follow/--no-follow", default=True, show_default=True, help="wait for more messages, or end at the end")
@click.option("--json", "in_json", is_flag=True, help="print a line of JSON for each message")
@cluster_options
@click.pass_context
def tail(
    ctx: click.Context,
    /,
    topic: str,
    group: str | None,
    start: str | int | None,
    text: str | None,
    count: int | None,
    follow: bool,
    in_json: bool,
    **of_cluster: Any,
) -> None:
    r"""Print the messages of TOPIC as they arrive, until Ctrl-C.

    No group is joined and nothing is committed, so consumers do not notice. Messages of one queue come in order.
    Without --json a line has the time of storing, BROKER/QUEUE:OFFSET, the tag, the keys, and the body, in which \n
    stands for a line feed.
    """
    if group is not None and start is not None:
        raise click.UsageError("Give only one of --group and --from.", ctx)
    # Python has no stdout when it was closed; the first file that is opened would then get the output.
    if sys.stdout is None:
        raise click.UsageError("stdout is closed.", ctx)

    async def work(session: Session) -> None:
        from skylark.cli.following import Following

        expression = None if text is None else _expression(text)
        following = Following(session, topic, group, start or LAST, expression, count, in_json=in_json)
        await following.run(follow=follow)

    settings = settings_of(**of_cluster, output="json" if in_json else "table")
    import_quietly("skylark.cli.following")
    if not run_work(SdkClients(), settings, work, {}, None):
        ctx.exit(1)


def _expression(text: str) -> "str | Sql":
    """Tags as they are; else a condition. Raises InvalidArgument when the condition has a syntax error."""
    from skylark.sdk.consumer.expression import Sql

    return text if _TAGS.fullmatch(text.strip()) else Sql(text)

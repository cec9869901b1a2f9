"""The command `skylark send`: messages from the command line, or from the lines of stdin."""

import os
import sys
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

import click

from skylark.cli.durations import Duration
from skylark.mqadmin.command import AdminCommand, cluster_options, run_work, settings_of
from skylark.mqadmin.render import to_json
from skylark.mqadmin.session import SdkClients, Session
from skylark.mqcommon.daemons.start import import_quietly
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass

# The group under which brokers list this producer.
_GROUP = "skylark_send"
_READ_BYTES = 64 * 1024
_STDIN = 0


@lazy_dataclass(frozen=True, slots=True)
class Sent:
    """Where a message is stored."""

    msg_id: str
    broker_name: str
    queue_id: int
    queue_offset: int

    def __str__(self) -> str:
        return f"{self.msg_id}  {self.broker_name}/{self.queue_id}:{self.queue_offset}"


class Property(click.ParamType):  # type: ignore[type-arg]  # generic in newer click only
    """``name=value``."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        name, equals, text = str(value).partition("=")
        if not name or not equals:
            self.fail(f"{value!r} is not name=value", param, ctx)
        return name, text


@click.command(
    "send", cls=AdminCommand, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.argument("topic")
@click.argument("bodies", metavar="[BODY]...", nargs=-1)
@click.option("--tag", metavar="TAG", help="the tag that consumers filter by")
@click.option("--key", "keys", metavar="KEY", multiple=True, help="a key to find the messages by; may be repeated")
@click.option("--property", "properties", type=Property(), multiple=True, help="a property; may be repeated")
@click.option(
    "--delay", type=Duration(), metavar="TIME", help="consumers get the messages after this time: 10s, 5m, 2h"
)
@click.option(
    "--count", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="send each message N times"
)
@click.option("--json", "in_json", is_flag=True, help="print a line of JSON for each message")
@cluster_options
@click.pass_context
def send(
    ctx: click.Context,
    /,
    topic: str,
    bodies: tuple[str, ...],
    tag: str | None,
    keys: tuple[str, ...],
    properties: tuple[tuple[str, str], ...],
    delay: timedelta | None,
    count: int,
    in_json: bool,
    **of_cluster: Any,
) -> None:
    """Send each BODY as a message to TOPIC.

    Without a BODY, or with - as the only one, each line of stdin is a message. A line is printed for each message: its
    id, and the queue and the offset where it is stored.
    """

    reads_stdin = not bodies or bodies == ("-",)
    # Python has no stdin when it was closed; the first file that is opened would then be read.
    if reads_stdin and sys.stdin is None:
        raise click.UsageError("stdin is closed: give a BODY.", ctx)
    if reads_stdin and sys.stdin.isatty():
        click.echo("Each line is a message; Ctrl-D ends.", err=True)

    async def work(session: Session) -> None:
        from skylark.mqcommon.message.message import Message

        async with session.producer(_GROUP) as producer:
            async for body in _lines_of_stdin() if reads_stdin else _given(bodies):
                message = Message(topic, body, tags=tag, keys=keys or None, properties=dict(properties) or None)
                for _ in range(count):
                    result = await producer.send(message, delay=delay)
                    queue = result.queue
                    sent = Sent(result.msg_id, queue.broker_name, queue.queue_id, result.queue_offset)
                    click.echo(to_json(sent, one_line=True) if in_json else sent)

    settings = settings_of(**of_cluster, output="json" if in_json else "table")
    import_quietly("skylark.sdk.producer.producer")
    if not run_work(SdkClients(), settings, work, {}, None):
        ctx.exit(1)


async def _given(bodies: Sequence[str]) -> AsyncIterator[bytes]:
    """The bodies of the command line."""
    for body in bodies:
        # Bytes that are not of the locale's encoding come as surrogates.
        yield os.fsencode(body)


async def _lines_of_stdin() -> AsyncIterator[bytes]:
    """Lines without their ends, as soon as they arrive; Ctrl-C is not held up by a read that waits.

    Raises UserError for a line that is longer than any message, and when stdin cannot be read.
    """
    import trio

    from skylark.sdk.producer.producer import MAX_MESSAGE_BYTES

    begun = bytearray()
    while True:
        try:
            # Not the stream sys.stdin: a thread that waits in it would keep its lock, without which Python cannot end.
            read = await trio.to_thread.run_sync(os.read, _STDIN, _READ_BYTES, abandon_on_cancel=True)
        except OSError as error:
            raise UserError(f"stdin cannot be read: {error.strerror}") from None
        first, *others = read.split(b"\n")
        begun += first
        for part in others:
            yield bytes(begun.removesuffix(b"\r"))
            begun = bytearray(part)
        if len(begun) > MAX_MESSAGE_BYTES + 1:
            raise UserError(f"a line of stdin is longer than the largest message: {MAX_MESSAGE_BYTES} bytes")
        if not read:
            break
    if begun:
        yield bytes(begun.removesuffix(b"\r"))

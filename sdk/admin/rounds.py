"""Commands that repeat until Ctrl-C, with -i or --watch. Neighbour: session.py."""

import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import click

from mqcommon.errors import SkylarkError
from sdk.admin.params import option
from sdk.admin.render import to_json
from sdk.admin.session import Session

T = TypeVar("T")

WATCH_S = 2.0


def interval_option() -> click.Option:
    """-i, the seconds between two rounds."""
    return option(
        "i",
        "interval",
        "repeat every so many seconds, until Ctrl-C",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        default=None,
    )


def watch_option() -> click.Option:
    """--watch, for results that people look at while they change."""
    return option(
        "",
        "watch",
        "show the result again every so many seconds (2), on a cleared screen, until Ctrl-C",
        type=click.FloatRange(min=0, min_open=True),
        metavar="[SECONDS]",
        is_flag=False,
        flag_value=WATCH_S,
        default=None,
    )


async def in_rounds(
    session: Session,
    interval_s: float | None,
    look: Callable[[], Awaitable[T]],
    lines: Callable[[T], Iterable[str]],
    *,
    clears: bool = False,
) -> T | None:
    """Return the result of ``look``. With an interval, print it as ``lines`` in each round, and return None.

    With --output json each round is then one line. ``clears``: each round begins on a cleared screen, if it is one.
    """
    if interval_s is None:
        found = await look()
        _say(session, lines(found))
        return found
    try:
        await _repeat(session, interval_s, look, lines, clears=clears)
    except* KeyboardInterrupt:
        pass  # the normal end
    return None


async def _repeat(
    session: Session,
    interval_s: float,
    look: Callable[[], Awaitable[T]],
    lines: Callable[[T], Iterable[str]],
    *,
    clears: bool,
) -> None:
    import trio

    while True:
        try:
            found = await look()
        except SkylarkError as error:
            # the server may answer in the next round
            session.fail(error)
        else:
            if clears and not session.json and sys.stdout.isatty():
                click.clear()
            _say(session, lines(found))
            if session.json:
                click.echo(to_json(found, one_line=True))
        await trio.sleep(interval_s)


def _say(session: Session, lines: Iterable[str]) -> None:
    for line in lines:
        session.say(line)

"""One run of one command, or rounds of it (-i, --watch): the open Admin, its output, and whether anything failed.

A command's function gets a Session and returns its result as a report (a dataclass, or a list of them). The report is
printed as a table or as one JSON document. The function prints lines of a table while it works with ``say``, and
reports a failure at one of several servers with ``fail``, which sets exit code 1. Tests replace ``Clients`` with fakes.
"""

import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import click

from skylark.mqadmin.params import option
from skylark.mqadmin.render import to_json
from skylark.mqcommon.errors import SkylarkError, UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import TOOLS_GROUP
from skylark.sdk.admin.failures import ErrorReport, WarningReport, error_report, explain
from skylark.sdk.admin.reports.problems import ReportProblem, ask_each, report_absent_queues

if TYPE_CHECKING:
    from skylark.remoting.net.tls.settings import Tls
    from skylark.remoting.protocol.signature import Credentials
    from skylark.sdk.admin.client import Admin
    from skylark.sdk.consumer.pull import PullConsumer
    from skylark.sdk.endpoint import Answers
    from skylark.sdk.producer.producer import Producer

T = TypeVar("T")


@lazy_dataclass(frozen=True, slots=True)
class Settings:
    """The options of every command. ``namesrv`` is empty when only a broker's address is given."""

    namesrv: str
    timeout_ms: int = 5000
    output: str = "table"
    credentials: "Credentials | None" = None
    tls: "Tls | None" = None


class Clients(Protocol):
    """Opens the clients that commands use."""

    def admin(self, settings: Settings) -> AbstractAsyncContextManager["Admin"]: ...

    def producer(self, settings: Settings, group: str) -> AbstractAsyncContextManager["Producer"]: ...

    def consumer(self, settings: Settings, group: str) -> AbstractAsyncContextManager["PullConsumer"]: ...


class SdkClients:
    """The SDK's clients. They are imported when a command runs, so that help and completion are fast."""

    def admin(self, settings: Settings) -> AbstractAsyncContextManager["Admin"]:
        from skylark.sdk.admin.client import Admin

        return Admin(
            settings.namesrv, timeout_ms=settings.timeout_ms, credentials=settings.credentials, tls=settings.tls
        )

    def producer(self, settings: Settings, group: str) -> AbstractAsyncContextManager["Producer"]:
        from skylark.sdk.producer.producer import Producer

        # a weaker acknowledgement is printed as the status of the send, as in RocketMQ's tool
        return Producer(
            settings.namesrv,
            group=group,
            send_timeout_ms=settings.timeout_ms,
            accept_weaker=True,
            start_timeout_ms=None,
            credentials=settings.credentials,
            tls=settings.tls,
        )

    def consumer(self, settings: Settings, group: str) -> AbstractAsyncContextManager["PullConsumer"]:
        from skylark.sdk.consumer.pull import PullConsumer

        # no heartbeats: reading with a tool must not create a group
        return PullConsumer(
            settings.namesrv,
            group=group,
            timeout_ms=settings.timeout_ms,
            heartbeat=False,
            start_timeout_ms=None,
            credentials=settings.credentials,
            tls=settings.tls,
        )


class Session:
    """The context of a command's function."""

    def __init__(self, clients: Clients, settings: Settings, admin: "Admin") -> None:
        self.settings = settings
        self.admin = admin
        self.failed = False
        self._clients = clients
        self._progress_shown = False

    @property
    def json(self) -> bool:
        """Whether the result is printed as JSON."""
        return self.settings.output == "json"

    @property
    def namesrv_addrs(self) -> list[str]:
        """Each NameServer of ``-n``; UserError when there is none."""
        addrs = [addr for addr in self.settings.namesrv.split(";") if addr]
        if not addrs:
            raise UserError("this needs a NameServer: give -n HOST:PORT or set NAMESRV_ADDR")
        return addrs

    def producer(self, group: str) -> AbstractAsyncContextManager["Producer"]:
        """A producer with the same NameServers."""
        return self._clients.producer(self.settings, group)

    def consumer(self, group: str = TOOLS_GROUP) -> AbstractAsyncContextManager["PullConsumer"]:
        """A consumer with the same NameServers."""
        return self._clients.consumer(self.settings, group)

    @cached_property
    def bodies_folder(self) -> Path:
        """A new folder for bodies of messages, which only this user can read. Raises OSError."""
        return Path(tempfile.mkdtemp(prefix="mqadmin-bodies-"))

    def say(self, line: str = "") -> None:
        """Print a line of the table now; does nothing with --output json."""
        if not self.json:
            self.clear_progress()
            click.echo(line)

    def warn(self, text: str) -> None:
        """Print a warning on stderr."""
        self._complain(WarningReport(text), text)

    def fail(self, error: BaseException, doing: str = "") -> str:
        """Print an error on stderr and set exit code 1. Returns the text for the JSON result."""
        self.failed = True
        report = error_report(error, doing)
        self._complain(report, report.error)
        return explain(error)

    def report_problem(self, problem: ReportProblem) -> None:
        """Print a problem of a report: a failure if the problem has an error, else a warning."""
        if problem.error is None:
            self.warn(problem.about)
        else:
            self.fail(problem.error, problem.about)

    async def check_whole(self, topics: Iterable[str]) -> None:
        """Fail once for each broker that is away and has queues of one of ``topics``: the output lacks these queues."""
        await report_absent_queues(self.admin, topics, self.report_problem)

    def _complain(self, report: ErrorReport | WarningReport, text: str) -> None:
        self.clear_progress()
        click.echo(to_json(report, one_line=True) if self.json else f"mqadmin: {text}", err=True)

    def progress(self, text: str) -> None:
        """Show the progress of a long operation on one line of stderr, if that is a terminal."""
        if sys.stderr.isatty():
            click.echo(f"\r\x1b[K{text}", err=True, nl=False)
            self._progress_shown = True

    def clear_progress(self) -> None:
        """Erase the progress line before something else is printed."""
        if self._progress_shown:
            click.echo("\r\x1b[K", err=True, nl=False)
            self._progress_shown = False

    def admin_at(self, namesrv_addr: str) -> AbstractAsyncContextManager["Admin"]:
        """An Admin for this NameServer only, for changes that must be made at each NameServer."""
        return self._clients.admin(replace(self.settings, namesrv=namesrv_addr))

    def admin_within(self, timeout_ms: int) -> AbstractAsyncContextManager["Admin"]:
        """An Admin whose requests have another timeout."""
        return self._clients.admin(replace(self.settings, timeout_ms=timeout_ms))

    async def each(self, keys: Iterable[str], ask: Callable[[str], Awaitable[T]]) -> "Answers[T]":
        """Await ``ask`` for each key, several at a time, and show the progress."""
        answers = await ask_each(keys, ask, self.progress)
        self.clear_progress()
        return answers


# --- rounds

WATCH_S = 2.0


def interval_option() -> click.Option:
    """-i, the seconds between two rounds."""
    return option(
        "i",
        "interval",
        "repeat at this interval in seconds, until Ctrl-C",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        default=None,
    )


def watch_option() -> click.Option:
    """--watch, for results that people watch while they change."""
    return option(
        "",
        "watch",
        "show the result again at this interval in seconds (2), on a cleared screen, until Ctrl-C",
        type=click.FloatRange(min=0, min_open=True),
        metavar="[SECONDS]",
        is_flag=False,
        flag_value=WATCH_S,
        default=None,
    )


async def in_rounds(
    session: Session,
    interval_s: float | None,
    fetch: Callable[[], Awaitable[T]],
    lines: Callable[[T], Iterable[str]],
    *,
    clears: bool = False,
) -> T | None:
    """Return the result of ``fetch``. With an interval, print it as ``lines`` in each round, and return None.

    With --output json each round is then one line. ``clears``: each round clears the screen, if stdout is a terminal.
    """
    if interval_s is None:
        found = await fetch()
        _say(session, lines(found))
        return found
    try:
        await _repeat(session, interval_s, fetch, lines, clears=clears)
    except* KeyboardInterrupt:
        pass  # the normal end
    return None


async def _repeat(
    session: Session,
    interval_s: float,
    fetch: Callable[[], Awaitable[T]],
    lines: Callable[[T], Iterable[str]],
    *,
    clears: bool,
) -> None:
    import trio

    while True:
        try:
            found = await fetch()
        except SkylarkError as error:
            # go on: the server may answer in the next round
            session.fail(error)
        else:
            if clears and not session.json and sys.stdout.isatty():
                click.clear()
            _say(session, lines(found))
            session.clear_progress()
            if session.json:
                click.echo(to_json(found, one_line=True))
        await trio.sleep(interval_s)


def _say(session: Session, lines: Iterable[str]) -> None:
    for line in lines:
        session.say(line)

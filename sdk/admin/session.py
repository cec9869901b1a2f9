"""One run of one command: the opened Admin, where lines go, and whether anything failed.

A command's function gets a Session. It returns its result as plain data, which becomes a table or one JSON
document; what a table's reader should see while it works goes through ``say``; what failed at one of several
servers goes through ``fail`` and makes the exit code 1. ``Clients`` is the seam where tests put fakes.
"""

import sys
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from mqcommon.errors import UserError
from sdk.admin.failures import error_document, explain
from sdk.admin.render import to_json

if TYPE_CHECKING:
    from sdk.admin.client import Admin
    from sdk.consumer.pull import PullConsumer
    from sdk.fanout import Answers
    from sdk.producer.producer import Producer

T = TypeVar("T")

TOOLS_GROUP = "TOOLS_CONSUMER"


@dataclass(frozen=True, slots=True)
class Settings:
    """The options that every command has. ``namesrv`` is empty when a broker is named and no NameServer."""

    namesrv: str
    timeout_ms: int = 5000
    output: str = "table"


class Clients(Protocol):
    """Opens what commands talk through."""

    def admin(self, settings: Settings) -> AbstractAsyncContextManager["Admin"]: ...

    def producer(self, settings: Settings, group: str) -> AbstractAsyncContextManager["Producer"]: ...

    def consumer(self, settings: Settings, group: str) -> AbstractAsyncContextManager["PullConsumer"]: ...


class SdkClients:
    """The SDK's own; imported when a command runs, so that help and completion stay quick."""

    def admin(self, settings: Settings) -> AbstractAsyncContextManager["Admin"]:
        from sdk.admin.client import Admin

        return Admin(settings.namesrv, timeout_ms=settings.timeout_ms)

    def producer(self, settings: Settings, group: str) -> AbstractAsyncContextManager["Producer"]:
        from sdk.producer.producer import Producer

        # a weaker acknowledgement is told as the send's status, as RocketMQ's tool tells it
        return Producer(settings.namesrv, group=group, send_timeout_ms=settings.timeout_ms, accept_weaker=True)

    def consumer(self, settings: Settings, group: str) -> AbstractAsyncContextManager["PullConsumer"]:
        from sdk.consumer.pull import PullConsumer

        # without heartbeats: reading with a tool makes no group
        return PullConsumer(settings.namesrv, group=group, timeout_ms=settings.timeout_ms, heartbeat=False)


class Session:
    """What a command's function works with."""

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
        """A producer at the same NameServers."""
        return self._clients.producer(self.settings, group)

    def consumer(self, group: str = TOOLS_GROUP) -> AbstractAsyncContextManager["PullConsumer"]:
        """A consumer at the same NameServers."""
        return self._clients.consumer(self.settings, group)

    def say(self, line: str = "") -> None:
        """A line of the table, now; nothing when JSON is wanted."""
        if not self.json:
            self.clear_progress()
            click.echo(line)

    def warn(self, text: str) -> None:
        """A line on stderr."""
        self._complain({"warning": text}, text)

    def fail(self, error: BaseException, doing: str = "") -> str:
        """One line on stderr, and exit code 1 at the end; returns the text for the JSON result."""
        self.failed = True
        document = error_document(error, doing)
        self._complain(document, document["error"])
        return explain(error)

    def _complain(self, document: dict[str, Any], text: str) -> None:
        self.clear_progress()
        click.echo(to_json(document, one_line=True) if self.json else f"mqadmin: {text}", err=True)

    def progress(self, text: str) -> None:
        """What a long operation is at, on one line of stderr that the next one replaces; only on a terminal."""
        if sys.stderr.isatty():
            click.echo(f"\r\x1b[K{text}", err=True, nl=False)
            self._progress_shown = True

    def clear_progress(self) -> None:
        """Take the progress line away before something else is printed."""
        if self._progress_shown:
            click.echo("\r\x1b[K", err=True, nl=False)
            self._progress_shown = False

    def admin_at(self, namesrv_addr: str) -> AbstractAsyncContextManager["Admin"]:
        """An Admin that knows one of the NameServers only: for what each must be told, and may refuse, by itself."""
        return self._clients.admin(replace(self.settings, namesrv=namesrv_addr))

    async def each(self, keys: Iterable[str], ask: Callable[[str], Awaitable[T]]) -> "Answers[T]":
        """``ask`` for each key, some at a time, with progress shown."""
        from sdk.fanout import ask_all

        every = list(keys)
        done = 0

        async def counted(key: str) -> T:
            nonlocal done
            try:
                return await ask(key)
            finally:
                done += 1
                self.progress(f"{done} of {len(every)} answered")

        answers = await ask_all(every, counted)
        self.clear_progress()
        return answers

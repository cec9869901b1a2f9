"""Lines of a daemon on stderr while it has no log, in the log's format: mistakes at its start, and why it ended.

A collector that reads the daemon's stderr as JSON must be able to read these lines, too. They are needed most when the
options cannot be read, so `log_format_of` reads the format alone.
"""

import itertools
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any

import click

from skylark.mqcommon.logs.formats import JsonFormatter
from skylark.mqcommon.logs.options import JSON, TEXT, LogOptions
from skylark.mqcommon.logs.writer import Write, stderr_writer
from skylark.mqcommon.options.command_line import refuse_repeated
from skylark.mqcommon.options.conf_file import raw_value

# How long to wait until a line is written.
PRINT_TIMEOUT_S = 3.0
_KEY, _FLAG = "logFormat", "--log-format"


class StartReport:
    """Writes lines of the daemon ``name``, such as ``broker``, to stderr."""

    def __init__(self, name: str, log_format: str) -> None:
        self._name = name
        self._in_json = log_format.lower() == JSON

    def warn(self, text: str) -> None:
        """Warn of something that the user may not expect."""
        self._print(logging.WARNING, text)

    def fail(self, text: str) -> None:
        """Say why the daemon does not start, or has ended."""
        self._print(logging.CRITICAL, text)

    def _print(self, level: int, text: str) -> None:
        line = _json_line(self._name, level, text) if self._in_json else f"{self._name}: {text}"
        try:
            write = stderr_writer()
        except OSError:  # a test has replaced stderr
            click.echo(line, err=True)
            return
        # By a thread: the process must end even when nobody reads the pipe.
        thread = threading.Thread(target=_written, args=(write, f"{line}\n"), daemon=True)
        thread.start()
        thread.join(PRINT_TIMEOUT_S)


def log_format_of(cls: type[LogOptions], conf: str | os.PathLike[str] | None, given: Mapping[str, str]) -> str:
    """The format that the command line or the conf file gives, even when other options are wrong."""
    return raw_value(cls, _KEY, conf, given) or TEXT


class DaemonCommand(click.Command):
    """A command that refuses repeated options, and whose usage errors are JSON with ``--log-format json``."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with _usage_errors(args):
            return super().make_context(info_name, args, parent, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        refuse_repeated(self, ctx, args)
        return super().parse_args(ctx, args)


class DaemonGroup(DaemonCommand, click.Group):
    """As `DaemonCommand`, with the commands of ``load`` below it, imported when they are listed or one is called."""

    def __init__(self, *arguments: Any, load: Callable[[], Sequence[click.Command]] = list, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._load = load

    def list_commands(self, ctx: click.Context) -> list[str]:
        self._load_once()
        return super().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        self._load_once()
        return super().get_command(ctx, cmd_name)

    def _load_once(self) -> None:
        if not self.commands:
            for command in self._load():
                self.add_command(command)


@contextmanager
def _usage_errors(args: Sequence[str]) -> Iterator[None]:
    in_json = f"{_FLAG}={JSON}" in args or (_FLAG, JSON) in itertools.pairwise(args)
    try:
        yield
    except click.UsageError as error:
        if not in_json:
            raise
        raise _JsonUsageError(error.format_message(), error.ctx) from None


class _JsonUsageError(click.UsageError):
    def show(self, file: IO[Any] | None = None) -> None:
        name = self.ctx.command_path if self.ctx is not None else os.path.basename(sys.argv[0])
        click.echo(_json_line(name, logging.CRITICAL, self.message), file=file, err=True)


def _written(write: Write, line: str) -> None:
    with suppress(OSError):  # nobody can read stderr any more
        write(line.encode("utf-8", "backslashreplace"))


def _json_line(name: str, level: int, text: str) -> str:
    record = logging.LogRecord(name, level, "", 0, text, None, None)
    return JsonFormatter().format(record)

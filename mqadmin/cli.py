"""The command line ``mqadmin``: RocketMQ's commands under RocketMQ's names, in families.

This module imports neither the SDK's clients nor the protocol: a command imports them when it runs, so help and shell
completion are fast.
Command names are case-insensitive, as in RocketMQ's tool; for a mistyped name the error suggests the nearest command.
Exit codes: 0 done, 1 an operation failed (one line on stderr says what to do), 2 the command line is wrong.
"""

import difflib
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

import click

from skylark.mqadmin.command import common_options
from skylark.mqadmin.commands import (
    accounts,
    backups,
    brokers,
    clients,
    clone,
    cluster,
    controllers,
    dead_letters,
    doctor,
    export,
    groups,
    logs,
    message_queries,
    messages,
    namesrvs,
    offsets,
    queues,
    route_diff,
    scrubs,
    securing,
    shrinking,
    static_topics,
    stats,
    tier,
    topics,
    topology,
    users,
)
from skylark.mqadmin.render import to_json
from skylark.mqcommon.daemons.output import run_guarded
from skylark.mqcommon.options.completion import completion_command
from skylark.sdk.admin.failures import ErrorReport

# RocketMQ's commands (4.9 and 5.3) that are not implemented here yet, for error messages and docs.
_NAMES = """
    addBroker checkRocksdbCqWriteProgress
    dumpCompactionLog exportConfigs exportMetadataInRocksDB exportMetrics exportPopRecord
    getColdDataFlowCtrInfo
    removeBroker removeColdDataFlowCtrGroupConfig rocksDBConfigToJson setCommitLogReadAheadMode
    updateColdDataFlowCtrGroupConfig
"""
NOT_YET = tuple(sorted(_NAMES.split(), key=str.lower))


def name_of_missing(name: str) -> str | None:
    """RocketMQ's spelling of a command that is not implemented yet; None for any other name."""
    return next((known for known in NOT_YET if known.lower() == name.lower()), None)


# RocketMQ's other names of commands, in lower case.
_ALIASES = {"deleteaccessconfig": "deleteAclConfig", "getaccessconfigsubcommand": "getAclConfig"}
# Commands that ask no server: they have no options.
_LOCAL = ("help", "completion")
_IN_JSON = "mqadmin.errors_in_json"
_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class Families(click.Group):
    """A group whose help lists commands by family, in the order in which they were added."""

    def __init__(self, *args: object, **settings: object) -> None:
        super().__init__(*args, **settings)  # type: ignore[arg-type]  # passed on as click wants them
        self.families: dict[str, list[str]] = {}

    def add_family(self, family: str, commands: Sequence[click.Command]) -> None:
        """Add commands under a heading of the help."""
        for command in commands:
            self.add_command(command)
        self.families.setdefault(family, []).extend(command.name or "" for command in commands)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """As click's, after finding out whether errors are printed as JSON: parsing may already fail.

        Options that every command takes may stand before the command, too.
        """
        in_json = _wants_json(args)
        with _usage_errors(in_json=in_json):
            ctx = super().make_context(info_name, self._command_first(args), parent, **extra)
        ctx.meta[_IN_JSON] = in_json
        return ctx

    def _command_first(self, args: list[str]) -> list[str]:
        """``args`` with common options moved from before the command to after it; an option's last value counts."""
        common = {spelling for parameter in common_options() for spelling in parameter.opts}
        at = 0
        while at < len(args) and args[at].partition("=")[0] in common:
            at += 1 if "=" in args[at] else 2
        if at == 0:
            return args
        if at >= len(args):
            raise click.UsageError(f"{args[0]} belongs to a command: mqadmin COMMAND {args[0]} ... See mqadmin help.")
        return args[at:] if args[at] in _LOCAL else [args[at], *args[:at], *args[at + 1 :]]

    def invoke(self, ctx: click.Context) -> Any:
        with _usage_errors(in_json=ctx.meta[_IN_JSON]):
            return super().invoke(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command with this name, in upper or lower case."""
        found = super().get_command(ctx, cmd_name)
        if found is None:
            by_lower = _ALIASES | {name.lower(): name for name in self.commands}
            found = self.commands.get(by_lower.get(cmd_name.lower(), ""))
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Like click's, but suggests the nearest name when there is no such command."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise unknown_command(self, ctx, args[0])
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The families, each with its commands and the first sentence of their help."""
        for family, names in self.families.items():
            with formatter.section(family):
                formatter.write_dl(
                    [(name, self.commands[name].get_short_help_str(200)) for name in names], col_spacing=2
                )


class JsonUsageError(click.UsageError):
    """A usage error that is printed as one line of JSON."""

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(to_json(ErrorReport(self.message, None, None), one_line=True), file=file, err=True)


@contextmanager
def _usage_errors(*, in_json: bool) -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        if not in_json:
            raise
        raise JsonUsageError(error.format_message(), error.ctx) from None


def _wants_json(args: Sequence[str]) -> bool:
    return "--output=json" in args or ("--output", "json") in itertools.pairwise(args)


def unknown_command(group: click.Group, ctx: click.Context, name: str) -> click.UsageError:
    """The error for an unknown command: a command of RocketMQ that is missing here, or a mistyped name."""
    missing = name_of_missing(name)
    if missing is not None:
        text = f"{missing} is a command of RocketMQ's mqadmin that is not implemented here yet. See mqadmin help."
        return click.UsageError(text, ctx)
    by_lower = {known.lower(): known for known in group.commands}
    near = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6)
    hint = f"Did you mean {' or '.join(by_lower[one] for one in near)}?" if near else "See mqadmin help."
    return click.UsageError(f"No such command {name!r}. {hint}", ctx)


@click.group("mqadmin", cls=Families, context_settings=_SETTINGS, invoke_without_command=True)
@click.version_option(package_name="skylark-mq", prog_name="mqadmin")
@click.pass_context
def mqadmin(ctx: click.Context) -> None:
    """Administer RocketMQ and Skylark clusters.

    Every command takes -n (or NAMESRV_ADDR), --credentials, --tls-config, --timeout, --output table|json and --help.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@click.command("help")
@click.argument("name", metavar="[COMMAND]", required=False)
@click.pass_context
def help_command(ctx: click.Context, name: str | None) -> None:
    """Show the help of mqadmin, or of one command."""
    parent = ctx.parent
    assert parent is not None
    if name is None:
        click.echo(mqadmin.get_help(parent))
        return
    command = mqadmin.get_command(parent, name)
    if command is None:
        raise unknown_command(mqadmin, ctx, name)
    with click.Context(command, info_name=command.name, parent=parent, **command.context_settings) as inner:
        click.echo(command.get_help(inner))


for _module in (
    topics,
    clone,
    cluster,
    topology,
    brokers,
    backups,
    scrubs,
    tier,
    groups,
    offsets,
    clients,
    message_queries,
    messages,
    dead_letters,
    queues,
    stats,
    namesrvs,
    route_diff,
    shrinking,
    static_topics,
    controllers,
    users,
    securing,
    accounts,
    logs,
    doctor,
    export,
):
    for _family, _commands in _module.FAMILIES.items():
        mqadmin.add_family(_family, _commands)
mqadmin.add_family("Help", (help_command, completion_command("mqadmin")))


def main(prog_name: str) -> None:
    """The console command."""
    run_guarded(mqadmin, prog_name)

"""A click group that imports a command when it is called, so that its own help is fast."""

import difflib
import sys
from collections.abc import Mapping
from typing import NamedTuple

import click
from click.shell_completion import CompletionItem

from skylark.mqcommon.daemons.linux import why_not_here
from skylark.mqcommon.daemons.start import INTERRUPTED, import_quietly


class Place(NamedTuple):
    """Where a command is, and what the group's help says about it."""

    module: str
    attribute: str
    help: str
    #: The command runs servers, which need Linux.
    serves: bool = False


class LazyGroup(click.Group):
    """A group whose commands are given by ``families``: heading in the group's help → name of the command → place."""

    def __init__(self, name: str, families: Mapping[str, Mapping[str, Place]], **settings: object) -> None:
        super().__init__(name, **settings)  # type: ignore[arg-type]  # passed on as click wants them
        self.families = families
        self._places = {name: place for family in families.values() for name, place in family.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = self._places.get(cmd_name)
        if place is None:
            return None
        if place.serves and (reason := why_not_here(f"{ctx.command_path} {cmd_name}")):
            raise click.ClickException(reason)
        import_quietly(place.module)
        found = getattr(sys.modules[place.module], place.attribute)
        assert isinstance(found, click.Command)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Like click's, but suggests the nearest name when there is no such command."""
        name = args[0]
        if name not in self._places and not name.startswith("-"):
            near = difflib.get_close_matches(name, self._places, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"See {ctx.command_path} --help."
            raise click.UsageError(f"No such command {name!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Like click's, but Ctrl-C ends every command with the exit code of shells, and without a word."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of commands as click completes them, without importing the commands; then options."""
        names = [
            CompletionItem(name, help=place.help) for name, place in self._places.items() if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands by heading, without importing them."""
        for heading, family in self.families.items():
            with formatter.section(heading):
                formatter.write_dl([(name, place.help) for name, place in family.items()])

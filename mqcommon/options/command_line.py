"""Options on command lines, and the table in docs/reference/conf.md."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from skylark.mqcommon.options.fields import Option, options_of, value_text

F = TypeVar("F", bound=Callable[..., Any])


def refuse_repeated(command: click.Command, ctx: click.Context, args: list[str]) -> None:
    """Raises UsageError when ``args`` give one of the command's own options twice."""
    if ctx.resilient_parsing:  # shell completion
        return
    # Parsed once more, only for the order of the options: click's own result has the last value and no trace of the
    # first.
    _, _, order = command.make_parser(ctx).parse_args(args=args[:])
    for param in command.params:
        if isinstance(param, click.Option) and _has_one_value(param) and order.count(param) > 1:
            raise click.UsageError(f"{' and '.join(param.opts)} are one option; give it once.", ctx)


def _has_one_value(param: click.Option) -> bool:
    return len(param.opts) > 1 and not (param.multiple or param.is_flag or param.count)


def click_options(cls: type[Any], other_flags: Mapping[str, Sequence[str]] | None = None) -> Callable[[F], F]:
    """Add a ``--kebab-case`` flag per option to a click command. ``other_flags`` has further names of some flags.

    Values reach the command as text, or None when not given. ``given_options`` selects those that were given for
    ``load_conf``, which checks them, so a flag and a conf line give the same errors. Secrets have no flag, because
    other users can see a command line in the process list.
    """

    more = other_flags or {}

    def decorate(command: F) -> F:
        for o in reversed(options_of(cls)):
            if o.secret:
                continue
            command = click.option(
                o.flag,
                *more.get(o.name, ()),
                o.name,
                default=None,
                type=_click_type(o),
                metavar=_metavar(o),
                help=_flag_help(o),
            )(command)
        return command

    return decorate


def given_options(cls: type[Any], arguments: Mapping[str, Any]) -> dict[str, str]:
    """The arguments of a click command that are options of ``cls`` and were given."""
    names = [o.name for o in options_of(cls)]
    return {name: str(arguments[name]) for name in names if arguments.get(name) is not None}


def markdown_table(cls: type[Any]) -> str:
    """The options of ``cls`` as a Markdown table, sorted by key."""
    lines = ["| key | default | what it does |", "| --- | --- | --- |"]
    for o in sorted(options_of(cls), key=lambda o: o.key.lower()):
        default = f"`{value_text(o.default)}`" if value_text(o.default) else ""
        lines.append(f"| `{o.key}` | {default} | {_description(o).replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def _choices(o: Option) -> tuple[str, ...] | None:
    return ("true", "false") if o.kind is bool else o.choices


def _click_type(o: Option) -> click.ParamType[str]:
    choices = _choices(o)
    return click.Choice(choices, case_sensitive=False) if choices else click.STRING


def _metavar(o: Option) -> str:
    if choices := _choices(o):
        return f"[{'|'.join(choices)}]"
    return o.unit.upper() if o.unit else {int: "N", float: "X"}.get(o.kind, "TEXT")


def _flag_help(o: Option) -> str:
    default = value_text(o.default)
    return f"{o.help}  [default: {default}]" if default else o.help


def _description(o: Option) -> str:
    notes = notes_text(o, "`")
    return f"{o.help} ({notes})" if notes else o.help


def notes_text(o: Option, quote: str = "") -> str:
    """The unit, the values and the environment variable of an option; names stand between ``quote``."""
    notes = []
    if o.unit:
        notes.append(f"unit: {o.unit}")
    if o.choices:
        notes.append("one of " + ", ".join(f"{quote}{choice}{quote}" for choice in o.choices))
    if o.minimum is not None and o.maximum is not None:
        notes.append(f"{o.minimum} to {o.maximum}")
    elif o.minimum is not None:
        notes.append(f"at least {o.minimum}")
    elif o.maximum is not None:
        notes.append(f"at most {o.maximum}")
    if o.env:
        notes.append(f"environment: {quote}{o.env}{quote}")
    if o.mutable:
        notes.append("may change while running")
    return "; ".join(notes)

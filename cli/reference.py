"""Makes the reference page of the command `skylark` from its commands, so that it is always up to date."""

import inspect
from collections.abc import Iterator

import click

from skylark.cli.lazy import LazyGroup

_HEAD = """# skylark

<!-- made by scripts/docs: do not edit -->

`skylark` is one command for people: a whole cluster on your machine, messages from the shell, and every daemon.

```sh
skylark dev
skylark send orders "a cup of tea"
skylark tail orders --from first
```

- **NameServer**: `send`, `tail` and `doctor` ask the one that `-n` names, else `NAMESRV_ADDR`, else `127.0.0.1:9876`.
- **Exit codes**: 0: success; 1: an operation failed, and one line on stderr says what to do; 2: the command line is
  wrong; 130: Ctrl-C.
- The commands `namesrv`, `broker`, `controller`, `mqproxy`, `mqconsole` and `mqadmin` are the same as `skylark namesrv`,
  `broker`, `controller`, `proxy`, `console` and `admin`: [conf.md](conf.md) has the options of the daemons,
  [mqadmin.md](mqadmin.md) the commands of mqadmin. `python -m skylark` is `skylark`, too.
"""

#: Commands that other pages describe, and where.
_ELSEWHERE = {
    "doctor": "[mqadmin.md](mqadmin.md#doctor) has its options.",
    "admin": "[mqadmin.md](mqadmin.md) has its commands.",
    **dict.fromkeys(("namesrv", "broker", "controller", "proxy", "console"), "[conf.md](conf.md) has its options."),
}


def markdown(group: LazyGroup) -> str:
    """The reference of all commands and options, by heading of the help."""
    ctx = group.context_class(group, info_name="skylark")
    parts = [_HEAD]
    for heading, family in group.families.items():
        parts.append(f"## {heading}\n")
        for name, place in family.items():
            parts.append(f"### {name}\n")
            if name in _ELSEWHERE:
                parts.append(f"{place.help} {_ELSEWHERE[name]}\n")
                continue
            command = group.get_command(ctx, name)
            assert command is not None
            parts += _command_parts(click.Context(command, info_name=name, parent=ctx))
    return "\n".join(parts).rstrip() + "\n"


def _command_parts(ctx: click.Context) -> Iterator[str]:
    command = ctx.command
    yield f"`{ctx.get_usage().removeprefix('Usage: ')}`\n"
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        is_literal = paragraph.startswith("\b")
        yield f"```text\n{inspect.cleandoc(paragraph[1:]).strip()}\n```\n" if is_literal else f"{paragraph}\n"
    records = [param.get_help_record(ctx) for param in command.params if isinstance(param, click.Option)]
    rows = [tuple(" ".join(text.split()) for text in record) for record in records if record is not None]
    if rows:
        yield "| option | meaning |"
        yield "| --- | --- |"
        yield from (f"| {_code(names)} | {_cell(meaning)} |" for names, meaning in rows)
        yield ""


def _code(text: str) -> str:
    """``text`` as code in a cell: renderers differ about a bar between backticks."""
    if "|" not in text:
        return f"`{text}`"
    return f"<code>{text.replace('<', '&lt;').replace('|', '&#124;')}</code>"


def _cell(text: str) -> str:
    return text.replace("|", "&#124;")

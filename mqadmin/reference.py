"""Generates docs/reference/mqadmin.md from the commands, so that it is always up to date."""

import html
import inspect
import textwrap
from collections.abc import Iterator

import click

from skylark.mqadmin.cli import NOT_YET, Families

_HEAD = """# mqadmin

<!-- made by scripts/docs: do not edit -->

`mqadmin` administers Skylark and Apache RocketMQ clusters. Commands, option letters and long names are RocketMQ's,
and tables are printed with RocketMQ's column heads and widths (of version 5.3), so scripts for the official tool keep
working.

```
export NAMESRV_ADDR=127.0.0.1:9876
mqadmin updateTopic -c DefaultCluster -t orders -r 8 -w 8
mqadmin topicRoute -t orders
mqadmin help sendMessage
```

- **NameServers**: `-n host:port;host:port`, or `NAMESRV_ADDR`. Changes that NameServers store are made at each of
  them. With a broker's address (`-b host:port`) no NameServer is needed, unless the command also changes something
  there.
- **Access control**: `--credentials FILE` signs requests; the file has `accessKey:` and `secretKey:`, and mode 0600.
  Without it `ROCKETMQ_ACCESS_KEY` and `ROCKETMQ_SECRET_KEY` are used, or RocketMQ's `$ROCKETMQ_HOME/conf/tools.yml`:
  [Credentials](../operate/security-clients.md).
- **JSON**: `--output json` prints one standard JSON document on stdout, with RocketMQ's member names as keys. Results
  of an operation at several servers are listed one by one: `ok`, and `error` if it failed. Errors are also JSON, each
  on a line of stderr: `error`, RocketMQ's `code` if a server refused, and the `addr` of the server (else null).
  Warnings are printed in the same way: `warning`.
- **Exit codes**: 0: success; 1: an operation failed at some or all servers, and one line on stderr says what to do;
  2: the command line is wrong.
- **Timeout**: `--timeout` is for each answer of each server.
- **Times of messages**: ms since 1970, local time as `2026-11-21#08:00:00:000`, ISO 8601 with or without a zone
  (`2026-11-21T08:00:00Z`), or `now`.
- **Names**: command names are case-insensitive; for a mistyped name the error suggests the nearest command. RocketMQ's
  commands that are not implemented yet are listed [at the end](#not-implemented-yet).
- **Completion**: `mqadmin completion bash|zsh|fish` prints the script for your shell.

RocketMQ's tool accepts both `-b` and `-c` and silently uses one of them; this tool refuses.
Names longer than their column are not cut. `printMsg` and `printMsgByQueue` stop after 1,000 messages and say so
(`--limit`). Control characters in messages are escaped, so that they cannot control the terminal. `searchOffset` does
not exist in RocketMQ.
"""

_NO_COLD_DATA = """
A broker refuses requests of the cold-data commands and of `setCommitLogReadAheadMode` (2001 to 2004) with code 3 and
their names, which RocketMQ's tools print. There is nothing to set: threads read what is not in memory, connections take
turns, nobody else waits for them, and too many such requests are answered SYSTEM_BUSY
([The store](store.md#reading-readerpy-querypy-residencypy)).
"""


def markdown(group: Families) -> str:
    """The reference of all commands and options, by family."""
    ctx = click.Context(group, info_name="mqadmin")
    shared = _shared_options(group)
    parts = [_HEAD, "## Options of every command\n", *_option_table(ctx, shared)]
    for family, names in group.families.items():
        parts.append(f"## {family}\n")
        for name in names:
            parts += command_parts(ctx, name, group.commands[name], {param.name for param in shared})
    parts.append("## Not implemented yet\n")
    parts.append(textwrap.fill(", ".join(f"`{name}`" for name in NOT_YET) + ".\n", 118, break_on_hyphens=False))
    parts.append(_NO_COLD_DATA)
    return "\n".join(parts).rstrip() + "\n"


def _shared_options(group: Families) -> list[click.Option]:
    """The options that nearly all commands have, taken from the first command."""
    every = [
        {param.name for param in command.params}
        for name, command in group.commands.items()
        if name not in group.families["Help"]
    ]
    common = set.intersection(*every)
    first = next(iter(group.commands.values()))
    return [param for param in first.params if isinstance(param, click.Option) and param.name in common]


def command_parts(ctx: click.Context, name: str, command: click.Command, shared: set[str | None]) -> Iterator[str]:
    """The lines about one command of the group of ``ctx``: help, arguments, and the options that are not ``shared``."""
    yield f"### {name}\n"
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b"):
            yield f"```\n{inspect.cleandoc(paragraph[1:]).strip()}\n```\n"
        else:
            yield f"{paragraph}\n"
    own = [param for param in command.params if isinstance(param, click.Option) and param.name not in shared]
    arguments = [param.make_metavar(ctx) for param in command.params if isinstance(param, click.Argument)]
    if arguments:
        yield f"{_code(' '.join([str(ctx.info_name), name, *arguments]))}\n"
    yield from _option_table(click.Context(command, info_name=name, parent=ctx), own)


def _option_table(ctx: click.Context, options: list[click.Option]) -> Iterator[str]:
    if not options:
        return
    yield "| option | meaning |"
    yield "| --- | --- |"
    for param in options:
        record = param.get_help_record(ctx)
        if record is not None:
            names, help_text = (" ".join(text.split()) for text in record)
            yield f"| {_code(names)} | {help_text.replace('|', '&#124;')} |"
    yield ""


def _code(text: str) -> str:
    """Markdown that every renderer shows as code, in a table, too: they differ about a bar between backticks there."""
    return f"`{text}`" if "|" not in text else f"<code>{html.escape(text).replace('|', '&#124;')}</code>"

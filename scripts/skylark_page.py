"""The page docs/reference/skylark.md: the commands of `skylark`, from click."""

import click

from skylark.cli.main import FAMILIES, skylark
from skylark.mqadmin.reference import command_parts

HEAD = """\
# skylark

<!-- made by scripts/docs: do not edit -->

`skylark` is one command for all: it runs a whole server on your machine, sends and shows messages, and starts each
daemon.

    skylark dev                       # NameServer, broker, gRPC and console on this machine
    skylark send orders "a cup of tea"
    skylark tail orders

`send`, `tail` and `doctor` ask the NameServer of `-n`, else of `NAMESRV_ADDR`, else 127.0.0.1:9876, which is the
NameServer of `skylark dev`. The daemons and `mqadmin` are commands of their own, too.
"""

# where the options of commands are that have a page of their own
ELSEWHERE = {
    "namesrv": ("namesrv", "[Options](conf.md#nameserver)"),
    "broker": ("broker", "[Options](conf.md#broker)"),
    "controller": ("controller", "[Options](conf.md#controller)"),
    "proxy": ("mqproxy", "[Options](conf.md#proxy)"),
    "console": ("mqconsole", "[Options](conf.md#console)"),
    "admin": ("mqadmin", "[mqadmin](mqadmin.md)"),
}


def skylark_page() -> str:
    """The whole page."""
    ctx = click.Context(skylark, info_name="skylark")
    parts = [HEAD]
    for family, commands in FAMILIES.items():
        parts.append(f"## {family}\n")
        others = {name: place for name, place in commands.items() if name in ELSEWHERE}
        if others:
            parts += ["| command | the same as | what it does | options |", "| --- | --- | --- | --- |"]
            for name, place in others.items():
                command, options = ELSEWHERE[name]
                parts.append(f"| `skylark {name}` | `{command}` | {place.help} | {options} |")
            parts.append("")
        for name in commands:
            if name not in ELSEWHERE:
                command_of_name = skylark.get_command(ctx, name)
                assert command_of_name is not None
                parts += command_parts(ctx, name, command_of_name, set())
    return "\n".join(parts).rstrip() + "\n"

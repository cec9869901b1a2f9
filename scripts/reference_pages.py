"""The pages of docs/ that are made from the code: conf.md from the options, mqadmin.md from click.

``scripts/docs`` writes them; tests/tidy checks that they are current.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from common.options import markdown_table, options_of

CONF_HEAD = """\
# Options

<!-- made by scripts/docs: do not edit -->

The daemons read RocketMQ's `.conf` files: `key=value` lines in the format of Java properties.

    namesrv -c conf/namesrv.conf
    broker -c conf/broker.conf --listen-port 10921

Every option is also a flag, spelled with dashes (`listenPort` is `--listen-port`). A flag beats the conf file, the
conf file beats an environment variable, and that beats the default. A key that no one knows is an error which names
the nearest key; RocketMQ's own keys that Skylark has no use for are accepted with a warning. Options that may change
while running are set with `mqadmin updateBrokerConfig` or `mqadmin updateNamesrvConfig`.
"""

MQADMIN_HEAD = """\
# mqadmin

<!-- made by scripts/docs: do not edit -->

    mqadmin COMMAND [OPTIONS]

"""


def conf_page(sections: list[tuple[str, type[Any]]]) -> str:
    """A table of options per daemon."""
    parts = [CONF_HEAD]
    for title, cls in sections:
        parts.append(f"\n## {title}\n\n{markdown_table(cls)}")
        without_flag = [f"`{o.key}`" for o in options_of(cls) if o.secret]
        if without_flag:
            parts.append(f"\nSecrets have no flag, since others see command lines: {', '.join(without_flag)}.\n")
        ignored = sorted(getattr(cls, "ignored_keys", ()))
        if ignored:
            keys = ", ".join(f"`{key}`" for key in ignored)
            parts.append(f"\nRocketMQ's keys that are accepted and have no effect here: {keys}.\n")
    return "".join(parts)


def mqadmin_page(group: click.Group) -> str:
    """A section per command, in the families of the group when it has them."""
    families: dict[str, list[str]] = getattr(group, "families", {}) or {"Commands": sorted(group.commands)}
    parts = [MQADMIN_HEAD, _prose(group.help), "\n"]
    for family, names in families.items():
        parts.append(f"\n## {family}\n")
        for name in names:
            parts.extend(_command(group.commands[name]))
    return "".join(parts)


def _command(command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=f"mqadmin {command.name}")
    yield f"\n### {command.name}\n\n{_prose(command.help)}\n\n"
    yield f"    {command.get_usage(context).removeprefix('Usage: ')}\n"
    records = [p.get_help_record(context) for p in command.get_params(context) if isinstance(p, click.Option)]
    rows = [record for record in records if record is not None]
    if rows:
        yield "\n| option | what it does |\n| --- | --- |\n"
        for flags, text in rows:
            yield f"| `{_cell(flags)}` | {_cell(text)} |\n"


def _prose(text: str | None) -> str:
    # click's mark for a paragraph that keeps its lines means a code block here
    paragraphs = []
    for paragraph in (text or "").strip().split("\n\n"):
        if paragraph.startswith("\b"):
            lines = paragraph.split("\n")[1:]
            paragraphs.append("\n".join("    " + line for line in lines))
        else:
            paragraphs.append(paragraph)
    return "\n\n".join(paragraphs)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def pages() -> dict[str, str]:
    """File name in docs/ -> content."""
    from broker.options import BrokerOptions
    from namesrv.options import NamesrvOptions
    from sdk.admin.cli import mqadmin

    return {
        "conf.md": conf_page([("NameServer", NamesrvOptions), ("Broker", BrokerOptions)]),
        "mqadmin.md": mqadmin_page(mqadmin),
    }


if __name__ == "__main__":
    for name, page in pages().items():
        Path(sys.argv[1], name).write_text(page, encoding="utf-8")
        print(f"wrote {sys.argv[1]}/{name}")

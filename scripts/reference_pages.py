"""The pages of docs/reference/ that are made from the code.

conf.md comes from the options, mqadmin.md and skylark.md from click, metrics.md from the table of metrics,
and names.md from the public modules.

``scripts/docs`` writes them; tests/tidy checks that they are current.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from skylark.mqcommon.options.command_line import markdown_table
from skylark.mqcommon.options.fields import options_of

CONF_HEAD = """\
# Options

<!-- made by scripts/docs: do not edit -->

Every option of the daemons, with its default. The daemons read RocketMQ's `.conf` files: `key=value` lines in the
format of Java properties.

    namesrv -c ~/skylark/namesrv.conf
    broker -c ~/skylark/broker.conf --listen-port 10921

Every option is also a flag, spelled with dashes (`listenPort` is `--listen-port`), and an environment variable: the
flag's name in capitals, after `SKYLARK_` (`SKYLARK_LISTEN_PORT`). A flag beats the conf file, the conf file beats the
environment, and that beats the default. An unknown key is an error that names the nearest key; RocketMQ's keys that
Skylark does not use are accepted with a warning. More on variables, as for secrets in files:
[Run it in containers](../operate/containers.md#environment-variables). A number of bytes may have a
unit, as in `64MB` or `64K`: a kilobyte has 1,024 bytes. Options that may change
while running are set with `mqadmin updateBrokerConfig` or `mqadmin updateNamesrvConfig`.
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


NAMES_HEAD = """\
# Names of the SDK

<!-- made by scripts/docs: do not edit -->

All that is public, module by module, with the first sentence of its docstring: `help(skylark.Producer)` shows the rest.
[SDK guide](sdk.md) says how the classes work together.
"""
FACE = (
    *("skylark", "skylark.aio", "skylark.blocking", "skylark.admin", "skylark.errors", "skylark.spark"),
    *("skylark.testing", "skylark.integrations.faststream", "skylark.integrations.faststream.annotations"),
    *("skylark.integrations.faststream.fastapi", "skylark.integrations.faststream.testing"),
    *("skylark.integrations.kombu", "skylark.integrations.otel"),
)


def names_page() -> str:
    """All that is public."""
    return "".join((NAMES_HEAD, *map(_names_of, FACE)))


def _names_of(module: str) -> str:
    face = import_module(module)
    rows = [f"| `{name}` | {_what_it_is(getattr(face, name))} |\n" for name in sorted(face.__all__, key=str.lower)]
    return f"\n## {module}\n\n{_first_line(face.__doc__)}\n\n| name | |\n| --- | --- |\n{''.join(rows)}"


def _what_it_is(thing: Any) -> str:
    if get_origin(thing) is Annotated:
        return f"annotation of a handler's argument: `{get_args(thing)[0].__name__}`"
    is_documented = isinstance(thing, type) or callable(thing)
    return _first_line(thing.__doc__) or "a pytest fixture" if is_documented else f"`{thing!r}`"


def _first_line(text: str | None) -> str:
    """The first paragraph of a docstring, in one line."""
    return " ".join((text or "").strip().partition("\n\n")[0].split()).replace("|", "\\|")


def pages() -> dict[str, Callable[[], str]]:
    """File name in docs/reference/ → what makes its content. The page of names needs all extras."""
    from scripts.metrics_page import metrics_page
    from scripts.skylark_page import skylark_page
    from skylark.broker.options import BrokerOptions
    from skylark.mqadmin.cli import mqadmin
    from skylark.mqadmin.reference import markdown
    from skylark.mqconsole.options import ConsoleOptions
    from skylark.mqproxy.options import ProxyOptions
    from skylark.namesrv.controller.options import ControllerDaemonOptions
    from skylark.namesrv.options import NamesrvOptions

    return {
        "conf.md": lambda: conf_page(
            [
                ("NameServer", NamesrvOptions),
                ("Controller", ControllerDaemonOptions),
                ("Broker", BrokerOptions),
                ("Proxy", ProxyOptions),
                ("Console", ConsoleOptions),
            ]
        ),
        "mqadmin.md": lambda: markdown(mqadmin),
        "metrics.md": metrics_page,
        "skylark.md": skylark_page,
        "names.md": names_page,
    }


if __name__ == "__main__":
    for name, make in pages().items():
        Path(sys.argv[1], name).write_text(make(), encoding="utf-8")
        print(f"wrote {sys.argv[1]}/{name}")

"""The pages of docs/ that are made from the code: conf.md from the options, mqadmin.md from click, metrics.md.

``scripts/docs`` writes them; tests/tidy checks that they are current.
"""

import sys
from pathlib import Path
from typing import Any

from skylark.mqcommon.options.command_line import markdown_table
from skylark.mqcommon.options.fields import options_of

CONF_HEAD = """\
# Options

<!-- made by scripts/docs: do not edit -->

The daemons read RocketMQ's `.conf` files: `key=value` lines in the format of Java properties.

    namesrv -c ~/skylark/namesrv.conf
    broker -c ~/skylark/broker.conf --listen-port 10921

Every option is also a flag, spelled with dashes (`listenPort` is `--listen-port`). A flag beats the conf file, the
conf file beats an environment variable, and that beats the default. An unknown key is an error that names
the nearest key; RocketMQ's keys that Skylark does not use are accepted with a warning. A number of bytes may have a
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


def pages() -> dict[str, str]:
    """File name in docs/ -> content."""
    from scripts.metrics_page import metrics_page
    from skylark.broker.options import BrokerOptions
    from skylark.mqadmin.cli import mqadmin
    from skylark.mqadmin.reference import markdown
    from skylark.mqconsole.options import ConsoleOptions
    from skylark.mqproxy.options import ProxyOptions
    from skylark.namesrv.controller.options import ControllerDaemonOptions
    from skylark.namesrv.options import NamesrvOptions

    return {
        "conf.md": conf_page(
            [
                ("NameServer", NamesrvOptions),
                ("Controller", ControllerDaemonOptions),
                ("Broker", BrokerOptions),
                ("Proxy", ProxyOptions),
                ("Console", ConsoleOptions),
            ]
        ),
        "mqadmin.md": markdown(mqadmin),
        "metrics.md": metrics_page(),
    }


if __name__ == "__main__":
    for name, page in pages().items():
        Path(sys.argv[1], name).write_text(page, encoding="utf-8")
        print(f"wrote {sys.argv[1]}/{name}")

"""The group of all commands.

A command is imported when it is called. Commands of daemons and mqadmin are the ones of their packages, so their
options, usage lines and exit codes are the same under both names.
"""

import sys

import click

from skylark.cli.lazy import LazyGroup, Place
from skylark.mqcommon.daemons.output import OutputFailed, guard_stdout

#: The NameServer that commands ask when neither -n nor NAMESRV_ADDR names one: the NameServer of `skylark dev`.
LOCAL_NAMESERVER = "127.0.0.1:9876"

FAMILIES = {
    "Try it": {
        "dev": Place(
            "skylark.cli.dev.command", "dev", "Run NameServer, broker, gRPC proxy and console on this machine."
        ),
        "send": Place("skylark.cli.send", "send", "Send messages to a topic."),
        "tail": Place("skylark.cli.tail", "tail", "Print the messages of a topic as they arrive."),
        "doctor": Place("skylark.mqadmin.commands.doctor", "doctor", "Check a cluster, and say what to do."),
    },
    "Run a cluster": {
        "namesrv": Place("skylark.namesrv.cli", "main", "Run a NameServer."),
        "broker": Place("skylark.broker.cli", "main", "Run a broker, or work on the store of a stopped broker."),
        "controller": Place("skylark.namesrv.controller.cli", "main", "Run a Controller, which elects masters."),
        "proxy": Place("skylark.mqproxy.cli", "main", "Run a gRPC proxy for clients of RocketMQ 5."),
        "console": Place("skylark.mqconsole.cli", "main", "Run a console for browsers."),
        "health": Place("skylark.cli.health", "health", "Ask a daemon on this machine whether it is ready."),
        "conf": Place("skylark.cli.conf", "conf", "Print a commented conf file of a daemon."),
        "admin": Place("skylark.mqadmin.cli", "mqadmin", "Administer a cluster: the commands of mqadmin."),
    },
    "This command": {
        "completion": Place("skylark.cli.shells", "completion", "Print the completion script of a shell."),
        "version": Place("skylark.cli.version", "show_version", "Print the versions of Skylark and its libraries."),
    },
}

skylark = LazyGroup(
    "skylark",
    FAMILIES,
    help="A message queue that speaks RocketMQ's protocol. Start with: skylark dev",
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 110,
        "default_map": {name: {"namesrv_addr": LOCAL_NAMESERVER} for name in ("doctor", "send", "tail")},
    },
)


def main(prog_name: str) -> None:
    """The console command."""
    guard_stdout()
    try:
        skylark(prog_name=prog_name)
    except OutputFailed as error:
        click.echo(f"{prog_name}: {error}", err=True)
        sys.exit(1)

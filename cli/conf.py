"""The command `skylark conf`: a conf file of a daemon with every key, and what each is for."""

import textwrap
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import click

from skylark.mqcommon.options.command_line import notes_text
from skylark.mqcommon.options.environment import DAEMONS, options_class
from skylark.mqcommon.options.fields import Option, options_of, value_text

_WIDTH = 100


@click.command("conf", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.argument("daemon", type=click.Choice([*DAEMONS]), required=False)
@click.option("--list", "examples", is_flag=True, help="print where the example conf files are: clusters, TLS, systemd")
@click.pass_context
def conf(ctx: click.Context, daemon: str | None, examples: bool) -> None:
    """Print a conf file with every key of a daemon: skylark conf broker > broker.conf

    The keys are RocketMQ's. Each is commented out and has its default, so that the file as it is changes nothing:
    remove the # in front of a key to set it. The daemon reads the file with -c. Whole examples are listed by --list.
    """
    if examples == (daemon is not None):
        raise click.UsageError(f"Give one of {', '.join(DAEMONS)}, or --list.", ctx)
    click.echo("\n".join(example_files() if daemon is None else conf_lines(daemon)))


def example_files() -> list[str]:
    """The paths of the example conf files that are installed with Skylark."""
    root = Path(str(resources.files("skylark") / "conf"))
    return sorted(str(file) for file in root.rglob("*") if file.is_file())


def conf_lines(daemon: str) -> Iterator[str]:
    """The lines of a conf file for ``daemon``, one of `DAEMONS`."""
    yield f"# Options of the {daemon}, with their defaults: skylark {daemon} -c FILE reads this file."
    yield "# Remove the # in front of a key to set it. Secrets in this file need mode 0600."
    for o in options_of(options_class(daemon)):
        yield ""
        yield from textwrap.wrap(_about(o), _WIDTH, initial_indent="# ", subsequent_indent="# ")
        yield f"#{o.key}={value_text(o.default)}".rstrip()


def _about(o: Option) -> str:
    notes = notes_text(o)
    return f"{o.help} ({notes})" if notes else o.help

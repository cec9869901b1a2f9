"""Command-line flags and the docs table of an options class."""

from dataclasses import dataclass
from typing import Any

import click
import pytest
from click.testing import CliRunner

from skylark.mqcommon.daemons.start_report import DaemonGroup
from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.options.command_line import click_options, given_options, markdown_table
from skylark.mqcommon.options.conf_file import load_conf
from skylark.mqcommon.options.fields import option


@dataclass(frozen=True)
class Options:
    listen_port: int = option(10911, "port to listen on", minimum=0, maximum=65535)
    broker_ip1: str = option("", "address | host", key="brokerIP1")
    flush: str = option("ASYNC", "when to flush", choices=("ASYNC", "SYNC"), mutable=True)
    enable: bool = option(True, "on or off")
    wait_ms: int = option(3, "pause", unit="ms", minimum=1, env="WAIT")
    secret: str = option("", "password", secret=True)


@click.command()
@click_options(Options)
def show(**arguments: Any) -> None:
    options = load_conf(Options, None, given_options(Options, arguments), environ={})
    click.echo(f"{options.listen_port} {options.flush} {options.enable} {given_options(Options, arguments)}")


def run(*arguments: str) -> Any:
    return CliRunner().invoke(show, arguments)


def test_only_what_was_given_is_an_override() -> None:
    assert run().output == "10911 ASYNC True {}\n"
    assert run("--listen-port", "1", "--enable", "FALSE", "--flush", "sync").output == (
        "1 SYNC False {'listen_port': '1', 'flush': 'SYNC', 'enable': 'false'}\n"
    )


def test_help_shows_defaults_and_choices() -> None:
    text = " ".join(run("--help").output.split())
    assert "--listen-port N port to listen on [default: 10911]" in text
    assert "--flush [ASYNC|SYNC] when to flush [default: ASYNC]" in text
    assert "--enable [true|false] on or off [default: true]" in text
    assert "--wait-ms MS pause" in text
    assert "--broker-ip1 TEXT address | host --" in text


def test_secrets_have_no_flag() -> None:
    assert "--secret" not in run("--help").output


def test_the_markdown_table_lists_options_by_key() -> None:
    assert markdown_table(Options) == (
        "| key | default | what it does |\n"
        "| --- | --- | --- |\n"
        "| `brokerIP1` |  | address \\| host |\n"
        "| `enable` | `true` | on or off |\n"
        "| `flush` | `ASYNC` | when to flush (one of `ASYNC`, `SYNC`; may change while running) |\n"
        "| `listenPort` | `10911` | port to listen on (0 to 65535) |\n"
        "| `secret` |  | password |\n"
        "| `waitMs` | `3` | pause (unit: ms; at least 1; environment: `WAIT`) |\n"
    )


@click.group(cls=DaemonGroup, invoke_without_command=True)
@click.option("-c", "--config-file", "conf")
@click.option("-v", "--verbose", is_flag=True)
@click.option("-t", "--topic", multiple=True)
def tool(**arguments: Any) -> None:
    click.echo(arguments["conf"])


def test_an_option_under_two_of_its_names_is_refused() -> None:
    runner = CliRunner()
    for arguments in (["-c", "a", "--config-file", "b"], ["--config-file=a", "-ca"], ["-c", "a", "-c", "b"]):
        result = runner.invoke(tool, arguments)
        assert result.exit_code == 2 and "-c and --config-file are one option; give it once." in result.output
    result = runner.invoke(tool, ["-c", "--config-file", "-v", "--verbose", "-t", "a", "--topic", "b"])
    assert (result.exit_code, result.output) == (0, "--config-file\n")


def test_an_override_under_two_spellings_is_refused() -> None:
    with pytest.raises(ConfigError, match="listenPort and listen_port are one option"):
        load_conf(Options, None, {"listenPort": "1", "listen_port": "2"}, environ={})

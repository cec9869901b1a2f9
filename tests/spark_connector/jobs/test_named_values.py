"""Options given as NAME=VALUE."""

import click
import pytest
from click.testing import CliRunner

from spark_connector.jobs.session import CONNECTION


@click.command()
@click.option("--option", "options", **CONNECTION)
def show(options: dict[str, str]) -> None:
    click.echo(options)


def test_they_are_taken_as_they_are() -> None:
    shown = CliRunner().invoke(show, ["--option", "tls=true", "--option", "tlsKeyPassword=a=b"])
    assert shown.output == "{'tls': 'true', 'tlsKeyPassword': 'a=b'}\n"
    assert CliRunner().invoke(show, []).output == "{}\n"


@pytest.mark.parametrize("text", ["tls", "=true", ""])
def test_a_mistake_is_shown(text: str) -> None:
    shown = CliRunner().invoke(show, ["--option", text])
    assert shown.exit_code == 2
    assert f"{text!r} is not NAME=VALUE" in shown.output

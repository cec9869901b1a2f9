"""What daemons say at a start that fails, as text and as JSON."""

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from skylark.broker.cli import main as broker
from skylark.namesrv.cli import main as namesrv
from skylark.namesrv.controller.cli import main as controller

DAEMONS = [("broker", broker), ("namesrv", namesrv), ("controller", controller)]
CONF = "logFormat=json\nlistenProt=1\n"


@pytest.mark.parametrize(("name", "command"), DAEMONS)
@pytest.mark.parametrize(
    ("arguments", "conf", "code", "text"),
    [
        (["--log-format", "json"], "listenProt=1\n", 1, ":1: listenProt: unknown key"),
        ([], CONF, 1, ":2: listenProt: unknown key"),
        (["--log-format=json", "--no-such-flag"], "", 2, "No such option '--no-such-flag'."),
    ],
)
def test_mistakes_at_the_start_are_json(
    name: str, command: click.Command, arguments: list[str], conf: str, code: int, text: str, tmp_path: Path
) -> None:
    file = tmp_path / "x.conf"
    file.write_text(conf)
    result = CliRunner().invoke(command, ["-c", str(file), *arguments], prog_name=name)
    assert (result.exit_code, result.stdout) == (code, "")
    (line,) = result.stderr.splitlines()
    said = json.loads(line)
    assert (said["level"], said["logger"]) == ("CRITICAL", name)
    assert text in said["message"]


@pytest.mark.parametrize(("name", "command"), DAEMONS)
def test_the_command_line_beats_the_file(name: str, command: click.Command, tmp_path: Path) -> None:
    file = tmp_path / "x.conf"
    file.write_text(CONF)
    result = CliRunner().invoke(command, ["-c", str(file), "--log-format", "text"], prog_name=name)
    assert result.stderr.startswith(f"{name}: {file}:2: listenProt: unknown key")


def test_warnings_at_the_start_are_json(tmp_path: Path) -> None:
    file = tmp_path / "x.conf"
    file.write_text("logFormat=json\nserverWorkerThreads=8\n")
    result = CliRunner().invoke(namesrv, ["-c", str(file), "-p"])
    (line,) = result.stderr.splitlines()
    assert json.loads(line)["level"] == "WARNING"


def test_a_file_that_is_not_there_leaves_text(tmp_path: Path) -> None:
    result = CliRunner().invoke(namesrv, ["-c", str(tmp_path / "none")])
    assert result.stderr.startswith(f"namesrv: {tmp_path / 'none'}: no such file")

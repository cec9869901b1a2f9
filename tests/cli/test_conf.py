"""The conf files that `skylark conf` prints: each means the defaults, also with every key set to its default."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from skylark.cli.main import skylark
from skylark.mqcommon.options.conf_file import load_conf
from skylark.mqcommon.options.environment import DAEMONS, options_class
from skylark.mqcommon.options.fields import options_of

# A Controller must be told who the others are.
NEEDED = {"controller": {"controllerDLegerPeers": "n0-127.0.0.1:9877", "controllerDLegerSelfId": "n0"}}


def printed(daemon: str) -> str:
    result = CliRunner().invoke(skylark, ["conf", daemon])
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize("daemon", [*DAEMONS])
def test_a_printed_conf_changes_nothing(daemon: str, tmp_path: Path) -> None:
    cls, given = options_class(daemon), NEEDED.get(daemon, {})
    file = tmp_path / "daemon.conf"
    file.write_text(printed(daemon))
    assert load_conf(cls, file, given, environ={}) == load_conf(cls, None, given, environ={})


@pytest.mark.parametrize("daemon", [*DAEMONS])
def test_each_key_is_there_with_its_default(daemon: str, tmp_path: Path) -> None:
    cls, given = options_class(daemon), NEEDED.get(daemon, {})
    text, count = re.subn(r"(?m)^#(?=[\w.]+=)", "", printed(daemon))
    assert count == len(options_of(cls))
    text = "".join(line for line in text.splitlines(keepends=True) if line.partition("=")[0] not in given)
    file = tmp_path / "daemon.conf"
    file.write_text(text)
    file.chmod(0o600)
    warnings: list[str] = []
    assert load_conf(cls, file, given, environ={}, warnings=warnings) == load_conf(cls, None, given, environ={})
    assert warnings == []


def test_the_examples_are_listed() -> None:
    listed = CliRunner().invoke(skylark, ["conf", "--list"]).output.splitlines()
    assert any(line.endswith("2m-2s-sync/broker-a.properties") for line in listed)
    assert all(Path(line).is_file() for line in listed)


def test_a_daemon_or_list_is_needed() -> None:
    for arguments in ([], ["broker", "--list"]):
        result = CliRunner().invoke(skylark, ["conf", *arguments])
        assert (result.exit_code, "or --list" in result.output) == (2, True)

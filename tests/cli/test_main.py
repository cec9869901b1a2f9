"""The group `skylark`: every command is there under its name, and keeps its own usage lines and exit codes."""

import subprocess
import sys

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from skylark.cli import version
from skylark.cli.main import FAMILIES, skylark

COMMANDS = [name for family in FAMILIES.values() for name in family]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(skylark, [*arguments])


def test_the_help_lists_every_command() -> None:
    shown = run("--help").output
    assert all(f"\n  {name} " in shown for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_usage_line_of_a_command_has_its_name_in_the_group(name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: skylark {name} ")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_wrong_option_is_a_usage_error_of_the_command(name: str) -> None:
    result = run(name, "--no-such-option")
    assert result.exit_code == 2
    assert f"Try 'skylark {name} --help' for help." in result.output


def test_a_mistyped_command_is_told_the_nearest_name() -> None:
    result = run("brokr")
    assert result.exit_code == 2
    assert "No such command 'brokr'. Did you mean broker?" in result.output


def test_the_local_nameserver_is_asked_when_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    for name in ("doctor", "send", "tail"):
        command = skylark.get_command(click.Context(skylark), name)
        assert command is not None
        with skylark.make_context("skylark", [name]) as ctx:
            inner = command.make_context(name, ["topic"] if name != "doctor" else [], parent=ctx)
            assert inner.params["namesrv_addr"] == "127.0.0.1:9876"


def test_a_failure_begins_with_the_name_of_the_program() -> None:
    result = run("admin", "topicList", "-n", "127.0.0.1:1")
    assert result.exit_code == 1
    assert result.output.startswith("skylark: cannot connect to 127.0.0.1:1")


def test_ctrl_c_ends_a_command_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(version, "packages_of_extras", interrupt)
    result = run("version")
    assert (result.exit_code, result.stderr) == (130, "")


@pytest.mark.parametrize(("name", "stream"), [("send", "stdin"), ("tail", "stdout")])
def test_a_closed_stream_is_a_usage_error(monkeypatch: pytest.MonkeyPatch, name: str, stream: str) -> None:
    monkeypatch.setattr(sys, stream, None)
    with pytest.raises(click.UsageError, match=f"{stream} is closed"):
        skylark([name, "topic"], standalone_mode=False)


def test_names_are_completed_without_importing_commands() -> None:
    words = ShellComplete(skylark, {}, "skylark", "_SKYLARK_COMPLETE").get_completions([], "t")
    assert [(word.value, word.help) for word in words] == [("tail", FAMILIES["Try it"]["tail"].help)]


# click asks bash for its version.
@pytest.mark.parametrize("shell", [pytest.param("bash", marks=pytest.mark.process), "zsh", "fish"])
def test_the_script_of_a_shell_asks_skylark_for_completions(shell: str) -> None:
    result = run("completion", shell)
    assert result.exit_code == 0
    assert f"_SKYLARK_COMPLETE={shell}_complete" in result.output


@pytest.mark.process
def test_help_imports_no_daemon_and_no_event_loop() -> None:
    code = "import sys; from skylark.cli.main import skylark; skylark(['--help'], standalone_mode=False)"
    shown = "print([name for name in ('trio', 'skylark.broker', 'skylark.mqadmin') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", f"{code}; {shown}"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"

"""A start imports what it needs only; Ctrl-C while it imports, or while the command runs, leaves no traceback."""

import ast
import configparser
import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner

from skylark import testing
from skylark.cli.main import skylark
from skylark.mqcommon.daemons.start import import_quietly
from skylark.mqcommon.errors import UserError
from tests.tidy.tree import ROOT

# Parsers, extras, and packages that start threads or processes: what only some processes need.
HEAVY = [
    *("cryptography", "h11", "javaproperties", "lz4", "multiprocessing", "numpy", "opentelemetry", "pandas"),
    *("pyarrow", "pyspark", "urllib.request", "xml", "yaml"),
]

# Folders of the commands that need Linux.
DAEMONS = ("broker", "namesrv", "mqproxy", "mqconsole")

SLOW_IMPORT = """
import signal, sys
if __name__ != "__main__":
    print("importing", flush=True)
    sys.stdin.read()
def main():
    print("running", flush=True)
    sys.stdin.read()
"""


def interrupted(tmp_path: Path, module: str, when: str) -> tuple[int, str]:
    """Exit code and stderr of a command that gets SIGINT when it prints ``when``."""
    (tmp_path / f"{module}.py").write_text(SLOW_IMPORT if when == "importing" else SLOW_IMPORT.replace("!=", "=="))
    code = f"from skylark.mqcommon.daemons.start import start; start('{module}:main')"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(tmp_path)}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == f"{when}\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
        return process.returncode, errors


@pytest.mark.parametrize(("when", "code"), [("importing", -signal.SIGINT), ("running", 130)])
def test_an_interrupted_command_says_nothing(tmp_path: Path, when: str, code: int) -> None:
    assert interrupted(tmp_path, "slow_command", when) == (code, "")


def test_a_late_import_is_interrupted_without_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "asks_handler.py").write_text("import signal; found = signal.getsignal(signal.SIGINT)")
    monkeypatch.syspath_prepend(tmp_path)
    before = signal.getsignal(signal.SIGINT)
    try:
        for handler, meanwhile in (
            (signal.default_int_handler, signal.SIG_DFL),
            (signal.SIG_IGN, signal.SIG_IGN),
        ):
            signal.signal(signal.SIGINT, handler)
            import_quietly("asks_handler")
            assert sys.modules.pop("asks_handler").found == meanwhile
            assert signal.getsignal(signal.SIGINT) == handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_exit_code_is_that_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "seven.py").write_text("def main(code): return int(code)")
    code = "from skylark.mqcommon.daemons.start import start; start('seven:main', code='7')"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert run.returncode == 7


@pytest.mark.parametrize(("folder", "name"), [("broker", "broker"), ("namesrv", "namesrv"), ("mqproxy", "mqproxy")])
def test_a_daemon_says_that_it_needs_linux(monkeypatch: pytest.MonkeyPatch, folder: str, name: str) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SystemExit) as ended:
        import_module(f"skylark.{folder}.__main__").main()
    assert str(ended.value.code).startswith(f"{name} needs Linux, and this system is darwin: ")


def test_commands_and_the_cluster_for_tests_say_that_they_need_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    for command in ("dev", "broker", "console"):
        ended = CliRunner().invoke(skylark, [command, "--help"])
        assert ended.exit_code == 1
        assert f"{command} needs Linux, and this system is win32" in ended.output
    assert CliRunner().invoke(skylark, ["tail", "--help"]).exit_code == 0
    with pytest.raises(UserError, match=r"skylark.testing needs Linux"):
        _ = testing.Cluster


def test_every_command_is_imported_by_start() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    scripts = [line.split(" = ") for line in setup["options.entry_points"]["console_scripts"].split("\n") if line]
    old = ["namesrv", "controller", "broker", "mqadmin", "mqproxy", "mqconsole"]
    assert [name for name, _ in scripts] == ["skylark", *old]
    entries = [place.split(":")[0].replace(".", "/") + ".py" for _, place in scripts]
    for path in [*entries, "scripts/demo/__main__.py"]:
        nodes = ast.walk(ast.parse((ROOT / path).read_text()))
        imports = [ast.unparse(node) for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        name = "start_daemon" if path.split("/")[1] in DAEMONS else "start"
        assert imports == [f"from skylark.mqcommon.daemons.start import {name}"], path


@pytest.mark.parametrize(
    ("modules", "more"),
    [
        (
            ("broker.cli", "broker.broker"),
            ["broker.commands", "mqcommon.sql.parser", "sdk", "mqproxy", "grpc", "broker.proxy_process"],
        ),
        (("namesrv.cli", "namesrv.namesrv"), ["broker", "sdk"]),
        (("mqproxy.cli",), ["broker", "namesrv", "grpc", "google"]),
        (("sdk.producer", "sdk.consumer"), ["broker", "namesrv", "click"]),
        (("aio", "blocking"), ["broker", "namesrv", "click"]),
        (("mqadmin.cli",), ["broker", "namesrv"]),
    ],
)
def test_a_start_imports_nothing_that_it_does_not_need(modules: tuple[str, ...], more: list[str]) -> None:
    unwanted = {*HEAVY, *more, *(f"skylark.{name}" for name in more)}
    imports = ", ".join(f"skylark.{name}" for name in modules)
    script = f"import {imports}, sys; print([name for name in {unwanted!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

"""Modules of a program that hide packages of Skylark."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import skylark.sdk.testing
from skylark.sdk.hidden import hidden_package

HIDING = "hides Skylark's package {!r}, which the SDK needs: rename it, or put it into a package of your project"


@pytest.mark.parametrize("package", ["broker", "namesrv", "remoting", "mqcommon"])
@pytest.mark.parametrize("is_folder", [False, True])
def test_a_file_or_folder_of_the_program_is_named_and_not_run(
    package: str, is_folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / package if is_folder else tmp_path / f"{package}.py"
    code = place / "__init__.py" if is_folder else place
    code.parent.mkdir(exist_ok=True)
    code.write_text("raise SystemExit('it was imported')")
    monkeypatch.delitem(sys.modules, package, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError) as caught:
        sdk.testing.__getattr__("Cluster")
    assert str(caught.value).startswith(f"{place} {HIDING.format(package)}")


def test_a_module_that_the_program_has_imported_already_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("broker")
    module.__file__ = "/app/broker.py"
    monkeypatch.setitem(sys.modules, "broker", module)
    assert str(hidden_package("mqcommon", "broker")).startswith(f"/app/broker.py {HIDING.format('broker')}")


def test_nothing_is_hidden_where_ours_are_found() -> None:
    assert hidden_package("mqcommon", "remoting", "namesrv", "broker") is None


@pytest.mark.parametrize("home", ["sdk", "skylark.blocking", "skylark.aio"])
def test_a_producer_names_what_hides_its_package(home: str, tmp_path: Path) -> None:
    (tmp_path / "remoting.py").write_text("")
    program = [sys.executable, "-c", f"from {home} import Producer"]
    failed = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True)
    assert f"ImportError: {tmp_path / 'remoting.py'} {HIDING.format('remoting')}" in failed.stderr

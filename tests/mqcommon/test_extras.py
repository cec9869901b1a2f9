"""What users read when the packages of an extra are missing: the line to type, for each way to install Skylark."""

import configparser
import json
import subprocess
import sys
from importlib import metadata
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import NoReturn

import pytest

from scripts.daemons import ROOT
from skylark.mqcommon import extras
from skylark.mqcommon.extras import install_line, missing_extra
from tests.support.without_extra import FEATURES, OF_DEVELOPERS, SILENT


class Installed:
    """A distribution with a ``direct_url.json``, or without one, and the name of its installer."""

    def __init__(self, note: dict[str, object] | None, installer: str) -> None:
        self._texts = {"direct_url.json": None if note is None else json.dumps(note), "INSTALLER": f"{installer}\n"}

    def read_text(self, name: str) -> str | None:
        return self._texts[name]


def installed(monkeypatch: pytest.MonkeyPatch, note: dict[str, object] | None, installer: str = "pip") -> None:
    monkeypatch.setattr(metadata, "distribution", lambda name: Installed(note, installer))


def test_the_source_of_the_installation_is_the_source_of_the_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clone = tmp_path / "my clone"
    clone.mkdir()
    installed(monkeypatch, {"url": clone.as_uri(), "dir_info": {}})
    assert install_line("celery") == f'pip install "skylark-mq[celery] @ {clone.as_uri()}"'
    installed(monkeypatch, {"url": clone.as_uri(), "dir_info": {"editable": True}})
    assert install_line("celery") == f'pip install -e "{clone}[celery]"'
    installed(monkeypatch, {"url": "https://files/skylark_mq-1.whl", "archive_info": {}})
    assert install_line("celery") == 'pip install "skylark-mq[celery] @ https://files/skylark_mq-1.whl"'
    installed(monkeypatch, {"url": "https://host/skylark", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}})
    assert install_line("celery") == 'pip install "skylark-mq[celery] @ git+https://host/skylark@c0ffee"'
    installed(monkeypatch, None)
    assert install_line("celery") == 'pip install "skylark-mq[celery]"'


def test_a_source_that_was_removed_is_not_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed(monkeypatch, {"url": (tmp_path / "gone").as_uri(), "dir_info": {}})
    assert install_line("tls") == 'pip install "skylark-mq[tls] @ file:///path/to/clone"'


def test_the_line_is_one_of_the_installer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = tmp_path / "skylark-mq"
    home.mkdir()
    monkeypatch.setattr(sys, "prefix", str(home))
    installed(monkeypatch, None, "uv")
    assert install_line("tls") == f'uv pip install --python "{home}" "skylark-mq[tls]"'
    installed(monkeypatch, {"url": tmp_path.as_uri(), "dir_info": {"editable": True}}, "uv")
    assert install_line("tls") == f'uv pip install --python "{home}" -e "{tmp_path}[tls]"'
    (home / "pipx_metadata.json").touch()
    installed(monkeypatch, None, "pip")
    assert install_line("tls") == 'pipx runpip skylark-mq install "skylark-mq[tls]"'


def test_a_clone_that_is_not_installed_is_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_installed(name: str) -> NoReturn:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", not_installed)
    assert install_line("tls") == f'pip install "skylark-mq[tls] @ {ROOT.as_uri()}"'
    monkeypatch.setattr(extras, "__file__", "/zip/skylark/mqcommon/extras.py")
    assert install_line("tls") == 'pip install "skylark-mq[tls] @ file:///path/to/clone"'


def test_the_text_names_what_needs_it_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, None)
    why = ModuleNotFoundError("No module named 'lz4'", name="lz4")
    text = """LZ4 needs Skylark's extra compression (No module named 'lz4'): pip install "skylark-mq[compression]\""""
    assert missing_extra("LZ4", "compression", why) == text


def test_each_extra_has_a_feature_that_is_tried_without_it() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert {*FEATURES, *SILENT} == {*setup["options.extras_require"]} - {*OF_DEVELOPERS}


@pytest.mark.process
@pytest.mark.spark
def test_each_feature_names_its_missing_extra() -> None:
    command = [sys.executable, "-m", "tests.support.without_extra"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    said = [json.loads(line) for line in run.stdout.splitlines()]
    assert [(extra, name) for extra, name, _ in said] == [
        (extra, name) for extra in FEATURES for name in FEATURES[extra]
    ]
    assert [(name, text) for extra, name, text in said if f"{extra}]" not in text or "pip install " not in text] == []

"""Compiled templates are kept beside the templates, and done without where they cannot be."""

import sys
from pathlib import Path

import pytest
from jinja2 import DictLoader, Environment

from skylark.mqcommon.version import VERSION
from skylark.mqconsole.web import compiled_templates as module
from skylark.mqconsole.web.compiled_templates import CompiledTemplates, compiled_templates


def environment(cache: CompiledTemplates | None) -> Environment:
    return Environment(loader=DictLoader({"a": "hello {{ name }}"}), bytecode_cache=cache, autoescape=True)


def page(cache: CompiledTemplates | None) -> str:
    return environment(cache).get_template("a").render(name="you")


@pytest.fixture
def templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the templates."""
    directory = tmp_path / "templates"
    directory.mkdir()
    monkeypatch.setattr(module.resources, "files", lambda package: tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    return directory


def test_a_template_is_compiled_once(templates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert page(compiled_templates()) == "hello you"
    (kept,) = (templates / "__pycache__").iterdir()
    assert kept.name.endswith(f".{sys.implementation.cache_tag}.pyc")
    assert f"skylark-{VERSION}.jinja2-" in kept.name
    again = environment(compiled_templates())
    monkeypatch.setattr(again, "_compile", lambda *arguments: pytest.fail("compiled again"))
    assert again.get_template("a").render(name="you") == "hello you"


def test_python_s_switch_holds(templates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert compiled_templates() is None
    assert list(templates.iterdir()) == []


def test_pages_are_made_where_nothing_can_be_kept(templates: Path) -> None:
    (templates / "__pycache__").write_text("in the way")
    assert compiled_templates() is None
    assert page(CompiledTemplates(str(templates / "nowhere"))) == "hello you"

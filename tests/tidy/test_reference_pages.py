"""The generated pages of docs/ are current, and what docs/ name as evidence exists."""

import re
from dataclasses import dataclass
from typing import ClassVar

import pytest

from scripts import reference_pages
from skylark.mqcommon.options.fields import option
from tests.tidy.tree import ROOT


@pytest.mark.parametrize(
    "name", ["conf.md", "mqadmin.md", "skylark.md", "metrics.md", pytest.param("names.md", marks=pytest.mark.spark)]
)
def test_page_is_current(name: str) -> None:
    page = ROOT / "docs/reference" / name
    assert page.read_text(encoding="utf-8") == reference_pages.pages()[name](), "stale: run scripts/docs"


def test_tests_that_docs_name_exist() -> None:
    """By the name of a function or of a file; examples do not count."""
    there: set[str] = set()
    for file in (ROOT / "tests").rglob("test_*.py"):
        there |= {file.stem, *re.findall(r"def (test_\w+)", file.read_text(encoding="utf-8"))}
    named: set[tuple[str, str]] = set()
    for page in (ROOT / "docs").rglob("*.md"):
        prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        named |= {(page.name, name) for name in re.findall(r"\btest_\w+", prose)}
    assert ("security.md", "test_everybody_gets_what_the_table_says") in named
    assert sorted((page, name) for page, name in named if name not in there) == []


def test_conf_page_lists_options_secrets_and_ignored_keys() -> None:
    @dataclass(frozen=True)
    class Options:
        ignored_keys: ClassVar[frozenset[str]] = frozenset({"useEpoll", "oldKey"})
        listen_port: int = option(9876, "port")
        secret_key: str = option("", "key", secret=True)

    page = reference_pages.conf_page([("NameServer", Options)])
    assert "\n## NameServer\n\n| key |" in page and "| `listenPort` | `9876` | port |" in page
    assert "Secrets have no flag, since others see command lines: `secretKey`." in page
    assert "have no effect here: `oldKey`, `useEpoll`." in page

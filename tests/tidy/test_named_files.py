"""Files that docstrings name exist, and so do the classes that pages about the code name."""

import ast
import re

from tests.tidy.tree import ROOT, modules


def test_each_file_that_a_docstring_names_exists() -> None:
    paths = [file.relative_to(ROOT).as_posix() for file in ROOT.rglob("*.py") if ".venv" not in file.parts]
    there = {"/".join(parts[at:]) for parts in (path.split("/") for path in paths) for at in range(len(parts))}
    missing = []
    for module in modules():
        for node in module.nodes:
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                named = set(re.findall(r"\w[\w/]*\.py\b", ast.get_docstring(node) or ""))
                missing += [f"{module}: {name}" for name in sorted(named - there)]
    assert missing == []


def test_each_class_that_a_page_about_the_code_names_exists() -> None:
    pages = [*(ROOT / "docs" / "how").glob("*.md"), ROOT / "docs" / "reference" / "store.md"]
    code = "\n".join(module.text for module in modules())
    named = {(page.name, name) for page in pages for name in re.findall(r"`([A-Z][a-z]+[A-Z]\w+)`", page.read_text())}
    assert len(named) > 20
    assert {(page, name) for page, name in named if name not in code} == set()

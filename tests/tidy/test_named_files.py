"""Files that docstrings name exist."""

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

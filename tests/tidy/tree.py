"""The repository's own Python files, parsed."""

import ast
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    *("mqcommon", "remoting", "namesrv", "broker", "sdk", "mqadmin", "spark_connector", "mqproxy", "mqconsole", "cli"),
    "skylark",
)


@dataclass(frozen=True)
class Module:
    """One file: its path from the root, its dotted name and its text."""

    path: str
    name: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All of its syntax tree."""
        return list(ast.walk(self.tree))

    def classes(self) -> Iterator[ast.ClassDef]:
        return (node for node in self.nodes if isinstance(node, ast.ClassDef))

    def calls(self) -> Iterator[ast.Call]:
        return (node for node in self.nodes if isinstance(node, ast.Call))

    def __str__(self) -> str:
        return self.path


@cache
def modules(*folders: str) -> list[Module]:
    """All files of the named folders or files, by default of the product, sorted by path."""
    return [module for module in _product() if module.path.startswith(folders or PACKAGES)]


@cache
def _product() -> list[Module]:
    files = sorted(file for folder in PACKAGES for file in (ROOT / folder).rglob("*.py"))
    found = []
    gc.disable()
    for file in files:
        path = file.relative_to(ROOT).as_posix()
        place = path if path.startswith("skylark/") else f"skylark/{path}"
        name = place.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        found.append(Module(path, name, file.read_text(encoding="utf-8")))
        assert found[-1].nodes
    # The collector would look at half a million nodes again and again, for most of the time.
    gc.freeze()
    gc.enable()
    return found

"""The repository's own Python files, parsed."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("mqcommon", "remoting", "namesrv", "broker", "sdk", "spark_connector")
EVERYWHERE = (*PACKAGES, "tests", "bench", "scripts")


@dataclass(frozen=True)
class Module:
    """One file: its path from the root, its dotted name, its text and syntax tree."""

    path: str
    name: str
    text: str
    tree: ast.Module

    def imports(self, *, at_run_time: bool = False) -> Iterator[tuple[int, str]]:
        """``(line, dotted name)`` of every import in the file, inside functions too; ``from a import b`` is a.b.

        With ``at_run_time`` without those for type checkers only.
        """
        for node in _walk(self.tree, skip_checking=at_run_time):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield node.lineno, alias.name
            elif isinstance(node, ast.ImportFrom):
                base = self.base_of(node)
                for alias in node.names:
                    yield node.lineno, f"{base}.{alias.name}"

    def base_of(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        is_package = self.path.endswith("__init__.py")
        parent = parts[: len(parts) - node.level + is_package]
        return ".".join([*parent, node.module] if node.module else parent)

    def __str__(self) -> str:
        return self.path


def _walk(tree: ast.AST, *, skip_checking: bool) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        is_checking = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if not (skip_checking and is_checking):
            yield node
            yield from _walk(node, skip_checking=skip_checking)


def modules(*folders: str) -> list[Module]:
    """All files of the named folders or files, sorted by path."""
    return [module for module in _all() if any(_inside(module.path, folder) for folder in folders)]


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


@cache
def _all() -> tuple[Module, ...]:
    files = [file for folder in EVERYWHERE for file in sorted((ROOT / folder).rglob("*.py"))]
    found = []
    for file in [*files, *sorted(ROOT.glob("*.py"))]:
        path = file.relative_to(ROOT).as_posix()
        text = file.read_text(encoding="utf-8")
        name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        found.append(Module(path, name, text, ast.parse(text, path)))
    return tuple(found)

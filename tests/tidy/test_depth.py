"""Files are deep: nothing is cut into pieces that only their neighbour reads, and no imports run in a circle.

An exception stands in a list here, with its reason.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

import pytest

from tests.tidy.tree import PACKAGES, Module, modules

SMALL_LINES = 40
# Their classes have the names of those that they are made from.
FACADES = ("sdk.aio", "sdk.blocking")

#: Files of fewer lines than SMALL_LINES that only a neighbour imports.
SMALL: Mapping[str, str] = {
    "sdk/testing/fixtures.py": "imports pytest, which sdk.testing does not need",
}
#: Base classes with one subclass.
ONE_SUBCLASS: Mapping[str, str] = {
    "Batch": "a batch of pulled messages; the popped one also acknowledges",
    "BoundsSearch": "a queue of single entries; the batch queue's entries have another size and meaning",
    "BrokerStats": "without metrics a broker pays nothing for sizes",
    "ConsumeQueue": "RocketMQ has two kinds of queues, and the second one is the first one with batches",
    "DaemonCommand": "click has commands and groups of them, and daemons have one of each",
    "Names": "a parameter of mqadmin; permissions are names with a value",
    "RocketMQBatchReader": "Spark takes filters only from a reader that has pushFilters",
    "RocketMQStreamReader": "PySpark 4.2 and newer take limits only from a reader of their own class",
    "StoreReader": "Spark takes filters only from a reader that has pushFilters",
    "Timestamp": "a parameter of mqadmin; a reset takes two words besides",
    "_Fields": "a NamedTuple cannot have slots and methods of its own at once",
}
#: Public classes whose name another class of the package has, too.
SAME_NAME: Mapping[str, str] = {
    "remoting.Connection": "h11's word for a protocol without I/O, and RocketMQ's name of a body",
    "remoting.Server": "what serves requests, and the protocol of what can be asked",
    "sdk.Names": "names in a namespace, and a parameter of mqadmin",
    "spark_connector.Sender": "of a job, and of the writer",
}


def importers(files: list[Module]) -> dict[str, set[str]]:
    """Path of a file → paths of the files that import it, or something of it."""
    by_name = {module.name: module.path for module in files}
    found: dict[str, set[str]] = defaultdict(set)
    for module in files:
        for _, name in module.imports():
            path = by_name.get(name) or by_name.get(name.rpartition(".")[0])
            if path is not None and path != module.path:
                found[path].add(module.path)
    return found


def small_files(files: list[Module]) -> Iterator[str]:
    """Files of a few lines that one file in the same folder imports, and no other."""
    found = importers(files)
    for module in files:
        readers = found[module.path]
        if len(readers) == 1 and not module.path.endswith("__init__.py"):
            (reader,) = readers
            is_neighbour = PurePosixPath(reader).parent == PurePosixPath(module.path).parent
            if is_neighbour and module.text.count("\n") < SMALL_LINES:
                yield module.path


def circles(files: list[Module]) -> list[set[str]]:
    """Sets of files that import each other, directly or through others of the set."""
    imported: dict[str, set[str]] = defaultdict(set)
    for path, readers in importers(files).items():
        for reader in readers:
            imported[reader].add(path)

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for path in imported[waiting.pop()] - seen:
                seen.add(path)
                waiting.append(path)
        return seen

    reach = {path: reached(path) for path in list(imported)}
    found: list[set[str]] = []
    for path, seen in reach.items():
        circle = {other for other in seen if path in reach.get(other, ())}
        if path in seen and circle not in found:
            found.append(circle)
    return found


def classes_of(files: list[Module]) -> Iterator[tuple[Module, ast.ClassDef]]:
    for module in files:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                yield module, node


def one_subclass(files: list[Module]) -> set[str]:
    """Classes that one class inherits from, and no other. Protocols and exceptions are described so on purpose."""
    ours = {node.name: node for _, node in classes_of(files)}
    heirs: dict[str, int] = defaultdict(int)
    for _, node in classes_of(files):
        for base in node.bases:
            inner = base.value if isinstance(base, ast.Subscript) else base
            heirs[inner.attr if isinstance(inner, ast.Attribute) else getattr(inner, "id", "")] += 1
    errors = {node.name for module, node in classes_of(files) if module.path.endswith("errors.py")}
    return {name for name, node in ours.items() if heirs[name] == 1 and name not in errors and not _is_protocol(node)}


def _is_protocol(node: ast.ClassDef) -> bool:
    return any("Protocol" in ast.unparse(base) for base in node.bases)


def same_names(files: list[Module]) -> set[str]:
    """``package.Name`` of public classes that a package has more than once. sdk.aio and sdk.blocking count as two."""
    seen: dict[str, set[str]] = defaultdict(set)
    for module, node in classes_of(files):
        package = next((each for each in FACADES if module.name.startswith(each)), module.name.split(".")[0])
        if not node.name.startswith("_"):
            seen[f"{package}.{node.name}"].add(module.path)
    return {name for name, paths in seen.items() if len(paths) > 1}


def test_small_files_have_a_reason() -> None:
    assert set(small_files(modules(*PACKAGES))) == set(SMALL)


def test_base_classes_have_two_subclasses_or_a_reason() -> None:
    assert one_subclass(modules(*PACKAGES)) == set(ONE_SUBCLASS)


def test_names_of_classes_are_unique_in_their_package() -> None:
    assert same_names(modules(*PACKAGES)) == set(SAME_NAME)


def test_imports_run_in_no_circle() -> None:
    assert circles(modules(*PACKAGES)) == []


def _made(**texts: str) -> list[Module]:
    names = {f"p.{name}": text for name, text in texts.items()}
    return [Module(f"{name.replace('.', '/')}.py", name, text, ast.parse(text)) for name, text in names.items()]


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ({"a": "from p.b import X\n", "b": "class X: ...\n"}, ["p/b.py"]),
        ({"a": "from p.b import X\n", "b": "class X: ...\n" + "#\n" * SMALL_LINES}, []),
        ({"a": "from p.b import X\n", "b": "class X: ...\n", "c": "from p import b\n"}, []),
    ],
)
def test_small_files_are_seen(texts: dict[str, str], found: list[str]) -> None:
    assert list(small_files(_made(**texts))) == found


def test_circles_are_seen() -> None:
    files = _made(a="from p.b import x\n", b="def f():\n    from p import c\n", c="import p.a\n", d="import p.a\n")
    assert circles(files) == [{"p/a.py", "p/b.py", "p/c.py"}]


def test_lonely_heirs_and_same_names_are_seen() -> None:
    files = _made(a="class A: ...\nclass B(A): ...\nclass P(Protocol): ...\nclass Q(P): ...\n", b="class A: ...\n")
    assert one_subclass(files) == {"A"}
    assert same_names(files) == {"p.A"}

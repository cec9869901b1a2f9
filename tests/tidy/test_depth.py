"""Files are deep: nothing is cut into pieces that only their neighbour reads, and no imports run in a circle.

An exception stands in a list here, with its reason.
"""

import ast
import graphlib
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import cache

import grimp

from tests.tidy.tree import modules

SMALL_LINES = 40
# Their classes have the names of those that they are made from.
FACADES = ("skylark.sdk.aio", "skylark.sdk.blocking")

#: Files of fewer lines than SMALL_LINES that only a neighbour imports.
SMALL: Mapping[str, str] = {
    "sdk/testing/fixtures.py": "imports pytest, which skylark.testing does not need",
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
    "TierReader": "Spark takes filters only from a reader that has pushFilters",
    "TopicConfig": "RocketMQ's answer to 351 has the fields of a topic and its mapping side by side",
    "_Fields": "a NamedTuple cannot have slots and methods of its own at once",
}
#: Classes whose base class has a base class.
TWO_DEEP: Mapping[str, str] = {
    "Acls": "a table of accounts, which is a journalled table",
    "DaemonGroup": "click has commands and groups of them, and daemons have one of each",
    "TopicConfigAndMapping": "RocketMQ's answer to 351 has the fields of a topic and its mapping side by side",
    "Users": "a table of accounts, which is a journalled table",
}
#: Public classes whose name another class of the package has, too.
SAME_NAME: Mapping[str, str] = {
    "remoting.Connection": "h11's word for a protocol without I/O, and RocketMQ's name of a body",
    "remoting.Server": "what serves requests, and the protocol of what can be asked",
    "sdk.RocketRouter": "FastStream gives its two routers one name: the plain one, and FastAPI's in a module fastapi",
    "spark_connector.Sender": "of a job, and of the writer",
}


@cache
def imported() -> Mapping[str, set[str]]:
    """Name of a module → names of the modules of the product that it imports, also for type checkers only."""
    graph = grimp.build_graph("skylark", cache_dir=None)
    return {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}


def importers() -> Mapping[str, set[str]]:
    """Name of a module → names of the modules that import it."""
    found = defaultdict(set)
    for reader, names in imported().items():
        for name in names:
            found[name].add(reader)
    return found


def bases(node: ast.ClassDef) -> list[str]:
    """``C`` of ``a.C[T]``."""
    return [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]


def classes() -> list[tuple[str, ast.ClassDef]]:
    """``package: class``; skylark.sdk.aio and skylark.sdk.blocking count as packages."""
    return [
        (next((facade for facade in FACADES if module.name.startswith(facade)), module.name.split(".")[1]), node)
        for module in modules()
        for node in module.tree.body
        if isinstance(node, ast.ClassDef)
    ]


def test_small_files_that_one_neighbour_imports_have_a_reason() -> None:
    readers = importers()
    small = set()
    for module in modules():
        folder = module.name.rpartition(".")[0]
        neighbours = {name for name in readers[module.name] if folder in (name, name.rpartition(".")[0])}
        if len(readers[module.name]) == len(neighbours) == 1 and module.text.count("\n") < SMALL_LINES:
            small.add(module.path)
    small -= {path for path in small if path.endswith("__init__.py")}
    assert small == set(SMALL)


def test_base_classes_have_two_subclasses_or_a_reason() -> None:
    """Protocols and exceptions are described so on purpose."""
    heirs = Counter(base for _, node in classes() for base in bases(node))
    errors = {node.name for module in modules() if module.path.endswith("errors.py") for node in module.classes()}
    lonely = {node.name for _, node in classes() if heirs[node.name] == 1 and "Protocol" not in bases(node)}
    assert lonely - errors == set(ONE_SUBCLASS)


def test_inheritance_is_at_most_one_deep() -> None:
    """Exceptions are a tree on purpose, and protocols describe only."""
    trees = "mqcommon/errors.py", "mqcommon/tier/bucket.py"
    errors = {node.name for path in trees for node in modules(path)[0].classes()}
    errors |= {node.name for module in modules() for node in module.classes() if "Protocol" in bases(node)}
    parents = {node.name: {*bases(node)} - {node.name} for module in modules() for node in module.classes()}
    heirs = {name for name, above in parents.items() if above & parents.keys() - errors}
    assert {name for name in heirs if parents[name] & heirs} == set(TWO_DEEP)


def test_names_of_classes_are_unique_in_their_package() -> None:
    count = Counter(f"{package}.{node.name}" for package, node in classes() if not node.name.startswith("_"))
    assert {name for name, files in count.items() if files > 1} == set(SAME_NAME)


def test_imports_run_in_no_circle() -> None:
    """Raises CycleError, which names the modules."""
    graphlib.TopologicalSorter(imported()).prepare()

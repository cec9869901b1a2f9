"""Names, docstrings and state at module level: the rules of the house that ruff does not know."""

import ast
import configparser
import re

import pytest

from tests.tidy.tree import PACKAGES, ROOT, Module, modules

MAX_DOCSTRING_LINES = 15
SUFFIXES = ("Impl", "Manager", "Service", "Helper", "Wrapper")
VAGUE = ("utils", "util", "helpers", "misc")
SETS = ("set", "frozenset")
CONTAINERS = ("dict", "list", "defaultdict", "deque", "Counter", "OrderedDict", "WeakKeyDictionary", *SETS)
# The identities ask the system which address leads out; nothing is sent.
USE_SOCKETS = (
    *("remoting/net/sockets.py", "broker/identity.py", "sdk/runtime.py"),
    "sdk/integrations/kombu/wakeup.py",  # a pair of sockets inside of the process
)
OF_SOCKETS = {
    *("socket", "fileno", "SocketStream", "SocketListener"),
    *("open_tcp_stream", "open_tcp_listeners", "serve_tcp"),
}


def called(node: ast.AST) -> str:
    """``f`` of ``f()``."""
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def variable_containers(module: Module) -> list[str]:
    """Containers at module level that are not written as constants."""
    displays = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
    found = []
    for node in module.tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and (
            isinstance(node.value, displays) or (node.value and called(node.value) in CONTAINERS)
        ):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            found += [f"{module}: {name}" for name in names if name != "__all__" and not name.isupper()]
    return found


def iterated_sets(module: Module) -> list[str]:
    """Loops over a bare set, whose order changes from process to process: a simulation could not be repeated."""
    sources = [node.iter for node in module.nodes if isinstance(node, ast.For | ast.comprehension)]
    bare = [node for node in sources if isinstance(node, ast.Set | ast.SetComp) or called(node) in SETS]
    return [f"{module}:{node.lineno}" for node in bare]


def pure_modules() -> list[Module]:
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    names = contracts["importlinter:contract:pure"]["source_modules"].split()
    return modules(*[name.removeprefix("skylark.").replace(".", "/") for name in names])


def test_docstrings_of_modules_are_short() -> None:
    # the error tree is the one docstring that is a picture
    wordy = [
        module.path
        for module in modules()
        if len((ast.get_docstring(module.tree) or "").splitlines()) > MAX_DOCSTRING_LINES
        and module.name != "skylark.mqcommon.errors"
    ]
    assert wordy == []


def test_names_say_something() -> None:
    vague = [file for folder in (*PACKAGES, "tests", "bench", "scripts") for file in (ROOT / folder).rglob("*.py")]
    javaish = [
        f"{module}: {node.name}"
        for module in modules()
        for node in module.classes()
        if node.name.endswith(SUFFIXES) or node.name.startswith("Default")
    ]
    assert ([file for file in vague if file.stem in VAGUE], javaish) == ([], [])


def test_containers_at_module_level_are_constants() -> None:
    assert [name for module in modules() for name in variable_containers(module)] == []


def test_pure_modules_iterate_no_bare_sets() -> None:
    assert len(pure_modules()) > 50
    assert [place for module in pure_modules() for place in iterated_sets(module)] == []


def test_only_the_transport_touches_sockets() -> None:
    """.importlinter has the imports; these are attributes of streams."""
    checked = modules("remoting/", "namesrv/", "broker/", "sdk/")
    touching = {m.path for m in checked for n in m.nodes if isinstance(n, ast.Attribute) and n.attr in OF_SOCKETS}
    assert touching - set(USE_SOCKETS) == set()
    assert USE_SOCKETS[0] in touching


def test_tests_try_the_same_each_time() -> None:
    """Random numbers without a seed are for nightly tests."""
    unseeded = [
        file
        for file in (ROOT / "tests").rglob("*.py")
        for block in file.read_text(encoding="utf-8").split("\n\n\n")
        if re.search(r"\bRandom\(\)", block)
        and "mark.nightly" not in block
        and file.name not in ("conftest.py", "histories.py")
    ]
    assert unseeded == []


def test_no_file_names_a_place_on_one_machine() -> None:
    places = ["/" + "work/", ".." + "/shared", "/" + "home/"]
    folders = (*PACKAGES, "bench", "scripts", "conf", "docs")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*") if file.suffix not in (".pyc", ".png")]
    named = [
        file.relative_to(ROOT).as_posix()
        for file in files
        if file.is_file() and any(place in file.read_text(encoding="utf-8") for place in places)
    ]
    assert named == []


@pytest.mark.parametrize(
    ("text", "containers", "loops"),
    [("a = {}\nB = []", 1, 0), ("for x in {1, 2}: pass", 0, 1), ("[x for x in set(y)]", 0, 1), ("a: int = 3", 0, 0)],
)
def test_breaches_are_seen(text: str, containers: int, loops: int) -> None:
    module = Module("x.py", "x", text)
    assert (len(variable_containers(module)), len(iterated_sets(module))) == (containers, loops)

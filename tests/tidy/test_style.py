"""Function lengths, names, docstrings, and the handling of exceptions."""

import ast
from collections.abc import Iterator

import pytest

from tests.tidy.tree import EVERYWHERE, PACKAGES, ROOT, Module, modules

MAX_FUNCTION_LINES = 70
MAX_DOCSTRING_LINES = 15
SUFFIXES = ("Impl", "Manager", "Service", "Helper", "Wrapper")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(module: Module) -> Iterator[Function]:
    return (node for node in ast.walk(module.tree) if isinstance(node, Function))


def classes(module: Module) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef))


def swallows(handler: ast.ExceptHandler) -> bool:
    """Whether a handler hides errors that nobody thought of: bare, or everything with an empty body."""
    if handler.type is None:
        return True
    names = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    broad = any(isinstance(name, ast.Name) and name.id in ("Exception", "BaseException") for name in names)
    empty = all(
        isinstance(statement, ast.Pass)
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in handler.body
    )
    return broad and empty


def sleeps(module: Module) -> Iterator[int]:
    """Lines that wait for the wall clock."""
    for line, name in module.imports():
        if name == "time.sleep":
            yield line
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and node.attr == "sleep" and ast.unparse(node.value) == "time":
            yield node.lineno


def unseeded(module: Module) -> Iterator[int]:
    """Lines that make other random numbers in each run, outside of nightly tests."""
    nightly = {
        inner
        for function in functions(module)
        if any("mark.nightly" in ast.unparse(decorator) for decorator in function.decorator_list)
        for inner in ast.walk(function)
    }
    for node in ast.walk(module.tree):
        if (
            isinstance(node, ast.Call)
            and not (node.args or node.keywords)
            and ast.unparse(node.func).split(".")[-1] == "Random"
            and node not in nightly
        ):
            yield node.lineno


def test_functions_fit_a_screen() -> None:
    long = [
        f"{module}:{function.lineno} {function.name}"
        for module in modules(*EVERYWHERE)
        for function in functions(module)
        if (function.end_lineno or 0) - function.lineno >= MAX_FUNCTION_LINES
        # These constructors only list the arguments of the trio class twice: as parameters, and passed on.
        if not (function.name == "__init__" and str(module).startswith(("sdk/aio/", "sdk/blocking/")))
    ]
    assert long == []


def test_modules_say_what_they_are() -> None:
    silent, wordy = [], []
    for module in modules(*PACKAGES):
        docstring = ast.get_docstring(module.tree)
        if module.text.strip() and not docstring:
            silent.append(str(module))
        # the error tree is the one docstring that is a picture
        if docstring and len(docstring.splitlines()) > MAX_DOCSTRING_LINES and module.name != "mqcommon.errors":
            wordy.append(str(module))
    assert (silent, wordy) == ([], [])


def test_names_say_something() -> None:
    nothing = ("utils", "util", "helpers", "misc")
    vague = [str(module) for module in modules(*EVERYWHERE) if module.name.split(".")[-1] in nothing]
    javaish = [
        f"{module}:{node.lineno} {node.name}"
        for module in modules(*PACKAGES)
        for node in classes(module)
        if node.name.endswith(SUFFIXES) or node.name.startswith("Default")
    ]
    assert (vague, javaish) == ([], [])


def test_inheritance_is_at_most_one_deep() -> None:
    """Exceptions are a tree on purpose, and a Protocol is a description, not an ancestor."""
    ours = {node.name: node for module in modules(*PACKAGES) for node in classes(module)}

    def parents(node: ast.ClassDef) -> list[str]:
        names = [base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in node.bases]
        return [name for name in names if name in ours]

    errors = {node.name for module in modules("mqcommon/errors.py") for node in classes(module)}
    deep = [
        name
        for name, node in ours.items()
        if any(parents(ours[parent]) for parent in parents(node) if parent not in errors)
    ]
    assert deep == []


def test_nothing_changes_at_module_level() -> None:
    """Containers at module level are constants, written in capitals; ``global`` is for what is none."""
    shared = [
        f"{module}:{node.lineno}"
        for module in modules(*PACKAGES)
        for node in [*ast.walk(module.tree)]
        if isinstance(node, ast.Global) or (node in module.tree.body and _is_variable_container(node))
    ]
    assert shared == []


def _is_variable_container(node: ast.AST) -> bool:
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    makers = ("dict", "list", "set", "defaultdict", "deque", "Counter", "OrderedDict", "WeakKeyDictionary")
    value = node.value
    made = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in makers
    container = made or isinstance(value, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp)
    return container and any(name != "__all__" and not name.isupper() for name in names)


def test_no_error_is_swallowed() -> None:
    hidden = [
        f"{module}:{node.lineno}"
        for module in modules(*EVERYWHERE)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ExceptHandler) and swallows(node)
    ]
    assert hidden == []


def test_tests_never_sleep() -> None:
    assert [f"{module}:{line}" for module in modules("tests") for line in sleeps(module)] == []


def test_tests_try_the_same_each_time() -> None:
    tests = [module for module in modules("tests") if module.path != "tests/conftest.py"]
    assert [f"{module}:{line}" for module in tests for line in unseeded(module)] == []


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
    ("text", "hidden"),
    [
        ("try: x()\nexcept: y()", True),
        ("try: x()\nexcept Exception: pass", True),
        ("try: x()\nexcept (OSError, Exception): ...", True),
        ("try: x()\nexcept OSError: pass", False),
        ("try: x()\nexcept Exception: log.exception('x')", False),
    ],
)
def test_swallowed_errors_are_seen(text: str, hidden: bool) -> None:
    (handler,) = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ExceptHandler)]
    assert swallows(handler) is hidden


def test_sleeps_are_seen() -> None:
    for text in ("import time\ntime.sleep(1)", "from time import sleep"):
        assert list(sleeps(Module("tests/x.py", "tests.x", text, ast.parse(text))))


def test_random_numbers_without_a_seed_are_seen() -> None:
    text = "def test_x():\n    Random(1)\n    random.Random()\n@pytest.mark.nightly\ndef test_y(): Random()"
    assert list(unseeded(Module("tests/x.py", "tests.x", text, ast.parse(text)))) == [3]

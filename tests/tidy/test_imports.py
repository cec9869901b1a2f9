"""Who may import whom, and which modules are pure."""

import ast
import importlib.util
import pkgutil

import pytest

from tests.tidy.tree import PACKAGES, Module, modules

MAY_IMPORT = {
    "mqcommon": set(),
    "remoting": {"mqcommon"},
    "namesrv": {"mqcommon", "remoting"},
    "broker": {"mqcommon", "remoting"},
    "sdk": {"mqcommon", "remoting"},
    "spark_connector": {"sdk", "mqcommon"},
}
# Modules that may import more than their package may: a cluster in the test process of a user; the files of a store.
MAY_IMPORT_MORE = {
    "sdk.testing.daemons": {"broker", "namesrv"},
    **{
        f"spark_connector.store.{name}": {"broker"}
        for name in ("batch_queue", "directory", "files", "queue", "reader", "scan")
    },
}
# Inside of broker/: each folder, or file beside them, imports what stands before it only.
BROKER_ORDER = (
    *(
        "store",
        "ignored_keys",
        "options",
        "identity",
        "part",
    ),
    *("stored_changes", "broker_names", "cold_reads"),
    *("meta", "observe", "writing", "tasks", "replication", "registration", "delivery", "security", "admin"),
    "unsupported_requests",
    "metrics",
    *("assembly", "wiring", "broker", "commands", "cli", "__main__"),
)
# The same in broker/store: the three kinds of files, then what uses them.
STORE_ORDER = ("log", "queue", "index", "", "check")
# And in spark_connector.
SPARK_ORDER = (
    *("version", "one_line", "schema", "offsets", "styles", "options", "worker_pickle"),
    *("reading", "store", "stream", "writing", "source", "", "jobs"),
)
OURS = {*PACKAGES, "tests", "bench", "scripts", "pyspark_rocketmq"}

PURE = (
    *("broker/store/queue/delay_levels.py",),
    *("mqcommon/addresses.py", "mqcommon/arguments.py", "mqcommon/bounded_cache.py"),
    *("mqcommon/message", "mqcommon/sql"),
    *("broker/delivery/sql_code.py", "remoting/protocol"),
    *("namesrv/routes.py", "namesrv/min_broker.py"),
    *("namesrv/checks.py", "namesrv/registration.py"),
    *("broker/writing/elected.py", "broker/writing/waits.py", "broker/store/filter.py"),
    *("broker/replication/frames.py", "broker/replication/session.py"),
    *("broker/replication/hello.py", "broker/replication/role.py"),
    *("broker/replication/link.py", "broker/replication/members.py"),
    *("sdk/consumer/allocate.py", "sdk/consumer/rates.py", "sdk/consumer/window.py"),
)
PURE_OURS = (
    "mqcommon.addresses",
    "mqcommon.arguments",
    "mqcommon.bounded_cache",
    "mqcommon.errors",
    "mqcommon.names",
    "mqcommon.message",
    "mqcommon.sql",
    "remoting.protocol",
    "namesrv.min_broker",
    "namesrv.registration",
    "broker.writing.elected",
    "broker.writing.waits",
    "broker.replication.autoswitch",
    "broker.replication.frames",
    "broker.replication.hello",
    "broker.replication.link",
    "broker.replication.session",
    "sdk.consumer.rates",
)
IMPURE = {
    *("asyncio", "concurrent", "fcntl", "glob", "io", "logging", "mmap", "multiprocessing", "os", "pathlib"),
    *("random", "secrets", "select", "selectors", "shutil", "signal", "socket", "ssl", "subprocess", "tempfile"),
    *("threading", "time", "trio", "uuid"),
}
IMPURE_CALLS = {"open", "print", "input"}
IMPURE_METHODS = {"now", "utcnow", "today"}  # of datetime, whose arithmetic is pure


def outlaws(module: Module) -> list[str]:
    """Imports that the law of the house forbids."""
    package = module.name.split(".")[0]
    allowed = MAY_IMPORT[package] | {package} | MAY_IMPORT_MORE.get(module.name, set())
    return [
        f"{module}:{line} imports {name}" for line, name in module.imports() if name.split(".")[0] in OURS - allowed
    ]


def backward(module: Module, package: str, order: tuple[str, ...]) -> list[str]:
    """Imports inside of ``package`` that run back up; files that ``order`` does not name count as ""."""

    def place(name: str) -> int:
        part = name.removeprefix(f"{package}.").split(".")[0]
        return order.index(part if part in order else "")

    return [
        f"{module}:{line} imports {name}"
        for line, name in module.imports(at_run_time=True)
        if name.startswith(f"{package}.") and place(name) > place(module.name)
    ]


def impurities(module: Module) -> list[str]:
    """What makes a module depend on more than its arguments."""
    found = []
    for line, name in module.imports():
        top = name.split(".")[0]
        foreign = top in OURS and not any(f"{name}.".startswith(f"{pure}.") for pure in PURE_OURS)
        if top in IMPURE or foreign:
            found.append(f"{module}:{line} imports {name}")
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and _called(node) in IMPURE_CALLS | IMPURE_METHODS:
            found.append(f"{module}:{node.lineno} calls {ast.unparse(node.func)}")
        if isinstance(node, ast.For | ast.comprehension) and _is_bare_set(node.iter):
            # its order changes from process to process, and a simulation could not be repeated
            found.append(f"{module}:{node.iter.lineno} iterates a set")
    return found


def _called(node: ast.Call) -> str:
    """``open`` of ``open()``, ``now`` of ``datetime.now()``; other methods of the name ``open`` are none of ours."""
    if isinstance(node.func, ast.Name):
        return node.func.id
    return node.func.attr if isinstance(node.func, ast.Attribute) and node.func.attr in IMPURE_METHODS else ""


def _is_bare_set(node: ast.expr) -> bool:
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("set", "frozenset")
    return is_call or isinstance(node, ast.Set | ast.SetComp)


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_what_they_may(package: str) -> None:
    assert [outlaw for module in modules(package) for outlaw in outlaws(module)] == []


def test_no_import_runs_back_up_inside_of_the_broker() -> None:
    found = [module for module in modules("broker") if module.name != "broker"]
    assert [name for module in found for name in backward(module, "broker", BROKER_ORDER)] == []


def test_no_import_runs_back_up_inside_of_the_store() -> None:
    found = [module for module in modules("broker/store") if module.name != "broker.store"]
    assert [name for module in found for name in backward(module, "broker.store", STORE_ORDER)] == []


def test_no_import_runs_back_up_inside_of_the_spark_connector() -> None:
    found = [module for module in modules("spark_connector") if module.name != "spark_connector"]
    assert [name for module in found for name in backward(module, "spark_connector", SPARK_ORDER)] == []


def test_pure_modules_are_pure() -> None:
    assert [impurity for module in modules(*PURE) for impurity in impurities(module)] == []


def test_the_store_knows_no_event_loop() -> None:
    loops = [f"{m}:{line}" for m in modules("broker/store") for line, name in m.imports() if name.startswith("trio")]
    assert loops == []


def test_the_law_sees_a_breach() -> None:
    def module(text: str) -> Module:
        return Module("mqcommon/message/x.py", "mqcommon.message.x", text, ast.parse(text))

    breaches = [
        "import remoting.net", "from remoting import net", "from sdk.client import Client",
        "def f() -> None:\n    from broker import store",
    ]  # fmt: skip
    assert all(outlaws(module(text)) for text in breaches)
    beside = ast.parse("from broker.broker import Broker")
    assert outlaws(Module("sdk/testing/node.py", "sdk.testing.node", "", beside))
    assert not outlaws(Module("sdk/testing/daemons.py", "sdk.testing.daemons", "", beside))
    store = Module("broker/store/x.py", "broker.store.x", "", ast.parse("from broker.wiring.core import Core"))
    assert backward(store, "broker", BROKER_ORDER)
    log = Module("broker/store/log/x.py", "broker.store.log.x", "", ast.parse("from broker.store import store"))
    assert backward(log, "broker.store", STORE_ORDER)
    stains = [
        "import time", "from os import path", "from .. import files", "from mqcommon.clock import SystemClock",
        "open('x')", "for x in {1, 2}: pass", "[x for x in set(y)]",
        "import datetime\ndatetime.datetime.now()",
    ]  # fmt: skip
    assert all(impurities(module(text)) for text in stains)
    clean = module("from mqcommon.errors import StoreCorrupt\nfrom .flags import X\nimport struct")
    assert not outlaws(clean) and not impurities(clean)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_can_be_imported(package: str) -> None:
    if package == "spark_connector":
        pytest.importorskip("pyspark", reason="needs the spark extra")
    root = importlib.import_module(package)
    has_arrow = importlib.util.find_spec("pyarrow") is not None
    for found in pkgutil.walk_packages(root.__path__, f"{package}."):
        if not found.name.endswith("__main__") and (has_arrow or not found.name.startswith("sdk.arrow.")):
            importlib.import_module(found.name)

"""How much is tested: hypothesis profiles, seeds, nightly runs on request, Spark only where Spark can run.

CI tries the same examples and seeds each time, so that a change fails by what it does and not by chance. Nightly runs
try new ones; what they find becomes an ``@example`` or a seed in a test of its own.
"""

import gc
import importlib.util
import os
import re
import shutil
import signal
import sys
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from trio.testing import MockClock
from xdist.remote import Producer
from xdist.scheduler.loadfile import LoadFileScheduling

from remoting.net import client
from scripts.daemons import Daemon
from tests.support import histories
from tests.support.clock import jumping_clock
from tests.support.warm_daemons import WarmDaemons

# A busy machine makes examples slowly, and that is no fault of the test.
ANY_MACHINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", ANY_MACHINE, max_examples=40, derandomize=True)
settings.register_profile("nightly", ANY_MACHINE, max_examples=2000, print_blob=True)
settings.register_profile("quick", ANY_MACHINE, max_examples=10, derandomize=True)

# A file of tests that imports one of these starts processes, a JVM among them; --quick leaves it out.
STARTS_PROCESSES = re.compile(
    r"^(import subprocess|from (pyspark|scripts\.(daemons|controller_set)|tests\.support\.(daemons|spark\w*)) )",
    re.MULTILINE,
)
# A file of tests that has one of these needs numpy, which brokers and most of the SDK do without.
NEEDS_NUMPY = re.compile(
    r"^(import|from) (numpy|pyarrow|pandas|pyspark|sdk\.arrow|spark_connector|tests\.sdk\.arrow|tests\.support\.spark)"
    r"|(send|pull)_arrow\(|arrow_handler=|import inner_batch",
    re.MULTILINE,
)
# Files and folders that take seconds, whatever the number of examples; --quick leaves them out, too.
SLOW = (
    "tests/fuzz/",
    "tests/sim/",
    "tests/broker/replication/",
    "tests/broker/store/queue/test_entry_repair.py",
    "tests/broker/store/test_damage.py",
    "tests/broker/store/test_faults.py",
    "tests/broker/store/test_removal.py",
    "tests/broker/store/test_schedules.py",
    "tests/broker/store/truncation/",
    "tests/broker/test_junk.py",
    "tests/mqconsole/test_guard.py",
    "tests/mqconsole/test_pages.py",
    "tests/sdk/consumer/",
    "tests/sdk/integrations/faststream/",
    "tests/sdk/producer/",
)
# The files that take longest, the longest first: they begin first, so that all processes of tests end together.
LONGEST = (
    "tests/spark_connector/jobs/test_jobs.py",
    "tests/e2e/test_spark_stream_kills.py",
    "tests/e2e/test_controller.py",
    "tests/scripts/test_demo.py",
    "tests/e2e/test_guide.py",
    "tests/e2e/test_replication.py",
    "tests/mqconsole/test_browser.py",
    "tests/e2e/test_failover.py",
    "tests/interop/test_cpp_push_consumer.py",
    "tests/e2e/test_controller_moves.py",
    "tests/e2e/test_bad_input.py",
)

# Tests with the session of `tests.support.spark`. One process runs all of them, so one JVM starts, and gets warm.
SPARK_SESSION = (
    "tests/spark_connector/test_spark",
    "tests/spark_connector/jobs/",
    "tests/examples/test_spark_examples.py",
)
# A JVM of a test lives for seconds. The better compiler and the parallel collector take longer than they save.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# A property of a test: (what an official client of RocketMQ 5 did, its language, what it got). tests/mqproxy has it.
CLIENTS_GOT = "clients-got"

SEED = "SKYLARK_SEED"
SEED_IN_CI = 1


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-nightly", action="store_true", help="run the long randomised tests too")
    parser.addoption("--quick", action="store_true", help="only tests that start no process and take no seconds")


def pytest_configure(config: pytest.Config) -> None:
    chosen = "nightly" if config.getoption("--run-nightly") else "quick" if config.getoption("--quick") else "ci"
    config.pluginmanager.register(GroupTimes(), "group-times")
    config.pluginmanager.register(ClientsGot(), "clients-got")
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", chosen))
    # Every daemon would compile all of its modules at each start.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.setdefault("JDK_JAVA_OPTIONS", JAVA_OPTIONS)
    # A machine under load stops a process for seconds at times, and a server in a test's own process with it.
    client.CONNECT_TIMEOUT_MS = 30_000
    Daemon.launch = WarmDaemons().start
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A background job of a shell ignores Ctrl-C, and so would the commands that are interrupted here.
        signal.signal(signal.SIGINT, signal.default_int_handler)


class OneSparkSession(LoadFileScheduling):
    """A file of tests at a time; the files with the shared Spark session count as one."""

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid.startswith(SPARK_SESSION) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneSparkSession | None:
    return OneSparkSession(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for mark in metafunc.definition.iter_markers("histories"):
        count = mark.kwargs.get("count", histories.IN_CI)
        seeds = histories.blocks(count, nightly=metafunc.config.getoption("--run-nightly"))
        metafunc.parametrize("seeds", seeds)


@pytest.fixture
def autojump_clock() -> Iterator[MockClock]:
    """In place of pytest-trio's clock, which jumps while a task waits for a thread."""
    with jumping_clock() as clock:
        yield clock


@pytest.fixture
def seed(pytestconfig: pytest.Config) -> int:
    """For a random test: the same in CI each time, a new one with ``--run-nightly``, or the one in SKYLARK_SEED."""
    default = Random().randrange(1 << 32) if pytestconfig.getoption("--run-nightly") else SEED_IN_CI
    chosen = int(os.environ.get(SEED) or default)
    sys.stdout.write(f"{SEED}={chosen}\n")
    return chosen


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The garbage collector walks over the many objects that stay, the tests, neither now nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    is_quick = config.getoption("--quick")
    left_out = {"nightly": not config.getoption("--run-nightly"), "spark": is_quick or not _spark_can_run()}
    kept, dropped = [], []
    for item in items:
        drop = any(left_out.get(mark.name, False) for mark in item.iter_markers())
        drop = drop or (is_quick and (item.nodeid.startswith(SLOW) or _starts_processes(item.path)))
        (dropped if drop else kept).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
    items[:] = sorted(kept, key=_turn)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Without numpy leave out the files of tests that need it, and Spark's."""
    if _has_numpy():
        return None
    if collection_path.suffix != ".py":
        return collection_path.name == "spark_connector" or None
    return bool(NEEDS_NUMPY.search(collection_path.read_text(encoding="utf-8"))) or None


@cache
def _has_numpy() -> bool:
    try:
        import numpy  # noqa: F401  only whether it is there
    except ImportError:
        return False
    return True


@cache
def _starts_processes(path: Path) -> bool:
    return bool(STARTS_PROCESSES.search(path.read_text(encoding="utf-8")))


def _turn(item: pytest.Item) -> int:
    """When a file of tests begins: small numbers first."""
    path = item.nodeid.partition("::")[0]
    return LONGEST.index(path) if path in LONGEST else len(LONGEST) + (not _starts_processes(item.path))


def _spark_can_run() -> bool:
    java_home = os.environ.get("JAVA_HOME")
    java = shutil.which("java") or (java_home and shutil.which("java", path=os.path.join(java_home, "bin")))
    return bool(java) and importlib.util.find_spec("pyspark") is not None


class GroupTimes:
    """How long the tests of each folder took, printed at the end. Several run at a time, so the sum is more."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        group = "/".join(report.nodeid.partition("::")[0].split("/")[:3]).removesuffix(".py")
        self._seconds[group] = self._seconds.get(group, 0.0) + report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        dearest = sorted(self._seconds.items(), key=lambda each: -each[1])
        rows = [f"{seconds:7.0f} s  {group}" for group, seconds in dearest if seconds >= 1]
        if rows:
            terminalreporter.write_line("seconds by folder:")
            terminalreporter.write_line("\n".join(rows))


class ClientsGot:
    """What official clients of RocketMQ 5 got through the proxy, as the tests noted it: a table, printed at the end."""

    def __init__(self) -> None:
        # What was done → language → what the client got.
        self._rows: dict[str, dict[str, str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            for name, value in report.user_properties:
                if name == CLIENTS_GOT:
                    what, language, got = value
                    self._rows.setdefault(what, {})[language] = got

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        languages = sorted({language for row in self._rows.values() for language in row})
        if not languages:
            return
        lines = [("", *languages)]
        lines += [(what, *(row.get(each, "-") for each in languages)) for what, row in sorted(self._rows.items())]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        terminalreporter.write_line("what official clients of RocketMQ 5 got through the proxy:")
        for line in lines:
            terminalreporter.write_line(" | ".join(map(str.ljust, line, widths)).rstrip())

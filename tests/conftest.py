"""How much is tested: hypothesis profiles, seeds, nightly runs on request, Spark only where Spark can run.

CI tries the same examples and seeds each time, so that a change fails by what it does and not by chance. Nightly runs
try new ones; what they find becomes an ``@example`` or a seed in a test of its own.
"""

import gc
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from dataclasses import asdict
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from random import Random
from tempfile import gettempdir
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, given, is_hypothesis_test, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from scripts.daemons import ROOT, Daemon
from scripts.run_watcher import Watched
from skylark.remoting.net import client
from tests.support import histories, rounds
from tests.support.amounts import NIGHTLY_SEED
from tests.support.buckets import S3Server, moto_server, seaweedfs_server
from tests.support.checked import Checked
from tests.support.clock import jumping_clock
from tests.support.forked_processes import ForkedProcesses
from tests.support.repeats import TIMEOUT_S, Repeats
from tests.support.requirements import Requirements, java_identity
from tests.support.spark_home import IMPORTED, SPARK_PYTHON, use_quick_spark
from tests.support.warm_daemons import PROGRAMS, PYTHON, WarmDaemons

# A busy machine makes examples slowly, and that is no fault of the test.
ANY_MACHINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", ANY_MACHINE, max_examples=15, derandomize=True)
settings.register_profile("nightly", ANY_MACHINE, max_examples=2000, print_blob=True)
settings.register_profile("fast", ANY_MACHINE, max_examples=10, derandomize=True)

# A file of tests that imports one of these starts processes, a JVM among them; --fast leaves it out.
STARTS_PROCESSES = re.compile(
    r"^(import subprocess"
    r"|from (pyspark|scripts\.(daemons|controller_set|rolling\.\w+)|tests\.support\.(daemons|spark\w*)) )",
    re.MULTILINE,
)
# A test with one of these fixtures starts a process, too: an official client of RocketMQ 5, an S3 server.
STARTING_FIXTURES = frozenset({"language", "s3_server", "seaweedfs"})
# Library, which brokers and most of the SDK do without → a file of tests that has one of these needs it.
NEEDS = {
    "numpy": re.compile(
        r"^(import|from) (numpy|pyarrow|pandas|pyspark|skylark\.(sdk\.arrow|spark)|tests\.sdk\.arrow"
        r"|tests\.support\.spark)|(send|pull)_arrow\(|arrow_handler=|import inner_batch",
        re.MULTILINE,
    ),
    "pyspark": re.compile(r"^ *(import|from) (pyspark|skylark\.spark|tests\.(support|e2e)\.spark)", re.MULTILINE),
}
# Files and folders that take seconds, whatever the number of examples; --fast leaves them out, too.
SLOW = (
    "tests/deploy/",
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
    "tests/e2e/test_pipeline_kills.py",
    "tests/mqconsole/test_browser.py",
    # With all known seeds these histories take 20 to 35 s of processor time.
    "tests/sim/tier/test_tier.py",
    "tests/sim/healing/test_healing.py",
    "tests/sim/dledger/test_dledger.py",
    "tests/e2e/test_replication.py",
    "tests/e2e/test_controller.py",
    "tests/e2e/test_guide.py",
    "tests/broker/replication/dledger/test_group.py",
    "tests/e2e/test_controller_moves.py",
    "tests/sdk/integrations/kombu/test_transport.py",
    "tests/interop/test_cpp_push_consumer.py",
    "tests/mqproxy/test_consumers.py",
    "tests/e2e/test_dledger.py",
    "tests/e2e/test_kill.py",
    "tests/examples/test_examples.py",
    "tests/e2e/test_shrinking.py",
    "tests/scripts/test_demo.py",
    "tests/broker/replication/dledger/test_damage.py",
    "tests/sdk/integrations/kombu/test_celery.py",
    "tests/e2e/test_bad_input.py",
    "tests/e2e/test_static_topics.py",
    "tests/e2e/test_power_loss.py",
    "tests/mqproxy/test_users.py",
    "tests/mqproxy/test_producer.py",
    "tests/intruder/test_request_ports.py",
    "tests/sdk/admin/test_dead_letters.py",
)

# Tests with the session of `tests.support.spark`. One process runs all of them, so one JVM starts, and gets warm.
SPARK_SESSION = (
    "tests/spark_connector/test_spark",
    "tests/spark_connector/jobs/",
    "tests/examples/test_spark_examples.py",
)
# Tests of the repository's own files, which they parse once for all.
TIDY = "tests/tidy/"
# A JVM of a test lives for seconds. The better compiler and the parallel collector take longer than they save. Without
# these it writes to /tmp: the data for jps, and its temporary files, as it does not know TMPDIR.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Djava.io.tmpdir={}"

# A property of a test: (what an official client of RocketMQ 5 did, its language, what it got). tests/mqproxy has it.
CLIENTS_GOT = "clients-got"

WARM = pytest.StashKey[WarmDaemons]()
WARM_SPARK = pytest.StashKey[WarmDaemons]()
WATCHED = pytest.StashKey[Watched]()
EXIT_CODE = pytest.StashKey[int]()
SEED_USED = pytest.StashKey[int]()

SEED = "TEST_SEED"
SEED_IN_CI = 1


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("processes of tests")
    # `addoption` keeps short options with small letters for pytest itself, which has no -n.
    group._addoption("-n", dest="processes", type=int, default=0, metavar="N", help="run tests in N forked processes")
    parser.addoption("--nightly", action="store_true", help="everything in full, with new seeds")
    parser.addoption("--known-seeds", action="store_true", help="all known seeds of random histories, as CI")
    parser.addoption("--until", type=float, metavar="TIME", help="only random tests, and none begins after this second")
    parser.addoption("--rounds", metavar="FOLDER", help="write what tests with faults counted to rounds.md and .json")
    parser.addoption("--repeat", type=int, default=1, metavar="N", help="with -n: run each file of tests N times")
    parser.addoption("--busy", type=int, default=0, metavar="K", help="with --repeat: K loops compete with the tests")
    parser.addoption("--check", action="store_true", help="no test begins unless scripts/check passes")
    parser.addoption("--fast", action="store_true", help="only tests that start no process and take no seconds")


def pytest_cmdline_main(config: pytest.Config) -> None:
    turns = config.getoption("--repeat")
    if turns < 1:
        raise pytest.UsageError(f"--repeat {turns}: give a number from 1 up")
    if turns > 1 and not config.getoption("processes"):
        raise pytest.UsageError("--repeat needs -n: each turn of a file has a process of its own")
    if turns == 1 and config.getoption("--busy"):
        raise pytest.UsageError("--busy needs --repeat: give the number of turns, 2 or more")


def pytest_configure(config: pytest.Config) -> None:
    chosen = "nightly" if config.getoption("--nightly") else "fast" if config.getoption("--fast") else "ci"
    config.stash[WATCHED] = Watched()
    use_quick_spark(config.stash[WATCHED].folder / "spark")
    if config.getoption("--nightly"):
        os.environ.setdefault(NIGHTLY_SEED, str(Random().randrange(1 << 32)))
    turns = config.getoption("--repeat")
    if config.getoption("processes"):
        begin = _refuse_processes if config.getoption("--fast") else None
        timeout_s = TIMEOUT_S if turns > 1 else None
        processes = ForkedProcesses(config.getoption("processes"), _group_of, begin, turns=turns, timeout_s=timeout_s)
        config.pluginmanager.register(processes, "forked-processes")
    if turns > 1:
        config.pluginmanager.register(Repeats(turns, config.getoption("--busy")), "repeats")
    if config.getoption("--check"):
        config.pluginmanager.register(Checked([str(ROOT / "scripts/check")]), "checked")
    config.pluginmanager.register(Requirements(java_identity()), "requirements")
    config.pluginmanager.register(RoundsOfTests(config), "rounds")
    config.pluginmanager.register(GroupTimes(), "group-times")
    config.pluginmanager.register(ClientsGot(), "clients-got")
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", chosen))
    # Every daemon would compile all of its modules at each start.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.setdefault("JDK_JAVA_OPTIONS", JAVA_OPTIONS.format(gettempdir()))
    # A machine under load stops a process for seconds at times, and a server in a test's own process with it.
    client.CONNECT_TIMEOUT_MS = 30_000
    config.stash[WARM] = WarmDaemons()
    config.stash[WARM_SPARK] = WarmDaemons(*IMPORTED)
    Daemon.launch = config.stash[WARM].start
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A background job of a shell ignores Ctrl-C, and so would the commands that are interrupted here.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure(config: pytest.Config) -> None:
    """The last lines of a run, after pytest's own."""
    config.stash[WARM].close()
    config.stash[WARM_SPARK].close()
    was_interrupted = config.stash.get(EXIT_CODE, None) == pytest.ExitCode.INTERRUPTED
    for line in config.stash[WATCHED].end(now=was_interrupted):
        sys.stdout.write(f"left behind by a test, and killed: {line}\n")
    for line in config.pluginmanager.get_plugin("requirements").lines():
        sys.stdout.write(line + "\n")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[EXIT_CODE] = exitstatus


def _group_of(nodeid: str) -> str:
    """A file is a group; files with the shared Spark session are one group, files in tests/tidy are another group."""
    if nodeid.startswith(SPARK_SESSION):
        return "spark"
    return "tidy" if nodeid.startswith(TIDY) else nodeid.partition("::")[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Give loggers their levels back, and Ctrl-C its meaning: a server in this process, or Spark, may change them."""
    on_interrupt = signal.getsignal(signal.SIGINT)
    before: dict[logging.Logger, int] = {}
    set_level = logging.Logger.setLevel

    def noted(logger: logging.Logger, level: int | str) -> None:
        before.setdefault(logger, logger.level)
        set_level(logger, level)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.Logger, "setLevel", noted)
        try:
            return (yield)
        finally:
            for logger, level in before.items():
                if logger.level != level:
                    set_level(logger, level)
            if signal.getsignal(signal.SIGINT) is not on_interrupt:
                # Otherwise trio leaves Ctrl-C alone.
                signal.signal(signal.SIGINT, on_interrupt)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let all processes of tests have the same process of warm daemons; with --fast no test starts anything."""
    config = session.config
    are_several = config.getoption("processes") and not config.getoption("collectonly")
    if are_several and any(_starts_processes(item.path) for item in session.items):
        os.environ[PROGRAMS] = str(config.stash[WARM].programs())
    if not config.getoption("collectonly") and any(_has_spark(item.path) for item in session.items):
        os.environ[SPARK_PYTHON] = str(config.stash[WARM_SPARK].programs() / PYTHON)
    if are_several and any(is_hypothesis_test(getattr(item, "obj", None)) for item in session.items):
        _an_example()
    if config.getoption("--fast") and not config.getoption("processes"):
        _refuse_processes()


@settings(max_examples=1, database=None)
@given(st.text())
def _an_example(text: str) -> None:
    """With its first example Hypothesis makes tables of characters and imports modules: forks share both."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for mark in metafunc.definition.iter_markers("histories"):
        takes_known = metafunc.config.getoption("--known-seeds")
        nightly_seed = os.environ.get(NIGHTLY_SEED) if metafunc.config.getoption("--nightly") else None
        metafunc.parametrize("seeds", histories.blocks(nightly_seed, takes_known=takes_known, **mark.kwargs))


@pytest.fixture
def autojump_clock() -> Iterator[MockClock]:
    """In place of pytest-trio's clock, which jumps while a task waits for a thread."""
    with jumping_clock() as clock:
        yield clock


@pytest.fixture(scope="session", autouse=True)
def each_module_is_loaded_once() -> Iterator[None]:
    """Tests and the product import modules by their names in ``skylark``; short names are for the root of a clone."""
    yield
    tops = {place.name for place in (ROOT / "skylark").iterdir() if place.is_symlink()}
    assert [name for name in sys.modules if name.partition(".")[0] in tops] == []


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """One for all tests of this process: each makes a bucket of its own."""
    with moto_server() as server:
        yield server


@pytest.fixture
def s3_url(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a new bucket, which this process and the processes that it starts can reach."""
    return _new_bucket(s3_server, monkeypatch)


@pytest.fixture(scope="module")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """For nightly tests of the group ``SeaweedFS``. Each file has a server of its own, which takes much memory."""
    home = tmp_path_factory.mktemp("seaweedfs")
    with seaweedfs_server(home) as server:
        yield server
    # The server's directory may have gigabytes, and pytest keeps the directories of some runs.
    shutil.rmtree(home)


@pytest.fixture
def seaweedfs_url(seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """As ``s3_url``, by SeaweedFS."""
    return _new_bucket(seaweedfs, monkeypatch)


def _new_bucket(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server.new_bucket()


@pytest.fixture
def seed(pytestconfig: pytest.Config, request: pytest.FixtureRequest) -> int:
    """For a random test: the same in CI each time, a new one with ``--nightly``, or the one in TEST_SEED."""
    default = SEED_IN_CI
    if pytestconfig.getoption("--nightly"):
        default = Random(f"{os.environ[NIGHTLY_SEED]} {request.node.nodeid}").randrange(1 << 32)
    chosen = int(os.environ.get(SEED) or default)
    sys.stdout.write(f"{SEED}={chosen}\n")
    request.node.stash[SEED_USED] = chosen
    return chosen


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """The garbage collector walks over the many objects that stay, the tests, neither now nor later.

    Its defaults cost a twelfth of the processor time of cheap tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    is_fast = config.getoption("--fast")
    left_out = {
        "nightly": not config.getoption("--nightly"),
        "spark": is_fast,
        "process": is_fast,
    }
    kept, dropped = [], []
    for item in items:
        drop = any(left_out.get(mark.name, False) for mark in item.iter_markers())
        drop = drop or (config.getoption("--until") is not None and not _is_random(item))
        drop = drop or (is_fast and not STARTING_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())))
        (dropped if drop else kept).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
    items[:] = sorted(kept, key=_turn)


def _reason(error: BaseException) -> str:
    """The first line of the error, or of the first one in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def fault_of(item: pytest.Item) -> rounds.Fault | None:
    """What the mark ``fault(kind, what, mode)`` says; its texts may name parameters of the test: ``{mode}``."""
    mark = item.get_closest_marker("fault")
    if mark is None:
        return None
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    kind, what, mode = (text.format(**parameters) for text in mark.args)
    return rounds.Fault(mode, kind, what)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With --fast leave out whole files. Without a library of NEEDS leave out the files that need it, and Spark's."""
    is_file = collection_path.suffix == ".py"
    if config.getoption("--fast") and is_file:
        name = collection_path.as_posix().removeprefix(f"{ROOT.as_posix()}/")
        if name.startswith(SLOW) or _starts_processes(collection_path):
            return True
    missing = [needs for library, needs in NEEDS.items() if not _has(library)]
    if not missing:
        return None
    if not is_file:
        conftest = collection_path / "conftest.py"
        if not conftest.exists():
            return None
        collection_path = conftest  # it would be imported for any file of the folder
    text = collection_path.read_text(encoding="utf-8")
    return any(needs.search(text) for needs in missing) or None


def _refuse_processes() -> None:
    """See what starts processes although neither an import of its file nor a mark says so."""
    os.fork = os.posix_spawn = subprocess.Popen.__init__ = _refuse


def _refuse(*args: object, **kwargs: object) -> NoReturn:
    raise AssertionError("a test that starts a process has the mark `process`: --fast leaves it out")


@cache
def _has(library: str) -> bool:
    return find_spec(library) is not None


@cache
def _starts_processes(path: Path) -> bool:
    return bool(STARTS_PROCESSES.search(path.read_text(encoding="utf-8")))


@cache
def _has_spark(path: Path) -> bool:
    return bool(NEEDS["pyspark"].search(path.read_text(encoding="utf-8")))


def _turn(item: pytest.Item) -> int:
    """When a file of tests begins: small numbers first."""
    path = item.nodeid.partition("::")[0]
    is_long = _starts_processes(item.path) or path.startswith(TIDY)
    return LONGEST.index(path) if path in LONGEST else len(LONGEST) + (not is_long)


def _is_random(item: pytest.Item) -> bool:
    return "seed" in getattr(item, "fixturenames", ()) or item.get_closest_marker("histories") is not None


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


class RoundsOfTests:
    """The counts of tests with faults, as one table at the end: tests/support/rounds.py."""

    def __init__(self, config: pytest.Config) -> None:
        self._until = config.getoption("--until")
        self._folder = config.getoption("--rounds")
        self._is_shown = config.getoption("--nightly") or self._folder
        self._table = rounds.Table()

    def pytest_collection(self, session: pytest.Session) -> None:
        terminal = session.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None and session.config.getoption("--nightly"):
            terminal.write_line(f"{NIGHTLY_SEED}={os.environ[NIGHTLY_SEED]}")

    def pytest_runtest_setup(self) -> None:
        if self._until is not None and time.time() > self._until:
            pytest.skip("the hours are over")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "call":
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            seed = item.stash.get(SEED_USED, None)
            failure = _reason(call.excinfo.value) if report.failed and call.excinfo else ""
            counted = rounds.take(parameters.get("rounds", 0), seed, failure=failure)
            if counted is not None:
                fault = fault_of(item)
                # Other processes of tests send plain values only.
                told = [asdict(counted), asdict(fault) if fault else None]
                report.user_properties.append((rounds.ROUNDS, told))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == rounds.ROUNDS and report.when == "call":
                counted, fault = value
                self._table.add(report.nodeid, rounds.Count(**counted), rounds.Fault(**fault) if fault else None)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._is_shown and self._table:
            terminalreporter.write_line("rounds of tests with faults:")
            terminalreporter.write_line(self._table.markdown())
        if self._folder:
            self._table.write(Path(self._folder))


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

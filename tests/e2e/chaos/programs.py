"""Programs of this folder as processes that tests kill: consumers, poppers, producers of transactions."""

import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from scripts.daemons import ROOT
from tests.support.waiting import until
from tests.support.warm_daemons import PYTHON, warm

STOP_TIMEOUT_S = 60


class Programs:
    """Processes ``python -m tests.e2e.chaos.PROGRAM ARGUMENTS FILE``, each with a file and a log of its own."""

    def __init__(self, home: Path, program: str, *arguments: str) -> None:
        self._command = [warm(PYTHON), "-m", f"tests.e2e.chaos.{program}", *arguments]
        self._files = home / f"{program}-{'-'.join(arguments[1:])}"
        self._files.mkdir()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._killed: set[int] = set()
        self._told_to_stop: set[int] = set()
        self.started_ns: list[int] = []

    def start(self) -> None:
        """One more process."""
        path = self._path(len(self._processes))
        path.touch()
        self.started_ns.append(time.monotonic_ns())
        with path.with_suffix(".log").open("wb") as log:
            self._processes.append(subprocess.Popen([*self._command, path], cwd=ROOT, stdout=log, stderr=log))

    @property
    def running(self) -> list[int]:
        """The programs that were neither killed nor stopped."""
        return [number for number, process in enumerate(self._processes) if process.poll() is None]

    def kill(self, number: int) -> None:
        """kill -9."""
        self._killed.add(number)
        self._processes[number].kill()
        self._processes[number].wait()

    async def stop(self, numbers: Iterable[int] = ()) -> None:
        """SIGTERM; they finish what they have begun. Without ``numbers`` all of them."""
        told = list(numbers) or self.running
        self._told_to_stop.update(told)
        processes = [self._processes[number] for number in told]
        for process in processes:
            process.send_signal(signal.SIGTERM)
        await until(lambda: all(p.poll() is not None for p in processes), "programs stop", STOP_TIMEOUT_S)

    def failures(self) -> list[str]:
        """The programs that ended by themselves, and their last log lines."""
        return [
            f"program {number} ended with {process.returncode}:\n{self._log(number)[-3000:]}"
            for number, process in enumerate(self._processes)
            if number not in self._killed and process.poll() and not self._was_early(number)
        ]

    def _was_early(self, number: int) -> bool:
        """Whether it was stopped before it handled signals."""
        return number in self._told_to_stop and self._processes[number].returncode == -signal.SIGTERM

    def end(self) -> None:
        """Leave no process behind."""
        for number in self.running:
            self.kill(number)

    def written(self) -> list[bytes]:
        """The file of each process."""
        return [self._path(number).read_bytes() for number in range(len(self._processes))]

    def _log(self, number: int) -> str:
        return self._path(number).with_suffix(".log").read_text("utf-8", errors="replace")

    def _path(self, number: int) -> Path:
        return self._files / f"p{number}"

"""Reads from disk that end when a test says so."""

import threading

from tests.support.memory_files import MemoryFiles
from tests.support.waiting import DEADLINE_S


class Gate:
    """Reads from disk wait until it opens."""

    def __init__(self, fs: MemoryFiles) -> None:
        self._opened = threading.Event()
        self.waiting = 0
        fs.cold.before_read = self._wait

    def _wait(self, path: str) -> None:
        self.waiting += 1
        assert self._opened.wait(DEADLINE_S)

    def open(self) -> None:
        self._opened.set()


class Turnstile:
    """Reads from disk end one at a time, when the test says so."""

    def __init__(self, fs: MemoryFiles) -> None:
        self._turns = threading.Semaphore(0)
        #: The files that were read from, in the order in which the reads began.
        self.began: list[str] = []
        fs.cold.before_read = self._wait

    def _wait(self, path: str) -> None:
        self.began.append(path)
        assert self._turns.acquire(timeout=60)

    def let_one_end(self) -> None:
        self._turns.release()

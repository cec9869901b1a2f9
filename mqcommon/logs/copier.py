"""Copies the lines of child processes to stderr by a thread, so that a parent never waits for the reader of its stderr.

While nobody reads, lines wait up to a limit; further lines are dropped, and the log of the parent says how many.
"""

import logging
import threading
from queue import SimpleQueue

from skylark.mqcommon.logs.writer import Write, stderr_writer

logger = logging.getLogger(__name__)

# The most bytes of waiting lines of all children of a process together.
MAX_WAITING_BYTES = 1 << 20
# How long `close` waits until the waiting lines are written.
CLOSE_TIMEOUT_S = 2.0


class LineCopier:
    """A thread that copies lines. ``write`` writes whole lines, and may wait; None for stderr."""

    def __init__(self, write: Write | None = None, max_waiting_bytes: int = MAX_WAITING_BYTES) -> None:
        self._write = write
        self._max_waiting_bytes = max_waiting_bytes
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        self._counting = threading.Lock()
        self._waiting_bytes = 0
        self._dropped = 0
        self._thread: threading.Thread | None = None

    def put(self, lines: bytes) -> None:
        """Write these whole lines soon; never waits."""
        with self._counting:
            if self._waiting_bytes + len(lines) > self._max_waiting_bytes:
                self._dropped += lines.count(b"\n")
                return
            self._waiting_bytes += len(lines)
        self._lines.put(lines)
        if self._thread is None:
            # Started with the first line: a broker without children has no such thread.
            self._thread = threading.Thread(target=self._run, name="lines of children", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Write what waits, for CLOSE_TIMEOUT_S at most."""
        if self._thread is not None:
            self._lines.put(None)
            self._thread.join(CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        write = self._write or stderr_writer()
        while (lines := self._lines.get()) is not None:
            lost = 0
            try:
                write(lines)
            except OSError:  # nobody can read stderr any more
                lost = lines.count(b"\n")
            with self._counting:
                self._waiting_bytes -= len(lines)
                lost, self._dropped = lost + self._dropped, 0
            if lost:
                logger.warning("%d lines of child processes are missing here: nobody read stderr", lost)

"""Warnings of the SDK in a program that has not set up logging: on stderr, a few of each kind a minute.

Python's own last resort would print every warning. A consumer whose handler fails would write without end, and a
consumer that prints nothing would hang silently. As soon as a logger of the package, or the root logger, has a handler
of the program, this module prints nothing.
"""

import logging
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

# How many lines of one kind are printed in this time.
LINES, WINDOW_S = 3, 60.0
# More kinds than this are not remembered.
MAX_KINDS = 256


class LastResort(logging.Handler):
    """Prints records that no other handler gets to stderr. Lines of one kind come from the same statement."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, stream: TextIO | None = None, lines: int = LINES
    ) -> None:
        """``stream``: None for the current sys.stderr; ``lines``: how many of one kind are printed in `WINDOW_S`."""
        super().__init__(logging.WARNING)
        self._lines = lines
        self._clock = clock
        self._stream = stream
        self._formatter = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
        # By kind: the time of its first line, and how many lines there were since.
        self._kinds: OrderedDict[tuple[str, str, str], tuple[float, int]] = OrderedDict()
        self._counting = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        """Print the record, unless another handler gets it or there were too many of its kind."""
        if _has_handlers(record.name):
            return
        left_out = self._left_out(record)
        if left_out is None:
            return
        text = self._formatter.format(record)
        if left_out:
            text += f"\n({left_out} more like that were not shown)"
        with suppress(OSError, ValueError):  # the reader of stderr has gone, or stderr is closed
            print(text, file=self._stream or sys.stderr, flush=True)

    def _left_out(self, record: logging.LogRecord) -> int | None:
        """How many records of its kind were left out before; None if this record is left out, too."""
        error = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
        kind, now = (record.name, str(record.msg), error), self._clock()
        with self._counting:
            since, count = self._kinds.pop(kind, (now, 0))
            left_out = 0
            if now - since >= WINDOW_S:
                left_out, since, count = max(0, count - self._lines), now, 0
            self._kinds[kind] = since, count + 1
            if len(self._kinds) > MAX_KINDS:
                self._kinds.popitem(last=False)
        return left_out if count < self._lines else None


def _has_handlers(name: str) -> bool:
    """Whether the program has set up a handler that gets the records of logger ``name``."""
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if any(not isinstance(handler, LastResort | logging.NullHandler) for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def print_warnings_of(*packages: str, lines: int = LINES) -> None:
    """Warnings of these packages reach stderr in a program without logging of its own, ``lines`` of a kind a minute."""
    last_resort = LastResort(lines=lines)
    for package in packages:
        logger = logging.getLogger(package)
        if not any(isinstance(handler, LastResort) for handler in logger.handlers):
            logger.addHandler(last_resort)

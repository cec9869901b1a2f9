"""Bounds what gRPC itself writes to the proxy's log: calls of strangers must not fill it.

gRPC's core writes a line about each header that it cannot read, and its Python part the whole value of each text that
is not UTF-8, and each call whose client has gone, with a traceback. All these lines come before any signature is
checked, and HTTP/2 compresses repeated headers: a call of some bytes writes kilobytes.
"""

import logging
import os
from collections import Counter
from collections.abc import Callable, MutableMapping
from time import monotonic
from typing import Final

# Environment variables that gRPC's core reads at its first import; a user who sets them wants its log.
_VERBOSITY: Final = "GRPC_VERBOSITY"
_LOGGER: Final = "grpc._cython.cygrpc"
#: The beginning of a line of gRPC → the line that is written in its place, with a count.
_COUNTED: Final = {
    "Invalid encoding on": "calls had %d texts that are not UTF-8",
    "ExecuteBatchError raised": "%d calls broke off before they were answered",
}
_QUIET_S: Final = 60.0


def quieten(environment: MutableMapping[str, str] = os.environ) -> None:
    """Bound gRPC's log lines. To be called once, before gRPC is imported."""
    environment.setdefault(_VERBOSITY, "NONE")
    logging.getLogger(_LOGGER).addFilter(CountedLines())


class CountedLines:
    """A filter of a logger: of each kind of line that strangers can cause, one a minute passes, with the count."""

    def __init__(self, now_s: Callable[[], float] = monotonic) -> None:
        self._now_s = now_s
        self._counts: Counter[str] = Counter()
        self._quiet_until_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written."""
        kind = next((each for each in _COUNTED if str(record.msg).startswith(each)), None)
        if kind is None:
            return True
        self._counts[kind] += 1
        now_s = self._now_s()
        if now_s < self._quiet_until_s.get(kind, now_s):
            return False
        self._quiet_until_s[kind] = now_s + _QUIET_S
        record.msg, record.args = _COUNTED[kind], (self._counts.pop(kind),)
        record.exc_info = None
        return True

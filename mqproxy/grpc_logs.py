"""What gRPC itself writes to the proxy's log: calls of strangers must not fill it.

gRPC's core writes a line about each header that it cannot read, and its Python part the whole value of each text that
is not UTF-8, with a traceback. Both come before any signature is looked at, and HTTP/2 compresses repeated headers: a
call of some bytes writes kilobytes.
"""

import logging
import os
from collections.abc import Callable, MutableMapping
from time import monotonic
from typing import Final

# The environment of gRPC's core, which reads it at its first import; whoever sets it wants its log.
_VERBOSITY: Final = "GRPC_VERBOSITY"
_LOGGER: Final = "grpc._cython.cygrpc"
_NOT_TEXT: Final = "Invalid encoding on"
_QUIET_S: Final = 60.0


def quieten(environment: MutableMapping[str, str] = os.environ) -> None:
    """Call it once, before gRPC is imported."""
    environment.setdefault(_VERBOSITY, "NONE")
    logging.getLogger(_LOGGER).addFilter(CountedTexts())


class CountedTexts:
    """A filter of a logger: one line a minute passes about texts that are not UTF-8, with their number instead."""

    def __init__(self, now_s: Callable[[], float] = monotonic) -> None:
        self._now_s = now_s
        self._count = 0
        self._quiet_until_s = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written."""
        if not str(record.msg).startswith(_NOT_TEXT):
            return True
        self._count += 1
        now_s = self._now_s()
        if now_s < self._quiet_until_s:
            return False
        self._quiet_until_s = now_s + _QUIET_S
        record.msg, record.args = "calls had %d texts that are not UTF-8", (self._count,)
        record.exc_info = None
        self._count = 0
        return True

"""The audit of refusals: one line for each, with who, from where, what and why, but a limited number a second.

A client that is refused may try thousands of times a second, and the log must not be what fills the disk. Lines that
are left out are counted, and the count is in the next line that is written.
"""

import logging

from mqcommon.clock import Clock
from remoting.protocol.command import Command, ext_text
from remoting.protocol.signature import ACCESS_KEY_FIELD

logger = logging.getLogger(__name__)

MAX_LINES_A_SECOND = 20
_SECOND_MS = 1_000
_MAX_NAME = 255


class Audit:
    """Counts refusals, and writes them to the log of this module."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._second = 0
        self._lines = 0
        self._left_out = 0
        #: All refusals since the start.
        self.refusals = 0

    def refused(self, remote: str, request: Command, why: str | None) -> None:
        """``request`` of the client at ``remote`` is refused."""
        self.refusals += 1
        second = self._clock.now_ms() // _SECOND_MS
        if second != self._second:
            self._second, self._lines = second, 0
        self._lines += 1
        if self._lines > MAX_LINES_A_SECOND:
            self._left_out += 1
            return
        name = ext_text((request.ext or {}).get(ACCESS_KEY_FIELD) or "")[:_MAX_NAME]
        more = f" ({self._left_out} more refusals were not logged)" if self._left_out else ""
        self._left_out = 0
        logger.warning("refused request %d of user %r at %s: %s%s", request.code, name, remote, why, more)

"""The audit of refusals: a line with who, from where, what and why.

A refused client may try thousands of times a second, and the log must not fill the disk: the same refusal is logged
once a minute, with a count, and the lines of each second are limited.
"""

import logging

from skylark.mqcommon.addresses import split_address
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.command import Command, ext_text
from skylark.remoting.protocol.signature import ACCESS_KEY_FIELD

logger = logging.getLogger(__name__)

MAX_LINES_A_SECOND = 20
#: Different refusals that are remembered.
MAX_REMEMBERED = 1_024
MINUTE_MS = 60_000

_SECOND_MS = 1_000
_MAX_NAME = 255
_MAX_WHY = 1_024


@lazy_dataclass(slots=True)
class _Logged:
    """A refusal that has its line for this minute."""

    until_ms: int
    #: How often the refusal was repeated.
    times: int = 0


class Audit:
    """Writes refusals to the log of this module."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logged: dict[tuple[int, str, str, str], _Logged] = {}
        self._second = 0
        self._lines = 0
        self._left_out = 0
        #: All refusals since the start.
        self.refusals = 0

    def refused(self, remote: str, request: Command, why: str | None) -> None:
        """Log that ``request`` of the client at ``remote`` is refused, and ``why``; equal lines once a minute."""
        self.refusals += 1
        # Not the wall clock: if it were set back, no refusal would be logged until it had caught up.
        now_ms = self._clock.monotonic_ms()
        name = ext_text((request.ext or {}).get(ACCESS_KEY_FIELD) or "")[:_MAX_NAME]
        key = request.code, name, split_address(remote)[0], (why or "")[:_MAX_WHY]
        # First the same refusal within its minute, which is only counted, then the limit for all lines of a second.
        logged = self._logged.get(key)
        if logged is not None and now_ms < logged.until_ms:
            logged.times += 1
        elif self._may_write(now_ms):
            self._remember(key, now_ms + MINUTE_MS)
            again = f" ({logged.times} times more since the last such line)" if logged and logged.times else ""
            others = f" ({self._left_out} other refusals were not logged)" if self._left_out else ""
            self._left_out = 0
            # Reasons contain names that the client chose: these must not be able to forge lines of this log.
            reason = key[-1] if key[-1].isprintable() else key[-1].encode("unicode_escape").decode()
            logger.warning(
                "refused request %d of user %r at %s: %s%s%s", request.code, name, remote, reason, again, others
            )
        else:
            self._left_out += 1

    def _may_write(self, now_ms: int) -> bool:
        second = now_ms // _SECOND_MS
        if second != self._second:
            self._second, self._lines = second, 0
        self._lines += 1
        return self._lines <= MAX_LINES_A_SECOND

    def _remember(self, key: tuple[int, str, str, str], until_ms: int) -> None:
        self._logged.pop(key, None)
        if len(self._logged) >= MAX_REMEMBERED:
            del self._logged[next(iter(self._logged))]
        self._logged[key] = _Logged(until_ms)

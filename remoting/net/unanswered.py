"""Oneway requests that failed or were refused: nobody gets the answer, so the log says it."""

import logging
from collections import Counter

from skylark.remoting.protocol.command import Command

logger = logging.getLogger(__name__)

# Anybody can send such requests: one line in this time for each request code, and a bound on the remembered codes.
LOG_INTERVAL_S = 60.0
MAX_CODES = 100


class Unanswered:
    """The log lines of one server or client about failed oneway requests."""

    def __init__(self) -> None:
        self._quiet_until: dict[int, float] = {}
        self._not_logged: Counter[int] = Counter()

    def log(self, remote: str, request: Command, response: Command, now: float) -> None:
        """Log ``response``, the unsent answer to the oneway ``request`` of ``remote``; ``now`` is trio's time."""
        code = request.code
        if now < self._quiet_until.get(code, now):
            self._not_logged[code] += 1
            return
        if len(self._quiet_until) >= MAX_CODES:
            self._quiet_until.clear()
            self._not_logged.clear()
        self._quiet_until[code] = now + LOG_INTERVAL_S
        others = self._not_logged.pop(code, 0)
        more = f"; {others} more since the last such line" if others else ""
        logger.warning("oneway request %d of %s: [%d] %s%s", code, remote, response.code, response.remark, more)

"""`SlowHandlers`: tells users about calls of handlers that do not end."""

import logging
from collections.abc import Iterable
from math import inf

from skylark.mqcommon.message.message import MessageExt
from skylark.sdk.consumer.damaged import described
from skylark.sdk.consumer.settings import PushSettings

logger = logging.getLogger(__name__)

# A call is slow after half of its timeout, as a program that raises the timeout has slow handlers by design, but not
# before this time: with a short timeout the line about the timeout is enough.
SLOW_S = 60.0
# A consumer logs slow calls at most this often.
LOG_S = 600.0


class SlowHandlers:
    """The log lines about the slow calls of one consumer's handler."""

    def __init__(self, settings: PushSettings) -> None:
        self._timeout_s = settings.consume_timeout_ms / 1000
        self._slow_s = max(SLOW_S, self._timeout_s / 2)
        self._name = name_of(settings.handler or settings.batch_handler)
        # The slow calls at the last check, by handler task or queue and by when they began.
        self._known: set[tuple[object, float]] = set()
        self._quiet_until = -inf

    def check(self, calls: Iterable[tuple[object, float, MessageExt]], now: float) -> None:
        """Log the running ``calls`` that have become slow: whose they are, when they began, the first message."""
        slow = {(key, began): message for key, began, message in calls if now - began >= self._slow_s}
        new = [call for call in slow if call not in self._known]
        self._known = set(slow)
        if not new or now < self._quiet_until:
            return
        self._quiet_until = now + LOG_S
        first, others = slow[new[0]], len(new) - 1
        logger.warning(
            "the handler %s still works on message %s%s after %.0f s; after %g s (consume_timeout_ms) the call "
            "counts as failed",
            self._name,
            described(first),
            f" and {others} more" if others else "",
            now - new[0][1],
            self._timeout_s,
        )


def name_of(handler: object) -> str:
    """The name of a handler in its program, without what the SDK wraps around the handler."""
    plain = getattr(handler, "plain", handler)
    if plain is not handler:
        return name_of(plain)
    return str(getattr(plain, "__qualname__", None) or type(plain).__name__)

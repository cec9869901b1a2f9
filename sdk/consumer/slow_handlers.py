"""`SlowHandlers`: tells users about handlers that do not end, and handlers that block their event loop."""

import logging
from collections.abc import Sequence

from skylark.mqcommon.message.message import MessageExt
from skylark.sdk.consumer.settings import PushSettings

logger = logging.getLogger(__name__)

# Handlers are checked at least this often.
WATCH_S = 1.0
# A handler is logged once it has worked on a message for this long, or for half of its timeout if that is shorter.
SLOW_S = 60.0
# An event loop that runs nothing for this long is logged: heartbeats and commits of the loop are late, too.
BLOCKED_S = 5.0


class SlowHandlers:
    """The log lines about the slow handlers of one consumer."""

    def __init__(self, settings: PushSettings, to_thread: str) -> None:
        """``to_thread``: the function with which handlers call what blocks."""
        self._timeout_s = settings.consume_timeout_ms / 1000
        self._name = name_of(settings.handler or settings.batch_handler)
        self._to_thread = to_thread
        self._is_blocked = False
        #: How long a handler works on its messages before it is `slow` (s).
        self.slow_s = min(SLOW_S, self._timeout_s / 2)

    def slow(self, messages: Sequence[MessageExt]) -> None:
        """Log handlers that have just worked for ``slow_s``, by the first of each one's messages."""
        if not messages:
            return
        first, others = messages[0], len(messages) - 1
        logger.warning(
            "the handler %s still works on message %s of %s%s after %g s; after %g s (consume_timeout_ms) it has "
            "failed, and the message is delivered again",
            self._name,
            first.msg_id,
            first.queue,
            f" and {others} more" if others else "",
            self.slow_s,
            self._timeout_s,
        )

    def blocked(self, blocked_s: float) -> None:
        """Log an event loop that has run nothing for ``blocked_s``, once for each time that it is blocked."""
        was_blocked, self._is_blocked = self._is_blocked, blocked_s >= BLOCKED_S
        if self._is_blocked and not was_blocked:
            logger.warning(
                "the event loop of the handler %s ran nothing for %.0f s: the handler, or other code in that loop, "
                "blocks it. Call what blocks by %s, or use the PushConsumer of skylark.blocking",
                self._name,
                blocked_s,
                self._to_thread,
            )


def name_of(handler: object) -> str:
    """The name of a handler in its program."""
    plain = getattr(handler, "plain", handler)
    return str(getattr(plain, "__qualname__", None) or type(plain).__name__)

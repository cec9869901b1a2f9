"""What becomes of messages that a handler did not consume: the broker delivers them again, or this process tries again.

A message leaves its window only when a broker has it, or when it was consumed after all. So none is lost, whatever
fails; and none is tried forever, since the broker counts its deliveries and makes a dead letter of it in the end.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from trio.lowlevel import enable_ki_protection

from mqcommon.message.message import MessageExt
from sdk.consumer.popped import ReceivedMessage
from sdk.consumer.ready import Ready, Takable
from sdk.consumer.returns import Returns
from sdk.consumer.settings import Settings
from sdk.consumer.window import Again

logger = logging.getLogger(__name__)

# Called with a message that was popped: its batch, its number there, the message, the delay level or 0.
GiveBack = Callable[[Takable, int, ReceivedMessage, int], Awaitable[None]]

# The pause before a message that could not be sent back is handled again; RocketMQ's.
KEPT_S = 5.0
# Broadcasting cannot send back, since every member would get the message again: it tries again itself, after pauses
# that double.
FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 600.0


@dataclass(slots=True)
class Counters:
    """How many messages were pulled, consumed, and failed; a message that failed twice counts twice."""

    pulled: int = 0
    consumed: int = 0
    failed: int = 0


class Failures:
    """The policy of one consumer. ``give_back`` cares for messages that were popped."""

    def __init__(
        self, settings: Settings, ready: Ready, returns: Returns, counters: Counters, give_back: GiveBack
    ) -> None:
        self._settings = settings
        self._ready = ready
        self._returns = returns
        self._counters = counters
        self._give_back = give_back

    @enable_ki_protection
    async def later(self, batch: Takable, start: int, end: int, delay_level: int = 0) -> None:
        """The messages from number ``start`` up to, not including, ``end`` must be delivered again."""
        messages = batch.messages[start:end]
        self._counters.failed += len(messages)
        for number, message in enumerate(messages, start):
            if isinstance(message, ReceivedMessage):
                await self._give_back(batch, number, message, delay_level)
                continue
            if batch.window.is_closed:
                return
            if self._settings.broadcast:
                self._try_again(batch, number, message)
            elif await self._returns.send_back(batch.window.mq, message, delay_level):
                batch.finish(number, number + 1)
            else:
                message.count_failure()
                self._ready.put_later(Again(batch, number), KEPT_S)

    def _try_again(self, batch: Takable, number: int, message: MessageExt) -> None:
        times = message.reconsume_times
        if times >= self._settings.max_reconsume_times:
            logger.error("giving up %s after %d failures: broadcasting has no dead letters", message, times + 1)
            batch.finish(number, number + 1)
        else:
            message.count_failure()
            self._ready.put_later(Again(batch, number), min(FIRST_PAUSE_S * 2.0**times, LONGEST_PAUSE_S))

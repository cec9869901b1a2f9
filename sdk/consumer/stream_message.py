"""`StreamMessage`: a message of ``async for message in consumer``, which the caller must acknowledge in time.

The limit is ``consume_timeout_ms``, from when the caller gets the message: a stream in another thread or loop takes
many messages at a time, and the time of messages that wait there has not begun.
"""

import logging
from collections import deque
from collections.abc import Callable
from math import inf
from time import perf_counter

import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.arguments import check_int, check_text
from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.names import DELAY_LEVELS
from skylark.sdk.consumer.damaged import described
from skylark.sdk.consumer.failures import Counters, Failures
from skylark.sdk.consumer.process_queue import Takable
from skylark.sdk.consumer.retry_policy import Failure
from skylark.sdk.consumer.settings import PushSettings

logger = logging.getLogger(__name__)

# Messages are checked for their timeout this often in each timeout.
CHECKS_PER_TIMEOUT = 20
# How many messages are checked before other tasks run.
_CHECKED_AT_ONCE = 2_000
# How many messages are sent back at a time.
_RETURNED_AT_ONCE = 32
# The time that the caller has a message is measured for one of this many messages: reading a clock is not free.
_TIMED_EVERY = 16


class HandedOut:
    """The messages taken from one consumer that are neither acknowledged nor refused."""

    def __init__(self, settings: PushSettings, failures: Failures, counters: Counters) -> None:
        self._settings = settings
        self.failures = failures
        self.counters = counters
        self.messages: dict[StreamMessage, None] = {}
        # The time of the last check. Messages that are given before the next check count as given at this time.
        self.now = inf

    @enable_ki_protection
    async def watch(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send back messages that their caller has had for longer than the timeout."""
        timeout_s = self._settings.consume_timeout_ms / 1000
        interval_s = timeout_s / CHECKS_PER_TIMEOUT
        async with trio.open_nursery() as nursery:
            self.now = trio.current_time()
            task_status.started()
            while True:
                await trio.sleep(interval_s)
                now = trio.current_time()
                # A message counts as given at the last check, but may have been given up to one interval later.
                expired = await self._expired(now - timeout_s - interval_s)
                self.now = now
                if expired:
                    self._log(expired)
                for _ in range(min(_RETURNED_AT_ONCE, len(expired))):
                    nursery.start_soon(self._return, expired)

    async def _expired(self, given_before: float) -> "deque[StreamMessage]":
        """The messages that were given before that time, each of them once. Forgets messages that other members get."""
        expired: deque[StreamMessage] = deque()
        for number, message in enumerate(list(self.messages), 1):
            if number % _CHECKED_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            if message.is_left:
                self.messages.pop(message, None)
                message.leave()
            elif message.given_at <= given_before and message in self.messages:
                # So the next check does not return the message again before the broker has answered.
                message.given_at = inf
                expired.append(message)
        return expired

    def _log(self, expired: "deque[StreamMessage]") -> None:
        others = f" and {len(expired) - 1} more" if len(expired) > 1 else ""
        logger.error(
            "message %s%s: neither acknowledged nor refused within %d ms, delivered again later",
            described(expired[0]),
            others,
            self._settings.consume_timeout_ms,
        )

    @enable_ki_protection
    async def _return(self, expired: "deque[StreamMessage]") -> None:
        while expired:
            await expired.popleft().nack(reason="neither acknowledged nor refused in time")


class StreamMessage(MessageExt):
    """A message that its consumer holds until `ack`, `nack` or the timeout. Only the first of these has an effect."""

    __slots__ = ("_batch", "_given_s", "_handed_out", "_is_settled", "_number", "given_at", "settled")

    def __init__(self, batch: Takable, number: int, handed_out: HandedOut) -> None:
        message = batch.messages[number]
        super().__init__(message._data, message._at, message.broker_name)
        self._record = message._record
        if batch.has_packed and message.has_content:
            self._content = message._content
            message.drop_content()
        self._batch = batch
        self._number = number
        self._handed_out = handed_out
        self._is_settled = False
        handed_out.messages[self] = None
        self._given_s = 0.0
        # When the caller got the message, or up to one check interval before; inf: not yet.
        self.given_at = inf
        # Called, for the trace, with whether the message was consumed.
        self.settled: Callable[[bool], None] | None = None

    def give(self) -> None:
        """Let the timeout of the message begin: the caller gets it now. May be called in any thread."""
        self.given_at = self._handed_out.now
        if self._number % _TIMED_EVERY == 0:
            self._given_s = perf_counter()

    @property
    def is_ours(self) -> bool:
        """Whether this member still owns the message's queue. If not, another member gets the message, too."""
        return not self._batch.window.is_closed

    @property
    def is_left(self) -> bool:
        """Whether another member gets the message, and acknowledges it."""
        # A popped message is hidden from other members as long as its caller has it.
        return not self.is_ours and (self.given_at == inf or not self._batch.is_leased)

    def leave(self) -> None:
        """Leave the message to other members."""
        self._batch.leave(self._number, self._number + 1)

    async def ack(self) -> None:
        """Acknowledge the message as consumed."""
        self.note_consumed()

    def note_consumed(self) -> None:
        """What `ack` does, for other threads and loops: it does not wait."""
        if not self._is_settled:
            self._is_settled = True
            handed_out, batch = self._handed_out, self._batch
            handed_out.messages.pop(self, None)
            batch.finish(self._number, self._number + 1)
            handed_out.counters.consumed += 1
            batch.window.totals.consumed += 1
            if self._given_s:
                batch.window.totals.add_calls(1, 0, self._given_s, perf_counter())
            if self.settled is not None:
                self.settled(True)

    async def nack(self, delay_level: int = 0, reason: str = "") -> None:
        """Deliver the message again: after the delay of this level, or by the number of failures so far (0).

        ``reason`` is kept with the message, in case that it becomes a dead letter.
        """
        check_int("delay_level", delay_level, 0, DELAY_LEVELS)
        check_text("reason", reason)
        if not self._is_settled:
            self._is_settled = True
            handed_out = self._handed_out
            handed_out.messages.pop(self, None)
            failure = Failure(reason or "it was refused", delay_level)
            try:
                await handed_out.failures.failed(self._batch, self._number, self._number + 1, failure)
            except BaseException:
                # Cancelled: whether a broker has taken the message is unknown. The message is open again, so that
                # another call or the timeout delivers it again: otherwise its offset, and all later offsets, would
                # never be committed.
                self._is_settled = False
                handed_out.messages[self] = None
                raise
            if self.settled is not None:
                self.settled(False)

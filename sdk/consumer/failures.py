"""Messages that a handler did not consume: the broker delivers them again, or this process calls the handler again.

A message leaves its window only when a broker has stored it again, or when it was consumed after all. So no message is
lost, whatever fails; and none is tried forever, since the broker counts a message's deliveries and makes a dead letter
of it in the end. `HandlerErrors` tells users why messages were not consumed. `Returns` sends messages back.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from traceback import walk_tb

from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.failure import FailureNote
from skylark.mqcommon.message.flags import COMPRESSED, COMPRESSION_MASK
from skylark.mqcommon.message.message import MAX_PROPERTIES_BYTES, MessageExt
from skylark.mqcommon.message.properties import DELAY, RETRY_TOPIC, encode_properties
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import DELAY_LEVELS, dlq_topic
from skylark.remoting.net.call import call
from skylark.remoting.protocol.logical_queues import LOGICAL_PREFIX
from skylark.remoting.protocol.requests.sends import SEND_MESSAGE_V2, SendMessageRequestHeader
from skylark.sdk import broker_api
from skylark.sdk.client import ClientHandle
from skylark.sdk.consumer.damaged import described, is_damaged
from skylark.sdk.consumer.popped import ReceivedMessage
from skylark.sdk.consumer.problems import Problems
from skylark.sdk.consumer.process_queue import Ready, Takable
from skylark.sdk.consumer.replicas import Replicas
from skylark.sdk.consumer.retry_policy import Failure, Fate, Pause
from skylark.sdk.consumer.settings import PushSettings
from skylark.sdk.consumer.window import Again
from skylark.sdk.producer.wire import AUTO_CREATE_TOPIC_QUEUES, DEFAULT_TOPIC

logger = logging.getLogger(__name__)


#: The delay level that makes a message a dead letter at once.
DEAD = -1
# RocketMQ's first retry is after the delay of level 3 (10 s).
FIRST_RETRY_LEVEL = 3
# The group under which RocketMQ's consumers send.
INNER_PRODUCER = "CLIENT_INNER_PRODUCER"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"


class Returns:
    """Sends messages of one group back to brokers, for a later delivery."""

    def __init__(
        self, client: ClientHandle, replicas: Replicas, settings: PushSettings, problems: Problems, clock: Clock
    ) -> None:
        self._report = problems.reporter("sending messages back to their brokers")
        self._client = client
        self._replicas = replicas
        self.group = settings.group
        self._retry_topic = settings.retry_topic
        self.max_reconsume_times = settings.max_reconsume_times
        self._clock = clock

    async def send_back(self, mq: MessageQueue, message: MessageExt, delay_level: int, reason: str) -> bool:
        """Whether a broker has taken the message, which was read from ``mq``, for a later delivery.

        ``reason`` is kept with the message, so that a dead letter says why it failed.
        """
        note = FailureNote(reason, self._client.instance.client_id, self._clock.now_ms())
        # Request 36 names a message by its place in the log. All messages of an inner batch have one place, and a
        # message of a logical queue may be in the log of a broker that no longer leads the queue: both are sent to the
        # retry topic as new messages.
        is_placed = not message.is_inner and not mq.broker_name.startswith(LOGICAL_PREFIX)
        if is_placed and await self._ask_back(mq, message, delay_level, note):
            self._report(None)
            return True
        try:
            await self._resend(message, delay_level, note)
        except SkylarkError as error:
            logger.warning("%s cannot be sent to the retry topic, keeping it: %s", message.msg_id, error)
            self._report(error)
            return False
        self._report(None)
        return True

    async def _ask_back(self, mq: MessageQueue, message: MessageExt, delay_level: int, note: FailureNote) -> bool:
        """Whether the broker that stores the message has taken it back."""
        try:
            await self._replicas.ask_master(
                mq,
                lambda at: broker_api.send_back(
                    at,
                    self.group,
                    message.physical_offset,
                    message.msg_id,
                    self._topic_of(message),
                    delay_level,
                    self.max_reconsume_times,
                    note,
                ),
            )
        except SkylarkError as error:
            logger.warning("%s cannot be sent back, sending it to the retry topic: %s", message.msg_id, error)
            return False
        return True

    def _topic_of(self, message: MessageExt) -> str:
        return self._client.names.topic(message.topic)

    async def _resend(self, message: MessageExt, delay_level: int, note: FailureNote) -> None:
        """Send the message to the retry topic. After too many failures the broker makes the message a dead letter."""
        times = message.reconsume_times
        most = 0 if delay_level < 0 else self.max_reconsume_times
        level = delay_level if delay_level > 0 else min(FIRST_RETRY_LEVEL + times, DELAY_LEVELS)
        properties = dict(message.properties)
        properties.setdefault(ORIGIN_MESSAGE_ID, message.msg_id)
        properties[RETRY_TOPIC] = self._topic_of(message)
        properties[DELAY] = str(level)
        noted = encode_properties(properties | note.properties())
        # The failure note is left out when the message's properties leave no room for it.
        encoded = noted if len(noted.encode()) <= MAX_PROPERTIES_BYTES else encode_properties(properties)
        # The body is sent as it is stored: a compressed or damaged body stays compressed or damaged.
        body, sys_flag = message.record.body, message.sys_flag & (COMPRESSED | COMPRESSION_MASK)
        header = SendMessageRequestHeader(
            INNER_PRODUCER,
            self._retry_topic,
            DEFAULT_TOPIC,
            AUTO_CREATE_TOPIC_QUEUES,
            0,
            sys_flag,
            self._clock.now_ms(),
            message.flag,
            encoded,
            times + 1,
            False,
            most,
        )
        route = await self._client.instance.refresh(self._retry_topic)
        error: SkylarkError | None = None
        for queue in route.writable:
            try:
                await self._replicas.ask_master(queue, lambda at: call(at, SEND_MESSAGE_V2, header, body))
            except SkylarkError as found:
                error = found
            else:
                return
        raise error or SkylarkError(f"topic {self._retry_topic} has no queue that can be written")


# Called with a popped message that failed: its batch, its number there, the message, the pause until it is delivered
# again (None: never, it becomes a dead letter), and the reason.
GiveBack = Callable[[Takable, int, ReceivedMessage, Pause | None, str], Awaitable[None]]

# The pause before a message that could not be sent back is handled again; RocketMQ's.
KEPT_S = 5.0
# A broadcasting consumer cannot send a message back, since every member would get it again: the consumer calls its
# handler again, after pauses that double.
FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 600.0
# How many kinds of errors are remembered as logged with a traceback; the oldest are forgotten.
MAX_KINDS = 100


@lazy_dataclass(slots=True)
class Counters:
    """How many messages were pulled, consumed, failed, and dropped; a message that failed twice counts twice."""

    pulled: int = 0
    consumed: int = 0
    failed: int = 0
    dropped: int = 0


class HandlerErrors:
    """Logs the handler's errors, with one traceback per kind, and reports them as a problem of the consumer.

    ``is_failing``: the last call that ended has failed.
    """

    def __init__(self, problems: Problems) -> None:
        self._report = problems.reporter("the handler")
        # (error class, place where it was raised) of errors whose traceback was logged.
        self._logged: dict[tuple[type[BaseException], object], None] = {}
        self.is_failing = False

    def raised(self, messages: Sequence[MessageExt], error: BaseException, what_next: str) -> None:
        """Log that the handler has raised ``error`` for these messages. ``what_next``: what happens to them."""
        first, others = messages[0], len(messages) - 1
        kind, is_new = (type(error), _place(error)), False
        if kind not in self._logged:
            is_new = True
            self._logged[kind] = None
            if len(self._logged) > MAX_KINDS:
                del self._logged[next(iter(self._logged))]
        logger.error(
            "the handler failed with message %s%s; %s%s",
            described(first),
            f" and {others} more" if others else "",
            what_next,
            "" if is_new else f" ({type(error).__name__}: {error}; the first such error was logged with its traceback)",
            exc_info=error if is_new else None,
        )
        self._fails(error)

    def took_too_long(self, message: MessageExt, timeout_ms: float, what_next: str) -> Failure:
        """Log that the handler has worked on ``message`` for longer than it may; returns that as a failure."""
        text = f"the handler has worked on message {described(message)} for more than {timeout_ms} ms"
        logger.error("%s: %s", text, what_next)
        self._fails(TimeoutError(text))
        return Failure(f"the handler has worked for more than {timeout_ms} ms")

    def succeeded(self) -> None:
        """End the problem of a failing handler, which has consumed messages again."""
        self.is_failing = False
        self._report(None)

    def _fails(self, error: BaseException) -> None:
        self.is_failing = True
        self._report(error if isinstance(error, Exception) else RuntimeError(f"the handler raised {error!r}"))


def _place(error: BaseException) -> object:
    """Where an error was raised: the code and line of the innermost frame."""
    place: object = None
    for frame, line in walk_tb(error.__traceback__):
        place = frame.f_code, line
    return place


class Failures:
    """Carries out the retry policy of one consumer. ``give_back`` handles popped messages."""

    def __init__(
        self, settings: PushSettings, ready: Ready, returns: Returns, counters: Counters, give_back: GiveBack
    ) -> None:
        self._settings = settings
        self._policy = settings.retry
        self._ready = ready
        self._returns = returns
        self._counters = counters
        self._give_back = give_back

    def readable(self, batch: Takable, start: int, end: int) -> dict[int, MessageExt]:
        """The messages with these numbers that a handler can read, by number.

        The others arrived damaged: they are dropped, logged and settled, so that their queue goes on.
        """
        found = dict(enumerate(batch.messages[start:end], start))
        for number, message in list(found.items()):
            if batch.done[number] or is_damaged(message, batch.window.mq):
                del found[number]
                if not batch.done[number] and not batch.window.is_closed:
                    self._counters.dropped += 1
                    batch.finish(number, number + 1)
                    batch.done[number] = 1
        return found

    def what_next(self, message: MessageExt, error: BaseException | None) -> str:
        """For the log: what happens to ``message``, on which the handler has raised ``error``, or has not ended."""
        settings, fate = self._settings, self._policy.fate(error)
        if fate is Fate.DEAD_LETTER and settings.broadcast:
            fate = Fate.DROP
        if fate is Fate.RETRY and message.reconsume_times >= settings.max_reconsume_times:
            return after_last_try(settings, message)
        return fate.value if fate is not Fate.RETRY else f"{fate.value}, {self._tries_left(message)}"

    def _tries_left(self, message: MessageExt) -> str:
        """For the log: how often a message that has failed is delivered before it is given up."""
        left = self._settings.max_reconsume_times - message.reconsume_times
        times = "once more" if left == 1 else f"up to {left} times"
        then = "it is dropped" if self._settings.broadcast else f"it goes to {dlq_topic(self._settings.group)}"
        return f"{times}; then {then}"

    @enable_ki_protection
    async def failed(self, batch: Takable, start: int, end: int, failure: Failure) -> None:
        """Do what the policy says with the messages from ``start`` up to, not including, ``end`` (their numbers).

        The handler has not consumed them: they are dropped, or given back for a retry or as dead letters.
        """
        messages, fate = self.readable(batch, start, end), self._policy.fate(failure.error)
        if fate is Fate.DROP:
            for number, message in messages.items():
                if isinstance(message, ReceivedMessage) or not batch.window.is_closed:
                    self._drop(batch, number, message, failure.reason)
            return
        self._counters.failed += len(messages)
        batch.window.totals.failed += len(messages)
        for number, message in messages.items():
            pause = None
            if fate is Fate.RETRY:
                pause = self._policy.pause(message.reconsume_times, failure.delay_level)
            # A popped message is given back to its broker; a broadcast message is tried again here; any other message
            # is sent back.
            if isinstance(message, ReceivedMessage):
                await self._give_back(batch, number, message, pause, failure.reason)
                continue
            if batch.window.is_closed:
                return
            if self._settings.broadcast:
                self._try_again(batch, number, message, pause, failure.reason)
            elif await self._returns.send_back(
                batch.window.mq, message, DEAD if pause is None else pause.level, failure.reason
            ):
                batch.finish(number, number + 1)
            else:
                message.count_failure()
                self._ready.put_later(Again(batch, number), KEPT_S)

    def _drop(self, batch: Takable, number: int, message: MessageExt, reason: str) -> None:
        count_drop(self._counters, message, reason)
        batch.finish(number, number + 1)

    def _try_again(self, batch: Takable, number: int, message: MessageExt, pause: Pause | None, reason: str) -> None:
        times = message.reconsume_times
        if pause is None or times >= self._settings.max_reconsume_times:
            self._drop(batch, number, message, f"{reason}; {times + 1} failures, and broadcasting has no dead letters")
            return
        pause_s = min(FIRST_PAUSE_S * 2.0**times, LONGEST_PAUSE_S) if pause.ms is None else pause.ms / 1000
        message.count_failure()
        self._ready.put_later(Again(batch, number), pause_s)


def after_last_try(settings: PushSettings, message: MessageExt) -> str:
    """For the log: what happens to a message that has failed as often as the settings allow."""
    fate = Fate.DROP.value if settings.broadcast else f"the message goes to {dlq_topic(settings.group)}"
    return f"{fate}, after {message.reconsume_times + 1} failures"


def count_drop(counters: Counters, message: MessageExt, reason: str) -> None:
    """Log and count a message that will not be delivered again, so that no message is lost silently."""
    counters.dropped += 1
    logger.error("dropped message %s: %s", described(message), reason)

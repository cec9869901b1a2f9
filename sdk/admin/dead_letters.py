"""Reads the dead letters of a group, and sends them to the group again.

A message is sent to the group's retry topic, so that no other group gets it, or to its original topic. Consumers that
pop do not read the retry topic: messages that they give back come again in topics of the broker's own. So a popped
message goes to the retry topic only while a connected member reads this topic.
A dead letter stays in its topic, and brokers remember that it was sent again, so that no resend repeats it unasked. The
position of a resend without a choice is an offset of TOOLS_CONSUMER in the dead-letter topic, a group that every broker
has; chosen letters have marks (resent_marks.py). Offset and mark are stored after each message was sent: a resend that
is killed in between sends this one message again, and leaves none out.
Neighbours: dead_letter_files.py writes dead letters to files.
"""

import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import field
from math import inf
from typing import NamedTuple

import trio

from skylark.mqcommon.arguments import check_int, wrong_type
from skylark.mqcommon.errors import BrokerError, InvalidArgument, RemotingError, RouteNotFound, UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.failure import FailureNote
from skylark.mqcommon.message.flags import COMPRESSED, COMPRESSION_MASK
from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.message.properties import (
    CLUSTER,
    DELAY,
    FAIL_CLIENT,
    FAIL_REASON,
    FAIL_TIME,
    FIRST_POP_TIME,
    POP_HANDLE,
    REAL_QID,
    REAL_TOPIC,
    RESENT_TIMES,
    RETRY_TOPIC,
)
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import DLQ_PREFIX, TOOLS_GROUP, dlq_topic, retry_topic
from skylark.sdk import broker_api
from skylark.sdk.admin.resent_marks import ResentMarks
from skylark.sdk.admin.tool_send import send_as_tool
from skylark.sdk.client import ClientHandle, sharing
from skylark.sdk.endpoint import Endpoint
from skylark.sdk.retry import until_answered
from skylark.sdk.routes import TopicRoute

#: How many messages a second are sent unless the caller says otherwise.
RATE = 100.0
# A part is in memory as a whole.
PART_COUNT = 256
PART_BYTES = 1024 * 1024
# Any client may write the property: its value is checked.
_COUNT = re.compile(r"[0-9]{1,9}")
ORIGIN_ID, DLQ_TOPIC, DLQ_ID = "ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"
# Properties that the message got by being delivered and by dying.
_OF_ITS_DEATH = (
    DELAY, REAL_TOPIC, REAL_QID, CLUSTER, DLQ_TOPIC, DLQ_ID, FAIL_REASON, FAIL_CLIENT, FAIL_TIME, FIRST_POP_TIME,
    POP_HANDLE,
)  # fmt: skip
#: The advice for a group that does not read its retry topic.
USE_TOPIC = (
    "Send to the topics that the messages came from (to_topic, --all-groups); then all groups that read them get the "
    "messages"
)


@lazy_dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that ``group`` has given up. The client, time and reason of the last failure are empty if unknown.

    ``resends``: how many times this dead letter was sent again, as its broker remembers; RocketMQ's brokers cannot.
    """

    group: str
    message: MessageExt
    resends: int = 0

    @property
    def topic(self) -> str:
        """The topic that the message was sent to."""
        properties = self.message.properties
        return properties.get(DLQ_TOPIC) or properties.get(RETRY_TOPIC, "")

    @property
    def failure(self) -> FailureNote:
        """The last failure: why, at which client of the group, and when by the client's clock."""
        return FailureNote.of(self.message.properties) or FailureNote("", "", 0)

    @property
    def deliveries(self) -> int:
        """How many times the message was delivered to the group."""
        return self.message.reconsume_times

    @property
    def resent_times(self) -> int:
        """How many times the message was sent again, before it died last and since then."""
        text = self.message.properties.get(RESENT_TIMES, "")
        return (int(text) if _COUNT.fullmatch(text) else 0) + self.resends

    @property
    def ids(self) -> tuple[str, ...]:
        """All ids by which people may know the message."""
        message, properties = self.message, self.message.properties
        return message.msg_id, message.offset_msg_id, properties.get(ORIGIN_ID, ""), properties.get(DLQ_ID, "")


Matches = Callable[[DeadLetter], object]


@lazy_dataclass(frozen=True, slots=True)
class DeadLetterChoice:
    """A choice of dead letters: with an id in ``ids``, dead from ``from_ms`` until before ``to_ms``, and matching."""

    ids: Collection[str] | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    matches: Matches | None = None

    def __post_init__(self) -> None:
        for name in ("from_ms", "to_ms"):
            if (value := getattr(self, name)) is not None:
                check_int(name, value, 0)

    @property
    def is_everything(self) -> bool:
        """Whether nothing was chosen."""
        return self.ids is None and self.from_ms is None and self.to_ms is None and self.matches is None

    def has(self, letter: DeadLetter) -> bool:
        """Whether the choice has the letter, whose time is already checked."""
        if self.ids is not None and not any(one in self.ids for one in letter.ids):
            return False
        return self.matches is None or bool(self.matches(letter))


@lazy_dataclass(slots=True)
class DeadLetterCounts:
    """Progress: how many of ``total`` dead letters were ``read``, ``chosen``, and ``done`` (sent or written).

    ``skipped``: letters that match the choice, but were sent again before, so they are not chosen. ``missing``: once
    all letters are read, the chosen ids that no letter has. ``forgetful``: names of brokers that cannot remember which
    chosen letters were sent again.
    """

    total: int = 0
    read: int = 0
    chosen: int = 0
    done: int = 0
    skipped: int = 0
    missing: list[str] = field(default_factory=list)
    forgetful: list[str] = field(default_factory=list)


class _Span(NamedTuple):
    """Dead letters of one queue: offsets from ``start`` up to, not including, ``end``.

    Letters before ``resent_to`` were all sent again, by or before the last resend without a choice.
    """

    mq: MessageQueue
    start: int
    end: int
    resent_to: int


OnProgress = Callable[[DeadLetterCounts], object]
OnLetters = Callable[[Sequence[DeadLetter]], Awaitable[None]]


class DeadLetters:
    """The dead letters of ``group``, a name that servers know, for one user of ``client``.

    ``only_new``: dead letters that were sent again before are left out. Without a choice reading then goes on where the
    last resend without a choice has stopped.
    """

    def __init__(self, client: ClientHandle, group: str, choice: DeadLetterChoice, *, only_new: bool = False) -> None:
        if group.startswith(DLQ_PREFIX):
            raise InvalidArgument(
                f"give the group, not the topic of its dead letters: {group.removeprefix(DLQ_PREFIX)}"
            )
        # This import takes a third of mqadmin's start, and most commands read no messages.
        from skylark.sdk.consumer.pull import PullConsumer

        self._client = client
        self._group = group
        self._choice = choice
        self._only_new = only_new
        self._goes_on = only_new and choice.is_everything
        self._reader = PullConsumer(
            sharing(client.instance),
            group=TOOLS_GROUP,
            timeout_ms=client.timeout_ms,
            heartbeat=False,
            start_timeout_ms=None,
        )
        self._marks = ResentMarks(client, self._reader, group, is_strict=only_new)
        #: Broker name → the creation stamp of the dead-letter topic there, if the broker knows the stamp.
        self._stamps: dict[str, int | None] = {}
        #: Whether the group has a topic of dead letters; known after `each`.
        self.has_topic = True

    async def each(
        self, on_letters: OnLetters, on_progress: OnProgress | None, *, dry_run: bool = False
    ) -> DeadLetterCounts:
        """Pass the chosen letters to ``on_letters``, part by part, the oldest of each queue first."""
        counts, left = DeadLetterCounts(), set(self._choice.ids or ())
        async with self._reader as reader:
            spans = [await self._span(mq) for mq in await self._queues()]
            counts.total = sum(span.end - span.start for span in spans)
            for span in spans:
                at = span.start
                while at < span.end:
                    result = await reader.pull(
                        span.mq, at, max_count=min(PART_COUNT, span.end - at), max_bytes=PART_BYTES
                    )
                    # A queue that stores whole batches may return messages before and after the requested offsets.
                    found = [message for message in result.messages if at <= message.queue_offset < span.end]
                    chosen = await self._chosen(span, found, counts, left)
                    await on_letters(chosen)
                    counts.done += 0 if dry_run else len(chosen)
                    if result.next_offset <= at:
                        break
                    counts.read += min(result.next_offset, span.end) - at
                    at = min(result.next_offset, span.end)
                    if self._goes_on and not dry_run:
                        await self._store_position(span.mq, at)
                    if on_progress is not None:
                        on_progress(counts)
        counts.missing = [one for one in self._choice.ids or () if one in left]
        return counts

    async def remember(self, letter: DeadLetter) -> None:
        """Have the letter's broker remember that the letter was sent again. Called only while `each` runs."""
        message = letter.message
        try:
            if self._goes_on:
                await self._commit(_queue_of(letter), message.queue_offset + 1)
            else:
                await self._marks.add(message, letter.resends + 1)
        except (BrokerError, RemotingError, RouteNotFound) as error:
            error.add_note(
                f"Dead letter {message.msg_id} was sent again, but broker {message.broker_name} could not note it: the "
                "next resend sends it once more"
            )
            raise

    async def _store_position(self, mq: MessageQueue, offset: int) -> None:
        """Store how far the resend has come in a queue, after a part whose letters were sent or left out."""
        try:
            await self._commit(mq, offset)
        except (BrokerError, RemotingError, RouteNotFound) as error:
            error.add_note(
                f"Broker {mq.broker_name} could not note how far the resend is: run it again when the broker has a "
                "master. No letter will be sent twice"
            )
            raise

    async def _commit(self, mq: MessageQueue, offset: int) -> None:
        """Store the position of a resend without a choice at the master.

        While the master is away, the reader would only keep the position in memory.
        """
        stamp = self._stamps.get(mq.broker_name)
        await _ask_master(
            self._client,
            mq,
            lambda at: broker_api.commit_offset(at, TOOLS_GROUP, mq.topic, mq.queue_id, offset, created_ms=stamp),
        )

    async def _chosen(
        self, span: _Span, found: Sequence[MessageExt], counts: DeadLetterCounts, left: set[str]
    ) -> list[DeadLetter]:
        """The chosen letters in a part of a queue; counts them, and removes their ids from ``left``."""
        # Marks are read again for each part: another tool may be resending the same dead letters.
        broker_name = span.mq.broker_name
        if not await self._marks.catch_up(broker_name) and not self._goes_on and broker_name not in counts.forgetful:
            counts.forgetful.append(broker_name)
        chosen: list[DeadLetter] = []
        for message in found:
            resends = max(self._marks.times(message), int(message.queue_offset < span.resent_to))
            letter = DeadLetter(self._group, message, resends)
            if not self._choice.has(letter):
                continue
            left.difference_update(letter.ids)
            if resends and self._only_new:
                counts.skipped += 1
            else:
                chosen.append(letter)
        counts.chosen += len(chosen)
        return chosen

    async def _queues(self) -> list[MessageQueue]:
        topic = dlq_topic(self._group)
        try:
            queues = await self._reader.message_queues(topic)
        except RouteNotFound:
            self.has_topic = False
            return []  # the group has never given up a message
        if not queues:
            text = f"topic {topic} cannot be read: mqadmin updateTopicPerm -t {topic} -p 6 lets it"
            raise UserError(text)
        return queues

    async def _span(self, mq: MessageQueue) -> _Span:
        """The offsets of the queue's messages in the chosen time."""
        reader, choice = self._reader, self._choice
        resent_to = await reader.committed_offset(mq) or 0
        start = await reader.min_offset(mq)
        if choice.from_ms is not None:
            start = max(start, await reader.search_offset(mq, choice.from_ms))
        if self._goes_on:
            start = max(start, resent_to)
        end, self._stamps[mq.broker_name] = await reader.end_position(mq)
        if choice.to_ms is not None:
            end = await reader.search_offset(mq, choice.to_ms)
        return _Span(mq, start, max(start, end), resent_to)


def _queue_of(letter: DeadLetter) -> MessageQueue:
    """The queue that has the dead letter."""
    return MessageQueue(dlq_topic(letter.group), letter.message.broker_name, letter.message.queue_id)


async def _ask_master(client: ClientHandle, mq: MessageQueue, call: Callable[[Endpoint], Awaitable[object]]) -> None:
    """Call the queue's master; without an answer, repeat the call until the client's timeout is over."""
    await until_answered(lambda: client.ask_master(mq, call), client.timeout_ms, client.instance.backoff)


class Resending:
    """Sends dead letters of ``group`` again, ``rate`` a second.

    For each letter, calls ``on_letter`` before the send, and awaits ``remember`` after it.
    """

    def __init__(
        self,
        client: ClientHandle,
        group: str,
        rate: float | None,
        on_letter: Callable[[DeadLetter], object] | None,
        remember: Callable[[DeadLetter], Awaitable[None]],
        *,
        to_topic: bool,
        dry_run: bool,
        is_read: bool = False,
    ) -> None:
        """``is_read``: whether a connected member reads the group's retry topic."""
        if rate is not None:
            if isinstance(rate, bool) or not isinstance(rate, int | float):
                raise wrong_type("rate", "a number of messages a second", rate)
            if not 0 < rate < inf:
                raise InvalidArgument(f"rate must be above 0, not {rate}; None sends as fast as it can")
        self._client = client
        self._group = group
        self._pause_s = 1 / rate if rate is not None else 0.0
        self._on_letter = on_letter
        self._remember = remember
        self._to_topic = to_topic
        self._dry_run = dry_run
        self._is_read = is_read
        self._next_at = -inf
        self._turn = 0
        self._routes: dict[str, TopicRoute] = {}

    async def resend(self, letters: Sequence[DeadLetter]) -> None:
        """Send these letters, which are all on one broker."""
        if letters and not self._dry_run:
            await self._check_master(letters[0])
        for letter in letters:
            if self._on_letter is not None:
                self._on_letter(letter)
            if self._dry_run:
                continue
            await trio.sleep_until(self._next_at)
            self._next_at = max(self._next_at, trio.current_time()) + self._pause_s
            await self._send(letter)
            await self._remember(letter)

    async def _check_master(self, letter: DeadLetter) -> None:
        """Raise if the letter's broker has no master: slaves cannot record that a letter was sent again."""
        mq = _queue_of(letter)
        await _ask_master(self._client, mq, lambda at: broker_api.max_offset(at, mq.topic, mq.queue_id))

    async def _send(self, letter: DeadLetter) -> None:
        message, topic = letter.message, letter.topic
        if not topic:
            raise UserError(f"dead letter {message.msg_id} does not say which topic it was sent to: {RETRY_TOPIC}")
        properties = {name: value for name, value in message.properties.items() if name not in _OF_ITS_DEATH}
        properties[RESENT_TIMES] = str(letter.resent_times + 1)
        if self._to_topic:
            # Send the message as its producer did: its attempts are counted anew, in any topic and group.
            properties = {name: value for name, value in properties.items() if name not in (RETRY_TOPIC, ORIGIN_ID)}
        elif FIRST_POP_TIME in message.properties and not self._is_read:
            raise UserError(
                f"dead letter {message.msg_id} was popped, and consumers that pop do not read the retry topic of group "
                f"{self._group}. {USE_TOPIC}. Or start a PushConsumer of the group first, which reads both"
            )
        else:
            properties[RETRY_TOPIC], topic = topic, retry_topic(self._group)
        # The body is sent as stored: a compressed or unreadable body stays as it is.
        sys_flag = message.sys_flag & (COMPRESSED | COMPRESSION_MASK)
        queue = await self._queue(topic)
        await send_as_tool(self._client, queue, message.record.body, properties, flag=message.flag, sys_flag=sys_flag)

    async def _queue(self, topic: str) -> MessageQueue:
        """The next queue of the topic, in turn."""
        if topic not in self._routes:
            instance = self._client.instance
            try:
                route = await until_answered(lambda: instance.refresh(topic), self._client.timeout_ms, instance.backoff)
            except RouteNotFound as error:
                error.add_note(
                    f"Brokers make it when a consumer of group {self._group} joins: start one, or send to the topics "
                    "that the messages came from (to_topic, --all-groups)"
                )
                raise
            if not route.writable:
                raise UserError(f"topic {topic} has no queue to write to now: see mqadmin topicRoute -t {topic}")
            self._routes[topic] = route
        queues = self._routes[topic].writable
        self._turn += 1
        return queues[self._turn % len(queues)]

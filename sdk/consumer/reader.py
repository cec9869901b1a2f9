"""`Reader`: pulls of one consumer, each from the broker of the queue's set that should answer it.

A pull goes to the master, or to the replica that the broker suggested in its last answer. When that replica does not
answer, the other replicas are asked, and all replicas again until the timeout.

A slave may be behind, or lack the oldest messages. So a slave without the asked offset says nothing about the queue:
the other replicas are asked, and while none of them answers the result is NO_NEW_MESSAGE. Only the master can say that
an offset does not exist. If a slave could, a reader would skip messages that only the master has. A pull with a `Trail`
returns no messages of a topic that was made again, unless it reads from their beginning: its result is OFFSET_ILLEGAL
with ``is_made_again``, and the reader begins the new queue at ``next_offset``. The change is logged once.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from enum import Enum
from functools import partial
from itertools import pairwise

import trio

from skylark.mqcommon.errors import BrokerError, InvalidArgument, ProtocolError, RemotingError, SkylarkError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.columns import record_starts, whole_records
from skylark.mqcommon.message.layout import HEAD_V4
from skylark.mqcommon.message.light import OFFSETS, QUEUES
from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.message.properties import find_property
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.message.record import Record, decode_record
from skylark.mqcommon.names import MASTER_ID, is_light
from skylark.remoting.protocol.codes import ResponseCode
from skylark.sdk import broker_api
from skylark.sdk.broker_api import PullAnswer
from skylark.sdk.client import ClientHandle
from skylark.sdk.consumer.damaged import PASSED_BY, log_left_out, undamaged
from skylark.sdk.consumer.expression import Sql, subscription_to, text_and_type
from skylark.sdk.consumer.replicas import Replicas
from skylark.sdk.consumer.trail import Trail
from skylark.sdk.retry import until_answered

logger = logging.getLogger(__name__)


class PullStatus(Enum):
    """How a pull ended, with RocketMQ's names."""

    FOUND = "FOUND"
    NO_NEW_MESSAGE = "NO_NEW_MESSAGE"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


@lazy_dataclass(frozen=True, slots=True)
class PullResult:
    """Messages in queue order, and the offset to pull at next.

    ``next_offset`` is valid for every status: it follows the messages, or the messages that did not match; when the
    asked offset does not exist, it is the nearest offset that exists. ``min_offset`` and ``max_offset`` are the queue's
    bounds on the broker with id ``broker_id``: 0 is the master, and a slave may be behind. ``created_ms`` is the
    creation stamp of the topic on its broker, if the broker knows it. ``is_made_again``: the topic was deleted and made
    again since this consumer's last pull of the queue, and the asked offset belonged to the old topic.
    """

    status: PullStatus
    messages: list[MessageExt]
    next_offset: int
    min_offset: int
    max_offset: int
    broker_id: int = 0
    created_ms: int | None = None
    is_made_again: bool = False


@lazy_dataclass(frozen=True, slots=True)
class PullBytes:
    """Like `PullResult`, with consecutive stored records instead of message objects.

    The broker compares only hashes of tags, so with a tag expression there may be records with other tags.
    """

    status: PullStatus
    data: bytes
    next_offset: int
    min_offset: int
    max_offset: int
    broker_id: int = 0
    created_ms: int | None = None
    is_made_again: bool = False


# The pause before a slave that lacks the asked offset is asked again.
BEHIND_S = 0.1

_STATUS = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW_MESSAGE,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED_MESSAGE,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}


class Reader:
    """The pulls of one consumer of ``group``."""

    def __init__(self, client: ClientHandle, replicas: Replicas, group: str) -> None:
        self._client = client
        self._instance = client.instance
        self._replicas = replicas
        self._group = group
        # Queues whose reader waits for the master, so that the wait is logged once.
        self._waiting: dict[MessageQueue, None] = {}
        self._tags: dict[str | Sql, frozenset[str]] = {}

    async def pull(
        self,
        mq: MessageQueue,
        offset: int,
        *,
        max_count: int,
        max_bytes: int,
        expression: str | Sql,
        wait_ms: int,
        trail: Trail | None = None,
    ) -> PullResult:
        """Messages from ``offset`` on; see `PullConsumer.pull`. ``trail``: what the reader knows of the queue."""
        tags = self.tags_of(expression)
        answer = await self._pull(mq, offset, max_count, max_bytes, expression, wait_ms, trail)
        status, next_offset = _STATUS[answer.code], answer.next_offset
        try:
            messages = self._messages(mq, answer.data, offset)
        except ProtocolError as error:
            found = self._around_damage(mq, answer, offset, error, is_alone=max_count <= 1)
            if found is None:
                # Alone the damaged record can be told from its neighbours.
                return await self.pull(
                    mq, offset, max_count=1, max_bytes=1, expression=expression, wait_ms=wait_ms, trail=trail
                )
            messages, next_offset = found
        if tags and messages:
            # The broker compares only hashes of tags, and two tags may have the same hash.
            messages = [message for message in undamaged(messages, mq) if message.tags in tags]
        if answer.data and not messages:
            status = PullStatus.NO_MATCHED_MESSAGE
        return PullResult(
            status,
            messages,
            next_offset,
            answer.min_offset,
            answer.max_offset,
            answer.broker_id,
            answer.created_ms,
            answer.is_made_again,
        )

    def _messages(self, mq: MessageQueue, data: bytes, offset: int) -> list[MessageExt]:
        # Records of a light queue carry the offsets of their own topic: replace these by the offsets in the light
        # queue.
        data = as_in_light_queue(data, mq.topic) if is_light(mq.topic) else data
        return self._client.names.messages(data, mq.broker_name, offset)

    def _around_damage(
        self, mq: MessageQueue, answer: PullAnswer, offset: int, error: ProtocolError, *, is_alone: bool
    ) -> tuple[list[MessageExt], int] | None:
        """The messages of an answer in which ``error`` was met, without damaged records, and the offset to go on at.

        None when there are none before a record whose end is not known, unless it ``is_alone``: then it is left out.
        """
        data, found, after = answer.data, list[MessageExt](), offset
        starts, cut = whole_records(data)
        for start, end in pairwise([*starts, len(data) if cut is None else cut.at]):
            try:
                found += self._messages(mq, data[start:end], offset)
            except ProtocolError as reason:
                after = MessageExt(data, start, "").queue_offset
                log_left_out(mq, after, str(reason), PASSED_BY)
        if cut is None:
            return found, answer.next_offset
        # The next pull begins with the record whose end is not known.
        after = max(after, found[-1].queue_offset + 1 if found else 0)
        if after > offset:
            return found, min(after, answer.next_offset)
        if not is_alone:
            return None
        log_left_out(mq, offset, str(error), PASSED_BY)
        return found, answer.next_offset

    async def pull_bytes(
        self,
        mq: MessageQueue,
        offset: int,
        *,
        max_count: int,
        max_bytes: int,
        expression: str | Sql,
        wait_ms: int,
        trail: Trail | None = None,
    ) -> PullBytes:
        """Stored records from ``offset`` on; see `PullConsumer.pull_bytes`."""
        self.tags_of(expression)  # raises if the expression is invalid
        answer = await self._pull(mq, offset, max_count, max_bytes, expression, wait_ms, trail)
        status = _STATUS[answer.code]
        return PullBytes(
            status,
            answer.data,
            answer.next_offset,
            answer.min_offset,
            answer.max_offset,
            answer.broker_id,
            answer.created_ms,
            answer.is_made_again,
        )

    async def _pull(
        self,
        mq: MessageQueue,
        offset: int,
        max_count: int,
        max_bytes: int,
        expression: str | Sql,
        wait_ms: int,
        trail: Trail | None,
    ) -> PullAnswer:
        text, kind = text_and_type(expression)
        ask = partial(
            broker_api.pull,
            group=self._group,
            topic=mq.topic,
            queue_id=mq.queue_id,
            offset=offset,
            max_count=max_count,
            max_bytes=max_bytes,
            expression=text,
            expression_type=kind,
        )
        started = trio.current_time()

        async def ask_each() -> PullAnswer:
            # The waits of brokers that failed count: the caller waits ``wait_ms`` in all, not for each broker.
            waited_ms = (trio.current_time() - started) * 1000
            return await self._pull_once(mq, offset, ask, max(wait_ms - int(waited_ms), 0), trail)

        answer = await until_answered(ask_each, self._client.timeout_ms + wait_ms, self._instance.backoff)
        if trail is not None and (why := trail.change(answer, offset)) and offset:
            logger.warning("%s: %s, reading goes on at offset %d, not %d", mq, why, answer.min_offset, offset)
            return replace(
                answer, code=ResponseCode.PULL_OFFSET_MOVED, data=b"", next_offset=answer.min_offset, is_made_again=True
            )
        return answer

    async def _pull_once(
        self,
        mq: MessageQueue,
        offset: int,
        ask: Callable[..., Awaitable[PullAnswer]],
        wait_ms: int,
        trail: Trail | None,
    ) -> PullAnswer:
        """The answer of the first broker of the set that answers."""
        asked: dict[str, None] = {}
        failed: dict[str, SkylarkError] = {}
        behind: PullAnswer | None = None
        started = trio.current_time()
        while (replica := await self._replicas.reader(mq, asked)) is not None:
            asked[replica.addr] = None
            try:
                answer = replace(
                    await ask(self._replicas.at(mq, replica), wait_ms=wait_ms), broker_id=replica.broker_id
                )
            except (RemotingError, BrokerError) as error:
                self._replicas.failed(mq, replica, error)
                failed[replica.addr] = error
            else:
                self._replicas.suggest(mq, answer.suggested_broker_id)
                if answer.offset_delta is not None:
                    placed = as_in_logical_queue(answer.data, mq.queue_id, answer.offset_delta)
                    answer = replace(answer, data=placed)
                if not _lacks(answer, offset) and not (trail is not None and trail.is_outdated(answer)):
                    self._waiting.pop(mq, None)
                    return answer
                behind = answer
                self._replicas.suggest(mq, MASTER_ID)
            if behind is not None and not self._replicas.has_other(mq, asked):
                return await self._wait_for_master(mq, behind, offset, wait_ms, started)
        raise self._replicas.unavailable(mq, failed)

    async def _wait_for_master(
        self, mq: MessageQueue, behind: PullAnswer, offset: int, wait_ms: int, started: float
    ) -> PullAnswer:
        """The result NO_NEW_MESSAGE, while only slaves answer and none of them has the asked offset."""
        if mq not in self._waiting:
            self._waiting[mq] = None
            logger.warning(
                "%s: broker id %d has offsets %d to %d only; reading at offset %d waits for the master",
                mq,
                behind.broker_id,
                behind.min_offset,
                behind.max_offset,
                offset,
            )
        if wait_ms and trio.current_time() < started + BEHIND_S:
            await trio.sleep(BEHIND_S)
        # Drop the slave's stamp, too: it may belong to an older topic.
        return replace(behind, code=ResponseCode.PULL_NOT_FOUND, data=b"", next_offset=offset, created_ms=None)

    def tags_of(self, expression: str | Sql) -> frozenset[str]:
        """The tags in an expression; empty if it matches all, or is SQL. InvalidArgument for an invalid expression."""
        tags = self._tags.get(expression)
        if tags is None:
            try:
                tags = frozenset(subscription_to("", expression).tags_set)
            except ValueError as error:
                raise InvalidArgument(f"{error}: use '*', or tags separated by '||'") from None
            self._tags[expression] = tags
        return tags


def _lacks(answer: PullAnswer, offset: int) -> bool:
    """Whether a slave answered that it has no message at ``offset``, which the master may have."""
    if answer.broker_id == MASTER_ID:
        return False
    is_stuck = answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and answer.next_offset <= offset
    return is_stuck or answer.code == ResponseCode.PULL_OFFSET_MOVED


_QUEUE_ID_AT = HEAD_V4.starts["queue_id"]
_QUEUE_OFFSET_AT = HEAD_V4.starts["queue_offset"]


def as_in_logical_queue(data: bytes, queue_id: int, offset_delta: int) -> bytes:
    """The records with the number of a logical queue, and offsets that are higher by ``offset_delta``."""
    placed = bytearray(data)
    for at in record_starts(data):
        offset_at = at + _QUEUE_OFFSET_AT
        offset = int.from_bytes(data[offset_at : offset_at + 8]) + offset_delta
        placed[at + _QUEUE_ID_AT : at + _QUEUE_ID_AT + 4] = queue_id.to_bytes(4)
        placed[offset_at : offset_at + 8] = offset.to_bytes(8)
    return bytes(placed)


def as_in_light_queue(data: bytes, topic: str) -> bytes:
    """The records with the number and the offsets of the light queue ``topic``; the records keep their topics."""
    placed = bytearray(data)
    for at in record_starts(data):
        record = decode_record(data, at, check_crc=False)
        offset = _offset_in(record, topic)
        if offset is not None:
            placed[at + _QUEUE_ID_AT : at + _QUEUE_ID_AT + 4] = bytes(4)
            placed[at + _QUEUE_OFFSET_AT : at + _QUEUE_OFFSET_AT + 8] = offset.to_bytes(8, "big")
    return bytes(placed)


def _offset_in(record: Record, topic: str) -> int | None:
    """The record's offset in the light queue; None for a message that was sent to the light queue itself."""
    names = (find_property(record.properties, QUEUES) or b"").split(b",")
    offsets = (find_property(record.properties, OFFSETS) or b"").split(b",")
    wanted = topic.encode()
    if record.topic == topic or wanted not in names[: len(offsets)]:
        return None
    offset = offsets[names.index(wanted)]
    return int(offset) if offset.isdigit() and len(offset) < 19 else None

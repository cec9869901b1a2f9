"""Queues that end: sealed (7132), read past the seal (7133), copied here from elsewhere (7134, 7135), closed (7136).

mqadmin shrinkTopic and drain --move copy the messages: they read a part at one broker, store it at another broker, and
record the progress at the first. If the command is killed in between, the part is copied again: its messages are then
delivered twice, and none is lost. A copy has the key, properties, times and sender of the original message.
Neighbours: meta/seals.py says what a seal is; store/reader.py hides what comes after it.
"""

import logging
from collections.abc import Callable, Iterator

import trio

from skylark.broker.admin.draining import group_names, unread_queues
from skylark.broker.meta.clients import Clients
from skylark.broker.meta.metadata import Metadata
from skylark.broker.meta.pull_positions import furthest_pulled
from skylark.broker.meta.seals import Seal
from skylark.broker.meta.table import Durable, refused_when_not_stored
from skylark.broker.meta.topics import no_such_topic
from skylark.broker.part import Part
from skylark.broker.store.queue.consumequeue import ConsumeQueue
from skylark.broker.store.reader import read_queue
from skylark.broker.store.store import MessageStore
from skylark.broker.writing.stored_properties import Incoming
from skylark.broker.writing.writer import Writer
from skylark.mqcommon.errors import ProtocolError, RequestRefused
from skylark.mqcommon.message.flags import TRANSACTION_MASK
from skylark.mqcommon.message.record import Record, decode_record
from skylark.mqcommon.names import DLQ_PREFIX, RETRY_PREFIX, TOOLS_GROUP, is_dlq_topic, is_retry_topic, is_system_topic
from skylark.remoting.net.answers import answer_with
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler, SlowHandler
from skylark.remoting.net.steps import StepHandler, Steps, result_of
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.shrinking import (
    GET_CLOSED_QUEUES,
    NOTE_MOVED,
    READ_SEALED,
    SEAL_QUEUES,
    STORE_MOVED,
    ClosedQueues,
    ReadSealedResponseHeader,
    SealedQueue,
    SealedQueues,
    UnreadQueue,
)
from skylark.remoting.protocol.requests.topics import TopicConfig

logger = logging.getLogger(__name__)

# The most messages in one part. Storing a part takes the event loop some milliseconds.
PART_MESSAGES = 256
PART_BYTES = 1 << 20
# Rows of one answer.
MOST_ROWS = 1_000


class Sealing(Part):
    """Handles the requests about sealed queues: 7132 to 7136.

    ``popped_to``: how far a group has popped in each queue of a topic. ``open_pops``: how many check points are open
    for a topic's queues whose ids are at least a given id.
    """

    reads_disk = (READ_SEALED.code,)

    def __init__(
        self,
        store: MessageStore,
        metadata: Metadata,
        clients: Clients,
        writer: Writer,
        popped_to: Callable[[str], Iterator[tuple[int, int]]],
        open_pops: Callable[[str, int], int],
        durable: Durable,
        turned: Callable[[], None],
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._topics = metadata.topics
        self._seals = metadata.seals
        self._offsets = metadata.consumer_offsets
        self._clients = clients
        self._writer = writer
        self._popped_to = popped_to
        self._open_pops = open_pops
        self._durable = durable
        self._turned = turned
        self._seals.apply(store)

    def handlers(self) -> dict[int, Handler]:
        return {READ_SEALED.code: self.read, STORE_MOVED.code: self.store}

    def slow_handlers(self) -> dict[int, SlowHandler]:
        return {SEAL_QUEUES.code: self.seal, NOTE_MOVED.code: self.record_moved}

    def step_handlers(self) -> dict[int, StepHandler]:
        return {GET_CLOSED_QUEUES.code: self.closed}

    async def seal(self, channel: Channel, request: Command) -> Command:
        """7132: seal queues; answered when the seals are on disk."""
        header = SEAL_QUEUES.header(request)
        topic = header.topic
        self._existing(topic)
        groups = await result_of(self._offsets.groups_of(topic))
        groups = list(dict.fromkeys([*groups, *self._clients.consumers_of(topic)]))
        # Read the positions of the groups and seal in the same turn: no pull may come in between.
        reached = self._reached(topic, groups)
        queues = [queue for queue in self._store.queues.of_topic(topic) if queue.queue_id >= header.first_queue]
        # All seals are on disk before the answer. If a crash lost a seal, groups would read on in a queue whose
        # messages the command copies to another broker.
        with refused_when_not_stored():
            sealed = [queue for queue in queues if self._seal(queue, reached.get(queue.queue_id, 0))]
            await self._durable()
        if sealed:
            logger.warning(
                "queues of topic %s sealed by %s: %s",
                topic,
                channel.remote,
                ", ".join(f"{queue.queue_id} at {queue.sealed_at}" for queue in sealed),
            )
        rows = [
            SealedQueue(seal.queue_id, seal.limit, seal.moved_to, self._store.max_offset(topic, seal.queue_id))
            for seal in self._seals.of_topic(topic, header.first_queue)
        ]
        return answer_with(SEAL_QUEUES, request, SealedQueues(rows))

    def _seal(self, queue: ConsumeQueue, reached: int) -> bool:
        """Seal the queue at ``reached``; returns whether the seal has changed.

        After a crash this broker does not know how far groups had pulled. So a seal moves forward when a group commits
        a higher offset, unless messages were copied already: the group then gets the copied messages twice.
        """
        known = self._seals.of(queue.topic, queue.queue_id)
        limit = min(max(reached, queue.min_offset), queue.next_offset)
        if known is not None and (known.moved_to > known.limit or limit <= known.limit):
            return False
        self._seals.put(Seal(queue.topic, queue.queue_id, limit, limit))
        queue.sealed_at = limit
        return True

    def _reached(self, topic: str, groups: list[str]) -> dict[int, int]:
        """Queue → the furthest offset that any group has committed, pulled or popped."""
        found: dict[int, int] = {}
        for group in groups:
            members = self._clients.consumer_group(group)
            pulled = furthest_pulled(members.members, group, topic) if members else {}
            for queue_id, offset in [*self._offsets.queues_of(group, topic).items(), *pulled.items()]:
                found[queue_id] = max(offset, found.get(queue_id, 0))
        for queue_id, offset in self._popped_to(topic):
            found[queue_id] = max(offset, found.get(queue_id, 0))
        return found

    def read(self, channel: Channel, request: Command) -> Command:
        """7133: records from an offset on. If they are only on disk, a thread reads them and the handler runs again."""
        header = READ_SEALED.header(request)
        seal = self._known_seal(header.topic, header.queue_id)
        offset = max(header.offset, seal.limit)
        queue = self._store.queues.find(header.topic, header.queue_id)
        result = read_queue(
            self._store.log, queue, offset, PART_MESSAGES, PART_BYTES, confirmed=self._store.confirmed, past_seal=True
        )
        return READ_SEALED.answer(request, ReadSealedResponseHeader(result.next_offset), body=result.records)

    def store(self, channel: Channel, request: Command) -> Command | None:
        """7134: store copies; answered when they are as durable as messages of producers."""
        header = STORE_MOVED.header(request)
        config = self._target(header.topic)
        if not 0 <= header.queue_id < config.write_queue_nums:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"topic {header.topic} has {config.write_queue_nums} queues to write, and no queue {header.queue_id}",
            )
        self._writer.admit(b"")
        records = _records(request.body)
        end = 0
        for record in records:
            message = Incoming.of(record, header.topic, header.queue_id, record.properties)
            # A committed message keeps the flags of a transaction. The copy must be a plain message: otherwise it would
            # be taken for a half, and wait for a commit.
            message.sys_flag &= ~TRANSACTION_MASK
            self._writer.check_light_queues(header.topic, record.properties)
            end = self._writer.put_again(message).end
        if not records:
            return request.respond()
        self._turned()
        return self._writer.durability.answer_when_safe(
            channel, request, request.respond(), end, trio.current_time(), lambda response: None
        )

    async def record_moved(self, channel: Channel, request: Command) -> Command:
        """7135: record how far a sealed queue was copied; answered when the record is on disk."""
        header = NOTE_MOVED.header(request)
        seal = self._known_seal(header.topic, header.queue_id)
        end = self._store.max_offset(header.topic, header.queue_id)
        if not seal.limit <= header.moved_to <= end:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"movedTo {header.moved_to} is not within {seal.limit} and {end}"
            )
        with refused_when_not_stored():
            if header.moved_to > seal.moved_to:
                self._seals.put(Seal(seal.topic, seal.queue_id, seal.limit, header.moved_to))
            await self._durable()
        return request.respond()

    def closed(self, channel: Channel, request: Command) -> Steps[Command]:
        """7136: close sealed queues. The queues stay: a reused queue continues at its old end, which clients know."""
        header = GET_CLOSED_QUEUES.header(request)
        topic, first = header.topic, header.first_queue
        self._existing(topic)
        answer = ClosedQueues(popped=self._open_pops(topic, first))
        forgotten = group_names(header.forgotten)
        for group in (yield from self._offsets.groups_of(topic)):
            if group != TOOLS_GROUP and group not in forgotten:
                rows = unread_queues(self._store, self._metadata, self._clients, topic, group, first)
                answer.unread += list(rows)[: MOST_ROWS - len(answer.unread)]
        answer.unread += self._unmoved(topic, first)
        return answer_with(GET_CLOSED_QUEUES, request, answer)

    def _unmoved(self, topic: str, first: int) -> list[UnreadQueue]:
        """The messages after each seal that were not copied yet, as rows without a group."""
        return [
            UnreadQueue(topic, seal.queue_id, "", left)
            for seal in self._seals.of_topic(topic, first)
            if (left := self._store.max_offset(topic, seal.queue_id) - seal.moved_to) > 0
        ]

    def _known_seal(self, topic: str, queue_id: int) -> Seal:
        seal = self._seals.of(topic, queue_id)
        if seal is None:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"queue {queue_id} of topic {topic} is not sealed")
        return seal

    def _existing(self, topic: str) -> TopicConfig:
        if is_system_topic(topic):
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"{topic} is a topic of the brokers themselves")
        config = self._topics.get(topic)
        if config is None:
            raise no_such_topic(topic)
        return config

    def _target(self, topic: str) -> TopicConfig:
        """The topic that stores moved messages; a group's retry or dead letter topic is made if it is missing."""
        with refused_when_not_stored():
            if is_retry_topic(topic):
                self._topics.create_retry_topic(topic.removeprefix(RETRY_PREFIX))
            elif is_dlq_topic(topic):
                self._topics.create_dlq_topic(topic.removeprefix(DLQ_PREFIX))
        return self._existing(topic)


def _records(raw: bytes) -> list[Record]:
    """The records in ``raw``. RequestRefused, before anything is stored, when one of them is damaged."""
    records: list[Record] = []
    at = 0
    try:
        while at < len(raw):
            record = decode_record(raw, at)
            records.append(record)
            at += record.size
    except ProtocolError as error:
        raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, f"the records cannot be read: {error}") from None
    if len(records) > PART_MESSAGES:
        raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, f"{len(records)} records, at most {PART_MESSAGES} are taken")
    return records

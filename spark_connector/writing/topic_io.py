"""The topic that is written, as once.py needs it: sends with our keys, finds messages by key, and reads the queues.

A message with a queue, a time or a sharding key cannot be in a batch of `send_many`. Several threads send such
messages, so that the producer has some to put together. Messages of one queue or key are sent by one thread, in their
order.
Neighbours: once.py (decides), reading/pulling.py and reading/batch_reader.py (read).
"""

import dataclasses
import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from skylark import TopicConfig
from skylark.mqcommon.errors import RouteNotFound
from skylark.mqcommon.message.message import Message, MessageExt, OwnKeyMessage, WithOwnKeys
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import AUTO_CREATE_TOPIC, PERM_INHERIT
from skylark.sdk.blocking import Admin, Client, Producer, PullConsumer
from skylark.sdk.routes import master_of
from skylark.spark_connector.offsets import LostRange, OffsetRange
from skylark.spark_connector.options.connection import ConnectionOptions
from skylark.spark_connector.options.read import ReadOptions
from skylark.spark_connector.options.write import WriteOptions
from skylark.spark_connector.reading.batch_reader import Consumer, decode_buffer
from skylark.spark_connector.reading.pulling import joined, pulls, when_back
from skylark.spark_connector.writing.once import CLOCKS_MS, Claim, FoundRows, Rows
from skylark.spark_connector.writing.rows import ROW, Place, name_in

logger = logging.getLogger(__name__)

# The queues that producers ask for when a send creates a topic.
DEFAULT_QUEUES = 4
# The time between two polls for a created topic: brokers register it at once.
REGISTERING_S = 0.02
_COLUMNS = pa.schema([pa.field("msgId", pa.string()), pa.field("storeTimestamp", pa.timestamp("us", tz="UTC"))])


# How many messages that must be sent alone are in flight.
THREADS = 32


class Sender(Protocol):
    """The methods of ``skylark.blocking.Producer`` that are used here."""

    def send(self, message: Message, *, queue: MessageQueue | None = ..., deliver_at: Any = ...) -> object: ...
    def send_many(self, topic: str, messages: Sequence[bytes | Message]) -> object: ...


def send_all(
    producer: Sender,
    topic: str,
    messages: Sequence[bytes | Message],
    places: Mapping[int, Place],
    keys: Sequence[str] | None = None,
) -> None:
    """Store ``messages``, with these unique ``keys`` if they are given; returns when all are acknowledged.

    Messages with a place are sent one by one.
    """
    if places:
        rest = [row for row in range(len(messages)) if row not in places]
        _one_by_one(producer, [(_alone(topic, messages, row, keys), place) for row, place in sorted(places.items())])
        messages, keys = [messages[row] for row in rest], None if keys is None else [keys[row] for row in rest]
    if messages:
        producer.send_many(topic, messages if keys is None else WithOwnKeys(messages, keys))


def _alone(topic: str, messages: Sequence[bytes | Message], row: int, keys: Sequence[str] | None) -> Message:
    given = messages[row]
    assert isinstance(given, Message)  # a message with a place has columns besides its body
    if keys is None:
        return given
    message = OwnKeyMessage(topic, given.body, unique_key=keys[row], flag=given.flag)
    message.properties = given.properties
    return message


def _one_by_one(producer: Sender, singles: Sequence[tuple[Message, Place]]) -> None:
    lanes: list[list[tuple[Message, Place]]] = [[] for _ in range(THREADS)]
    for number, (message, place) in enumerate(singles):
        lanes[_lane(number, message, place)].append((message, place))

    def send(lane: list[tuple[Message, Place]]) -> None:
        for message, place in lane:
            producer.send(message, queue=place.queue, deliver_at=place.deliver_at)

    with ThreadPoolExecutor(THREADS, thread_name_prefix="rocketmq-send") as threads:
        futures = [threads.submit(send, lane) for lane in lanes if lane]
    for future in futures:
        future.result()


def _lane(number: int, message: Message, place: Place) -> int:
    if place.queue is not None:
        return crc32(f"{place.queue.broker_name} {place.queue.queue_id}".encode()) % THREADS
    if message.sharding_key:
        return crc32(message.sharding_key.encode()) % THREADS
    return number % THREADS


class RealTime:
    """The clocks of this machine."""

    def now_ms(self) -> float:
        return time.time() * 1000

    def running_ms(self) -> float:
        return time.monotonic() * 1000

    def sleep_ms(self, ms: float) -> None:
        time.sleep(ms / 1000)


class TopicIO:
    """One topic. The masters of all brokers that had queues of it when the task began must answer."""

    def __init__(
        self, topic: str, scope: str, options: WriteOptions, producer: Producer, admin: Admin, consumer: Consumer
    ) -> None:
        self._topic = topic
        self._scope = scope
        self._options = read_options(topic, options)
        self._producer = producer
        self._admin = admin
        self._consumer = consumer
        self._queues: set[MessageQueue] = set()
        #: Offset up to which each queue was read.
        self._read_to: dict[MessageQueue, int] = {}

    def send(self, rows: Rows) -> None:
        if rows.claim is not None:
            key, attempt = rows.claim
            claim = as_claim(self._topic, rows.messages[0], f"{rows.names[0]} {attempt}")
            send_all(self._producer, self._topic, [claim], rows.places, [key])
            return
        keys = [self._scope + name for name in rows.names]
        send_all(self._producer, self._topic, rows.messages, rows.places, keys)

    def claims(self, key: str, since_ms: int) -> list[Claim]:
        for queue in {queue.broker_name: queue for queue in self._all_queues()}.values():
            self._admin.max_offset(queue)  # a slave, which would answer while its master is away, may be behind
        found = self._admin.query_by_unique_key(
            self._topic, key, begin=max(since_ms - CLOCKS_MS, 0), strict=True, on_partial=_warn_of_partial
        )
        return [claim_of(message) for message in found]

    def read(self, since_ms: int) -> FoundRows:
        found = FoundRows()
        read_to: dict[MessageQueue, int] = {}
        for queue in self._all_queues():
            # A queue is read from the time of the first claim on, then from the offset reached. The time is by the
            # clock of the claim's broker.
            if (start := self._read_to.get(queue)) is None:
                start = self._admin.search_offset(queue, max(since_ms - CLOCKS_MS, 0))
            wanted = OffsetRange(queue, start, self._admin.max_offset(queue))
            for buffer in joined(pulls(self._consumer, wanted, self._options, _ignore)):
                for batch in decode_buffer(buffer, wanted, _COLUMNS, self._options):
                    _add_rows(batch, self._scope, found)
            read_to[queue] = max(wanted.end, start)
        self._read_to.update(read_to)  # not earlier: the rows found so far are lost when a queue cannot be read
        return found

    def _all_queues(self) -> list[MessageQueue]:
        try:
            queues = self._consumer.topic_queues(self._topic).queues
        except RouteNotFound as error:
            if error.is_passing:
                raise
            raise unknown_topic(error) from None
        # A broker that is in no route now may have rows of this task: without its answer they would be sent twice.
        missing = self._queues.difference(queues)
        if missing:
            names = ", ".join(sorted({queue.broker_name for queue in missing}))
            raise RouteNotFound(self._topic, f"no NameServer knows its queues of {names} any more", is_passing=True)
        self._queues.update(queues)
        return queues


def unknown_topic(error: RouteNotFound) -> RouteNotFound:
    """The error with a remedy."""
    return RouteNotFound(error.topic, f'{error.reason}, and so does .option("createTopic", "true")')


def check_topic_exists(options: WriteOptions) -> None:
    """Raise RouteNotFound when no task could send to the topic. For the driver: its error is the first line of Spark's.

    Waits for NameServers as tasks do.
    """
    with (
        Client(**options.client) as client,
        Admin(client) as admin,
        PullConsumer(client, group=options.producer_group, heartbeat=False, start_timeout_ms=None) as consumer,
    ):
        try:
            when_back(lambda: consumer.topic_queues(options.topic), options.broker_wait_ms)
        except RouteNotFound as error:
            if error.is_passing:
                raise
            if options.dedup or not _creates_topics(admin):
                raise unknown_topic(error) from None


def _creates_topics(admin: Admin) -> bool:
    """Whether a send creates its topic."""
    try:
        admin.topic_route(AUTO_CREATE_TOPIC)
    except RouteNotFound:
        return False
    return True


def create_missing(topic: str, admin: Admin, consumer: Consumer, timeout_ms: float) -> None:
    """Create the topic where a send would, unless it is there; returns when the NameServers know it.

    A send creates it at one broker after the other. Here all brokers get the topic before the first row is sent: the
    brokers that may have rows of this task are then known from the beginning.
    """
    try:
        consumer.topic_queues(topic)  # waits while servers may be starting
        return
    except RouteNotFound as error:
        if error.is_passing:
            raise
    try:
        default = admin.topic_route(AUTO_CREATE_TOPIC)
    except RouteNotFound:
        raise RouteNotFound(
            topic, "no broker creates topics by itself (autoCreateTopicEnable=false): use mqadmin updateTopic"
        ) from None
    masters = {one.broker_name: master_of(one.broker_addrs) for one in default.broker_datas}
    wanted = set()
    for queues in default.queue_datas:
        addr, count = masters.get(queues.broker_name), min(queues.write_queue_nums, DEFAULT_QUEUES)
        if addr is not None:
            admin.create_topic(addr, TopicConfig(topic, count, count, queues.perm & ~PERM_INHERIT))
            wanted.add(queues.broker_name)
    deadline = time.monotonic() + timeout_ms / 1000
    while wanted - _brokers_of(topic, consumer):
        if time.monotonic() > deadline:
            raise RouteNotFound(topic, f"it was created, but no NameServer knows that after {timeout_ms:.0f} ms")
        time.sleep(REGISTERING_S)


def _brokers_of(topic: str, consumer: Consumer) -> set[str]:
    try:
        return {queue.broker_name for queue in consumer.topic_queues(topic).queues}
    except RouteNotFound:
        return set()


def read_options(topic: str, options: WriteOptions) -> ReadOptions:
    """Options to read ``topic`` with the same connection."""
    shared = {one.name: getattr(options, one.name) for one in dataclasses.fields(ConnectionOptions)}
    return ReadOptions(topic=topic, num_retries=0, **shared)


def as_claim(topic: str, given: bytes | Message, text: str) -> Message:
    """A copy of ``given`` with the property of claims."""
    body, own = (given, None) if isinstance(given, bytes) else (given.body, given.properties)
    message = Message(topic, body, flag=0 if isinstance(given, bytes) else given.flag)
    message.properties = {**(own or {}), ROW: text}
    return message


def claim_of(message: MessageExt) -> Claim:
    """The claim that ``message`` is."""
    name, _, attempt = message.properties.get(ROW, "").partition(" ")
    return Claim(message.store_timestamp, message.offset_msg_id, name, attempt)


def _add_rows(batch: pa.RecordBatch, scope: str, found: FoundRows) -> None:
    """Add the rows of ``batch`` that have a key of ``scope``."""
    ours = batch.filter(pc.starts_with(batch.column("msgId"), scope))
    if not ours.num_rows:
        return
    found.names.update(map(name_in, ours.column("msgId").to_pylist()))
    # Null when no row has a store time that can be shown.
    newest = pc.max(ours.column("storeTimestamp").cast(pa.int64())).as_py()
    found.newest_ms = max(found.newest_ms, (newest or 0) // 1000)


def _warn_of_partial(why: str) -> None:
    """Log that a search is not whole: as after a deletion of messages, nothing is lost, and the task goes on."""
    logger.warning("if this task ran before, its rows may be sent again: not all messages were searched. %s", why)


def _ignore(lost: LostRange) -> None:
    """Ignore messages that brokers have deleted: nobody looks for them here."""

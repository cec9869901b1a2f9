"""Sends messages with the blocking producer: most of them together, some one by one.

A message with a queue, a time or a sharding key cannot be in a batch of `send_many`. Several threads send those, so
that the producer has some to put together. Messages of one queue or key are sent by one thread, in their order.
Neighbours: writer.py and topic_io.py (callers).
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol
from zlib import crc32

from mqcommon.message.message import Message, OwnKeyMessage, WithOwnKeys
from mqcommon.message.queue import MessageQueue
from spark_connector.writing.rows import Place

THREADS = 32


class Sender(Protocol):
    """What is used of ``sdk.blocking.Producer``."""

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

    Those with a place are sent one by one.
    """
    if places:
        rest = [row for row in range(len(messages)) if row not in places]
        _one_by_one(producer, [(_alone(topic, messages, row, keys), place) for row, place in sorted(places.items())])
        messages, keys = [messages[row] for row in rest], None if keys is None else [keys[row] for row in rest]
    if messages:
        producer.send_many(topic, messages if keys is None else WithOwnKeys(messages, keys))


def _alone(topic: str, messages: Sequence[bytes | Message], row: int, keys: Sequence[str] | None) -> Message:
    given = messages[row]
    assert isinstance(given, Message)  # one with a place has columns besides its body
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

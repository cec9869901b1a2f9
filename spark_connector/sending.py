"""Sends messages with the blocking producer: most of them together, some one by one.

A message with a queue, a time or a sharding key cannot be in a batch of `send_many`. Several threads send those, so
that the producer has some to put together. Messages of one queue or key are sent by one thread, in their order.
Neighbours: writer.py and topic_io.py (callers).
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol
from zlib import crc32

from mqcommon.message.message import Message
from mqcommon.message.queue import MessageQueue
from spark_connector.write_rows import Place

THREADS = 32


class Sender(Protocol):
    """What is used of ``sdk.blocking.Producer``."""

    def send(self, message: Message, *, queue: MessageQueue | None = ..., deliver_at: Any = ...) -> object: ...
    def send_many(self, topic: str, messages: Sequence[bytes | Message]) -> object: ...


def send_all(producer: Sender, topic: str, messages: Sequence[bytes | Message], places: Mapping[int, Place]) -> None:
    """Store ``messages``; returns when all are acknowledged. Those with a place are sent one by one."""
    together = [message for row, message in enumerate(messages) if row not in places] if places else messages
    if together:
        producer.send_many(topic, together)
    if places:
        _one_by_one(producer, [(messages[row], place) for row, place in sorted(places.items())])


def _one_by_one(producer: Sender, singles: Sequence[tuple[bytes | Message, Place]]) -> None:
    lanes: list[list[tuple[Message, Place]]] = [[] for _ in range(THREADS)]
    for number, (message, place) in enumerate(singles):
        assert isinstance(message, Message)
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

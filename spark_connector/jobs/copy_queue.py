"""Copies one queue in a Spark task, with the SDK's blocking clients, and compares both queues afterwards.

Messages are sent one after another: the next one when the last one is acknowledged, so that their order is kept. A send
whose result is not known fails the task. Spark runs it again, and it goes on after the last message that has arrived.
"""

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Protocol

from mqcommon.message.message import Message, MessageExt
from mqcommon.message.own_key import OwnKeyMessage
from mqcommon.message.queue import MessageQueue
from spark_connector.jobs.copying import (
    ORIGIN,
    Digest,
    Origin,
    QueueCopy,
    QueueResult,
    copied_properties,
    goes_on_at,
    origin_of,
)
from spark_connector.options.connection import ConnectionOptions

GROUP = "spark-copy-topic"


class Reader(Protocol):
    """What is used of ``sdk.blocking.PullConsumer``."""

    def max_offset(self, mq: MessageQueue) -> int: ...
    def messages(self, mq: MessageQueue, start: int, end: int) -> Iterable[MessageExt]: ...


class Sender(Protocol):
    """What is used of ``sdk.blocking.Producer``."""

    def send(self, message: Message, *, queue: MessageQueue) -> object: ...


def run_copy(copy: QueueCopy, source: ConnectionOptions, target: ConnectionOptions) -> QueueResult:
    """Runs in the task: open clients of both clusters, copy, compare."""
    from sdk.blocking import Client, Producer, PullConsumer

    with ExitStack() as stack:
        ours = stack.enter_context(Client(source.nameserver, credentials=source.credentials, tls=source.encryption))
        theirs = stack.enter_context(Client(target.nameserver, credentials=target.credentials, tls=target.encryption))
        reader = stack.enter_context(PullConsumer(ours, group=GROUP, heartbeat=False))
        written = stack.enter_context(PullConsumer(theirs, group=GROUP, heartbeat=False))
        producer = stack.enter_context(Producer(theirs, group=GROUP, retries=0))
        return copy_queue(copy, reader, written, producer)


def copy_queue(copy: QueueCopy, reader: Reader, written: Reader, producer: Sender) -> QueueResult:
    """Send what the target queue lacks, then compare both."""
    copied = 0
    there = written.messages(copy.target, copy.target_start, written.max_offset(copy.target))
    for message in reader.messages(copy.source, goes_on_at(copy, map(_origin, there)), copy.end):
        producer.send(copy_of(message, copy.target.topic), queue=copy.target)
        copied += 1
    source = target = Digest()
    for message in reader.messages(copy.source, copy.start, copy.end):
        source = _added(source, message)
    for message in written.messages(copy.target, copy.target_start, written.max_offset(copy.target)):
        origin = _origin(message)
        is_ours = origin is not None and origin[:2] == (copy.source.broker_name, copy.source.queue_id)
        target = _added(target, message) if is_ours else target
    return QueueResult(_name(copy.source), _name(copy.target), copied, *_both(source, target))


def copy_of(message: MessageExt, topic: str) -> Message:
    """The message to send: the same, and its origin. A copy of a copy names the queue that it was copied from last."""
    copy = OwnKeyMessage(topic, message.body, unique_key=message.msg_id, flag=message.flag)
    origin = Origin(message.broker_name, message.queue_id, message.queue_offset, message.born_timestamp)
    copy.properties = {**copied_properties(message.properties), ORIGIN: origin.text()}
    return copy


def _origin(message: MessageExt) -> Origin | None:
    return origin_of(message.properties)


def _added(digest: Digest, message: MessageExt) -> Digest:
    return digest.add(message.msg_id, message.properties, message.body, message.flag)


def _both(source: Digest, target: Digest) -> tuple[int, int, int, int]:
    return source.messages, target.messages, source.crc, target.crc


def _name(queue: MessageQueue) -> str:
    return f"{queue.topic} {queue.broker_name} {queue.queue_id}"

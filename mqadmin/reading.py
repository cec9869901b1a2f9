"""Reads queues for the commands that print messages: chooses queues and offsets, and pulls."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from skylark.mqadmin.render import java_object
from skylark.mqadmin.session import Session
from skylark.mqcommon.errors import UserError

if TYPE_CHECKING:
    from skylark.mqcommon.message.message import MessageExt
    from skylark.mqcommon.message.queue import MessageQueue
    from skylark.sdk.consumer.pull import PullConsumer
    from skylark.sdk.consumer.reader import PullResult

# RocketMQ's brokers return at most 32 messages per pull, Skylark's as many as asked for.
_PULL_COUNT = 1024
_PULL_BYTES = 1024 * 1024
# RocketMQ's tool prints these names
_STATUS = {"NO_NEW_MESSAGE": "NO_NEW_MSG", "NO_MATCHED_MESSAGE": "NO_MATCHED_MSG"}

Take = Callable[["PullResult", "list[MessageExt]"], None]


def status_name(result: "PullResult") -> str:
    """The status of a pull as RocketMQ's tool prints it."""
    return _STATUS.get(result.status.name, result.status.name)


def queue_text(queue: "MessageQueue") -> str:
    """RocketMQ's ``MessageQueue.toString``."""
    return java_object(
        "MessageQueue", {"topic": queue.topic, "brokerName": queue.broker_name, "queueId": queue.queue_id}
    )


def queue_json(queue: "MessageQueue", **more: Any) -> dict[str, Any]:
    """A queue for JSON, with ``more`` members."""
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, **more}


async def chosen_queues(
    consumer: "PullConsumer", topic: str, broker_name: str | None = None, queue_id: int | None = None
) -> "list[MessageQueue]":
    """The queues of the topic, limited to a broker name or a queue id if given; UserError when there is none."""
    every = await consumer.message_queues(topic)
    queues = [
        queue for queue in every if broker_name in (None, queue.broker_name) and queue_id in (None, queue.queue_id)
    ]
    if not queues:
        raise UserError(f"topic {topic} has no such queue to read: {which_queues(every, broker_name)}")
    return queues


def which_queues(queues: "Sequence[MessageQueue]", broker_name: str | None) -> str:
    """The existing queues, for the error about an unknown one: of the given broker, else of each broker."""
    counts = Counter(queue.broker_name for queue in queues)
    if broker_name is not None and broker_name in counts:
        return f"broker {broker_name} has queues 0 to {counts[broker_name] - 1}"
    have = ", ".join(f"{name} has {count}" for name, count in sorted(counts.items())) or "no broker has any"
    return have if broker_name is None else f"broker {broker_name} has none; {have}"


async def span_of(
    consumer: "PullConsumer", queue: "MessageQueue", begin: int | None, end: int | None
) -> tuple[int, int]:
    """The offsets [first, last + 1) of the messages stored from ``begin`` up to, not including, ``end`` (ms)."""
    first = await (consumer.min_offset(queue) if begin is None else consumer.search_offset(queue, begin))
    after = await (consumer.max_offset(queue) if end is None else consumer.search_offset(queue, end))
    return first, after


async def read_queue(
    session: Session,
    consumer: "PullConsumer",
    queue: "MessageQueue",
    start: int,
    end: int,
    take: Take,
    *,
    expression: str = "*",
    most: int | None = None,
) -> tuple[str, int]:
    """Pass each pull and its messages to ``take``, up to offset ``end`` (exclusive) and at most ``most`` messages.

    Returns the status of the last pull, and the offset to continue at.
    """
    at, left = start, end - start if most is None else most
    while at < end and left > 0:
        session.progress(f"{queue.broker_name} queue {queue.queue_id}: offset {at} of {end}")
        result = await consumer.pull(
            queue, at, max_count=min(_PULL_COUNT, end - at, left), max_bytes=_PULL_BYTES, expression=expression
        )
        # A queue of type BatchCQ gives whole batches, which may be more than was asked for.
        every = [message for message in result.messages if at <= message.queue_offset < end]
        found = every[:left]
        take(result, found)
        left -= len(found)
        if result.next_offset <= at or result.status.name == "OFFSET_ILLEGAL":
            return status_name(result), at
        at = result.next_offset if len(found) == len(every) else found[-1].queue_offset + 1
    return "NO_NEW_MSG", at

"""Messages of queues, read without a group: which queues and offsets, the pulls, and the oldest messages of a topic."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from skylark.mqcommon.errors import UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.sdk.admin.reports.problems import OnProgress

if TYPE_CHECKING:
    from skylark.mqcommon.message.message import MessageExt
    from skylark.mqcommon.message.queue import MessageQueue
    from skylark.sdk.consumer.pull import PullConsumer
    from skylark.sdk.consumer.reader import PullResult

# RocketMQ's brokers return at most 32 messages per pull, Skylark's brokers as many as requested.
_PULL_COUNT = 1024
_PULL_BYTES = 1024 * 1024
# RocketMQ's tool prints these names
_STATUS = {"NO_NEW_MESSAGE": "NO_NEW_MSG", "NO_MATCHED_MESSAGE": "NO_MATCHED_MSG"}

OnPull = Callable[["PullResult", "list[MessageExt]"], None]


def status_name(result: "PullResult") -> str:
    """The status of a pull as RocketMQ's tool prints it."""
    return _STATUS.get(result.status.name, result.status.name)


@lazy_dataclass(frozen=True, slots=True)
class ReadQueue:
    """A queue that was read: the status of the last pull in RocketMQ's words, and the offset to go on at."""

    broker_name: str
    queue_id: int
    status: str
    offset: int


@lazy_dataclass(frozen=True, slots=True)
class OldestMessages:
    """The oldest messages of a topic, and the queues that they were read from."""

    messages: "tuple[MessageExt, ...]"
    queues: tuple[ReadQueue, ...]


class ReadCallbacks(Protocol):
    """Callbacks of `oldest_messages`: a queue was cut to its oldest messages, a pull has ended, a queue was read."""

    def cut(self, queue: "MessageQueue", count: int) -> None: ...

    def pulled(self, messages: "list[MessageExt]") -> None: ...

    def ended(self, queue: "MessageQueue", read: ReadQueue) -> None: ...


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
    """The existing queues, for the error about an unknown queue: on the given broker, else on each broker."""
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
    consumer: "PullConsumer",
    queue: "MessageQueue",
    start: int,
    end: int,
    on_pull: OnPull,
    *,
    expression: str = "*",
    most: int | None = None,
    on_progress: OnProgress | None = None,
) -> tuple[str, int]:
    """Pass each pull and its messages to ``on_pull``, up to offset ``end`` (exclusive) and at most ``most`` messages.

    Returns the status of the last pull, and the offset to continue at.
    """
    at, left = start, end - start if most is None else most
    while at < end and left > 0:
        if on_progress is not None:
            on_progress(f"{queue.broker_name} queue {queue.queue_id}: offset {at} of {end}")
        result = await consumer.pull(
            queue, at, max_count=min(_PULL_COUNT, end - at, left), max_bytes=_PULL_BYTES, expression=expression
        )
        # A queue of type BatchCQ returns whole batches, which may exceed the requested number.
        every = [message for message in result.messages if at <= message.queue_offset < end]
        found = every[:left]
        on_pull(result, found)
        left -= len(found)
        if result.next_offset <= at or result.status.name == "OFFSET_ILLEGAL":
            return status_name(result), at
        at = result.next_offset if len(found) == len(every) else found[-1].queue_offset + 1
    return "NO_NEW_MSG", at


async def oldest_messages(
    consumer: "PullConsumer",
    topic: str,
    *,
    broker_name: str | None = None,
    queue_id: int | None = None,
    offset: int | None = None,
    begin_ms: int | None = None,
    end_ms: int | None = None,
    most: int,
    callbacks: ReadCallbacks | None = None,
    on_progress: OnProgress | None = None,
) -> OldestMessages:
    """At most ``most`` messages of the topic, queue by queue, the oldest of each queue.

    The messages are stored from ``begin_ms`` until before ``end_ms``, at ``offset`` of their queue or later. UserError
    when the topic has no such queue.
    """
    messages: list[MessageExt] = []
    queues: list[ReadQueue] = []

    def collect(_: "PullResult", found: "list[MessageExt]") -> None:
        messages.extend(found)
        if callbacks is not None:
            callbacks.pulled(found)

    for queue in await chosen_queues(consumer, topic, broker_name, queue_id):
        left = most - len(messages)
        if left <= 0:
            break
        first, end = await span_of(consumer, queue, begin_ms, end_ms)
        start = max(first, offset or 0)
        if end - start > left:
            end = start + left
            if callbacks is not None:
                callbacks.cut(queue, left)
        status, at = await read_queue(consumer, queue, start, end, collect, on_progress=on_progress)
        queues.append(ReadQueue(queue.broker_name, queue.queue_id, status, at))
        if callbacks is not None:
            callbacks.ended(queue, queues[-1])
    return OldestMessages(tuple(messages), tuple(queues))


async def message_at(
    consumer: "PullConsumer", topic: str, broker_name: str, queue_id: int, offset: int
) -> "MessageExt":
    """The message at an offset of a queue; UserError when there is none."""
    (queue,) = await chosen_queues(consumer, topic, broker_name, queue_id)
    result = await consumer.pull(queue, offset, max_count=1)
    # A pull at a missing offset, or at an offset inside a batch, returns other messages.
    found = [message for message in result.messages if message.queue_offset == offset]
    if not found:
        raise UserError(
            f"queue {queue_id} of {topic} on {broker_name} has no message at offset {offset}; "
            f"it has {result.min_offset} to {result.max_offset - 1}"
            if result.max_offset > result.min_offset
            else f"queue {queue_id} of {topic} on {broker_name} is empty"
        )
    return found[0]

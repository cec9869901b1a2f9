"""Where a queue is read from when it becomes a consumer's: as RocketMQ's clients, with one difference for FIRST_OFFSET
and TIMESTAMP. They ask for the committed offset in a way that gives 0 for a queue without one, while its first message
is in memory; then their TIMESTAMP reads everything. Here only LAST_OFFSET asks so.
"""

from dataclasses import dataclass
from typing import Protocol

from mqcommon.message.queue import MessageQueue
from sdk import broker_api
from sdk.consumer.offsets import OffsetStore
from sdk.consumer.outcome import ConsumeFrom, check_timestamp
from sdk.consumer.replicas import Replicas


class StartChoice(Protocol):
    """What a consumer was told of where to begin; `PushSettings` has it."""

    @property
    def consume_from(self) -> ConsumeFrom: ...

    @property
    def consume_timestamp_ms(self) -> int | None: ...

    @property
    def broadcast(self) -> bool: ...

    @property
    def retry_topic(self) -> str: ...


@dataclass(frozen=True, slots=True)
class PullStart:
    """The choice of a pull consumer, which does not read its group's retry topic by itself."""

    consume_from: ConsumeFrom
    consume_timestamp_ms: int | None
    broadcast: bool = False
    retry_topic: str = ""

    def __post_init__(self) -> None:
        check_timestamp(self.consume_from, self.consume_timestamp_ms)


async def first_offset(mq: MessageQueue, choice: StartChoice, offsets: OffsetStore, replicas: Replicas) -> int:
    """The offset of the first message to consume."""
    is_retry = mq.topic == choice.retry_topic
    is_last = choice.consume_from is ConsumeFrom.LAST_OFFSET
    committed = await offsets.read(mq, zero_if_new=is_last and not choice.broadcast)
    if committed is not None:
        return committed
    if is_retry or choice.consume_from is ConsumeFrom.FIRST_OFFSET:
        return await replicas.ask(mq, lambda at: broker_api.min_offset(at, mq.topic, mq.queue_id))
    if is_last:
        return await replicas.ask(mq, lambda at: broker_api.max_offset(at, mq.topic, mq.queue_id))
    timestamp_ms = choice.consume_timestamp_ms
    assert timestamp_ms is not None
    return await replicas.ask(mq, lambda at: broker_api.search_offset(at, mq.topic, mq.queue_id, timestamp_ms))

"""Where a queue is read from when it becomes a consumer's: as RocketMQ's clients, with one difference for FIRST_OFFSET
and TIMESTAMP. They ask for the committed offset in a way that gives 0 for a queue without one, while its first message
is in memory; then their TIMESTAMP reads everything. Here only LAST_OFFSET asks so.
"""

from dataclasses import dataclass
from typing import Protocol

from mqcommon.errors import InvalidArgument
from mqcommon.message.queue import MessageQueue
from sdk import broker_api
from sdk.consumer.offsets import OffsetStore
from sdk.consumer.outcome import ConsumeFrom
from sdk.consumer.replicas import Replicas


class Choice(Protocol):
    """What a consumer was told of where to begin; `Settings` of a push consumer has it."""

    @property
    def consume_from(self) -> ConsumeFrom: ...

    @property
    def consume_timestamp_ms(self) -> int | None: ...

    @property
    def broadcast(self) -> bool: ...

    @property
    def retry_topic(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Beginning:
    """The choice of a pull consumer, which does not read its group's retry topic by itself."""

    consume_from: ConsumeFrom
    consume_timestamp_ms: int | None
    broadcast: bool = False
    retry_topic: str = ""

    def __post_init__(self) -> None:
        check_timestamp(self.consume_from, self.consume_timestamp_ms)


def check_timestamp(consume_from: ConsumeFrom, timestamp_ms: int | None) -> None:
    """InvalidArgument unless there is a timestamp exactly when it is needed."""
    if (timestamp_ms is not None) != (consume_from is ConsumeFrom.TIMESTAMP):
        raise InvalidArgument("consume_timestamp_ms goes with consume_from=ConsumeFrom.TIMESTAMP, and only with it")


async def first_offset(mq: MessageQueue, choice: Choice, offsets: OffsetStore, replicas: Replicas) -> int:
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

"""Where a queue is read from when it becomes this member's: as RocketMQ's clients, with one difference for FIRST_OFFSET
and TIMESTAMP. They ask for the committed offset in a way that gives 0 for a queue without one, while its first message
is in memory; then their TIMESTAMP reads everything. Here only LAST_OFFSET asks so.
"""

from mqcommon.message.queue import MessageQueue
from sdk import broker_api
from sdk.consumer.offsets import OffsetStore
from sdk.consumer.outcome import ConsumeFrom
from sdk.consumer.replicas import Replicas
from sdk.consumer.settings import Settings


async def first_offset(mq: MessageQueue, settings: Settings, offsets: OffsetStore, replicas: Replicas) -> int:
    """The offset of the first message to consume."""
    is_retry = mq.topic == settings.retry_topic
    is_last = settings.consume_from is ConsumeFrom.LAST_OFFSET
    committed = await offsets.read(mq, zero_if_new=is_last and not settings.broadcast)
    if committed is not None:
        return committed
    if is_retry or settings.consume_from is ConsumeFrom.FIRST_OFFSET:
        return await replicas.ask(mq, lambda at: broker_api.min_offset(at, mq.topic, mq.queue_id))
    if is_last:
        return await replicas.ask(mq, lambda at: broker_api.max_offset(at, mq.topic, mq.queue_id))
    timestamp_ms = settings.consume_timestamp_ms
    assert timestamp_ms is not None
    return await replicas.ask(mq, lambda at: broker_api.search_offset(at, mq.topic, mq.queue_id, timestamp_ms))

"""Where a group begins to read a queue for which it has committed no offset yet."""

from enum import Enum

from mqcommon.errors import InvalidArgument
from mqcommon.message.queue import MessageQueue
from sdk import broker_api
from sdk.consumer.replicas import Replicas


class ConsumeFrom(Enum):
    """The first position of a new group, with RocketMQ's names."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class Start:
    """``timestamp_ms`` goes with TIMESTAMP, and with nothing else."""

    def __init__(self, consume_from: ConsumeFrom, timestamp_ms: int | None) -> None:
        if (consume_from is ConsumeFrom.TIMESTAMP) is (timestamp_ms is None):
            raise InvalidArgument("give consume_timestamp_ms with ConsumeFrom.TIMESTAMP, and only then")
        self._from = consume_from
        self._timestamp_ms = timestamp_ms or 0

    @property
    def name(self) -> str:
        """RocketMQ's name of the choice, for heartbeats."""
        return self._from.value

    async def offset(self, mq: MessageQueue, replicas: Replicas) -> int:
        """The first offset to read in ``mq``, as its master or a slave says now."""
        topic, queue_id = mq.topic, mq.queue_id
        if self._from is ConsumeFrom.LAST_OFFSET:
            return await replicas.ask(mq, lambda at: broker_api.max_offset(at, topic, queue_id))
        if self._from is ConsumeFrom.FIRST_OFFSET:
            return await replicas.ask(mq, lambda at: broker_api.min_offset(at, topic, queue_id))
        return await replicas.ask(
            mq, lambda at: broker_api.search_offset(at, topic, queue_id, self._timestamp_ms, boundary="LOWER")
        )

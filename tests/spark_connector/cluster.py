"""A cluster in memory: what the reader needs of a consumer, over encoded records."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Self

from skylark.mqcommon.errors import ConnectFailed, RouteNotFound, SkylarkError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.routes import AbsentBroker
from skylark.sdk.consumer.expression import Sql
from skylark.sdk.position import OffsetSpan, Position
from skylark.sdk.routes import TopicQueues
from tests.sdk.arrow.records import Stored


class Pulled(NamedTuple):
    data: bytes
    next_offset: int
    min_offset: int
    max_offset: int
    broker_id: int = 0
    created_ms: int | None = None


@dataclass
class Log:
    """One queue: the messages from ``minimum`` on."""

    minimum: int = 0
    records: list[bytes] = field(default_factory=list)

    @property
    def maximum(self) -> int:
        return self.minimum + len(self.records)


class MemoryCluster:
    """Queues by name; ``limit`` is what the broker gives in one pull; ``failures`` are raised by the next pulls.

    ``passes`` stands for the filter: whether the message at an offset passes it.
    """

    def __init__(self, limit: int = 32) -> None:
        self.logs: dict[MessageQueue, Log] = {}
        self.limit = limit
        self.failures: list[Exception] = []
        self.pulls: list[tuple[MessageQueue, int]] = []
        self.opened = 0
        self.passes: Callable[[int], bool] | None = None
        self.committed: dict[MessageQueue, int] = {}
        #: Names of brokers that do not answer, and are in no route.
        self.away: set[str] = set()
        #: Brokers that the NameServer misses in routes; RocketMQ's NameServers miss none.
        self.absent: list[AbsentBroker] = []
        #: By topic and broker; brokers that know none are like RocketMQ's.
        self.stamps: dict[tuple[str, str], int] = {}

    def add(self, queue: MessageQueue, count: int, *, minimum: int = 0) -> None:
        records = [
            Stored(
                topic=queue.topic,
                queue_id=queue.queue_id,
                queue_offset=offset,
                body=b"%d" % offset,
                store_timestamp=offset * 1000,
            ).encode()
            for offset in range(minimum, minimum + count)
        ]
        self.logs[queue] = Log(minimum, records)

    def grow(self, queue: MessageQueue, count: int) -> None:
        """More messages at the end of a queue, which is made if there is none."""
        log = self.logs.get(queue, Log())
        self.add(queue, len(log.records) + count, minimum=log.minimum)

    def delete_before(self, queue: MessageQueue, offset: int) -> None:
        """Delete the first messages, as a broker does for their age or for room on its disk."""
        log = self.logs[queue]
        self.logs[queue] = Log(offset, log.records[offset - log.minimum :])

    def __enter__(self) -> Self:
        self.opened += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.opened -= 1

    def topic_queues(self, topic: str) -> TopicQueues:
        found = sorted(queue for queue in self.logs if queue.topic == topic and queue.broker_name not in self.away)
        if not found:
            raise RouteNotFound(topic)
        return TopicQueues(found, tuple(self.absent))

    def log(self, mq: MessageQueue) -> Log:
        if mq.broker_name in self.away:
            raise ConnectFailed(f"{mq.broker_name}:1", "refused")
        return self.logs[mq]

    def committed_offset(self, mq: MessageQueue) -> int | None:
        self.log(mq)
        return self.committed.get(mq)

    def commit_offset(self, mq: MessageQueue, offset: int) -> None:
        self.log(mq)
        self.committed[mq] = offset

    def min_offset(self, mq: MessageQueue) -> int:
        return self.log(mq).minimum

    def max_offset(self, mq: MessageQueue) -> int:
        return self.log(mq).maximum

    def end_position(self, mq: MessageQueue) -> Position:
        return Position(self.log(mq).maximum, self.stamps.get((mq.topic, mq.broker_name)))

    def topic_offsets(self, topic: str, broker_name: str) -> dict[MessageQueue, OffsetSpan]:
        found = [mq for mq in self.logs if (mq.topic, mq.broker_name) == (topic, broker_name)]
        return {mq: OffsetSpan(self.log(mq).minimum, self.log(mq).maximum) for mq in found}

    def make_again(self, queue: MessageQueue, count: int, created_ms: int | None) -> None:
        """The topic was deleted and made again: its queue has ``count`` messages from 0 on."""
        if created_ms is not None:
            self.stamps[queue.topic, queue.broker_name] = created_ms
        self.add(queue, count)

    def search_offset(self, mq: MessageQueue, timestamp_ms: int) -> int:
        log = self.log(mq)
        return min(max(log.minimum, -(-timestamp_ms // 1000)), log.maximum)

    def pull_bytes_of_queues(
        self, offsets: Mapping[MessageQueue, int], **wanted: Any
    ) -> dict[MessageQueue, Pulled | SkylarkError]:
        found: dict[MessageQueue, Pulled | SkylarkError] = {}
        for mq, offset in offsets.items():
            try:
                found[mq] = self.pull_bytes(mq, offset, **wanted)
            except SkylarkError as error:
                found[mq] = error
        return found

    def pull_bytes(
        self,
        mq: MessageQueue,
        offset: int,
        *,
        max_count: int,
        max_bytes: int,
        expression: str | Sql = "*",
        wait_ms: int,
    ) -> Pulled:
        self.pulls.append((mq, offset))
        if self.failures:
            raise self.failures.pop(0)
        log = self.log(mq)
        if offset < log.minimum:
            return Pulled(b"", log.minimum, log.minimum, log.maximum, 0, self.stamps.get((mq.topic, mq.broker_name)))
        at = offset - log.minimum
        records = log.records[at : at + min(max_count, self.limit)]
        next_offset = min(offset, log.maximum) if not records else offset + len(records)
        if self.passes is not None and expression != "*":
            records = [one for number, one in enumerate(records, offset) if self.passes(number)]
        stamp = self.stamps.get((mq.topic, mq.broker_name))
        return Pulled(b"".join(records), next_offset, log.minimum, log.maximum, 0, stamp)

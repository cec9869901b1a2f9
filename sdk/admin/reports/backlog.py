"""What a group has not consumed yet, by topic. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.sdk.admin.reports.report import named

if TYPE_CHECKING:
    from skylark.mqcommon.message.queue import MessageQueue
    from skylark.remoting.protocol.requests.groups import ConsumeOffset, ConsumeStats
    from skylark.remoting.protocol.requests.topics import TopicStatsTable


@lazy_dataclass(frozen=True, slots=True)
class UndoneTopic:
    """Messages of a topic that wait for a group, in all and in the fullest queue.

    ``delay_ms``: the largest delay of a queue, from the last consumed message to the last stored message.
    """

    group: str = field(metadata=named("consumerGroup"))
    topic: str
    waiting: int = field(metadata=named("total"))
    waiting_in_queue: int = field(metadata=named("singleQueue"))
    delay_ms: int


def undone_of(group: str, stats: "ConsumeStats", topics: "Mapping[str, TopicStatsTable]") -> list[UndoneTopic]:
    """Each topic that the group consumes; ``topics`` says when the last message of each queue was stored."""
    queues: dict[str, list[tuple[MessageQueue, ConsumeOffset]]] = {}
    for queue, offsets in sorted(stats.offset_table.items(), key=lambda item: item[0]):
        queues.setdefault(queue.topic, []).append((queue, offsets))
    return [_undone(group, topic, rows, topics.get(topic)) for topic, rows in queues.items()]


def _undone(
    group: str, topic: str, queues: "Iterable[tuple[MessageQueue, ConsumeOffset]]", stored: "TopicStatsTable | None"
) -> UndoneTopic:
    total = most = delay_ms = 0
    for queue, offsets in queues:
        left = max(offsets.broker_offset - offsets.consumer_offset, 0)
        total, most = total + left, max(most, left)
        last = None if stored is None else stored.offset_table.get(queue)
        if left and last is not None and offsets.last_timestamp > 0:
            delay_ms = max(delay_ms, last.last_update_timestamp - offsets.last_timestamp)
    return UndoneTopic(group, topic, total, most, delay_ms)

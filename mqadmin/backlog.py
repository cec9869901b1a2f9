"""What a group has not consumed yet, by topic. Pure."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skylark.remoting.protocol.requests.groups import ConsumeStats
    from skylark.remoting.protocol.requests.topics import TopicStatsTable


def undone_of(group: str, stats: "ConsumeStats", topics: "Mapping[str, TopicStatsTable]") -> list[dict[str, Any]]:
    """A row for each topic that the group consumes: messages that wait, in all and in the fullest queue, and the delay.

    The delay is that of the queue that lags most: from the last message consumed to the last one stored.
    """
    rows: dict[str, dict[str, Any]] = {}
    for queue, offsets in sorted(stats.offset_table.items(), key=lambda item: item[0]):
        row = rows.setdefault(
            queue.topic,
            {"consumerGroup": group, "topic": queue.topic, "total": 0, "singleQueue": 0, "delayMs": 0},
        )
        left = max(offsets.broker_offset - offsets.consumer_offset, 0)
        row["total"] += left
        row["singleQueue"] = max(row["singleQueue"], left)
        stored = topics[queue.topic].offset_table.get(queue) if queue.topic in topics else None
        if left and stored is not None and offsets.last_timestamp > 0:
            row["delayMs"] = max(row["delayMs"], stored.last_update_timestamp - offsets.last_timestamp)
    return list(rows.values())

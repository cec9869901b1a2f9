"""How far connected consumers have pulled: consumerProgress shows messages between commit and pull as in flight.

Each connection has its own table, which is dropped with the connection. The number of queues in a table is limited;
further queues are not recorded, and show nothing in flight.
"""

from collections.abc import Iterable, Mapping

from skylark.remoting.net.channel import Channel

MAX_QUEUES = 10_000
_KEY = "pulled"


class PullPositions:
    """How far one connection has pulled: the next offset of each queue, by group and topic."""

    __slots__ = ("_queues", "_table")

    def __init__(self) -> None:
        self._table: dict[tuple[str, str], dict[int, int]] = {}
        self._queues = 0

    def record(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Record that the group's next pull begins at ``offset``."""
        queues = self._table.get((group, topic))
        if queues is None or queue_id not in queues:
            if self._queues >= MAX_QUEUES:
                return
            self._queues += 1
            if queues is None:
                queues = self._table[group, topic] = {}
        queues[queue_id] = offset

    def of(self, group: str, topic: str) -> Mapping[int, int]:
        return self._table.get((group, topic), {})


def record_pull(channel: Channel, group: str, topic: str, queue_id: int, offset: int) -> None:
    """Record that the next pull of this connection begins at ``offset``."""
    pulled = channel.attachments.get(_KEY)
    if pulled is None:
        pulled = channel.attachments[_KEY] = PullPositions()
    pulled.record(group, topic, queue_id, offset)


def furthest_pulled(channels: Iterable[Channel], group: str, topic: str) -> dict[int, int]:
    """Queue → the highest offset that any of the connections has pulled for the group."""
    furthest: dict[int, int] = {}
    for channel in channels:
        pulled = channel.attachments.get(_KEY)
        if pulled is not None:
            for queue_id, offset in pulled.of(group, topic).items():
                furthest[queue_id] = max(offset, furthest.get(queue_id, 0))
    return furthest

"""Sizes of messages by topic, which only metrics show: a broker without metrics does not count them."""

from broker.observe.stats import BrokerStats
from mqcommon.clock import Clock
from mqcommon.metrics.buckets import Histogram

#: Upper ends in bytes; RocketMQ's, with finer ones for small messages.
SIZES = (256.0, 1024.0, 4096.0, 65_536.0, 524_288.0, 1_048_576.0, 2_097_152.0, 4_194_304.0)


class SizedStats(BrokerStats):
    """The messages of one request count with their average size, as in RocketMQ."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._sizes: dict[str, Histogram] = {}

    def put(self, topic: str, count: int, size: int) -> None:
        super().put(topic, count, size)
        sizes = self._sizes.get(topic)
        if sizes is None:
            sizes = self._sizes[topic] = Histogram(SIZES)
        sizes.add(size / count, count)

    def drop_topic(self, topic: str) -> None:
        super().drop_topic(topic)
        self._sizes.pop(topic, None)

    def sizes(self) -> list[tuple[str, Histogram]]:
        """Stored sizes, by topic."""
        return list(self._sizes.items())

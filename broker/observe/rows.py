"""Meters by topic and group, and what an administrator's key ``topic@group`` finds among them.

A row comes with its first count. It goes with its topic or group: at once when this broker deletes them, and else (a
slave's tables are copies) with the first sampling that finds the name gone and the row idle.
Neighbours: stats.py (the families of rows), meter.py.
"""

from collections.abc import Callable, Iterator

from broker.observe.meter import Meter

# Rows that are sampled in one turn of the event loop: a few milliseconds when all of them have changed.
SLICE = 500

#: Whether a topic, or a group, exists.
Exists = Callable[[str], object]


class GroupRows:
    """See the module. ``now_ms`` gives the time of a row's start."""

    __slots__ = ("_now_ms", "_topics")

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        # By topic, then by group.
        self._topics: dict[str, dict[str, Meter]] = {}

    def meter(self, topic: str, group: str) -> Meter:
        """The row to raise; made if missing."""
        groups = self._topics.get(topic)
        if groups is None:
            groups = self._topics[topic] = {}
        meter = groups.get(group)
        if meter is None:
            meter = groups[group] = Meter(self._now_ms())
        return meter

    def find(self, key: str) -> Meter | None:
        """The row of ``topic@group``."""
        topic, _, group = key.partition("@")
        return self._topics.get(topic, {}).get(group)

    def all(self) -> Iterator[tuple[str, str, Meter]]:
        """Topic, group and row of all."""
        return ((topic, group, row) for topic, groups in self._topics.items() for group, row in groups.items())

    def drop_topic(self, topic: str) -> None:
        self._topics.pop(topic, None)

    def drop_group(self, group: str) -> None:
        for topic, groups in list(self._topics.items()):
            self._drop(topic, groups, group)

    def sample(self, now_ms: int, topic_exists: Exists, group_exists: Exists) -> Iterator[None]:
        """Sample all rows, and drop idle ones whose topic or group is gone. Yields after each SLICE of rows."""
        done = 0
        for topic, groups in list(self._topics.items()):
            for group, meter in list(groups.items()):
                is_raised = meter.sample(now_ms)
                if not is_raised and not (topic_exists(topic) and group_exists(group)):
                    self._drop(topic, groups, group)
                done += 1
                if done % SLICE == 0:
                    yield

    def _drop(self, topic: str, groups: dict[str, Meter], group: str) -> None:
        groups.pop(group, None)
        if not groups and self._topics.get(topic) is groups:
            del self._topics[topic]

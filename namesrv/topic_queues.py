"""The queues of every topic, by broker set and by topic. Pure.

Requests of brokers are about a whole set, requests of clients about one topic, so there is a table for each:
  by set    set name → topic → queues: a set that leaves takes its topics along
  by topic  topic → the names of the sets that have it, sorted; topics of the same sets share one tuple
Invariant: both tables say the same, and neither has an empty entry. So a route costs as much as it has brokers, however
many brokers there are, and a registration some 0.2 µs for each new topic.
Neighbours: routes.py decides what changes; route_answers.py forgets the answers about topics that change.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from skylark.namesrv.registration import Queues

_NO_TOPICS: Mapping[str, Queues] = {}


class TopicQueues:
    """Which sets have which topics, with which queues. ``changed`` is called with the topics of each change."""

    def __init__(self, changed: Callable[[Collection[str]], None]) -> None:
        self._changed = changed
        self._of_set: dict[str, dict[str, Queues]] = {}
        self._holders: dict[str, tuple[str, ...]] = {}

    @property
    def topic_count(self) -> int:
        """Topics of all sets, each once."""
        return len(self._holders)

    def of(self, set_name: str) -> Mapping[str, Queues]:
        """The topics of a set. The table changes as brokers register; none for a set without topics."""
        return self._of_set.get(set_name, _NO_TOPICS)

    def all(self) -> list[tuple[str, Mapping[str, Queues]]]:
        """The name and topics of each set that has topics."""
        return list(self._of_set.items())

    def holders(self, topic: str) -> tuple[str, ...]:
        """The names of the sets that have the topic, sorted."""
        return self._holders.get(topic, ())

    def put(self, set_name: str, topics: Mapping[str, Queues]) -> None:
        """Add topics to a set, or replace their queues."""
        if not topics:
            return
        own = self._of_set.setdefault(set_name, {})
        self._rehold([topic for topic in topics if topic not in own], lambda names: tuple(sorted((*names, set_name))))
        changed = [topic for topic, queues in topics.items() if own.get(topic) != queues]
        own.update(topics)
        self._changed(changed)

    def drop(self, set_name: str, topics: Iterable[str]) -> None:
        """Remove ``topics`` from a set, as far as it has them."""
        own = self._of_set.get(set_name, {})
        gone = [topic for topic in dict.fromkeys(topics) if topic in own]
        if len(gone) == len(own):
            self.drop_set(set_name)
            return
        for topic in gone:
            del own[topic]
        self._without(set_name, gone)

    def drop_set(self, set_name: str) -> None:
        """Remove all topics of a set."""
        self._without(set_name, self._of_set.pop(set_name, {}))

    def touch(self, set_name: str) -> None:
        """Announce a change of all topics of a set, whose brokers have changed."""
        self._changed(self.of(set_name).keys())

    def _without(self, set_name: str, topics: Collection[str]) -> None:
        self._rehold(topics, lambda names: tuple(name for name in names if name != set_name))
        self._changed(topics)

    def _rehold(self, topics: Collection[str], change: Callable[[tuple[str, ...]], tuple[str, ...]]) -> None:
        """Apply ``change`` to the holders of each topic, once for all topics that share one tuple."""
        holders = self._holders
        # By identity, as hashing a long tuple takes long. The old tuple is kept, so that no new object gets its
        # identity.
        made: dict[int, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        for topic in topics:
            old = holders.get(topic, ())
            known = made.get(id(old))
            if known is None:
                known = made[id(old)] = old, change(old)
            if known[1]:
                holders[topic] = known[1]
            else:
                del holders[topic]

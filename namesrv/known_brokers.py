"""The brokers of each cluster by name, present or away: they tell whether a route is whole. Pure.

A NameServer forgets the queues of a broker that is away, so a route alone does not say whether it has all queues of its
topic. This table says which brokers are missing in it:
  - a broker that was here and left is away, with the topics that it had, however it left. It may come back with its
  messages, also after a stop that was meant to be short;
- a broker that only other brokers have named is away, too, and may have any topic. Each broker keeps the names of its
    cluster on its disk and registers them, so they outlive a restart of all NameServers;
  - a broker is here once its whole registration has arrived.
A broker is forgotten when it is stopped while it is drained, when it has registered under another name, and when an
administrator says so. The names of forgotten brokers are kept, because other brokers may still tell of them.
Bounds: MAX_BROKERS names, MAX_TOPICS topics of brokers that are away; without its topics a broker may have any.
Neighbours: routes.py calls this; broker/registration/registration.py sends the names that a broker keeps.
"""

from collections.abc import Collection, Iterable

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.requests.registrations import names_crc
from skylark.remoting.protocol.requests.routes import LOST, NOT_WHOLE, STOPPED, UNHEARD, AbsentBroker

__all__ = ["LOST", "NOT_WHOLE", "STOPPED", "UNHEARD", "KnownBrokers"]

MAX_BROKERS = 10_000
MAX_TOPICS = 2_000_000
# The most absent brokers in one answer: a reader needs to know that brokers are absent, and some of their names.
MAX_SHOWN = 100


@lazy_dataclass(slots=True)
class _Known:
    """One broker name. ``away``: why the routes lack its queues; empty while they have them.

    ``topics``: the topics that the broker had when it left; None: it may have any topic.
    """

    cluster: str
    away: str
    topics: dict[str, None] | None = None


class KnownBrokers:
    """All broker names that this NameServer has heard of in this run."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        # The brokers that are away. Each route is checked against them only, however many brokers there are.
        self._away: dict[str, _Known] = {}
        # The names of forgotten brokers, the latest last, with their clusters.
        self._gone: dict[str, str] = {}
        self._crcs: dict[str, int] = {}

    def put_whole(self, name: str, cluster: str) -> None:
        """Record that the whole registration of a broker has arrived."""
        self._put(name, _Known(cluster, ""))

    def put_incomplete(self, name: str, cluster: str) -> None:
        """Record a broker that has registered some of its topics: more parts follow, or a slave's master is away."""
        if name not in self._known:
            self._put(name, _Known(cluster, NOT_WHOLE))

    def put_away(self, name: str, cluster: str, topics: Iterable[str], reason: str) -> None:
        """Record that a broker has left, and the topics that it had."""
        before = self._known.get(name)
        had = dict.fromkeys(topics)
        if before is None or (before.away and before.topics is None):
            # The broker's registration had not arrived in full.
            self._put(name, _Known(cluster, reason))
            return
        self._put(name, _Known(cluster, reason, (before.topics or {}) | had))
        self._bound_topics()

    def add_names(self, cluster: str, names: Iterable[str]) -> None:
        """Add names of brokers that another broker of the cluster knows."""
        new = [name for name in names if name not in self._known and name not in self._gone]
        for name in new[: max(MAX_BROKERS - len(self._known), 0)]:
            self._put(name, _Known(cluster, UNHEARD))

    def forget(self, name: str) -> bool:
        """Forget a broker that is gone for good; False when its name is not known."""
        known = self._known.pop(name, None)
        if known is None:
            return False
        self._away.pop(name, None)
        self._gone[name] = known.cluster
        if len(self._gone) > MAX_BROKERS:
            del self._gone[next(iter(self._gone))]
        self._crcs.pop(known.cluster, None)
        return True

    def delete_topic(self, topic: str, cluster: str | None) -> bool:
        """Delete a topic for an administrator, in one cluster or in all; returns whether an absent broker had it.

        When such a broker comes back, it has the topic all the same, as in RocketMQ.
        """
        found = [
            known.topics
            for known in self._away.values()
            if known.topics is not None and topic in known.topics and cluster in (None, known.cluster)
        ]
        for topics in found:
            del topics[topic]
        return bool(found)

    def is_away(self, name: str) -> bool:
        """Whether the routes lack the queues of a known broker."""
        return name in self._away

    def missing_in(self, topic: str, holders: Collection[str], clusters: Collection[str]) -> list[AbsentBroker]:
        """The brokers that are missing in the route of a topic which ``holders`` of ``clusters`` have now."""
        found = []
        for name, known in self._away.items():
            if name not in holders:
                has_topic = known.topics is not None and topic in known.topics
                if has_topic or (known.topics is None and known.cluster in clusters):
                    found.append(AbsentBroker(name, known.cluster, known.away, has_topic))
        return sorted(found, key=lambda one: one.broker_name)[:MAX_SHOWN]

    def absent(self) -> list[AbsentBroker]:
        """All brokers that are away."""
        found = [
            AbsentBroker(name, known.cluster, known.away, known.topics is not None)
            for name, known in self._away.items()
        ]
        return sorted(found, key=lambda one: (one.cluster, one.broker_name))[:MAX_SHOWN]

    def topics_away(self) -> list[Collection[str]]:
        """The topics of each broker that is away, as far as they are known."""
        return [known.topics for known in self._away.values() if known.topics is not None]

    def names(self, cluster: str) -> list[str]:
        """The names of a cluster, sorted."""
        return sorted(name for name, known in self._known.items() if known.cluster == cluster)

    def gone(self, cluster: str) -> list[str]:
        """The names of forgotten brokers of a cluster, sorted."""
        return sorted(name for name, its in self._gone.items() if its == cluster)

    def crc(self, cluster: str) -> int:
        """The checksum of the names of a cluster: a broker with another checksum asks for the names."""
        crc = self._crcs.get(cluster)
        if crc is None:
            crc = self._crcs[cluster] = names_crc(self.names(cluster))
        return crc

    def _put(self, name: str, known: _Known) -> None:
        before = self._known.get(name)
        if before is None or before.cluster != known.cluster:
            self._crcs.clear()
        self._gone.pop(name, None)
        self._known[name] = known
        self._away.pop(name, None)
        if known.away:
            self._away[name] = known
        if len(self._known) > MAX_BROKERS and self._away:
            oldest = next(iter(self._away))
            del self._known[oldest], self._away[oldest]
            self._crcs.clear()

    def _bound_topics(self) -> None:
        total = sum(map(len, self.topics_away()))
        for known in self._away.values():
            if total <= MAX_TOPICS:
                return
            total -= len(known.topics or ())
            known.topics = None

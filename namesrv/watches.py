"""Clients that wait for a change of their routes: one held request each, answered in the turn of the change.

`RouteChanges` counts the changes of the route table, each with the topics that it concerns. A client says up to which
count it knows the routes of its topics. If one of the topics has changed since, or the change is not remembered any
more, the client is answered at once; otherwise its request is held until a change, or until its deadline. A count is
valid for one run of one NameServer: a client that comes with the count of another run hears that all of its topics may
have changed. So no change is missed, whatever the order of watches, queries and changes; a client that is told of too
many topics only asks once too often.
Neighbours: routes.py adds the changes; sdk/client.py watches.
"""

from collections import deque
from collections.abc import Collection, Iterable
from typing import Generic, TypeVar

from skylark.mqcommon.lazy_dataclass import lazy_dataclass

# The most topics, summed over all changes, that are remembered.
MOST_TOPICS = 100_000
MOST_CHANGES = 10_000
# The most topics of one watch, and of all watches together: some 100 bytes each.
TOPICS_A_WATCH = 4_096
MOST_WATCHED = 2_000_000

C = TypeVar("C")


class RouteChanges:
    """The last changes, by their numbers."""

    def __init__(self) -> None:
        #: How many changes there were.
        self.count = 0
        self._recent: deque[Collection[str]] = deque()
        self._topics = 0

    def add(self, topics: Collection[str]) -> None:
        """Add a change of the routes of ``topics``."""
        if not topics:
            return
        self.count += 1
        # A copy: the caller's table of topics may change later.
        kept = frozenset(topics)
        self._recent.append(kept)
        self._topics += len(kept)
        while self._topics > MOST_TOPICS or len(self._recent) > MOST_CHANGES:
            self._topics -= len(self._recent.popleft())

    def add_all(self) -> None:
        """Add a change of any number of routes."""
        self.count += 1
        self._recent.clear()
        self._topics = 0

    def since(self, count: int) -> list[Collection[str]] | None:
        """The topics of each change after the first ``count`` changes; None if some are not remembered."""
        missed = self.count - count
        if not 0 <= missed <= len(self._recent):
            return None
        return [self._recent[-number] for number in range(missed, 0, -1)]


@lazy_dataclass(slots=True, eq=False)
class Watch(Generic[C]):
    """A held request. ``token``: the connection to answer."""

    token: C
    topics: tuple[str, ...]
    deadline: float = 0.0


class Watches(Generic[C]):
    """The held requests: one of each token, a connection."""

    def __init__(self) -> None:
        self._by_token: dict[C, Watch[C]] = {}
        self._by_topic: dict[str, dict[Watch[C], None]] = {}
        self._entries = 0

    def __len__(self) -> int:
        return len(self._by_token)

    def hold(self, watch: Watch[C]) -> bool:
        """Hold ``watch``; False when there are too many."""
        if len(watch.topics) > TOPICS_A_WATCH or self._entries + len(watch.topics) > MOST_WATCHED:
            return False
        assert watch.token not in self._by_token
        self._by_token[watch.token] = watch
        for topic in watch.topics:
            self._by_topic.setdefault(topic, {})[watch] = None
        self._entries += len(watch.topics)
        return True

    def pop(self, token: C) -> Watch[C] | None:
        """Remove and return the watch of ``token``."""
        watch = self._by_token.pop(token, None)
        if watch is not None:
            self._entries -= len(watch.topics)
            for topic in watch.topics:
                others = self._by_topic[topic]
                del others[watch]
                if not others:
                    del self._by_topic[topic]
        return watch

    def concerned(self, changes: Iterable[Collection[str]]) -> dict[Watch[C], list[str]]:
        """The watches that ``changes`` concern, with the topics of each that have changed."""
        found: dict[Watch[C], list[str]] = {}
        index = self._by_topic
        for topic in {
            topic
            for topics in changes
            # Loop over the smaller side: a broker that leaves may have more topics than all clients watch.
            for topic in (topics if len(topics) <= len(index) else index)
            if topic in topics and topic in index
        }:
            for watch in index[topic]:
                found.setdefault(watch, []).append(topic)
        return found

    def expired(self, now: float) -> list[Watch[C]]:
        """The watches whose deadline has come. They are held for equally long, so the oldest are the first."""
        found = []
        for watch in self._by_token.values():
            if watch.deadline > now:
                break
            found.append(watch)
        return found

    def all(self) -> list[Watch[C]]:
        return list(self._by_token.values())

"""Counters of what is delivered otherwise than by pulls: transactions that ended, and pops that came back.

These are raised for each such request; metrics read them.
"""

from collections import Counter

from mqcommon.metrics.metric import Histogram

#: Upper ends of the time from a half to its end, in milliseconds: up to a day.
FINISH_MS = (10.0, 100.0, 1_000.0, 5_000.0, 60_000.0, 600_000.0, 3_600_000.0, 43_200_000.0, 86_400_000.0)


class TransactionCounts:
    """Transactions that ended, by the topic of their message."""

    def __init__(self) -> None:
        self.commits: Counter[str] = Counter()
        self.rollbacks: Counter[str] = Counter()
        #: How long halves waited for their commit.
        self.finish_ms: dict[str, Histogram] = {}

    def committed(self, topic: str, age_ms: int) -> None:
        """A half of this age became a message."""
        self.commits[topic] += 1
        times = self.finish_ms.get(topic)
        if times is None:
            times = self.finish_ms[topic] = Histogram(FINISH_MS)
        times.add(age_ms)

    def rolled_back(self, topic: str) -> None:
        """A half ended without a message."""
        self.rollbacks[topic] += 1

    def drop_topic(self, topic: str) -> None:
        """Forget the counters of a deleted topic."""
        self.commits.pop(topic, None)
        self.rollbacks.pop(topic, None)
        self.finish_ms.pop(topic, None)


class PopCounts:
    """What was written to the revive log, and what came back."""

    def __init__(self) -> None:
        self.checkpoints = 0
        self.acks = 0
        #: Messages whose time was over, by group and topic.
        self.revived: Counter[tuple[str, str]] = Counter()

    def drop_topic(self, topic: str) -> None:
        """Forget the counters of a deleted topic."""
        self._drop(topic, 1)

    def drop_group(self, group: str) -> None:
        """Forget the counters of a deleted group."""
        self._drop(group, 0)

    def _drop(self, name: str, place: int) -> None:
        for key in [key for key in self.revived if key[place] == name]:
            del self.revived[key]

"""The journal and the tables behind it, as one thing to open and to take a snapshot of.

Neighbours: tasks/persist.py (sync, intervals, compaction), broker.py (wiring). The place to read RocketMQ's
config/*.json is `open`, when the journal's report says ``fresh``.
"""

from typing import Any

from broker.meta import consumer_offsets, groups, topics
from broker.meta.consumer_offsets import ConsumerOffsets
from broker.meta.groups import Groups
from broker.meta.journal import Journal, JournalReport
from broker.meta.topics import Topics
from broker.options import BrokerOptions
from common.clock import Clock
from common.files import FileSystem


class Metadata:
    """Everything that the broker keeps in ``store/config``."""

    def __init__(self, fs: FileSystem, directory: str, clock: Clock, options: BrokerOptions) -> None:
        self.journal = Journal(fs, directory)
        self.topics = Topics(self.journal, clock, options)
        self.groups = Groups(self.journal, clock, options)
        self.consumer_offsets = ConsumerOffsets(self.journal)
        self._appliers = {
            topics.PUT: self.topics.apply,
            topics.GONE: self.topics.apply,
            groups.PUT: self.groups.apply,
            groups.GONE: self.groups.apply,
            consumer_offsets.PUT: self.consumer_offsets.apply,
            consumer_offsets.GONE: self.consumer_offsets.apply,
        }

    def open(self) -> JournalReport:
        """Recover what the last run left, then make the system topics and groups. Blocks; before anything is served."""
        report = self.journal.replay(self._apply)
        self.topics.create_system_topics()
        self.groups.create_system_groups()
        return report

    def state(self) -> list[tuple[str, Any]]:
        """Records that make all tables, taken in one turn of the loop."""
        return [*self.topics.state(), *self.groups.state(), *self.consumer_offsets.state()]

    def _apply(self, kind: str, payload: Any) -> None:
        applier = self._appliers.get(kind)
        if applier is None:
            raise ValueError("no table has such records; was it written by a newer Skylark?")
        applier(kind, payload)

"""The journal and the tables behind it, as one thing to open and to take a snapshot of.

`open` is the broker's start: in a directory without records of ours it takes over RocketMQ's files, all of them in one
snapshot, or nothing. `recover` only reads. Neighbours: tasks/persist.py (sync, intervals, compaction), broker.py
(wiring), export_metadata.py and import_metadata.py (the way back, and again).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from broker.meta import json_files, json_import
from broker.meta.consumer_offsets import ConsumerOffsets
from broker.meta.delay_offsets import DelayOffsets
from broker.meta.groups import Groups
from broker.meta.journal import Journal, JournalReport
from broker.meta.journalled import Change, Tables
from broker.meta.json_files import JsonFiles, JsonTables, read_tables
from broker.meta.topics import Topics
from broker.options import BrokerOptions
from mqcommon.clock import Clock
from mqcommon.files import FileSystem


@dataclass
class MetadataReport:
    """What `open` found and did; ``imported`` is one line, empty when there was nothing to take over."""

    journal: JournalReport
    imported: str = ""
    warnings: list[str] = field(default_factory=list)


class Metadata:
    """Everything that the broker keeps in ``store/config``."""

    def __init__(self, fs: FileSystem, directory: str, clock: Clock, options: BrokerOptions) -> None:
        self._fs = fs
        self._directory = directory
        self.journal = Journal(fs, directory)
        # Whether `recover` found no change of ours.
        self.fresh = True
        self.topics = Topics(self.journal, clock, options)
        self.groups = Groups(self.journal, clock, options)
        self.consumer_offsets = ConsumerOffsets(self.journal, clock.now_ms())
        self.delay_offsets = DelayOffsets(self.journal)
        self.json_files = JsonFiles(fs, directory, self.journal)
        # A new table is added here; it declares its kinds of records itself.
        self._tables = Tables(self.topics, self.groups, self.consumer_offsets, self.delay_offsets, self.json_files.seen)

    def open(self) -> MetadataReport:
        """Recover what the last run left, then make the system topics and groups. Blocks; before anything is served."""
        report = MetadataReport(self.recover())
        if report.journal.fresh:
            self._import(report)
        elif changed := self.json_files.changed():
            report.warnings.append(self._changed_text(changed))
        self.topics.create_system_topics()
        self.groups.create_system_groups()
        return report

    def recover(self) -> JournalReport:
        """Recover what the last run left."""
        report = self.journal.replay(self._tables.apply)
        self.fresh = report.fresh
        return report

    def take_over(self, tables: JsonTables) -> None:
        """Put what RocketMQ's files hold into the tables; nothing is journalled."""
        for kind, payload in chain(json_import.records(tables), [(json_files.SEEN, self.json_files.look())]):
            self._tables.apply(kind, payload)

    def state(self) -> Iterator[Change]:
        """Records that make all tables as they are in this turn of the loop; made when they are read, in a thread."""
        return self._tables.state()

    def _import(self, report: MetadataReport) -> None:
        json_import.refuse_rocksdb(self._fs, self._directory)
        tables = read_tables(self._fs, self._directory)
        if tables is None:
            return
        self.take_over(tables)
        # A snapshot is there whole or not at all, and without one the next start imports again.
        self.journal.replace(self.state())
        report.imported = f"{json_import.summary(tables)} from RocketMQ's files in {self._directory}"
        report.warnings += json_import.warnings(self._fs, self._directory, tables)

    def _changed_text(self, changed: list[str]) -> str:
        directory = self._directory
        return (
            f"{', '.join(changed)} in {directory}: not what Skylark last read or wrote there, and not used. "
            "To use these files and forget what changed here since, stop and run: broker importMetadata STORE_DIR; "
            "to keep what is here: broker exportMetadata STORE_DIR"
        )

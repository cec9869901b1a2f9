"""All metadata of a broker: the tables and their journal, opened and snapshotted together.

`open` is called at the broker's start. In a directory without a journal it imports all of RocketMQ's files, or none, as
one snapshot. `recover` only reads.
Neighbours: tasks/persist.py (sync, intervals, compaction), broker.py (wiring),
commands/json_metadata.py (writes RocketMQ's files, and reads them again).
"""

from collections.abc import Iterator
from dataclasses import field
from itertools import chain

from skylark.broker.meta import json_files
from skylark.broker.meta.auth import Acls, Users
from skylark.broker.meta.consumer_offsets import ConsumerOffsets
from skylark.broker.meta.delay_offsets import DelayOffsets
from skylark.broker.meta.groups import Groups
from skylark.broker.meta.journal import Journal, JournalReport
from skylark.broker.meta.json_files import JsonFiles, JsonTables, read_tables
from skylark.broker.meta.request_modes import RequestModes
from skylark.broker.meta.seals import Seals
from skylark.broker.meta.table import Change, JournalledValue, Tables
from skylark.broker.meta.topics import Topics
from skylark.broker.options import BrokerOptions
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.lazy_dataclass import lazy_dataclass


@lazy_dataclass
class MetadataReport:
    """The result of `open`. ``imported`` is one line, empty if nothing was imported."""

    journal: JournalReport
    imported: str = ""
    warnings: list[str] = field(default_factory=list)


class Metadata:
    """Everything that the broker keeps in ``store/config``."""

    def __init__(self, fs: FileSystem, directory: str, clock: Clock, options: BrokerOptions) -> None:
        self._fs = fs
        self._directory = directory
        self.journal = Journal(fs, directory)
        # Whether `recover` found no journal, or an empty one.
        self.fresh = True
        self.topics = Topics(self.journal, clock, options)
        self.groups = Groups(self.journal, clock, options)
        self.consumer_offsets = ConsumerOffsets(self.journal, clock.now_ms())
        self.delay_offsets = DelayOffsets(self.journal)
        self.request_modes = RequestModes(self.journal, clock)
        self.seals = Seals(self.journal, clock)
        self.users = Users(self.journal, clock)
        self.acls = Acls(self.journal, clock)
        #: On a slave: the topics of all messages before this offset of the log are in the table; -1 when unknown.
        self.topics_to = JournalledValue(self.journal, "topics-to", -1, int, int)
        self.json_files = JsonFiles(fs, directory, self.journal)
        # Add a new table here; each table declares its kinds of records itself.
        self._tables = Tables(
            self.topics,
            self.topics.deletions,
            self.topics.static,
            self.groups,
            self.consumer_offsets,
            self.delay_offsets,
            self.request_modes,
            self.json_files.seen,
            self.users,
            self.acls,
            self.topics_to,
            self.seals,
        )

    def open(self, *, must_exist: bool = False) -> MetadataReport:
        """Recover, then make the system topics and groups. Blocks; runs before the broker serves.

        StoreCorrupt if a journal ``must_exist`` and there is none.
        """
        report = MetadataReport(self.recover(must_exist=must_exist))
        if report.journal.fresh:
            self._import(report)
        elif changed := self.json_files.changed():
            report.warnings.append(self._changed_text(changed))
        # Made after the recovery and the import: rows that these have, perhaps with other settings, stay.
        self.topics.create_system_topics()
        self.groups.create_system_groups()
        return report

    def recover(self, *, must_exist: bool = False) -> JournalReport:
        """Read the journal of earlier runs into the tables."""
        report = self.journal.replay(self._tables.apply, must_exist=must_exist)
        self.fresh = report.fresh
        return report

    def take_over(self, tables: JsonTables) -> None:
        """Put the contents of RocketMQ's files into the tables, without the journal."""
        for kind, payload in chain(
            json_files.journal_records(tables), [(json_files.SEEN, self.json_files.fingerprints())]
        ):
            self._tables.apply(kind, payload)

    def state(self) -> Iterator[Change]:
        """Records that restore all tables as they are in this turn of the event loop; made when a thread reads them."""
        return self._tables.state()

    def _import(self, report: MetadataReport) -> None:
        json_files.refuse_rocksdb(self._fs, self._directory)
        tables = read_tables(self._fs, self._directory)
        if tables is None:
            return
        self.take_over(tables)
        # The snapshot is atomic: after a crash without it the next start imports again.
        self.journal.replace(self.state())
        report.imported = f"{json_files.summary(tables)} from RocketMQ's files in {self._directory}"
        report.warnings += json_files.warnings(self._fs, self._directory, tables)

    def _changed_text(self, changed: list[str]) -> str:
        directory = self._directory
        return (
            f"{', '.join(changed)} in {directory} changed since Skylark last read or wrote them, and are not used. "
            "To use these files instead of Skylark's metadata, stop and run: broker importMetadata STORE_DIR; "
            "to overwrite them with Skylark's metadata: broker exportMetadata STORE_DIR"
        )

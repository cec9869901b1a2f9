"""A store with the checks of its other files, on a disk in memory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import TypeVar

import trio

from skylark.broker.healing.index_files import IndexFiles
from skylark.broker.healing.other_files import CheckedFile, OtherFiles
from skylark.broker.healing.queue_files import QueueChecks
from skylark.broker.healing.small_files import MetadataFiles, SmallFiles, store_files, write_sums
from skylark.broker.meta.metadata import Metadata
from skylark.broker.options import BrokerOptions
from skylark.broker.store.filter import ALL, Filter
from skylark.broker.store.log.residency import NotResident, resident_only, warm
from skylark.broker.store.reader import GetStatus, read_queue
from skylark.broker.store.store import MessageStore, StoreOptions
from skylark.broker.tasks.flush import Flusher
from skylark.broker.tasks.persist import Persister
from skylark.broker.writing.admission import Admission
from skylark.broker.writing.waits import LogWaits
from skylark.mqcommon.message.columns import record_starts
from skylark.mqcommon.message.record import decode_record
from tests.broker.store.support import SMALL, open_store
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles

T = TypeVar("T")


class Rig:
    """An open store on ``fs``."""

    def __init__(self, fs: MemoryFiles, options: StoreOptions) -> None:
        self.fs = fs
        self.store: MessageStore = open_store(fs, options=options)
        self.flusher = Flusher(self.store, LogWaits(), Admission(None), BrokerOptions(), trio.lowlevel.checkpoint)
        self.metadata = Metadata(fs, "/store/config", ManualClock(), BrokerOptions())
        self.metadata.open()
        self.index_files = IndexFiles(fs, self.store, self.flusher)
        self.checks = OtherFiles(
            [
                SmallFiles(fs, lambda: store_files(fs, self.store, self.flusher), self.flusher),
                MetadataFiles(fs, self.metadata.journal, Persister(self.metadata, BrokerOptions())),
                self.index_files,
                QueueChecks(fs, self.store, self.flusher),
            ],
            Random(1),
            partial(write_sums, self.store, self.flusher),
        )

    async def round(self) -> list[CheckedFile]:
        """One round of checks; returns those that found something."""
        found: list[CheckedFile] = []
        while (checked := await self.checks.check_next()) is not None:
            found.append(checked)
        return [checked for checked in found if checked.problem]

    def bodies(self, topic: str, wanted: Filter = ALL, count: int = 7) -> list[bytes]:
        """What a consumer gets: each read as the event loop makes it."""
        found: list[bytes] = []
        queue, offset = self.store.queues.find(topic, 0), self.store.min_offset(topic, 0)
        while offset < self.store.max_offset(topic, 0):
            at = offset
            result = in_loop(lambda: read_queue(self.store.log, queue, at, count, 1 << 20, wanted))  # noqa: B023
            assert result.status in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE)
            found += [decode_record(result.records, start).body for start in record_starts(result.records)]
            offset = result.next_offset
        return found

    def bodies_with_key(self, topic: str, key: str) -> list[bytes]:
        """What a query by key gets, newest first."""
        query = self.store.start_query(topic, key, 64, 0, 1 << 60)
        while in_loop(query.step):
            pass
        return [decode_record(raw).body for raw in query.result.records]


def in_loop(read: Callable[[], T]) -> T:
    """The result of ``read`` in the event loop: what it lacks comes from a thread."""
    got = None
    for _ in range(100):
        try:
            with resident_only(got):
                return read()
        except NotResident as cold:
            got = warm(cold)
    raise AssertionError("it needs more and more")


@contextmanager
def rig(fs: MemoryFiles, options: StoreOptions = SMALL) -> Iterator[Rig]:
    """Closed in the end, as a stop does."""
    made = Rig(fs, options)
    yield made
    made.metadata.journal.close()
    made.store.close()

"""The loop around the removal: hours, requests, full disks, files that cannot be removed."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import pytest
import trio

from skylark.broker.options import BrokerOptions
from skylark.broker.store.removal import Removal
from skylark.broker.store.retention import HOUR_MS, CleanDecision
from skylark.broker.store.store import MessageStore
from skylark.broker.tasks.clean import Cleaner
from skylark.broker.tasks.flush import Flusher
from skylark.broker.writing.admission import Admission
from skylark.broker.writing.waits import LogWaits
from skylark.mqcommon.errors import RequestRefused
from tests.broker.store.support import bodies, open_store, put
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import DEADLINE_S, until

FILES = 30


async def settled() -> None:
    """There is no metadata to wait for."""


class CountingRemoval(Removal):
    """Counts how often the disk was looked at."""

    looks = 0

    def decide(self, *args: Any, **kwargs: Any) -> CleanDecision:
        self.looks += 1
        return super().decide(*args, **kwargs)


class Parts:
    """A store of some files, and its cleaner."""

    def __init__(self, **changes: Any) -> None:
        self.fs = MemoryFiles()
        self.clock = ManualClock()
        self.store: MessageStore = open_store(self.fs, self.clock)
        while len(self.log_files()) < FILES:
            put(self.store, "t", 0, bytes(1000))
        self.options = BrokerOptions(
            **{"clean_resource_interval": 10, "delete_commit_log_files_interval": 0, "delete_when": "00", **changes}
        )
        self.admission = Admission()
        self.flusher = Flusher(self.store, LogWaits(), self.admission, self.options, settled)
        self.removal = CountingRemoval(self.fs, "/store", self.store)
        self.needed = self.uploaded_to = math.inf
        self.why_kept = ""
        self.cleaner = Cleaner(
            self.store,
            self.removal,
            self.flusher,
            self.admission,
            self.options,
            self.clock,
            lambda: self.needed,
            lambda: self.uploaded_to,
            lambda: self.why_kept,
        )

    def log_files(self) -> list[str]:
        return [path for path in self.fs.paths() if path.startswith("/store/commitlog/")]

    def fill_to(self, percent: int) -> None:
        self.fs.capacity = self.fs.used() * 100 // percent

    def go_to_hour(self, hour: int) -> None:
        """The next time that the local clock shows it."""
        while datetime.fromtimestamp(self.clock.now_ms() / 1000).hour != hour:
            self.clock.advance(HOUR_MS)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                await nursery.start(self.cleaner.run)
                yield
                nursery.cancel_scope.cancel()

    async def rounds(self, count: int = 3) -> None:
        """Wait until the cleaner has looked so often."""
        wanted = self.removal.looks + count
        await until(lambda: self.removal.looks >= wanted)


async def test_old_files_go_at_their_hour() -> None:
    parts = Parts(delete_when="03;15")
    parts.clock.advance(100 * HOUR_MS)
    parts.go_to_hour(14)
    async with parts.running():
        await parts.rounds()
        assert len(parts.log_files()) == FILES
        parts.go_to_hour(15)
        await until(lambda: len(parts.log_files()) == 1)
    assert parts.store.min_offset("t", 0) > 0
    assert put(parts.store, "t", 0, b"more") == parts.store.max_offset("t", 0) - 1


async def test_nothing_goes_while_a_backup_links_files() -> None:
    parts = Parts(delete_when="03")
    async with parts.running():
        async with parts.cleaner.nothing_removed():
            parts.clock.advance(100 * HOUR_MS)
            parts.go_to_hour(3)
            await until(lambda: parts.cleaner._removing.statistics().tasks_waiting == 1)
            assert len(parts.log_files()) == FILES
        await until(lambda: len(parts.log_files()) == 1)


async def test_young_files_stay_at_any_hour() -> None:
    parts = Parts(delete_when=";".join(str(hour) for hour in range(24)))
    parts.clock.advance(71 * HOUR_MS)
    async with parts.running():
        await parts.rounds()
    assert len(parts.log_files()) == FILES


async def test_old_files_that_others_need_stay_until_the_disk_is_full() -> None:
    parts = Parts(delete_when=";".join(str(hour) for hour in range(24)))
    parts.clock.advance(100 * HOUR_MS)
    segment = parts.store.log.chain.segment_bytes
    parts.needed = 3 * segment + 1
    async with parts.running():
        await until(lambda: len(parts.log_files()) == FILES - 3)
        await parts.rounds()
        assert len(parts.log_files()) == FILES - 3
        parts.fill_to(90)
        await until(lambda: len(parts.log_files()) < FILES - 3)


async def test_files_that_are_not_in_the_bucket_stay_however_full_the_disk_is() -> None:
    parts = Parts(delete_when=";".join(str(hour) for hour in range(24)))
    parts.clock.advance(100 * HOUR_MS)
    segment = parts.store.log.chain.segment_bytes
    parts.uploaded_to, parts.why_kept = 3 * segment - 1, "12 bytes are not in s3://b yet: 403"
    async with parts.running():
        await until(lambda: len(parts.log_files()) == FILES - 2)
        parts.cleaner.ask()
        parts.fill_to(99)
        await parts.rounds()
        assert len(parts.log_files()) == FILES - 2
        with pytest.raises(RequestRefused, match=r"make room. 12 bytes are not in s3://b yet: 403"):
            parts.admission.check_room()
        parts.uploaded_to = 5 * segment
        await until(lambda: len(parts.log_files()) == FILES - 5)


async def test_uploaded_files_beyond_the_local_bytes_leave_at_any_hour(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    parts = Parts(tier_path="s3://bucket", tier_local_bytes=5 * 4096, delete_when="03")
    parts.go_to_hour(12)
    parts.uploaded_to = 0
    async with parts.running():
        await parts.rounds()
        assert len(parts.log_files()) == FILES
        parts.uploaded_to = 4 * 4096
        await until(lambda: len(parts.log_files()) == FILES - 4)
        parts.uploaded_to = FILES * 4096
        await until(lambda: len(parts.log_files()) == 5)
        await parts.rounds()
    assert len(parts.log_files()) == 5
    assert "it is in the bucket, and beyond tierLocalBytes" in caplog.text


async def test_who_asks_waits_for_no_hour_and_for_no_interval() -> None:
    parts = Parts(clean_resource_interval=3_600_000)
    parts.clock.advance(100 * HOUR_MS)
    parts.go_to_hour(5)
    async with parts.running():
        parts.cleaner.ask()
        await until(lambda: len(parts.log_files()) == 1)


async def test_a_full_disk_is_cleaned_at_any_hour_but_of_old_files_first() -> None:
    parts = Parts()
    parts.fill_to(80)
    async with parts.running():
        await parts.rounds()
        assert len(parts.log_files()) == FILES, "80 % is no reason to remove young files"
        parts.clock.advance(100 * HOUR_MS)
        parts.go_to_hour(5)
        await until(lambda: len(parts.log_files()) < FILES)


async def test_above_85_percent_the_oldest_go_and_no_more_than_needed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    parts = Parts()
    parts.fill_to(89)
    async with parts.running():
        await until(lambda: parts.fs.used() <= parts.fs.capacity * 85 // 100)
        await parts.rounds()
    left = len(parts.log_files())
    assert left > 20
    low = parts.store.min_offset("t", 0)
    assert low > 0
    assert len(bodies(parts.store, "t", 0)) == parts.store.max_offset("t", 0) - low
    assert "of the disk in use" in caplog.text


async def test_above_90_percent_nothing_is_taken_until_there_is_room(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    parts = Parts(clean_file_forcibly_enable=False)
    parts.fill_to(95)
    async with parts.running():
        # Known before the first message could come.
        with pytest.raises(RequestRefused, match=r"95\.\d% in use, at most 90%: make room"):
            parts.admission.check_room()
        assert len(bodies(parts.store, "t", 0)) == parts.store.max_offset("t", 0)
        parts.fs.capacity *= 2
        await until(lambda: parts.admission.is_open)
    assert len(parts.log_files()) == FILES
    assert caplog.text.count("sends are refused") == 1
    assert caplog.text.count("sends are accepted again") == 1


async def test_a_disk_that_nothing_can_be_done_for_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    parts = Parts(clean_file_forcibly_enable=False)
    parts.fill_to(80)
    parts.why_kept = "12 bytes are not in s3://b yet: 403"
    async with parts.running():
        await parts.rounds()
    assert caplog.text.count("no file may be removed yet: 12 bytes are not in s3://b yet: 403") == 1


async def test_files_that_cannot_be_removed_are_tried_again_after_a_while(caplog: pytest.LogCaptureFixture) -> None:
    parts = Parts(redelete_hanged_file_interval=50)
    parts.clock.advance(100 * HOUR_MS)
    parts.go_to_hour(0)
    parts.fs.faults.fail("remove")
    oldest = parts.log_files()[0]
    async with parts.running():
        await until(lambda: "could not be deleted" in caplog.text)
        assert oldest in parts.log_files()
        await until(lambda: len(parts.log_files()) == 1)
    assert caplog.text.count("could not be deleted, next try in 50 ms") == 1
    assert parts.store.log.chain.retired == []


async def test_at_the_start_queues_follow_a_cleaning_that_was_cut_off() -> None:
    parts = Parts()
    store = parts.store
    store.checkpoint(with_ends=True)
    removal = Removal(parts.fs, "/store", store)
    for _ in range(20):
        removal.retire_log_file(store.durable_end)
    removal.remove_log_files()
    before = [path for path in parts.fs.paths() if "consumequeue" in path]
    async with parts.running():
        await until(lambda: [path for path in parts.fs.paths() if "consumequeue" in path] != before)
        await parts.cleaner.follow_log()
    assert store.min_offset("t", 0) > 0
    assert len(bodies(store, "t", 0)) == store.max_offset("t", 0) - store.min_offset("t", 0)


async def test_a_queue_that_is_deleted_meanwhile_is_left_alone() -> None:
    parts = Parts()
    store = parts.store
    for number in range(300):
        put(store, f"u{number}", 0, b"x")
    async with parts.running(), trio.open_nursery() as nursery:
        nursery.start_soon(parts.cleaner.follow_log)
        for number in range(0, 300, 7):
            nursery.start_soon(parts.flusher.delete_topic, f"u{number}")
    assert store.max_offset("u7", 0) == 0
    assert store.max_offset("u8", 0) == 1

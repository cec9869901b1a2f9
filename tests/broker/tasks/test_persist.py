"""The shell around the journal: shared fsyncs, intervals, compaction in the background, stop."""

import errno
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from random import Random

import pytest
import trio
import trio.testing

from skylark.broker.meta.consumer_offsets import SLICE
from skylark.broker.meta.journal import COMPACT_FACTOR, COMPACT_MIN_BYTES
from skylark.broker.tasks.persist import Persister
from skylark.mqcommon.errors import StoreError
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.broker.meta.support import DIRECTORY, MetadataDir, options
from tests.support.clock import passing_time
from tests.support.waiting import DEADLINE_S, until


@asynccontextmanager
async def running(meta: MetadataDir) -> AsyncIterator[Persister]:
    persister = Persister(meta.metadata, meta.options)
    meta.journal.on_append = persister.appended
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(persister.run)
            yield persister
            nursery.cancel_scope.cancel()


async def test_wait_returns_when_the_change_survives_power_loss() -> None:
    meta = MetadataDir()
    async with running(meta) as persister:
        meta.topics.put(TopicConfig("T"))
        await persister.wait()
        for seed in range(10):
            after = MetadataDir(fs=meta.fs.crash(Random(seed)))
            assert after.topics.get("T") is not None


async def test_a_change_that_nobody_waits_for_is_synced_too() -> None:
    meta = MetadataDir()
    async with running(meta):
        syncs = meta.fs.calls["sync"]
        meta.topics.create_on_send("T", "TBW102", 1)
        await until(lambda: meta.fs.calls["sync"] > syncs)


async def test_many_who_wait_share_an_fsync() -> None:
    meta = MetadataDir()
    inside, go_on = threading.Event(), threading.Event()

    def before_call(operation: str, path: str) -> None:
        if operation == "sync" and not inside.is_set():
            inside.set()
            go_on.wait(DEADLINE_S)

    async with running(meta) as persister:
        syncs = meta.fs.calls["sync"]
        meta.fs.before_call = before_call
        answered = 0

        async def change(number: int) -> None:
            nonlocal answered
            meta.topics.put(TopicConfig(f"T{number}"))
            await persister.wait()
            answered += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(change, 0)
            await until(inside.is_set)
            for number in range(1, 50):
                nursery.start_soon(change, number)
            await trio.testing.wait_all_tasks_blocked()
            assert answered == 0  # what came during an fsync waits for the next one
            go_on.set()
        assert answered == 50
        assert meta.fs.calls["sync"] - syncs == 2


async def test_a_failed_fsync_is_an_error_for_those_who_wait_for_it(caplog: pytest.LogCaptureFixture) -> None:
    meta = MetadataDir()
    async with running(meta) as persister:
        meta.fs.faults.fail("sync")
        meta.topics.put(TopicConfig("T"))
        with pytest.raises(StoreError, match="read-only until a restart"):
            await persister.wait()
        with pytest.raises(StoreError, match="read-only until a restart"):
            meta.topics.put(TopicConfig("U"))
        with pytest.raises(StoreError, match="read-only until a restart"):
            await persister.wait()
    assert "metadata not synced" in caplog.text


async def test_after_a_failed_fsync_nothing_counts_as_settled() -> None:
    meta = MetadataDir()
    async with running(meta) as persister:
        await persister.settle()
        meta.fs.faults.fail("sync")
        meta.topics.create_on_send("T", "TBW102", 1)
        with pytest.raises(StoreError):
            await persister.wait()
        with pytest.raises(StoreError, match="read-only until a restart"):
            await persister.settle()


async def test_offsets_are_appended_by_interval() -> None:
    meta = MetadataDir(options(flush_consumer_offset_interval=10))
    async with running(meta):
        for queue_id in range(2500):
            meta.offsets.commit("g", "T", queue_id, queue_id)
        await until(lambda: not meta.offsets.dirty)
        await until(lambda: len(MetadataDir(fs=meta.fs.killed()).offsets.table().get("T@g", {})) == 2500)


def commit_1_000_each(meta: MetadataDir, groups: int, base: int = 0) -> None:
    for number in range(1_000 * groups):
        topic, queue_id = number // groups % 100, number // groups // 100
        meta.offsets.commit(f"group{number % groups}", f"topic{topic}", queue_id, base + number)


async def test_100_000_offsets_go_in_small_steps_with_turns_of_the_loop_between() -> None:
    meta = MetadataDir()
    persister = Persister(meta.metadata, meta.options)
    meta.journal.on_append = persister.appended
    steps: list[int] = []
    meta.journal.on_append = lambda: steps.append(meta.fs.used())
    turns: list[int] = []

    async def other_work() -> None:
        while True:
            turns.append(len(steps))
            await trio.lowlevel.checkpoint()

    commit_1_000_each(meta, 100)
    start = meta.fs.used()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other_work)
        await persister.append_offsets()
        nursery.cancel_scope.cancel()
    assert len(steps) == 100_000 // SLICE
    sizes = [after - before for before, after in pairwise([start, *steps])]
    assert max(sizes) < 32 * SLICE, "bytes that one turn of the loop appends"
    # Two of one and then two of the other is what trio's random order makes of taking turns.
    assert max(after - before for before, after in pairwise(turns)) <= 2, "appends between two turns of others"
    meta.kill()
    assert sum(map(len, meta.offsets.table().values())) == 100_000
    assert meta.offsets.query("group99", "topic99", 9) == 99_999


async def test_offsets_that_change_again_and_again_take_bounded_room(monkeypatch: pytest.MonkeyPatch) -> None:
    # The journal is compacted early, so that few offsets are enough.
    monkeypatch.setattr("skylark.broker.meta.journal.COMPACT_MIN_BYTES", 1024)
    alone = MetadataDir()
    commit_1_000_each(alone, 10)
    changed = alone.offsets.pop_changed()
    for start in range(0, len(changed), SLICE):
        alone.offsets.append_changed(changed[start : start + SLICE])
    one_interval = alone.fs.used()
    meta = MetadataDir()
    intervals, most = 9, 0
    async with running(meta) as persister:
        for number in range(intervals):
            commit_1_000_each(meta, 10, number)
            await persister.append_offsets()
            await persister.wait()
            most = max(most, meta.fs.used())
            await until(lambda: not meta.journal.wants_compaction)
        snapshot = max(meta.fs.size(path) for path in meta.fs.paths() if "snapshot" in path)
    assert one_interval < 32 * 10_000
    # The journals up to the threshold and what came while the snapshot was written, and the snapshot.
    assert most < (COMPACT_FACTOR + 1) * snapshot + 2 * one_interval < intervals * one_interval / 2
    meta.power_loss()
    assert meta.offsets.query("group9", "topic99", 9) == 9_999 + intervals - 1
    assert sum(map(len, meta.offsets.table().values())) == 10_000


async def test_offsets_that_cannot_be_written_are_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    meta = MetadataDir(options(flush_consumer_offset_interval=10))
    async with running(meta):
        meta.fs.capacity = meta.fs.used()
        meta.offsets.commit("g", "T", 0, 7)
        await until(lambda: "consumer offsets not written" in caplog.text)
        meta.fs.capacity = 1 << 40
        await until(lambda: not meta.offsets.dirty)
    assert caplog.text.count("consumer offsets not written") == 1
    meta.kill()
    assert meta.offsets.query("g", "T", 0) == 7


async def test_close_appends_the_last_offsets() -> None:
    meta = MetadataDir()
    async with running(meta) as persister:
        meta.offsets.commit("g", "T", 0, 7)
    await persister.close()
    meta.power_loss()
    assert meta.offsets.query("g", "T", 0) == 7


async def test_what_a_cancelled_append_has_not_appended_is_appended_by_the_next_one() -> None:
    meta = MetadataDir()
    persister = Persister(meta.metadata, meta.options)
    meta.offsets.commit("other", "T", 0, 7)
    for queue_id in range(2 * SLICE):
        meta.offsets.commit("g", "T", queue_id, 7)
    with trio.CancelScope() as scope:
        meta.journal.on_append = scope.cancel
        await persister.append_offsets()
    assert scope.cancelled_caught and meta.offsets.dirty
    await persister.close()
    meta.power_loss()
    assert meta.offsets.query("other", "T", 0) == 7
    assert len(meta.offsets.queues_of("g", "T")) == 2 * SLICE


async def test_an_append_returns_when_the_journal_also_has_what_another_one_has_taken() -> None:
    meta = MetadataDir()
    persister = Persister(meta.metadata, meta.options)
    begun = trio.Event()
    for queue_id in range(10 * SLICE):
        meta.offsets.commit("g", "T", queue_id, 7)
    async with trio.open_nursery() as nursery:
        meta.journal.on_append = begun.set
        nursery.start_soon(persister.append_offsets)
        await begun.wait()
        await persister.append_offsets()
        meta.kill()
    assert len(meta.offsets.queues_of("g", "T")) == 10 * SLICE


async def test_after_the_stop_waiting_is_an_error() -> None:
    meta = MetadataDir()
    async with running(meta) as persister:
        pass
    with pytest.raises(StoreError, match="stopping"):
        await persister.wait()


async def test_a_hung_disk_delays_the_stop_no_longer_than_the_deadline(
    mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    meta = MetadataDir()
    persister = Persister(meta.metadata, meta.options)
    meta.journal.on_append = persister.appended
    go_on = threading.Event()

    def hang(operation: str, path: str) -> None:
        go_on.wait(DEADLINE_S)

    meta.fs.before_call = hang
    async with passing_time(mock_clock):
        await persister.close()
    go_on.set()
    assert "not closed within" in caplog.text


async def test_a_long_journal_is_compacted_in_the_background(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    meta = MetadataDir()
    async with running(meta) as persister:
        attributes = {"filler": "x" * 50_000}
        for number in range(COMPACT_MIN_BYTES // 50_000 + 1):
            meta.topics.put(TopicConfig("T", number, number, attributes=attributes))
        await persister.wait()
        await until(lambda: "metadata.snapshot.1" in meta.fs.listdir(DIRECTORY))
        await until(lambda: "metadata compacted" in caplog.text)
        meta.topics.put(TopicConfig("U"))
        await persister.wait()
    assert meta.fs.used() < 100_000
    last = meta.topics.get("T")
    meta.power_loss()
    assert meta.topics.get("T") == last
    assert meta.topics.get("U") is not None


async def test_no_file_of_metadata_goes_while_a_backup_links_them() -> None:
    meta = MetadataDir()
    async with running(meta) as persister:
        async with persister.files_kept():
            before = meta.fs.listdir(DIRECTORY)
            for number in range(COMPACT_MIN_BYTES // 50_000 + 1):
                meta.topics.put(TopicConfig("T", number, number, attributes={"filler": "x" * 50_000}))
            await persister.wait()
            await until(lambda: persister._replacing.statistics().tasks_waiting == 1)
            assert meta.fs.listdir(DIRECTORY) == before
        await until(lambda: "metadata.snapshot.1" in meta.fs.listdir(DIRECTORY))


async def test_a_compaction_that_fails_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    meta = MetadataDir()
    async with running(meta) as persister:
        meta.fs.faults.fail("rename")
        for number in range(COMPACT_MIN_BYTES // 50_000 + 1):
            meta.topics.put(TopicConfig("T", number, number, attributes={"filler": "x" * 50_000}))
        await persister.wait()
        await until(lambda: "metadata not compacted" in caplog.text)
        meta.topics.put(TopicConfig("U"))
        await persister.wait()
    meta.power_loss()
    assert meta.topics.get("U") is not None


async def test_without_a_descriptor_the_change_is_refused_and_synced_later(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skylark.broker.tasks.persist.RETRY_S", 0.001)
    meta = MetadataDir()
    async with running(meta) as persister:
        meta.fs.faults.fail("sync", code=errno.EMFILE)
        meta.topics.put(TopicConfig("T"))
        with pytest.raises(StoreError, match="cannot be opened"):
            await persister.wait()
        assert "metadata not synced, next try" in caplog.text
        # Nobody waits, and it is synced all the same.
        await until(lambda: MetadataDir(fs=meta.fs.crash(Random(1))).topics.get("T") is not None)
        meta.topics.put(TopicConfig("U"))
        await persister.wait()

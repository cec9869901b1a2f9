"""A store that lacks messages of its bucket takes none; a new slave learns where old queues go on."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from zlib import crc32

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.options import BrokerOptions
from skylark.broker.replication.replica import Replica
from skylark.broker.replication.role import RoleMachine
from skylark.broker.store.begun import BegunAt, QueueEnd, learn_ends
from skylark.broker.store.store import MessageStore
from skylark.broker.tasks.flush import Flusher
from skylark.broker.tier import guard
from skylark.broker.tier.guard import BucketGuard, queue_ends, why_refused
from skylark.broker.writing.admission import Admission, Reason
from skylark.broker.writing.waits import LogWaits
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.tier.bucket import BucketAway
from skylark.mqcommon.tier.manifest import StoredObject, Tail, Tombstone, expired
from skylark.mqcommon.tier.metadata import MetadataCopy, encode_metadata
from skylark.mqcommon.tier.view import TierView
from tests.broker.store.support import SMALL, open_store, put
from tests.support.memory_bucket import MemoryBucket
from tests.support.memory_files import MemoryFiles
from tests.support.tier_segments import SET, Sent, TierWriter, record_of
from tests.support.waiting import until

FILE_BYTES = SMALL.commitlog_segment_bytes
MASTER, SLAVE = 0, 1


class Broken(MemoryBucket):
    """A bucket that can be away."""

    is_away = False

    def get(self, name: str) -> bytes:
        if self.is_away:
            raise BucketAway("the bucket does not answer")
        return super().get(name)


def filled(bucket: MemoryBucket) -> TierWriter:
    """Queue 0 of t has 2 messages, queue 3 of gone has 1 and the topic was deleted. The bucket ends with a file."""
    writer = TierWriter(bucket)
    messages = [Sent("gone", 3, 0, b"x", 1), Sent("t", 0, 0, b"one", 1), Sent("t", 0, 1, b"two", 1)]
    sizes = [len(record_of(message, 0)) for message in messages]
    writer.add(messages, filler=FILE_BYTES - sum(sizes))
    writer.change(writer.manifest.successor(5_000).with_tombstone(Tombstone("gone", sizes[0])))
    return writer


class Guarded:
    """A store with its guard."""

    def __init__(self, store: MessageStore, bucket: MemoryBucket, broker_id: int, *, elects: bool = False) -> None:
        self.store, self.role, self.admission = store, RoleMachine(broker_id), Admission()

        async def settle() -> None:
            """There is no metadata."""

        self.flusher = Flusher(store, LogWaits(), self.admission, BrokerOptions(), settle)
        self.view = TierView(bucket, SET, 1 << 20)
        self.guard = BucketGuard(self.view, store, self.flusher, self.admission, self.role, elects_master=elects)

    @property
    def refuses(self) -> bool:
        return self.admission.holds(Reason.BUCKET)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.guard.run)
            yield
            nursery.cancel_scope.cancel()


def begun_at(store: MessageStore, offset: int) -> None:
    Replica(store).begin_at(offset)


@given(st.none() | st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))
def test_a_master_is_refused_only_what_the_bucket_could_contradict(
    bucket_end: int | None, log_end: int, begun: int
) -> None:
    is_known_behind = bucket_end is not None and bucket_end > log_end
    is_unknown_and_empty = bucket_end is None and log_end == 0
    assert bool(why_refused(bucket_end, log_end, begun)) == (is_known_behind or is_unknown_and_empty or begun > 0)


def test_the_queues_of_deleted_topics_do_not_go_on() -> None:
    bucket = MemoryBucket()
    filled(bucket)
    view = TierView(bucket, SET, 1 << 20)
    view.refresh()
    assert list(queue_ends(view)) == [QueueEnd("t", 0, 2)]


def test_a_queue_goes_on_although_retention_has_removed_all_its_records() -> None:
    bucket = MemoryBucket()
    writer = TierWriter(bucket)
    writer.add([Sent("t", 0, 0, b"one", 1), Sent("t", 0, 1, b"two", 1)])
    writer.add([Sent("u", 0, 0, b"x", 60_000)])
    kept, gone = expired(writer.manifest.segments, {0: 60_000})
    writer.change(writer.manifest.successor(61_000).with_segments_changed(kept, gone))
    for offset in (1, 2):
        writer.add([Sent("u", 0, offset, b"x", 62_000)])
    view = TierView(bucket, SET, 1 << 20)
    view.refresh()
    assert view.count == 3 and view.bounds("t", 0) is None and view.locate("t", 0, 0) is None
    assert list(queue_ends(view)) == [QueueEnd("t", 0, 2), QueueEnd("u", 0, 3)]


@pytest.mark.parametrize("has_segments", [True, False])
def test_a_queue_that_was_empty_before_the_bucket_began_goes_on(has_segments: bool) -> None:
    bucket = MemoryBucket()
    writer = filled(bucket) if has_segments else TierWriter(bucket)
    tombstones = [Tombstone("gone since", 900)]
    for log_end, empty in ((900, {"old": {3: 7}, "gone since": {0: 1}}), (901, {"gone since": {0: 2}})):
        data = encode_metadata(MetadataCopy(SET, "C", "plain", "1", 5, log_end, 1, 1, 1, 1, {}, empty))
        bucket.put(f"{SET}/meta/{log_end}", [data])
        manifest = writer.manifest.successor(6_000)
        stored = StoredObject(f"{SET}/meta/{log_end}", len(data), crc32(data))
        for each in tombstones:
            manifest = manifest.with_tombstone(each)
        tombstones = []
        writer.change(manifest.with_metadata(stored))
        view = TierView(bucket, SET, 1 << 20)
        view.refresh()
        expected = [QueueEnd("old", 3, 7)] if log_end == 900 else [QueueEnd("gone since", 0, 2)]
        assert list(queue_ends(view)) == [QueueEnd("t", 0, 2)] * has_segments + expected


def test_learnt_ends_stay_over_a_start_and_known_queues_are_left_alone() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    begun_at(store, FILE_BYTES)
    put(store, "known", 0, b"x")
    assert learn_ends(store.queues, [QueueEnd("t", 1, 7), QueueEnd("known", 0, 1), QueueEnd("u", 0, 1)]) == 2
    for _ in range(3):
        assert (store.queues.get("t", 1).min_offset, store.queues.get("t", 1).next_offset) == (7, 7)
        assert (store.queues.get("u", 0).min_offset, store.queues.get("u", 0).next_offset) == (1, 1)
        assert store.queues.get("known", 0).next_offset == 1
        assert store.close() == ""
        store = open_store(fs)
        assert store.begun.offset == FILE_BYTES
    assert put(store, "t", 1, b"x") == 7


def test_a_note_that_cannot_be_read_counts_as_the_greatest_offset() -> None:
    fs = MemoryFiles()
    fs.overwrite("/store/begunAt", b"\0\0")
    begun = BegunAt(fs, "/store")
    begun.load()
    assert begun.offset > 1 << 60
    begun.note(0)
    assert begun.offset == 0 and not fs.exists("/store/begunAt")


async def test_an_empty_master_beside_a_filled_bucket_does_not_start() -> None:
    bucket = MemoryBucket()
    filled(bucket)
    one = Guarded(open_store(MemoryFiles()), bucket, MASTER)
    with pytest.RaisesGroup(pytest.RaisesExc(UserError, match="mqadmin tierRestore"), flatten_subgroups=True):
        async with one.run():
            raise AssertionError("it started")
    assert one.refuses


async def test_an_empty_master_beside_a_bucket_with_a_copy_of_the_open_file_only_does_not_start() -> None:
    bucket = MemoryBucket()
    writer = TierWriter(bucket)
    writer.change(writer.manifest.successor(2_000).with_tail(Tail(0, 9, StoredObject("tail", 9, 0))))
    one = Guarded(open_store(MemoryFiles()), bucket, MASTER)
    with pytest.RaisesGroup(pytest.RaisesExc(UserError, match="up to 9: make"), flatten_subgroups=True):
        async with one.run():
            raise AssertionError("it started")


async def test_a_master_may_lack_a_copy_of_the_open_file_of_its_predecessor() -> None:
    bucket = MemoryBucket()
    writer = filled(bucket)
    tail = Tail(FILE_BYTES, 10 * FILE_BYTES, StoredObject("tail", 9, 0))
    writer.change(writer.manifest.successor(6_000).with_tail(tail))
    store = open_store(MemoryFiles())
    while store.log.end < FILE_BYTES:
        put(store, "t", 0, b"x")
    one = Guarded(store, bucket, MASTER)
    async with one.run():
        await until(lambda: one.guard._is_fresh, "a comparison")
        assert one.view.manifest is not None and not one.refuses


async def test_an_empty_master_beside_a_bucket_that_is_away_does_not_start() -> None:
    bucket = Broken()
    bucket.is_away = True
    one = Guarded(open_store(MemoryFiles()), bucket, MASTER)
    bucket.objects[f"{SET}/manifest/{0:020d}"] = b"", 0
    with pytest.RaisesGroup(pytest.RaisesExc(UserError, match="cannot be read"), flatten_subgroups=True):
        async with one.run():
            raise AssertionError("it started")


async def test_an_empty_bucket_lets_an_empty_store_begin() -> None:
    one = Guarded(open_store(MemoryFiles()), MemoryBucket(), MASTER)
    async with one.run():
        # From the start on: it was compared before the broker served anybody.
        assert not one.refuses


async def test_a_master_with_messages_takes_sends_while_the_bucket_is_away() -> None:
    store, bucket = open_store(MemoryFiles()), Broken()
    put(store, "t", 0, b"x")
    filled(bucket)
    bucket.is_away = True
    one = Guarded(store, bucket, MASTER)
    async with one.run():
        await until(lambda: bool(one.guard._problem), "a read that failed")
        assert not one.refuses


async def test_a_master_that_lost_messages_of_the_bucket_takes_no_sends(caplog: pytest.LogCaptureFixture) -> None:
    store, bucket = open_store(MemoryFiles()), MemoryBucket()
    put(store, "t", 0, b"x")
    filled(bucket)
    one = Guarded(store, bucket, MASTER)
    async with one.run():
        await until(lambda: one.refuses)
    assert "the bucket of tierPath has the log of this set up to 4,096" in caplog.text
    assert "mqadmin tierRestore" in caplog.text


async def test_a_new_slave_learns_the_ends_and_may_be_promoted() -> None:
    bucket, fs = MemoryBucket(), MemoryFiles()
    filled(bucket)
    store = open_store(fs)
    begun_at(store, FILE_BYTES)
    one = Guarded(store, bucket, SLAVE, elects=True)
    async with one.run():
        await until(lambda: not store.begun.offset)
        one.role.promoted()
        one.role.took_over()
        assert not one.refuses
    assert put(store, "t", 0, b"x") == 2
    assert not fs.exists("/store/begunAt")


async def test_a_new_slave_that_learnt_nothing_takes_no_sends_as_the_master(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(guard, "RETRY_S", 0.01)
    bucket = Broken()
    filled(bucket)
    bucket.is_away = True
    store = open_store(MemoryFiles())
    begun_at(store, FILE_BYTES)
    one = Guarded(store, bucket, SLAVE, elects=True)
    async with one.run():
        assert not one.refuses
        one.role.promoted()
        one.role.took_over()
        assert one.refuses
        await until(lambda: "sends are refused: the store has the log from" in caplog.text)
        bucket.is_away = False
        await until(lambda: not one.refuses)
    assert "which cannot be read: the bucket does not answer" in caplog.text
    assert "was not read yet" not in caplog.text
    assert put(store, "t", 0, b"x") == 2

"""The log of a store gets into a bucket, and nothing is lost whatever happens on the way."""

import logging
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

import pytest
import trio

from skylark.broker.store.store import MessageStore
from skylark.broker.tier import owner as owner_module
from skylark.broker.tier import tier as tier_module
from skylark.broker.tier.reads import OlderReads
from skylark.broker.tier.tasks import UploadTask
from skylark.broker.tier.tier import in_thread
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.tier import manifest as manifest_module
from skylark.mqcommon.tier.bucket import BucketAway, BucketRefused, ObjectInfo
from skylark.mqcommon.tier.layout import MANIFESTS, METADATA, SEGMENTS, SPANS, TAILS, metadata_name
from skylark.mqcommon.tier.manifest import Segment
from skylark.mqcommon.tier.manifests import ManifestLog
from skylark.mqcommon.tier.restore import restore_segment
from skylark.mqcommon.tier.segment_index import SegmentIndex
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.tier import FOLLOWER, OWNER, STOPPED
from tests.broker.store.cleaning import clean
from tests.broker.store.support import SMALL, open_store, put
from tests.broker.tier.uploaded import asked
from tests.support.amounts import share_of
from tests.support.clock import ManualClock
from tests.support.faulty_bucket import FaultyBucket, Stopped
from tests.support.inline_tier import SET, InlineTier, InlineUploader
from tests.support.memory_bucket import MemoryBucket
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import DEADLINE_S, until

FILE = SMALL.commitlog_segment_bytes
HOUR_MS = 3_600_000


class Rig:
    """A store with messages, its clock and its bucket."""

    def __init__(self, count: int = 100) -> None:
        self.fs, self.clock, self.bucket = MemoryFiles(), ManualClock(), MemoryBucket()
        self.bucket.now_ms = self.clock.now_ms()
        self.faulty = FaultyBucket(self.bucket, Random(1))
        self.store = open_store(self.fs, self.clock)
        self.bytes: dict[int, bytes] = {}
        self.fill(count)

    def fill(self, count: int, topic: str = "t") -> None:
        for number in range(count):
            put(self.store, topic, number % 3, b"%04d" % number * 20, b"KEYS\x01k%d\x02" % number)
        self.store.flush()
        for segment in self.store.log.chain.segments:
            self.bytes[segment.base] = bytes(self.fs.read(segment.path))

    def tier(self, **options: Any) -> InlineTier:
        return InlineTier(self.faulty, self.fs, self.store, self.clock, **options)

    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)
        self.bucket.now_ms = self.clock.now_ms()

    def manifest_end(self) -> int:
        newest = ManifestLog(self.bucket, SET).newest()
        return newest.end if newest is not None and newest.segments else 0

    def segments(self) -> list[Segment]:
        newest = ManifestLog(self.bucket, SET).newest()
        return [] if newest is None else list(newest.segments)

    def names(self, kind: str) -> list[str]:
        return [name for name in self.bucket.objects if name.startswith(f"{SET}/{kind}/")]

    def check(self) -> None:
        """Each file of the log is on this disk, or comes back from the bucket byte for byte."""
        local = {segment.base for segment in self.store.log.chain.segments}
        there = {segment.start: segment for segment in self.segments()}
        for base, content in self.bytes.items():
            if base in there:
                assert restored(self.bucket, there[base]) == content
            else:
                assert base in local


def restored(bucket: MemoryBucket, segment: Segment) -> bytes:
    out = bytearray(segment.end - segment.start)
    index = SegmentIndex.decode(bucket.get(segment.index.name))
    restore_segment(bucket, segment, index, memoryview(out))
    return bytes(out)


async def test_closed_files_get_into_the_bucket_in_order_and_come_back_byte_for_byte() -> None:
    rig = Rig()
    tier = rig.tier()
    await tier.settle()
    closed = rig.store.log.end // FILE * FILE
    assert tier.tier.uploaded_to == closed > 3 * FILE
    assert [segment.start for segment in rig.segments()] == list(range(0, closed, FILE))
    rig.check()
    status = tier.tier.status()
    assert (status.role, status.behind_bytes, status.segments) == (OWNER, 0, closed // FILE)
    assert status.tail_to == rig.store.log.end and status.uploads == closed // FILE


async def test_a_file_waits_until_its_last_byte_is_safe() -> None:
    rig = Rig()
    tier = rig.tier()
    tier.limit = lambda: 2 * FILE - 1
    await tier.settle()
    assert tier.tier.uploaded_to == FILE
    assert tier.tier.status().behind_bytes == 0
    tier.limit = lambda: 2 * FILE
    await tier.settle()
    assert tier.tier.uploaded_to == 2 * FILE


async def test_the_open_file_and_the_metadata_are_copied_at_intervals() -> None:
    rig = Rig()
    tier = rig.tier(tier_tail_bytes=100_000)
    await tier.settle()
    rig.fill(3)
    await tier.settle()
    assert tier.tier.status().tail_to < rig.store.log.end
    rig.pass_time(300_000)
    tier.copies.now = b"other topics"
    await tier.settle()
    newest = ManifestLog(rig.bucket, SET).newest()
    assert newest is not None and newest.metadata is not None
    # A short copy is made again, longer.
    assert [(tail.start, tail.end) for tail in newest.tails] == [(newest.end, rig.store.log.end)]
    tail = rig.bucket.get(newest.tails[0].stored.name)
    assert tail == rig.store.log.chain.read_file(newest.end, len(tail))
    assert rig.bucket.get(newest.metadata.name) == b"other topics"
    assert len(rig.names(TAILS)) == len(rig.names(METADATA)) == 2
    rig.pass_time(25 * HOUR_MS)
    await tier.settle()
    assert len(rig.names(TAILS)) == len(rig.names(METADATA)) == 1


async def test_many_new_bytes_are_copied_before_the_interval() -> None:
    rig = Rig()
    tier = rig.tier(tier_tail_bytes=4096, mapped_file_size_commit_log=4096)
    await tier.settle()
    before = tier.tier.status().tail_to
    rig.fill(1)
    await tier.settle()
    assert tier.tier.status().tail_to == before
    rig.fill(60)
    await tier.settle()
    assert tier.tier.status().tail_to > before


async def test_a_copy_whose_manifest_came_late_is_followed_by_the_next() -> None:
    rig = Rig()
    tier = rig.tier(tier_tail_bytes=4096)
    await tier.settle()
    for _ in range(12):
        # The manifest is created, and nobody hears of it.
        create, head = rig.faulty.create, rig.faulty.head

        def lost(name: str, data: bytes, create: Any = create) -> None:
            create(name, data)
            raise BucketAway("no answer")

        def away(name: str) -> ObjectInfo:
            raise BucketAway("no answer")

        def lost_and_away(name: str, data: bytes, lost: Any = lost) -> None:
            rig.faulty.head = away  # type: ignore[method-assign]
            lost(name, data)

        rig.faulty.create = lost_and_away  # type: ignore[method-assign]
        rig.fill(2)
        rig.pass_time(300_000)
        await tier.tier.step()
        rig.faulty.create, rig.faulty.head = create, head  # type: ignore[method-assign]
        rig.fill(2)
        rig.pass_time(300_000)
        await tier.settle()
        manifest = tier.tier.manifest
        assert manifest is not None and not tier.tier.problem
        ends = [manifest.end, *(tail.end for tail in manifest.tails)]
        assert [tail.start for tail in manifest.tails] == ends[:-1] and ends[-1] == rig.store.log.end


async def test_a_new_owner_goes_on_where_the_former_one_was_and_the_former_one_writes_no_more() -> None:
    rig = Rig()
    old, new = rig.tier(term=1), rig.tier(term=2)
    old.limit = lambda: 2 * FILE
    await old.settle()
    await new.settle()
    rig.check()
    objects = dict(rig.bucket.objects)
    rig.fill(60)
    old.limit = lambda: rig.store.safe_end
    await old.settle()
    status = old.tier.status()
    assert status.role == STOPPED and "epoch" in status.problem and status.retry_in_ms == -1
    assert ManifestLog(rig.bucket, SET).newest() == ManifestLog(MemoryBucketOf(objects), SET).newest()
    await new.settle()
    rig.check()
    assert new.tier.uploaded_to == rig.store.log.end // FILE * FILE


class MemoryBucketOf(MemoryBucket):
    def __init__(self, objects: dict[str, tuple[bytes, int]]) -> None:
        super().__init__()
        self.objects = objects


async def test_an_owner_of_an_older_term_cannot_claim_the_set() -> None:
    rig = Rig()
    await rig.tier(term=5).settle()
    late = rig.tier(term=4)
    count = len(rig.bucket.objects)
    await late.settle()
    assert late.tier.status().role == STOPPED
    assert len(rig.bucket.objects) == count


async def test_a_slave_learns_from_the_manifests_which_files_may_go() -> None:
    rig = Rig()
    slave = rig.tier(broker_id=1)
    await slave.settle()
    assert slave.tier.uploaded_to == 0
    await rig.tier().settle()
    await slave.settle()
    assert slave.tier.uploaded_to == rig.manifest_end() > 0
    assert slave.tier.status().role == FOLLOWER
    # Promoted, it owns the set.
    slave.role.promoted()
    slave.role.took_over()
    await slave.settle()
    assert slave.tier.status().role == OWNER


async def test_a_restored_store_that_has_followed_an_owner_is_no_longer_the_first_of_its_set() -> None:
    rig = Rig()
    owner = rig.tier(term=5)
    await owner.settle()
    newest = ManifestLog(rig.bucket, SET).newest()
    assert newest is not None
    slave = rig.tier(broker_id=1, term=6)
    rig.store.restored.note(newest.number, newest.generation)
    slave.is_following = True
    await slave.settle()
    assert rig.store.restored.manifest is not None  # nobody has written since: all may have been lost
    owner.copies.now = b"later"
    rig.pass_time(HOUR_MS)
    await owner.settle()
    slave.is_following = False
    await slave.settle()
    assert rig.store.restored.manifest is not None
    slave.is_following = True
    await slave.settle()
    assert rig.store.restored.manifest is None
    slave.role.promoted()
    slave.role.took_over()
    await slave.settle()
    assert slave.tier.status().role == OWNER


@pytest.mark.parametrize("what", ["shorter", "changed", "begins later", "other files"])
async def test_a_log_that_is_not_the_one_in_the_bucket_changes_nothing_there(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig()
    await rig.tier().settle()
    if what == "shorter":
        rig.fs = MemoryFiles()
        rig.store = open_store(rig.fs, rig.clock)
    elif what == "changed":
        last = rig.store.log.chain.at(rig.manifest_end() - 1)
        assert last is not None
        last.file.view[100:101] = b"\xff"
    elif what == "begins later":
        end = rig.manifest_end()
        rig.fill(100)
        clean(rig.fs, rig.store, end // FILE + 1)
    else:
        rig.store.log.chain.segment_bytes = 8192
    objects = dict(rig.bucket.objects)
    other = rig.tier()
    await other.settle()
    assert rig.bucket.objects == objects
    assert other.tier.uploaded_to == 0 and other.tier.disagreement
    status = other.tier.status()
    assert status.role == STOPPED and status.retry_in_ms == 600_000
    assert [record.levelno for record in caplog.records if "tier" in record.message] == [logging.ERROR]


async def test_an_emptied_bucket_is_not_taken_for_a_new_one() -> None:
    rig = Rig()
    tier = rig.tier()
    await tier.settle()
    objects = dict(rig.bucket.objects)
    rig.bucket.objects.clear()
    for _ in range(3):
        rig.fill(60)
        rig.pass_time(HOUR_MS)
        await tier.settle()
        assert tier.tier.problem and not rig.names(MANIFESTS)
    assert "gone" in tier.tier.problem and tier.tier.uploaded_to == 0
    rig.bucket.objects.update(objects)
    rig.pass_time(HOUR_MS)
    await tier.settle()
    assert not tier.tier.problem and tier.tier.uploaded_to == rig.store.log.end // FILE * FILE
    rig.check()


async def test_an_owner_goes_on_once_its_log_is_mended() -> None:
    rig = Rig()
    await rig.tier().settle()
    last = rig.store.log.chain.at(rig.manifest_end() - 1)
    assert last is not None
    byte = bytes(last.file.view[100:101])
    last.file.view[100:101] = b"\xff"
    tier = rig.tier()
    await tier.settle()
    assert tier.tier.problem and not tier.tier.uploaded_to
    last.file.view[100:101] = byte
    rig.pass_time(600_000)
    await tier.settle()
    assert not tier.tier.problem and tier.tier.uploaded_to == rig.manifest_end()


async def test_a_slave_of_another_set_with_this_name_keeps_its_files() -> None:
    other = Rig()
    other.fill(60, "other")
    await other.tier().settle()
    rig = Rig(40)
    rig.bucket = other.bucket
    rig.faulty = FaultyBucket(rig.bucket, Random(1))
    rig.store.log.chain.segments[0].file.view[100:101] = b"\xff"
    slave = rig.tier(broker_id=1)
    assert await slave.tier.step() == 600
    assert slave.tier.uploaded_to == 0 and "not those" in slave.tier.problem
    assert slave.tier.disagreement == slave.tier.problem


@pytest.mark.parametrize("broker_id", [0, 1])
async def test_no_message_is_read_from_the_bucket_of_another_log_until_both_logs_are_the_same(broker_id: int) -> None:
    rig = Rig()
    await rig.tier().settle()
    clean(rig.fs, rig.store, 2)
    last = rig.store.log.chain.at(rig.manifest_end() - 1)
    assert last is not None
    byte = bytes(last.file.view[100:101])
    tier = rig.tier(broker_id=broker_id)
    OlderReads(tier.view, rig.store, rig.clock, why_refused=lambda: tier.tier.disagreement, cache_bytes=1 << 20)
    # The reads know the first offset before the log is compared.
    assert asked(partial(rig.store.min_offset, "t", 0)) == 0 < rig.store.queues.get("t", 0).min_offset
    last.file.view[100:101] = b"\xff"
    await tier.settle()
    for read in (partial(rig.store.get, "t", 0, 0, 1, 1 << 20), partial(rig.store.min_offset, "t", 0)):
        with pytest.raises(RequestRefused, match="are not those in") as refused:
            asked(read)
        assert refused.value.code == ResponseCode.SYSTEM_BUSY
    assert rig.store.shown_min_offset("t", 0) == rig.store.queues.get("t", 0).min_offset
    # What fails meanwhile for another reason does not allow the reads again.
    rig.faulty.is_away = True
    rig.pass_time(600_000)
    await tier.settle()
    assert tier.tier.disagreement != tier.tier.problem
    rig.faulty.is_away = False
    with pytest.raises(RequestRefused, match="are not those in"):
        asked(partial(rig.store.get, "t", 0, 0, 1, 1 << 20))
    last.file.view[100:101] = byte
    rig.pass_time(600_000)
    await tier.settle()
    assert asked(partial(rig.store.get, "t", 0, 0, 1, 1 << 20)).count == 1


async def test_a_slave_whose_log_ends_before_the_bucket_compares_its_last_whole_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(manifest_module, "SPAN_SEGMENTS", 3)
    rig = Rig(60)
    short = rig.fs.killed()
    rig.fill(300)
    await rig.tier().settle()
    rig.fs = short
    rig.store = open_store(short, rig.clock)
    slave = rig.tier(broker_id=1)
    await slave.settle()
    assert slave.tier._is_compared and rig.store.log.end < slave.tier.uploaded_to
    # The first file differs, and no whole file after it is there.
    rig.store.log.chain.segments[-2].file.view[100:101] = b"\xff"
    again = rig.tier(broker_id=1)
    await again.settle()
    assert not again.tier.uploaded_to


async def test_metadata_are_copied_between_the_files_of_a_backlog() -> None:
    rig = Rig(300)
    tier = rig.tier()
    # The claim, and one file.
    await tier.tier.step()
    await tier.tier.step()
    newest = ManifestLog(rig.bucket, SET).newest()
    assert newest is not None and len(newest.segments) == 1 and newest.metadata is not None
    # A copy of the next file would be a second upload of it.
    assert not newest.tails


async def test_a_damaged_file_keeps_no_metadata_from_the_bucket() -> None:
    rig = Rig()
    rig.store.log.sums.seal(rig.store.log.sums.block_at(0), 12345)
    tier = rig.tier()
    await tier.settle()
    newest = ManifestLog(rig.bucket, SET).newest()
    assert newest is not None and newest.metadata is not None and not newest.segments
    assert "verifyStore --repair" in tier.tier.problem


async def test_an_owner_that_was_deposed_goes_on_when_it_is_elected_again_without_a_change_of_its_role() -> None:
    rig = Rig()
    old, new = rig.tier(term=1), rig.tier(term=2)
    await old.settle()
    await new.settle()
    rig.fill(60)
    await old.settle()
    await old.settle()
    assert old.tier.status().role == STOPPED
    old.term = 3
    await old.settle()
    assert old.tier.status().role == OWNER and not old.tier.problem
    assert old.tier.uploaded_to == rig.store.log.end // FILE * FILE


async def test_an_error_with_another_name_each_time_is_logged_once_in_ten_minutes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    tier = rig.tier()
    await tier.tier.step()
    rig.faulty.faults.cut_put = 1.0
    for _ in range(9):
        await tier.tier.step()
        rig.pass_time(60_000)
    assert [record.levelno for record in caplog.records if "tier:" in record.message] == [logging.ERROR]
    for _ in range(3):
        await tier.tier.step()
        rig.pass_time(60_000)
    assert [record.levelno for record in caplog.records if "tier:" in record.message] == [logging.ERROR] * 2


async def test_a_damaged_block_is_healed_and_not_uploaded() -> None:
    rig = Rig()
    rig.store.log.sums.seal(rig.store.log.sums.block_at(0), 12345)
    tier = rig.tier()
    await tier.settle()
    assert tier.suspects == [0]
    assert tier.tier.uploaded_to == 0 and not rig.names(SEGMENTS)
    assert "damaged" in tier.tier.status().problem


async def test_damage_without_a_sum_waits_for_other_brokers_and_then_goes_as_it_is() -> None:
    rig = Rig()
    first = rig.store.log.chain.segments[0]
    body = bytes(first.file.view).index(b"0003" * 20)
    first.file.view[body : body + 1] = b"?"
    assert rig.store.log.sums.sum_of(rig.store.log.sums.block_at(0)) is None
    tier = rig.tier()
    await tier.settle()
    assert tier.suspects == [0] and tier.tier.uploaded_to == 0
    assert "no sound messages" in tier.tier.problem
    rig.pass_time(60_000)
    await tier.settle()
    assert tier.tier.uploaded_to == rig.store.log.end // FILE * FILE and tier.suspects == [0]
    assert restored(rig.bucket, rig.segments()[0]) == bytes(first.file.view)


async def test_a_bucket_that_is_away_is_asked_again_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig = Rig()
    tier = rig.tier()
    rig.faulty.is_away = True
    waits = []
    for _ in range(8):
        waits.append(await tier.tier.step())
        rig.pass_time(int(waits[-1] * 1000) + 1)
    assert 0.5 <= waits[0] <= 1 and 30 <= waits[-1] <= 60
    assert "KeyError" not in tier.tier.problem and tier.tier.why_kept()
    rig.faulty.is_away = False
    await tier.settle()
    rig.check()
    assert not tier.tier.problem and not tier.tier.why_kept()
    lines = [
        record for record in caplog.records if "nothing is uploaded" in record.message or "again" in record.message
    ]
    assert [record.levelno for record in lines] == [logging.WARNING, logging.INFO]


@pytest.mark.parametrize("state", ["is_read_only", "have_credentials_ended"])
async def test_a_bucket_that_refuses_is_an_error_until_it_does_not(state: str) -> None:
    rig = Rig()
    tier = rig.tier()
    await tier.settle()
    rig.fill(100)
    setattr(rig.faulty, state, True)
    wait = await tier.tier.step()
    assert wait == 60 and tier.tier.problem and tier.tier.status().retry_in_ms == 60_000
    rig.pass_time(60_000)
    setattr(rig.faulty, state, False)
    await tier.settle()
    rig.check()
    assert tier.tier.uploaded_to == rig.store.log.end // FILE * FILE


async def test_a_file_is_uploaded_once_when_only_its_manifest_fails() -> None:
    rig = Rig()
    tier = rig.tier()
    await tier.tier.step()
    original = rig.faulty.create
    failures = [BucketAway("no answer"), BucketRefused("no right")]

    def create(name: str, data: bytes) -> None:
        if failures:
            raise failures.pop()
        original(name, data)

    rig.faulty.create = create  # type: ignore[method-assign]
    for _ in range(2):
        await tier.tier.step()
        rig.pass_time(60_000)
    await tier.settle()
    rig.check()
    starts = [task.start for task in tier.uploader.tasks]
    assert starts == sorted(set(starts))


async def test_an_upload_that_is_not_what_was_written_leaves_nothing_and_lists_nothing() -> None:
    rig = Rig()
    tier = rig.tier()
    await tier.tier.step()
    rig.faulty.faults.cut_put = 1.0
    for _ in range(3):
        await tier.tier.step()
        rig.pass_time(60_000)
    assert "written" in tier.tier.problem
    assert not rig.names(SEGMENTS) and tier.tier.uploaded_to == 0
    rig.faulty.faults.cut_put = 0.0
    await tier.settle()
    rig.check()
    assert tier.tier.uploaded_to == rig.store.log.end // FILE * FILE


async def test_topics_of_other_times_have_objects_of_their_own_which_go_when_their_time_is_over() -> None:
    rig = Rig(0)
    for number in range(60):
        put(rig.store, "keep" if number % 2 else "short", 0, b"x" * 60)
    rig.fill(0)
    tier = rig.tier()
    tier.classes = {"short": 24}
    await tier.settle()
    assert all([[number for number, _ in segment.classes] == [0, 24] for segment in rig.segments()])
    shorts = {stored.name for segment in rig.segments() for number, stored in segment.classes if number == 24}
    rig.pass_time(25 * HOUR_MS)
    await tier.settle()
    assert all([[number for number, _ in segment.classes] == [0] for segment in rig.segments()])
    assert shorts < set(rig.bucket.objects)
    rig.pass_time(25 * HOUR_MS)
    await tier.settle()
    assert not shorts & set(rig.bucket.objects)


async def test_whole_segments_leave_from_the_front_when_all_is_expired() -> None:
    rig = Rig()
    tier = rig.tier(tier_reserved_time_hours=2)
    await tier.settle()
    old = {segment.folder for segment in rig.segments()}
    rig.pass_time(3 * HOUR_MS)
    rig.fill(100)
    await tier.settle()
    starts = [segment.start for segment in rig.segments()]
    assert starts and starts[0] > 0 and tier.tier.status().start == starts[0]
    # Readers of the manifest before still find all objects.
    assert old <= {name.rpartition("/")[0] for name in rig.names(SEGMENTS)}
    rig.pass_time(25 * HOUR_MS)
    await tier.settle()
    assert old & {name.rpartition("/")[0] for name in rig.names(SEGMENTS)} <= {rig.segments()[0].folder}


async def test_all_leftovers_that_are_due_are_removed_however_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_module, "_NAMES_AT_ONCE", 2)
    rig = Rig()
    tier = rig.tier()
    for _ in range(5):
        rig.fill(1)
        rig.pass_time(300_000)
        await tier.settle()
    assert len(rig.names(TAILS)) == 5
    rig.pass_time(25 * HOUR_MS)
    await tier.settle()
    assert len(rig.names(TAILS)) == 1 and tier.tier.status().leftovers == 0


async def test_the_tombstones_of_deleted_topics_are_in_the_manifest() -> None:
    rig = Rig()
    tier = rig.tier()
    await tier.settle()
    tier.deletions["t"] = rig.store.log.end
    await tier.settle()
    newest = ManifestLog(rig.bucket, SET).newest()
    assert newest is not None
    assert [(each.topic, each.physical_offset) for each in newest.tombstones] == [("t", rig.store.log.end)]
    assert tier.tier.status().tombstones == 1


async def test_objects_that_no_manifest_names_are_swept_after_days() -> None:
    rig = Rig()
    tier = rig.tier()
    await tier.settle()
    orphan = f"{SET}/{SEGMENTS}/{0:020d}-1-dead/0.log"
    rig.bucket.put(orphan, [b"x"])
    young = metadata_name(SET, 1, "young")
    rig.pass_time(49 * HOUR_MS)
    rig.bucket.put(young, [b"x"])
    named = {name for name in rig.bucket.objects if name not in (orphan, young)}
    await tier.settle()
    await tier.settle()
    assert orphan not in rig.bucket.objects and young in rig.bucket.objects
    rig.check()
    assert {name for name in named if f"/{SEGMENTS}/" in name} <= set(rig.bucket.objects)


async def test_old_segments_become_spans_and_leave_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_module, "SPAN_SEGMENTS", 3)
    rig = Rig(0)
    for number in range(400):
        put(rig.store, "keep" if number < 200 else "short", 0, b"x" * 60)
    rig.fill(0)
    tier = rig.tier(tier_reserved_time_hours=48)
    tier.classes = {"short": 24}
    await tier.settle()
    status = tier.tier.status()
    files = rig.store.log.end // FILE
    manifest = tier.tier.manifest
    assert manifest is not None and files > 9
    assert len(manifest.spans) == (files - 1) // 3 and status.segments == files
    assert status.stored_bytes == sum(len(rig.bucket.objects[name][0]) for name in rig.names(SEGMENTS))
    # Objects in the middle go first, and their segments stay in their places.
    rig.pass_time(25 * HOUR_MS)
    await tier.settle()
    assert tier.tier.status().segments == files and tier.tier.status().start == 0
    assert tier.tier.status().stored_bytes < status.stored_bytes
    rig.pass_time(25 * HOUR_MS)
    await tier.settle()
    manifest = tier.tier.manifest
    assert manifest is not None and not manifest.spans
    assert (manifest.start, manifest.end) == ((files - 1) * FILE, files * FILE)
    # What has left is gone a day later, and no sweep takes what is named.
    rig.pass_time(25 * HOUR_MS)
    await tier.settle()
    assert len({name.rpartition("/")[0] for name in rig.names(SEGMENTS)}) == 1
    assert not rig.names(SPANS)


async def test_a_log_that_cannot_be_read_is_an_error_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    tier = rig.tier()
    failures = [OSError(5, "Input/output error")]

    async def upload(path: str, task: UploadTask) -> Segment:
        if failures:
            raise failures.pop()
        return await InlineUploader(rig.faulty, rig.fs).upload(path, task)

    tier.uploader.upload = upload  # type: ignore[method-assign]
    await tier.settle()
    assert "Input/output error" in tier.tier.problem and "Input/output error" in caplog.text
    rig.pass_time(60_000)
    await tier.settle()
    rig.check()
    assert tier.tier.uploaded_to


async def test_an_upload_ends_with_the_role_and_begins_anew_with_the_next() -> None:
    rig = Rig()
    tier = rig.tier(term=1, run_sync=in_thread)
    began, ended = trio.Event(), trio.Event()

    async def hang(path: str, task: UploadTask) -> Segment:
        began.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.set()
        raise AssertionError

    usual, tier.uploader.upload = tier.uploader.upload, hang  # type: ignore[method-assign]
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(tier.tier.run)
            await began.wait()
            tier.role.demoted(1)
            await ended.wait()
            assert tier.tier.status().role == FOLLOWER
            tier.uploader.upload = usual  # type: ignore[method-assign]
            tier.term = 2
            tier.role.promoted()
            tier.role.took_over()
            await until(lambda: tier.tier.uploaded_to == rig.store.log.end // FILE * FILE)
            nursery.cancel_scope.cancel()
    rig.check()


@pytest.mark.parametrize("is_done", [False, True])
async def test_a_kill_at_each_step_loses_nothing_and_lists_nothing_that_is_not_there(
    is_done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier_module, "probe", lambda bucket: None)
    stops = 0
    for stop_at in share_of(range(100), 5):
        rig = Rig(40)
        rig.faulty.stop_at(stop_at, is_done=is_done)
        first = rig.tier(term=1)
        with suppress(Stopped):
            await first.settle()
            # There are no more calls, or this one had no effect but an error.
            continue
        stops += 1
        # What may have left the disk when the process died.
        remove_uploaded(rig.store, rig.fs, first.tier.uploaded_to)
        rig.check()
        second = rig.tier(term=1)
        await second.settle()
        assert second.tier.uploaded_to == rig.store.log.end // FILE * FILE > 0
        remove_uploaded(rig.store, rig.fs, second.tier.uploaded_to)
        rig.check()
    assert stops >= 4


def remove_uploaded(store: MessageStore, fs: MemoryFiles, before: int) -> None:
    clean(fs, store, (before - store.log.start) // FILE)

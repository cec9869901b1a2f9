"""A store made from a bucket alone: what comes back, where queues go on, and what is refused."""

from dataclasses import replace
from zlib import crc32

import pytest

from skylark.broker.commands.dledger_store import init_group
from skylark.broker.commands.tier_restore import TierRestored, restore_set
from skylark.broker.meta.metadata import Metadata
from skylark.broker.options import BrokerOptions
from skylark.broker.store.backup.manifest import refuse_unfinished
from skylark.broker.store.store import MessageStore
from skylark.broker.tier.owner import Disagrees, SetOwner
from skylark.broker.tier.tasks import UploadTask
from skylark.broker.tier.tier import StoreLog
from skylark.broker.tier.upload import upload
from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.errors import StoreError, UserError
from skylark.mqcommon.tier.bucket import BucketAway, DamagedObject
from skylark.mqcommon.tier.layout import metadata_name, tail_name
from skylark.mqcommon.tier.manifest import Manifest, Segment, StoredObject, Tail
from skylark.mqcommon.tier.manifests import Deposed, ManifestLog
from skylark.mqcommon.tier.metadata import MetadataCopy, encode_metadata
from tests.broker.store.support import SMALL, open_store, put
from tests.support.clock import ManualClock
from tests.support.memory_bucket import MemoryBucket
from tests.support.memory_files import MemoryFiles

SET = "broker-a"
HOUR_MS = 3_600_000
BODY = b"x" * (SMALL.commitlog_segment_bytes // 8)


def stored(bucket: MemoryBucket, name: str, data: bytes) -> StoredObject:
    bucket.put(name, [data])
    return StoredObject(name, len(data), crc32(data))


class Original:
    """A store whose queue ``old`` has messages in its first file only, and whose topic ``t`` has some in each file."""

    def __init__(self) -> None:
        self.fs, self.clock, self.bucket = MemoryFiles(), ManualClock(1_000_000), MemoryBucket()
        self.store = open_store(self.fs, self.clock)
        self.manifests = ManifestLog(self.bucket, SET)
        for number in range(3):
            put(self.store, "old", 1, b"%d" % number)
        self.sent = 0

    def send(self, files: int) -> None:
        """Messages of ``t``, until the log has that many files."""
        while len(self.store.log.chain.segments) < files:
            put(self.store, "t", 0, b"%d " % self.sent + BODY)
            self.sent += 1

    def upload(self, *, tail_bytes: int = 1 << 30) -> Manifest:
        """All full files, the beginning of the last one, and the metadata."""
        fs, bucket, log = self.fs, self.bucket, self.store.log
        metadata = Metadata(fs, "/store/config", SystemClock(), BrokerOptions())
        metadata.recover()
        metadata.consumer_offsets.commit_now("g", "t", 0, 1_000)
        metadata.consumer_offsets.commit_now("g", "old", 1, 2)
        files = {
            path.removeprefix("/store/"): fs.read(path)
            for path, _ in metadata.journal.files_to(metadata.journal.position)
        }
        metadata.journal.close()
        size = SMALL.commitlog_segment_bytes
        manifest = self.manifests.claim(1, b"o" * 16, self.clock.now_ms(), size)
        before: Segment | None = None
        for file in log.chain.segments[:-1]:
            index = before.index if before else None
            task = UploadTask(SET, file.base, size, manifest.epoch, "r", {}, index, {}, size, [-1])
            before = upload(bucket, fs.read(file.path), task)
            manifest = manifest.successor(self.clock.now_ms()).with_segment(before)
            self.manifests.append(manifest)
        base = log.chain.segments[-1].base
        data = fs.read(log.chain.segments[-1].path)[: min(log.end - base, tail_bytes)]
        sizes = (
            SMALL.consumequeue_segment_bytes,
            SMALL.batchqueue_segment_bytes,
            SMALL.index_slots,
            SMALL.index_capacity,
        )
        copy = MetadataCopy(SET, "C", "plain", "1", 5, log.end, *sizes, files, {"older": {0: 9}})
        manifest = (
            manifest.successor(self.clock.now_ms())
            .with_tail(Tail(base, base + len(data), stored(bucket, tail_name(SET, base, 1, "r"), data)))
            .with_metadata(stored(bucket, metadata_name(SET, 1, "r"), encode_metadata(copy)))
        )
        self.manifests.append(manifest)
        return manifest


def restored(original: Original, fs: MemoryFiles, since_ms: int | None = None) -> TierRestored:
    return restore_set(fs, original.bucket, SET, "/new", "mqadmin tierRestore ...", since_ms=since_ms)


def reopened(fs: MemoryFiles) -> MessageStore:
    return open_store(fs, options=replace(SMALL, directory="/new"))


def test_the_newest_files_come_back_byte_for_byte_and_all_queues_go_on() -> None:
    original, fs = Original(), MemoryFiles()
    original.send(3)
    original.clock.advance(2 * HOUR_MS)
    original.send(5)
    original.upload()
    made = restored(original, fs)
    size = SMALL.commitlog_segment_bytes
    # The third file has messages of both times.
    assert (made.log_start, made.log_end) == (2 * size, original.store.log.end)
    assert (made.broker_name, made.queues, made.shortened, made.unclean) == (SET, 2, "", "")
    for base in range(2 * size, 4 * size, size):
        name = f"commitlog/{base:020d}"
        assert fs.read(f"/new/{name}") == original.fs.read(f"/store/{name}")
    for _ in range(2):
        store = reopened(fs)
        queue = store.queues.get("t", 0)
        assert queue.next_offset == original.sent and 0 < queue.min_offset < original.sent
        old = store.queues.get("old", 1)
        assert (old.min_offset, old.next_offset) == (3, 3)
        assert put(store, "t", 0, b"new") == original.sent
        original.sent += 1
        store.close()
    store = reopened(fs)
    assert put(store, "old", 1, b"new") == 3
    # The log lost the messages of this queue before the first file was uploaded.
    assert put(store, "older", 0, b"new") == 9
    store.close()


def test_groups_keep_their_offsets_but_are_not_past_the_end() -> None:
    original, fs = Original(), MemoryFiles()
    original.send(3)
    original.upload()
    assert restored(original, fs).lowered == 1
    metadata = Metadata(fs, "/new/config", SystemClock(), BrokerOptions())
    metadata.open()
    assert metadata.consumer_offsets.queues_of("g", "t") == {0: original.sent}
    assert metadata.consumer_offsets.queues_of("g", "old") == {1: 2}
    metadata.journal.close()


def test_the_whole_log_comes_back_if_the_administrator_asks_for_it() -> None:
    original, fs = Original(), MemoryFiles()
    original.send(4)
    original.upload()
    made = restored(original, fs, since_ms=0)
    assert (made.log_start, made.queues) == (0, 1)
    store = reopened(fs)
    assert (store.queues.get("old", 1).min_offset, store.queues.get("old", 1).next_offset) == (0, 3)
    store.close()


def test_a_set_whose_first_file_is_still_open_comes_back_from_its_tail() -> None:
    original, fs = Original(), MemoryFiles()
    original.upload()
    made = restored(original, fs)
    assert (made.log_start, made.log_end, made.files) == (0, original.store.log.end, 1)
    store = reopened(fs)
    assert store.queues.get("old", 1).next_offset == 3
    store.close()


def test_a_tail_that_ends_amid_a_message_is_cut_there() -> None:
    original, fs = Original(), MemoryFiles()
    original.send(3)
    put(original.store, "t", 0, BODY)
    base = original.store.log.chain.segments[-1].base
    original.upload(tail_bytes=original.store.log.end - base - 10)
    made = restored(original, fs)
    assert base < made.log_end < original.store.log.end
    store = reopened(fs)
    assert store.queues.get("t", 0).next_offset == original.sent
    store.close()


def test_an_interrupted_restore_goes_on_and_no_broker_starts_before() -> None:
    original, fs = Original(), MemoryFiles()
    original.send(4)
    manifest = original.upload()
    first = manifest.segments[0].classes[0][1].name
    data = original.bucket.objects.pop(first)
    with pytest.raises(Exception, match=first):
        restored(original, fs, since_ms=0)
    with pytest.raises(StoreError, match=r"Run again: mqadmin tierRestore \.\.\."):
        refuse_unfinished(fs, "/new")
    original.bucket.objects[first] = data
    fs.overwrite("/new/config/metadata.journal.9", b"of an earlier copy")
    fs.overwrite("/new/commitlog/" + "9" * 20, b"")
    # What came back before is not asked for again.
    for _, (_, newer) in enumerate(segment.classes[0] for segment in manifest.segments[1:]):
        original.bucket.objects.pop(newer.name)
    assert restored(original, fs, since_ms=0).log_start == 0
    refuse_unfinished(fs, "/new")
    assert "metadata.journal.9" not in fs.listdir("/new/config") and "9" * 20 not in fs.listdir("/new/commitlog")


def test_without_a_copy_of_the_metadata_the_messages_come_back() -> None:
    original, fs = Original(), MemoryFiles()
    original.send(3)
    manifest = replace(original.upload().successor(1), metadata=None)
    original.manifests.append(manifest)
    made = restored(original, fs)
    assert (made.metadata_ms, made.lowered, made.broker_name) == (0, 0, SET)
    assert made.log_end == original.store.log.end


def test_a_damaged_object_ends_the_restore() -> None:
    original, fs = Original(), MemoryFiles()
    original.send(3)
    manifest = original.upload()
    name = manifest.segments[-1].classes[0][1].name
    raw = bytearray(original.bucket.objects[name][0])
    raw[-1] ^= 1
    original.bucket.put(name, [bytes(raw)])
    with pytest.raises(DamagedObject):
        restored(original, fs, since_ms=0)


def test_files_whose_records_are_over_stay_in_the_bucket() -> None:
    original, fs = Original(), MemoryFiles()
    original.send(4)
    manifest = original.upload()
    one, *others = manifest.segments
    gone = [replace(one, classes=()), *others]
    original.manifests.append(manifest.successor(1).with_segments_changed(gone))
    made = restored(original, fs, since_ms=0)
    assert made.log_start == others[0].start
    assert "the time of the others is over" in made.shortened
    store = reopened(fs)
    assert store.queues.get("old", 1).next_offset == 3
    store.close()


def test_a_set_that_was_lost_begins_with_any_term_and_its_old_owners_stay_deposed() -> None:
    original, fs = Original(), MemoryFiles()
    original.send(3)
    original.clock.advance(1_000)
    manifest = original.upload()
    # The Controllers of the lost set had come to term 7.
    manifest = original.manifests.claim(7, b"p" * 16, 9, SMALL.commitlog_segment_bytes)
    restored(original, fs)
    store = reopened(fs)
    assert store.restored.manifest == (manifest.number, 0)
    owner = SetOwner(original.bucket, SET, StoreLog(store), original.clock)
    owner.claim(1, store.restored.manifest)
    assert (owner.manifest.generation, owner.manifest.term) == (1, 1)
    assert owner.manifest.epoch > manifest.epoch
    # A crash before the note was removed.
    owner.claim(1, store.restored.manifest)
    store.restored.forget()
    store.close()
    assert reopened(fs).restored.manifest is None
    owner.claim(2)
    with pytest.raises(Deposed):
        SetOwner(original.bucket, SET, StoreLog(store), original.clock).claim(1)
    with pytest.raises(Deposed):
        original.manifests.append(manifest.successor(10))


def test_a_restored_store_can_become_the_first_member_of_a_group() -> None:
    original, fs = Original(), MemoryFiles()
    original.send(3)
    original.clock.advance(2 * HOUR_MS)
    original.send(5)
    manifest = original.upload()
    assert restored(original, fs).log_start > 0
    assert init_group(fs, "/new", "n0", "127.0.0.1:1") > 0
    store = reopened(fs)
    assert store.queues.get("old", 1).next_offset == 3
    assert store.restored.manifest == (manifest.number, 0)
    store.close()


def test_an_administrator_may_have_a_master_of_an_earlier_term_own_the_set() -> None:
    original = Original()
    original.send(3)
    original.upload()
    original.manifests.claim(7, b"p" * 16, 9, SMALL.commitlog_segment_bytes)
    owner = SetOwner(original.bucket, SET, StoreLog(original.store), original.clock)
    with pytest.raises(Deposed):
        owner.claim(1)
    owner.claim(1, None, True)
    assert (owner.manifest.generation, owner.manifest.term) == (1, 1)


def test_a_set_that_somebody_still_writes_is_not_begun_anew() -> None:
    original, fs = Original(), MemoryFiles()
    original.send(3)
    manifest = original.upload()
    restored(original, fs)
    original.manifests.append(manifest.successor(10))
    store = reopened(fs)
    with pytest.raises(Disagrees, match="another broker of the set is alive"):
        SetOwner(original.bucket, SET, StoreLog(store), original.clock).claim(None, store.restored.manifest)
    store.close()


def test_an_unknown_set_and_a_directory_with_files_are_refused() -> None:
    original, fs = Original(), MemoryFiles()
    original.send(2)
    original.upload()
    with pytest.raises(UserError, match=r"has nothing of the set 'broker-b' \(it has: broker-a\)"):
        restore_set(fs, original.bucket, "broker-b", "/new", "again")
    assert not fs.exists("/new")
    fs.overwrite("/new/mine", b"x")
    with pytest.raises(UserError, match="is not empty"):
        restored(original, fs)


def test_a_bucket_that_goes_away_is_no_damage() -> None:
    original, fs = Original(), MemoryFiles()
    original.send(3)
    original.upload()

    def away(name: str, start: int, size: int) -> bytes:
        raise BucketAway(name)

    original.bucket.get_range = away  # type: ignore[method-assign]
    with pytest.raises(BucketAway):
        restored(original, fs, since_ms=0)

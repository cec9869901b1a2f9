"""Damaged files of queues: no reader is misled, one round of checks finds the damage, and the files are mended."""

from dataclasses import replace

import pytest

from skylark.broker.store.filter import Filter
from skylark.broker.store.queue.entry import BATCH_ENTRY_BYTES, ENTRY_BYTES
from skylark.broker.store.store import StoreOptions
from skylark.mqcommon.message.javahash import java_hash
from tests.broker.healing.rig import rig
from tests.broker.store.support import SMALL, put, put_inner
from tests.support.amounts import share_of
from tests.support.bad_medium import SECTOR_BYTES
from tests.support.memory_files import MemoryFiles

TAG = b"TAGS\x01red\x02"
RED = Filter(frozenset([java_hash("red")]))
FILE = "/store/consumequeue/t/0/" + "0" * 20
BATCHES = "/store/batchconsumequeue/b/0/" + "0" * 20
#: The files of queues have whole sectors.
SECTORS = replace(SMALL, consumequeue_segment_bytes=5 * SECTOR_BYTES)
PER_FILE = SMALL.consumequeue_segment_bytes // ENTRY_BYTES
COUNT = 40
BODIES = [b"t%02d" % number for number in range(COUNT)]
BATCHED = [b"b%02d" % number for number in range(2 * 7)]


def filled(options: StoreOptions = SMALL) -> MemoryFiles:
    fs = MemoryFiles()
    with rig(fs, options) as made:
        for number, body in enumerate(BODIES):
            put(made.store, "t", 0, body, TAG)
            if number % 5:
                put(made.store, "u", 0, b"u" + body[1:], TAG)
        made.store.queues.use_kinds(lambda topic: topic == "b")
        for at in range(0, len(BATCHED), 2):
            put_inner(made.store, "b", 0, [(0, body, b"") for body in BATCHED[at : at + 2]])
    return fs


def without_sums(fs: MemoryFiles) -> MemoryFiles:
    """As an earlier version left it."""
    after = fs.killed()
    after.remove("/store/sums/derived")
    return after


async def test_sound_files_have_no_problem_and_get_sums() -> None:
    for fs in (filled(), without_sums(filled())):
        with rig(fs) as made:
            assert await made.round() == []
            for queue in made.store.queues:
                start = queue.first_place * queue.entry_bytes
                assert queue.sums.sum_of(queue.sums.number_at(start)).size


@pytest.mark.parametrize("is_cached", [True, False])
async def test_each_bit_of_an_entry_is_mended_and_misleads_nobody(is_cached: bool) -> None:
    before = filled()
    sound = before.read(FILE)
    for bit in share_of(range(ENTRY_BYTES * 8)):
        fs = before.killed()
        place = 5 * ENTRY_BYTES + bit // 8
        data = bytes([sound[place] ^ 1 << bit % 8])
        with rig(fs) as made:
            if is_cached:
                made.bodies("t")
            fs.damage(FILE, place, data, in_memory=not is_cached, on_disk=True)
            assert made.bodies("t", RED) == BODIES and made.bodies("t") == BODIES, f"bit {bit}"
            found = await made.round()
            assert all(each.path == FILE and each.is_mended for each in found), f"bit {bit}"
            assert len(found) == is_cached  # else the reads have found it
            assert await made.round() == []
            assert fs.read_direct(FILE, 0, len(sound)) == sound == fs.read(FILE)


async def test_entries_of_an_earlier_version_are_compared_with_the_log() -> None:
    before = without_sums(filled())
    sound = before.read(FILE)
    for bit in share_of(range(ENTRY_BYTES * 8)):
        fs = before.killed()
        fs.flip(FILE, 5 * ENTRY_BYTES + bit // 8, bit % 8)
        with rig(fs) as made:
            (found,) = await made.round()
            assert found.path == FILE and found.is_mended, f"bit {bit}"
            assert await made.round() == [] and made.bodies("t", RED) == BODIES
        assert fs.read(FILE) == sound


async def test_an_entry_that_only_the_disk_has_wrong_is_written_again() -> None:
    fs = without_sums(filled())
    sound = fs.read(FILE)
    with rig(fs) as made:
        fs.damage(FILE, 5 * ENTRY_BYTES, b"?", in_memory=False, on_disk=True)
        (found,) = await made.round()
        assert found.is_mended and "other bytes than were written" in found.problem
        assert await made.round() == [] and fs.read_direct(FILE, 0, len(sound)) == sound


async def test_a_batch_queue_is_mended() -> None:
    before = filled()
    sound = before.read(BATCHES)
    for at in share_of(range(38)):
        fs = before.killed()
        fs.flip(BATCHES, BATCH_ENTRY_BYTES + at, at % 8)
        with rig(fs) as made:
            (found,) = await made.round()
            assert found.path == BATCHES and found.is_mended, f"byte {at}"
            assert await made.round() == []
        assert fs.read(BATCHES) == sound


@pytest.mark.parametrize("has_sums", [True, False])
@pytest.mark.parametrize("is_cached", [True, False])
async def test_a_sector_that_cannot_be_read_is_made_again(has_sums: bool, is_cached: bool) -> None:
    fs = filled(SECTORS) if has_sums else without_sums(filled(SECTORS))
    sound = fs.read(FILE)
    with rig(fs, SECTORS) as made:
        fs.make_unreadable(FILE, 100, 50)
        if not is_cached:
            fs.cold.mark(FILE)
        (found,) = await made.round()
        assert found.is_mended and "cannot be read" in found.problem
        assert await made.round() == [] and made.bodies("t", RED) == BODIES
        assert fs.read_direct(FILE, 0, len(sound)) == sound


async def test_a_sector_that_cannot_be_written_either_is_said() -> None:
    fs = filled(SECTORS)
    with rig(fs, SECTORS) as made:
        fs.make_unreadable(FILE, 100, 50, stuck=True)
        for _ in range(2):
            (found,) = await made.round()
            assert not found.is_mended and "cannot be read" in found.problem
        assert made.bodies("t", RED) == BODIES


async def test_a_stale_sum_is_replaced_and_nothing_else() -> None:
    fs = filled()
    sound = fs.read(FILE)
    with rig(fs) as made:
        queue = made.store.queues.find("t", 0)
        assert queue is not None
        queue.sums.put(0, queue.sums.sum_of(0)._replace(crc=7))
        assert made.bodies("t", RED) == BODIES
        queue.sums.put(1, queue.sums.sum_of(1)._replace(crc=7))
        assert await made.round() == []
        assert queue.sums.sum_of(1).fits(fs.read(FILE.replace(f"{0:020d}", f"{len(sound):020d}")))


async def test_a_message_that_the_log_lost_leaves_its_entry_alone() -> None:
    fs = without_sums(filled())
    sound = fs.read(FILE)
    with rig(fs) as made:
        queue = made.store.queues.find("t", 0)
        assert queue is not None
        physical, _, _ = queue.entry(5)
        base = physical // SMALL.commitlog_segment_bytes * SMALL.commitlog_segment_bytes
        fs.flip(f"/store/commitlog/{base:020d}", physical - base + 5)
        (found,) = await made.round()
        assert not found.is_mended and "name no message" in found.problem
        assert fs.read(FILE) == sound and not queue.sums.sum_of(0).size


async def test_a_queue_that_grows_and_is_cut_is_never_wrong() -> None:
    fs = filled()
    with rig(fs) as made:
        for number in range(3 * PER_FILE):
            put(made.store, "t", 0, b"m%d" % number, TAG)
            if not number % 7:
                made.store.checkpoint()
                assert await made.round() == []
        made.store.checkpoint()
        queue = made.store.queues.find("t", 0)
        assert queue is not None
        queue.move_to(COUNT + 5)
        assert await made.round() == []
        put(made.store, "t", 0, b"after the cut", TAG)
        made.store.checkpoint()
        assert await made.round() == []
    with rig(fs.killed()) as made:
        assert await made.round() == []

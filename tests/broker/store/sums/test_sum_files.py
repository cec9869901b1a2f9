"""Sums on disk: what a start takes over, and what it drops because another program may have used the store."""

import errno
from random import Random
from zlib import crc32

import cbor2
import pytest

from skylark.broker.store.aside import move_aside
from skylark.broker.store.checkpoint import read_checkpoint
from skylark.broker.store.index.index_file import SLOTS_AT
from skylark.broker.store.removal import Removal
from skylark.broker.store.store import MessageStore
from skylark.broker.store.sums.block_sums import Block, BlockSum, BlockSums
from skylark.broker.store.sums.derived_sums import FILE_NAME as DERIVED
from skylark.broker.store.sums.derived_sums import DerivedRows, read_sums
from skylark.broker.store.sums.sum_files import COMPARED_BLOCKS, DIRECTORY, SumFiles, bases_in
from skylark.mqcommon.disk.atomic import write_with_crc
from skylark.mqcommon.errors import DiskFull
from tests.broker.store.support import SMALL, new_store, open_store, put
from tests.support.memory_files import MemoryFiles

FILE = SMALL.commitlog_segment_bytes
NAME = f"/store/{DIRECTORY}/{0:020d}"


def sealed_store(fs: MemoryFiles, files: int = 3) -> MessageStore:
    """A store whose log has so many full files, each of them one sealed block."""
    store = open_store(fs)
    fill(store, files)
    return store


def fill(store: MessageStore, files: int) -> None:
    while store.log.end < files * FILE:
        put(store, "topic", 0, bytes(900))
    store.flush()
    seal(store)


def seal(store: MessageStore) -> None:
    """As the part of a broker does it."""
    log = store.log
    for block in log.sums.blocks(log.start, log.end):
        if block.end <= log.end:
            log.sums.seal(block, crc32(log.chain.read_file(block.start, block.size)))


def sealed(store: MessageStore) -> list[int]:
    """The numbers of the log's files that are sealed."""
    return sorted(block.start // FILE for block in store.log.sums.newest())


def wrong_files(fs: MemoryFiles, segment_bytes: int) -> list[int]:
    return SumFiles(fs, "/store", BlockSums(segment_bytes), segment_bytes).read()


def write_over(fs: MemoryFiles, offset: int, data: bytes) -> None:
    file = fs.open_map(f"/store/commitlog/{offset // FILE * FILE:020d}", create=False)
    file.pwrite(offset % FILE, memoryview(data))
    file.close()


def test_a_start_has_the_sums_of_the_run_before() -> None:
    fs = MemoryFiles()
    store = sealed_store(fs)
    block = store.log.sums.block_at(FILE)
    own = store.log.sums.sum_of(block)
    assert own is not None
    assert store.log.sums.attest(block, own.crc)
    store.close()
    store = open_store(fs)
    assert sealed(store) == [0, 1, 2]
    assert store.log.sums.sum_of(block) == BlockSum(own.crc, True)
    assert len(store.log.sums) == 3


def test_a_checkpoint_that_notes_ends_writes_the_sums_that_have_changed_and_a_kill_keeps_those() -> None:
    fs = MemoryFiles()
    store = sealed_store(fs)
    store.checkpoint()
    assert not bases_in(fs, "/store")
    store.checkpoint(with_ends=True)
    assert bases_in(fs, "/store") == [0, FILE, 2 * FILE]
    fill(store, 4)
    calls = fs.calls.copy()
    store.checkpoint(with_ends=True)
    assert fs.calls["rename"] == calls["rename"] + 3  # the fourth file, queueEnds and the inventory
    fill(store, 5)
    store = open_store(fs.killed())
    assert sealed(store) == [0, 1, 2, 3]


def test_a_power_loss_leaves_only_sums_of_bytes_that_are_there() -> None:
    for seed in range(30):
        fs = MemoryFiles()
        store = sealed_store(fs)
        store.checkpoint(with_ends=True)
        fill(store, 5)
        store.checkpoint(with_ends=bool(seed % 2))
        fs = fs.crash(Random(seed))
        store = open_store(fs)
        assert {0, 1, 2} <= set(sealed(store))
        for block in store.log.sums.newest():
            assert block.end <= store.log.end
            assert store.log.sums.is_right(block, store.log.chain.read_file(block.start, block.size))


@pytest.mark.parametrize("content", [b"", b"\0\0\0\0", b"\1" * 40])
def test_a_damaged_file_of_sums_is_dropped_and_the_start_says_so(content: bytes) -> None:
    fs = MemoryFiles()
    sealed_store(fs).close()
    fs.remove(NAME)
    file = fs.open_append(NAME)
    file.write(content)
    file.close()
    store = new_store(fs)
    report = store.open()
    assert sealed(store) == [1, 2]
    assert NAME in report.sums_dropped
    assert not fs.exists(NAME)


def test_files_of_sums_that_are_gone_are_named_by_each_start_until_their_blocks_have_sums_again() -> None:
    fs = MemoryFiles()
    sealed_store(fs).close()
    fs.remove(NAME)
    for _ in range(2):
        store = new_store(fs)
        report = store.open()
        assert report.sums_lost == [0] == store.sums_lost and not report.sums_dropped and sealed(store) == [1, 2]
        store.close()
    store = open_store(fs)
    seal(store)
    assert store.sums_lost == []
    store.close()
    for base in bases_in(fs, "/store"):
        fs.remove(f"/store/{DIRECTORY}/{base:020d}")
    assert new_store(fs.killed()).open().sums_lost == [0, FILE, 2 * FILE]
    # An older version, and a restore, leave a store without a list of files.
    fs.remove("/store/inventory")
    assert new_store(fs).open().sums_lost == []


def test_an_empty_file_of_sums_counts_as_lost() -> None:
    fs = MemoryFiles()
    sealed_store(fs).close()
    fs.overwrite(NAME, b"")
    store = new_store(fs)
    assert NAME in store.open().sums_dropped and store.sums_lost == [0]


def test_files_of_sums_that_the_broker_has_removed_itself_are_not_missed() -> None:
    fs = MemoryFiles()
    store = sealed_store(fs, 5)
    store.checkpoint(with_ends=True)
    left: list[MemoryFiles] = []
    fs.before_call = lambda operation, path: left.append(fs.killed())
    removal = Removal(fs, "/store", store)
    assert removal.retire_log_file(FILE) is not None
    removal.remove_log_files()
    store.sum_files.cut(3 * FILE)
    fs.before_call = None
    assert bases_in(fs, "/store") == [FILE, 2 * FILE] and len(left) > 5
    for each in left:
        assert new_store(each).open().sums_lost == []


def test_each_flipped_bit_of_a_file_of_sums_is_noticed() -> None:
    fs = MemoryFiles()
    sealed_store(fs).close()
    data = fs.read(NAME)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        fs.remove(NAME)
        file = fs.open_append(NAME)
        file.write(bytes(flipped))
        file.close()
        assert wrong_files(fs, FILE) == [0]


def test_sums_of_log_files_of_another_size_do_not_count() -> None:
    fs = MemoryFiles()
    sealed_store(fs).close()
    assert wrong_files(fs, FILE) == []
    assert wrong_files(fs, 2 * FILE) == [0, FILE, 2 * FILE]


def change_checkpoint(fs: MemoryFiles, at: int, data: bytes) -> None:
    file = fs.open_map("/store/checkpoint", create=False)
    file.pwrite(at, memoryview(data))
    file.close()


def test_an_older_version_has_used_the_store_so_no_sum_is_trusted() -> None:
    fs = MemoryFiles()
    sealed_store(fs).close()
    assert read_checkpoint(fs, "/store/checkpoint").keeps_sums
    for slot in (2048, 3072):  # an older version writes a slot without the mark
        change_checkpoint(fs, slot + 256, bytes(16))
    assert not read_checkpoint(fs, "/store/checkpoint").keeps_sums
    store = new_store(fs)
    report = store.open()
    assert report.sums_dropped and not sealed(store) and not bases_in(fs, "/store")


def test_a_store_that_only_rocketmq_has_used_has_no_sums_to_trust() -> None:
    fs = MemoryFiles()
    sealed_store(fs).close()
    change_checkpoint(fs, 2048, bytes(2048))
    store = new_store(fs)
    assert store.open().sums_dropped and not sealed(store)


@pytest.mark.parametrize("files", [2, 3, 4, 7])
def test_sums_of_bytes_that_rocketmq_has_cut_and_written_anew_are_dropped(files: int) -> None:
    fs = MemoryFiles()
    sealed_store(fs, 2).close()
    other = fs.killed()
    store = open_store(fs)
    fill(store, 5)
    store.close()
    # The log is cut after its second file, and other messages follow; sums stay as they are.
    store = open_store(other)
    while store.log.end < files * FILE:
        put(store, "other", 0, bytes(700))
    store.close()
    for base in range(2 * FILE, 5 * FILE, FILE):
        copy_file(fs, other, f"/store/{DIRECTORY}/{base:020d}")
    change_checkpoint(other, 16, b"\1")
    store = new_store(other)
    report = store.open()
    assert report.sums_dropped and sealed(store) == [0, 1]
    # Durably: new messages may come before the next checkpoint.
    assert set(bases_in(other.killed(), "/store")) == {0, FILE}


def copy_file(fs: MemoryFiles, to: MemoryFiles, path: str) -> None:
    file = to.open_append(path)
    file.write(fs.read(path))
    file.close()


def test_rocketmq_has_only_appended_so_all_sums_stay() -> None:
    fs = MemoryFiles()
    sealed_store(fs, 3).close()
    store = open_store(fs)
    while store.log.end < 6 * FILE:
        put(store, "other", 0, bytes(700))
    store.close()
    change_checkpoint(fs, 16, b"\1")
    store = new_store(fs)
    assert not store.open().sums_dropped and sealed(store) == [0, 1, 2]


def test_a_damaged_block_keeps_its_sum_over_a_start_as_long_as_another_block_is_right() -> None:
    fs = MemoryFiles()
    sealed_store(fs).close()
    write_over(fs, 2 * FILE + 2000, b"\1")
    store = new_store(fs)
    assert not store.open().sums_dropped and sealed(store) == [0, 1, 2]
    block = store.log.sums.block_at(2 * FILE)
    assert not store.log.sums.is_right(block, store.log.chain.read_file(block.start, block.size))


def test_no_sum_is_trusted_when_none_of_the_newest_blocks_is_right() -> None:
    fs = MemoryFiles()
    sealed_store(fs, COMPARED_BLOCKS + 1).close()
    for number in range(1, COMPARED_BLOCKS + 1):
        write_over(fs, number * FILE + 2000, b"\1")
    store = new_store(fs)
    assert store.open().sums_dropped and not sealed(store)


def test_blocks_that_cannot_be_read_at_a_start_are_not_taken_for_right() -> None:
    fs = MemoryFiles()
    sealed_store(fs).close()
    sums = BlockSums(FILE)
    files = SumFiles(fs, "/store", sums, FILE)

    def unreadable(block: Block) -> bytes:
        raise OSError(errno.EIO, "bad sector")

    assert files.load({0, FILE, 2 * FILE}, 3 * FILE, unreadable, may_be_cut=False)
    assert not len(sums)


def test_files_of_sums_go_with_the_files_of_the_log() -> None:
    fs = MemoryFiles()
    store = sealed_store(fs)
    store.checkpoint(with_ends=True)
    removal = Removal(fs, "/store", store)
    assert removal.retire_log_file(FILE) is not None
    assert sealed(store) == [1, 2]
    removal.remove_log_files()
    assert bases_in(fs, "/store") == [FILE, 2 * FILE]
    store.close()


def test_a_kill_between_the_removals_leaves_sums_that_the_next_start_removes() -> None:
    fs = MemoryFiles()
    store = sealed_store(fs)
    store.checkpoint(with_ends=True)
    chain = store.log.chain
    chain.retire_before(FILE)
    store.inventory.note_log_start(lambda: chain.start)
    chain.remove_retired()
    fs = fs.killed()
    assert bases_in(fs, "/store")[0] == 0
    assert sealed(open_store(fs)) == [1, 2] and bases_in(fs, "/store") == [FILE, 2 * FILE]


def test_a_store_that_is_moved_aside_takes_its_sums_with_it() -> None:
    fs = MemoryFiles()
    sealed_store(fs).close()
    move_aside(fs, "/store", "/store/aside")
    assert not bases_in(fs, "/store") and len(bases_in(fs, "/store/aside")) == 3
    assert not len(open_store(fs).log.sums)


def test_a_full_disk_leaves_sums_in_memory_until_a_checkpoint_can_write_them() -> None:
    fs = MemoryFiles()
    store = sealed_store(fs)

    def full(operation: str, path: str) -> None:
        if f"/{DIRECTORY}/" in path and operation == "write":
            raise DiskFull(path)

    fs.before_call = full
    store.checkpoint(with_ends=True)
    assert store.sums_unwritten and not bases_in(fs, "/store")
    fs.before_call = None
    store.checkpoint(with_ends=True)
    assert not store.sums_unwritten and len(bases_in(fs, "/store")) == 3


def test_a_store_starts_without_sums_of_queues_and_index_that_a_newer_version_wrote_or_the_disk_has_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fs = MemoryFiles()
    sealed_store(fs).close()
    assert read_sums(fs, "/store").queues
    write_with_crc(fs, f"/store/{DERIVED}", cbor2.dumps([99, "another layout"]))
    open_store(fs).close()
    path, read = f"/store/{DERIVED}", MemoryFiles.read

    def fail(self: MemoryFiles, wanted: str) -> bytes:
        if wanted == path:
            raise OSError(errno.EIO, "Input/output error", wanted)
        return read(self, wanted)

    monkeypatch.setattr(MemoryFiles, "read", fail)
    assert read_sums(fs, "/store") == DerivedRows()
    open_store(fs).close()


def test_a_stop_makes_no_sum_of_index_slots_that_have_one() -> None:
    """The slots may be damaged since the sum was made, and nobody has read them."""
    fs = MemoryFiles()
    store = open_store(fs)
    put(store, "topic", 0, b"body", b"KEYS\x01key\x02")
    store.build_index(10)
    store.close()
    store = open_store(fs)
    (file,) = store.index.files
    assert file.sums.sum_of(0).fits(file.view[:])
    file.file.pwrite(SLOTS_AT, memoryview(b"\x01"))
    store.close()
    store = open_store(fs)
    (file,) = store.index.files
    assert not file.sums.sum_of(0).fits(file.view[:])
    store.close()

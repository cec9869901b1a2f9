"""What is restored is the store as it was at the cut, whatever the store does while and after it is backed up."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.broker.store.backup.manifest import (
    MARKER,
    Manifest,
    Origin,
    read_manifest,
    refuse_unfinished,
    remove_tree,
)
from skylark.broker.store.backup.restoring import Restore
from skylark.broker.store.backup.taking import StoreBackup, bytes_before, files_now, log_parts, remove_partial
from skylark.broker.store.check.verify import DamagedPart, Verification
from skylark.broker.store.queue.entry import ENTRY, ENTRY_BYTES
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.errors import DiskFull, StoreCorrupt, StoreError, UserError
from skylark.mqcommon.message.layout import HEAD_V4
from skylark.mqcommon.message.record import Record, decode_record
from tests.broker.store.sums.test_sum_files import seal, sealed
from tests.broker.store.support import SMALL, open_store, put, put_inner, read_all
from tests.broker.store.truncation.support import boundaries, cut_at
from tests.support.memory_files import MemoryFiles

ORIGIN = Origin("broker-a", "DefaultCluster", "master", "plain", "1")
Messages = dict[tuple[str, int], list[Record]]


def messages(store: MessageStore) -> Messages:
    return {(queue.topic, queue.queue_id): read_all(store, queue.topic, queue.queue_id) for queue in store.queues}


def write(store: MessageStore, random: Random, count: int = 40) -> None:
    for number in range(count):
        topic = random.choice("ABN")
        body = b"%d " % number + bytes(random.randrange(300))
        if topic == "N":
            put_inner(store, topic, 0, [(0, body, b""), (0, body, b"")])
        else:
            put(store, topic, random.randrange(3), body, b"KEYS\x01k%d\x02" % number)


def made_store(random: Random, fs: MemoryFiles) -> MessageStore:
    store = open_store(fs)
    store.queues.use_kinds(lambda topic: topic == "N")
    write(store, random, random.randrange(1, 120))
    store.build_index(random.randrange(200))
    return store


def nothing(store: MessageStore) -> None: ...


def back_up(fs: MemoryFiles, store: MessageStore, meanwhile: Callable[[MessageStore], None] = nothing) -> Messages:
    """Make the backup b; the messages at its cut. ``meanwhile`` is called between its steps."""
    backup = StoreBackup(fs, store, "b")
    backup.begin()
    backup.note_index()
    store.checkpoint(with_ends=True)
    backup.cut()
    expected = messages(store)
    backup.link_log(100, 0)
    meanwhile(store)
    queues = [queue for queue in store.queues if queue.next_offset]
    backup.link_queues(map(files_now, queues[::2]))
    meanwhile(store)
    backup.link_queues(files_now(queue) for queue in queues[1::2] if store.queues.find(queue.topic, queue.queue_id))
    store.flush()
    backup.finish(ORIGIN, 1)
    return {queue: found for queue, found in expected.items() if found}


def bytes_of_backup(fs: MemoryFiles) -> dict[str, bytes]:
    return {path: fs.read(path) for path in fs.paths() if path.startswith("/store/backup/b/")}


def restored(fs: MemoryFiles, directory: str = "/new") -> MessageStore:
    work = Restore(fs, "/store/backup/b", directory, read_manifest(fs, "/store/backup/b"))
    work.prepare()
    work.copy()
    store = work.recover(lambda line: None)
    work.finish()
    return store


def assert_indexed(store: MessageStore, expected: Messages) -> None:
    for (topic, _), records in expected.items():
        for record in records[:: 7 if topic != "N" else 1_000]:
            key = record.properties.partition(b"KEYS\x01")[2].rstrip(b"\x02").decode()
            found = store.query(topic, key, 1_000, 0, 1 << 60).records
            assert not key or record.physical_offset in [decode_record(raw).physical_offset for raw in found]


def assert_restored(fs: MemoryFiles, expected: Messages, directory: str = "/new") -> None:
    store = restored(fs, directory)
    assert {queue: found for queue, found in messages(store).items() if found} == expected
    store.build_index(10_000)
    assert_indexed(store, expected)
    assert store.close() == ""
    assert_sound(fs, directory)


def assert_sound(fs: MemoryFiles, directory: str) -> None:
    report = Verification(fs, directory, SMALL.index_slots, SMALL.index_capacity, lambda done, total: None).run()
    assert (report.damages, report.torn_tail) == ([], None)


@settings(max_examples=max(5, settings.default.max_examples // 3))
@given(st.integers(0, 2**32))
def test_a_restored_store_has_the_messages_of_the_cut_and_no_others(seed: int) -> None:
    random, fs = Random(seed), MemoryFiles()
    store = made_store(random, fs)

    def go_on(store: MessageStore) -> None:
        write(store, random, random.randrange(60))
        if random.random() < 0.5:
            store.checkpoint(with_ends=random.random() < 0.5)
        if random.random() < 0.2:
            # The messages are in the log still, so the queue comes back with the backup.
            store.delete_topic("B")
            store.checkpoint()
        store.build_index(random.randrange(100))

    expected = back_up(fs, store, go_on)
    assert_restored(fs, expected)
    before = bytes_of_backup(fs)
    # All that a store does later to files that it shares with the backup.
    go_on(store)
    cut_at(fs, store, random.choice(boundaries(store)))
    go_on(store)
    store.close()
    fs = fs.crash(random)
    open_store(fs).close()
    assert bytes_of_backup(fs) == before


def test_a_cut_of_the_log_leaves_the_backup_its_bytes_and_the_store_writes_to_its_own_files() -> None:
    random, fs = Random(1), MemoryFiles()
    store = made_store(random, fs)
    write(store, random, 100)
    store.build_index(10_000)
    expected = back_up(fs, store)
    before, start = bytes_of_backup(fs), boundaries(store)[20]
    cut_at(fs, store, start)
    write(store, random, 100)
    store.checkpoint(with_ends=True)
    kept = messages(store)
    store.build_index(10_000)
    assert bytes_of_backup(fs) == before
    assert_restored(fs, expected)
    assert_indexed(store, kept)
    store.close()
    again = open_store(fs)
    assert messages(again) == kept


def test_whole_files_are_linked_and_nothing_else() -> None:
    fs = MemoryFiles()
    store = made_store(Random(2), fs)
    write(store, Random(3), 100)
    store.build_index(10_000)
    back_up(fs, store)
    linked = {file.path for file in read_manifest(fs, "/store/backup/b").files if file.crc is None}
    assert {path.split("/")[0] for path in linked} == {
        "batchconsumequeue", "commitlog", "consumequeue", "index", "queueEnds",
    }  # fmt: skip
    for file in read_manifest(fs, "/store/backup/b").files:
        shares = fs.exists(f"/store/{file.path}") and fs.link_count(f"/store/backup/b/{file.path}") > 1
        assert shares == (file.path in linked), file
    newest = max(file.file.path for file in store.index.files)
    assert newest.removeprefix("/store/") not in linked
    assert_sound(fs, "/store/backup/b")


@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 60))
def test_the_parts_of_the_log_are_all_bytes_to_its_end(first: int, files: int, more: int) -> None:
    bases = [10 * (first + number) for number in range(files)]
    end = 10 * first + min(more, 10 * files)
    parts = log_parts(bases, 10, end)
    assert sum(part.size for part in parts) == end - 10 * first
    assert all(part.size == 10 for part in parts if part.is_whole)
    assert all(not part.is_whole for part in parts[-1:] if end % 10)
    assert [part.base for part in parts] == bases[: max(len(parts), bool(bases))]


@given(st.lists(st.integers(0, 50), unique=True).map(sorted), st.integers(0, 60), st.integers(0, ENTRY_BYTES - 1))
def test_entries_of_later_messages_are_left_out(physicals: list[int], end: int, rest: int) -> None:
    data = b"".join(ENTRY.pack(physical, 1, 0) for physical in physicals) + bytes(rest)
    assert bytes_before(data, ENTRY_BYTES, end) == ENTRY_BYTES * sum(physical < end for physical in physicals)


def test_a_name_is_used_once_and_a_full_disk_leaves_nothing() -> None:
    fs = MemoryFiles()
    store = made_store(Random(4), fs)
    back_up(fs, store)
    with pytest.raises(UserError, match="/store/backup/b exists already: give another name"):
        StoreBackup(fs, store, "b").begin()
    other = StoreBackup(fs, store, "c")
    other.begin()
    other.cut()
    fs.capacity = fs.used() + 10
    with pytest.raises(DiskFull, match="make room, or delete older backups"):
        other.link_log(90, 0)
    other.give_up()
    assert fs.listdir("/store/backup") == ["b"]


def test_files_on_another_file_system_are_refused_with_what_to_do() -> None:
    fs = MemoryFiles()
    store = made_store(Random(4), fs)
    fs.before_call = lambda operation, path: _cross_device(operation)
    backup = StoreBackup(fs, store, "b")
    backup.begin()
    backup.cut()
    with pytest.raises(UserError, match="are on different file systems"):
        backup.link_log(100, 0)


def _cross_device(operation: str) -> None:
    if operation == "link":
        raise OSError(18, "Invalid cross-device link")


def test_a_cut_meanwhile_fails_the_backup() -> None:
    fs = MemoryFiles()
    store = made_store(Random(5), fs)
    write(store, Random(6), 50)

    def cut(store: MessageStore) -> None:
        if not store.log.cuts:
            cut_at(fs, store, boundaries(store)[10])

    with pytest.raises(UserError, match="make the backup again"):
        back_up(fs, store, cut)


def test_what_a_crash_leaves_of_a_backup_is_no_backup_and_goes() -> None:
    fs = MemoryFiles()
    store = made_store(Random(7), fs)
    backup = StoreBackup(fs, store, "b")
    backup.begin()
    backup.cut()
    backup.link_log(100, 0)
    fs = fs.killed()
    with pytest.raises(UserError, match="is not a whole backup: it was interrupted"):
        read_manifest(fs, "/store/backup/b.partial")
    assert remove_partial(fs, "/store") == ["/store/backup/b.partial"]
    assert [path for path in fs.paths() if "backup" in path] == []


@settings(max_examples=max(4, settings.default.max_examples // 4))
@given(st.integers(0, 2**32))
def test_a_power_loss_after_a_backup_leaves_it_whole(seed: int) -> None:
    random, fs = Random(seed), MemoryFiles()
    store = made_store(random, fs)
    expected = back_up(fs, store)
    write(store, random, 20)
    assert_restored(fs.crash(random), expected)


@pytest.mark.parametrize("part", ["commitlog", "consumequeue", "checkpoint", "inventory"])
def test_a_damaged_copy_is_not_restored(part: str) -> None:
    fs = MemoryFiles()
    back_up(fs, made_store(Random(8), fs))
    manifest = read_manifest(fs, "/store/backup/b")
    file = next(file for file in manifest.files if file.path.startswith(part) and file.crc is not None)
    fs.flip(f"/store/backup/b/{file.path}", file.written // 2)
    with pytest.raises(StoreCorrupt, match="the file was changed since the backup was made"):
        restored(fs)
    refused(fs)
    fs.flip(f"/store/backup/b/{file.path}", file.written // 2)
    restored(fs)
    refuse_unfinished(fs, "/new")


def refused(fs: MemoryFiles) -> None:
    with pytest.raises(StoreError, match="Run again: broker restore /store/backup/b /new"):
        refuse_unfinished(fs, "/new")


def test_a_flipped_bit_in_a_linked_file_of_the_log_is_found_when_it_is_read() -> None:
    fs = MemoryFiles()
    store = made_store(Random(9), fs)
    write(store, Random(10), 100)
    back_up(fs, store)
    fs.flip("/store/backup/b/commitlog/" + f"{0:020d}", 120)
    restored(fs).close()
    report = Verification(fs, "/new", SMALL.index_slots, SMALL.index_capacity, lambda done, total: None).run()
    assert report.damages


def test_a_flipped_bit_that_no_record_protects_is_found_by_the_sums_in_the_backup() -> None:
    fs = MemoryFiles()
    store = made_store(Random(9), fs)
    write(store, Random(10), 100)
    store.flush()
    seal(store)
    expected = back_up(fs, store)
    # The store goes on, and seals more: that is not in the backup.
    write(store, Random(11), 100)
    store.flush()
    seal(store)
    store.checkpoint(with_ends=True)
    assert_restored(fs, expected, "/first")
    again = open_store(fs, options=replace(SMALL, directory="/first"))
    assert sealed(again) == list(range(again.log.end // SMALL.commitlog_segment_bytes))
    fs.flip("/store/backup/b/commitlog/" + f"{0:020d}", HEAD_V4.starts["born_timestamp"])
    restored(fs).close()
    report = Verification(fs, "/new", SMALL.index_slots, SMALL.index_capacity, lambda done, total: None).run()
    assert [damage.part for damage in report.damages] == [DamagedPart.SUMS]


def test_the_end_of_a_backup_is_never_taken_for_a_torn_tail() -> None:
    fs = MemoryFiles()
    store = made_store(Random(9), fs)
    expected = back_up(fs, store)
    manifest = read_manifest(fs, "/store/backup/b")
    last = max(file.path for file in manifest.files if file.path.startswith("commitlog"))
    work = Restore(fs, "/store/backup/b", "/new", manifest)
    work.prepare()
    work.copy()
    path = f"/new/{last}"
    end = manifest.log_end - int(last[-20:])
    fs.overwrite(path, fs.read(path)[: end - 30] + bytes(fs.size(path) - end + 30))
    with pytest.raises(StoreCorrupt):
        work.recover(lambda line: None)
    assert expected


@pytest.mark.parametrize("names", [["x"], ["commitlog/1", "config/a"]])
def test_only_an_empty_directory_gets_a_store(names: list[str]) -> None:
    fs = MemoryFiles()
    back_up(fs, made_store(Random(11), fs))
    for name in names:
        fs.overwrite(f"/new/{name}", b"x")
    with pytest.raises(UserError, match=r"is not empty .*mv /new /new.old"):
        restored(fs)
    assert not fs.exists(f"/new/{MARKER}")
    remove_tree(fs, "/new")
    fs.mkdirs("/new/lost+found")
    restored(fs)


def test_without_room_nothing_is_restored() -> None:
    fs = MemoryFiles()
    back_up(fs, made_store(Random(11), fs))
    fs.capacity = fs.used() + 100
    with pytest.raises(DiskFull, match=r"the new store needs .* bytes, 100 are free"):
        restored(fs)
    assert not fs.exists("/new/commitlog")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is damaged"),
        (b'{"format": 2}', r"newer version \(format 2\)"),
        (b'{"format": 1}', "is damaged: KeyError"),
    ],
)
def test_a_manifest_that_cannot_be_read_says_why(content: bytes, text: str) -> None:
    fs = MemoryFiles()
    fs.overwrite("/b/backup.json", content)
    with pytest.raises(UserError, match=text):
        read_manifest(fs, "/b")


def test_a_store_without_messages_has_a_backup() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    assert back_up(fs, store) == {}
    manifest: Manifest = read_manifest(fs, "/store/backup/b")
    assert (manifest.log_start, manifest.log_end, manifest.written > 0) == (0, 0, True)
    assert_restored(fs, {})

"""verifyStore tells each damage with file and offset, changes nothing, and repairs without losing what is sound."""

import errno
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from skylark.broker.commands.verify_store import verify
from skylark.broker.store.log.commitlog import scan_log
from skylark.broker.store.queue.entry import BATCH_ENTRY
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.errors import StoreCorrupt, UserError
from skylark.mqcommon.message.layout import HEAD_V4
from tests.broker.store.sums.test_sum_files import seal, sealed
from tests.broker.store.support import SMALL, bodies, new_store, open_store, put, put_inner, read_all
from tests.support.amounts import amount
from tests.support.memory_files import MemoryFiles

SENT = [b"%03d" % n * 20 for n in range(120)]


def stored(*, queues: int = 2) -> MemoryFiles:
    """A store of some files, stopped cleanly."""
    fs = MemoryFiles()
    store = open_store(fs)
    for n, body in enumerate(SENT):
        put(store, "t", n % queues, body, b"UNIQ_KEY\x01u%d\x02" % n)
    store.build_index(1000)
    store.close()
    return fs


def look(fs: MemoryFiles, *, repair: bool = False) -> tuple[bool, str]:
    lines: list[str] = []
    sound = verify(fs, SMALL, repair=repair, say=lines.append)
    return sound, "\n".join(lines)


def damage(fs: MemoryFiles, path: str, at: int, data: bytes) -> None:
    content = bytearray(fs.read(path))
    content[at : at + len(data)] = data
    fs.overwrite(path, bytes(content))


def snapshot(fs: MemoryFiles) -> dict[str, bytes]:
    return {path: fs.read(path) for path in fs.paths() if not path.endswith("/lock")}


def log_path(number: int) -> str:
    return f"/store/commitlog/{number * SMALL.commitlog_segment_bytes:020d}"


def record_starts(fs: MemoryFiles) -> list[int]:
    starts: list[int] = []
    store = open_store(fs)
    scan_log(store.log, 0, lambda record: starts.append(record.physical_offset), lambda at: None)
    store.close()
    return starts


def test_a_sound_store_is_said_to_be_sound_and_stays_as_it_is() -> None:
    fs = stored()
    before = snapshot(fs)
    sound, said = look(fs)
    assert sound and f"{len(SENT)} records" in said and "2 consume queues" in said and said.endswith("no damage")
    assert snapshot(fs) == before


def test_a_flipped_bit_is_told_with_file_and_offset_and_the_start_says_the_same_after_a_crash() -> None:
    fs = stored()
    victim = record_starts(fs)[50]
    path, at = log_path(victim // 4096), victim % 4096
    store = open_store(fs)  # open, so that the next start is one after a crash
    store.close()
    damage(fs, path, at + 90, b"\xff")
    before = snapshot(fs)
    sound, said = look(fs)
    assert not sound and f"commit log: {path}: offset {at}: body does not match its CRC" in said
    assert snapshot(fs) == before


def test_rot_that_recovery_meets_stops_the_start() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    for body in SENT[:20]:
        put(store, "t", 0, body)
    store.flush()
    fs = fs.killed()
    damage(fs, log_path(0), 5 * 180 + 95, b"\xff\xff")
    with pytest.raises(StoreCorrupt, match="verifyStore") as found:
        new_store(fs).open()
    sound, said = look(fs)
    assert not sound and f"{found.value.file}: offset {found.value.offset}: " in said


def test_repair_loses_only_what_is_damaged_and_saves_its_bytes() -> None:
    fs = stored()
    victims = [record_starts(fs)[n] for n in (10, 11, 50)]
    lost = []
    for victim in victims:
        path, at = log_path(victim // 4096), victim % 4096
        lost.append(fs.read(path)[at : at + 60])
        damage(fs, path, at + 60, b"\xee" * 40)
    sound, said = look(fs, repair=True)
    assert sound, said
    saved = b"".join(fs.read(path) for path in fs.paths() if ".damaged-" in path)
    assert all(head in saved for head in lost)
    store = open_store(fs)
    assert store.max_offset("t", 0) == store.max_offset("t", 1) == 60
    left = [record.body for queue_id in (0, 1) for record in read_all(store, "t", queue_id)]
    assert sorted(left) == sorted(body for n, body in enumerate(SENT) if n not in (10, 11, 50))
    assert len(store.query("t", "u49", 9, 0, 1 << 60).records) == 1
    assert put(store, "t", 0, b"more") == 60
    store.close()
    assert look(fs)[0]


def test_a_damaged_end_is_cut_and_saved() -> None:
    fs = stored(queues=1)
    last = record_starts(fs)[-1]
    path, at = log_path(last // 4096), last % 4096
    damage(fs, path, at + 95, b"\xff")
    with pytest.raises(StoreCorrupt):
        new_store(fs).open()
    sound, said = look(fs, repair=True)
    assert sound and f"saved to {path}.damaged-{at}" in said
    store = open_store(fs)
    assert bodies(store, "t", 0) == SENT[:-1]
    assert put(store, "t", 0, b"next") == len(SENT) - 1


def test_a_missing_log_file_leaves_a_hole() -> None:
    fs = stored(queues=1)
    fs.remove(log_path(1))
    with pytest.raises(StoreCorrupt):
        new_store(fs).open()
    sound, said = look(fs)
    assert not sound and f"{log_path(1)}: offset 0: the file is missing" in said
    assert look(fs, repair=True)[0]
    store = open_store(fs)
    left = bodies(store, "t", 0)
    assert left == [body for body in SENT if body in left] and len(SENT) - 30 < len(left) < len(SENT)
    assert store.max_offset("t", 0) == len(SENT)


@pytest.mark.parametrize(
    ("part", "spoil"),
    [
        ("consume queue", lambda data: data[:105] + b"\1" + data[106:]),
        ("consume queue", lambda data: bytes(len(data))),
        ("consume queue", lambda data: data[:100]),
        ("index", lambda data: data[:8] + bytes([0x7F]) + data[9:]),
        ("index", lambda data: data[:24] + bytes([0x7F]) + data[25:]),
        ("index", lambda data: data[:8] + data[:8] + data[16:24] + data[16:24] + data[32:]),
        ("index", lambda data: data[:40] + bytes(50 * 4) + data[40 + 50 * 4 :]),
        ("index", lambda data: data[: 40 + 50 * 4 + 25] + b"\1" + data[40 + 50 * 4 + 26 :]),
    ],
)
def test_side_files_are_compared_with_the_log_and_made_anew(part: str, spoil: Callable[[bytes], bytes]) -> None:
    fs = stored(queues=1)
    directory = "/store/consumequeue/t/0/" if part == "consume queue" else "/store/index/"
    path = next(path for path in fs.paths() if path.startswith(directory))
    fs.overwrite(path, spoil(fs.read(path)))
    sound, said = look(fs)
    assert not sound and f"{part}: {path}: offset " in said
    sound, said = look(fs, repair=True)
    assert sound, said
    store = open_store(fs)
    assert bodies(store, "t", 0) == SENT
    assert all(len(store.query("t", f"u{n}", 9, 0, 1 << 60).records) == 1 for n in range(len(SENT)))


def stored_with_sums() -> MemoryFiles:
    fs = stored()
    store = open_store(fs)
    seal(store)
    store.close()
    return fs


def test_a_byte_that_no_record_protects_is_told_by_the_sum_of_its_block() -> None:
    fs = stored_with_sums()
    damage(fs, log_path(0), record_starts(fs)[3] + HEAD_V4.starts["born_timestamp"], b"X")
    before = snapshot(fs)
    sound, lines = look(fs)
    assert not sound and f"block sums: {log_path(0)}: offset 0" in lines and "1 damaged place" in lines
    assert snapshot(fs) == before
    sound, lines = look(fs, repair=True)
    assert sound and "the sums of 1 blocks are dropped" in lines
    store = open_store(fs)
    assert sealed(store) == [1, 2, 3] and bodies(store, "t", 0) == SENT[::2]


def test_a_repair_drops_the_sums_of_the_bytes_that_it_changes() -> None:
    fs = stored_with_sums()
    damage(fs, log_path(1), fs.read(log_path(1)).index(SENT[40]), b"X")
    sound, lines = look(fs)
    assert not sound and "block sums" not in lines
    assert look(fs, repair=True)[0]
    store = open_store(fs)
    assert sealed(store) == [0, 2, 3]


def test_a_missing_log_file_has_no_sums_after_the_repair() -> None:
    fs = stored_with_sums()
    fs.remove(log_path(1))
    assert not look(fs)[0]
    assert look(fs, repair=True)[0]
    assert sealed(open_store(fs)) == [0, 2, 3]


def test_a_damaged_file_of_sums_is_told_and_removed() -> None:
    fs = stored_with_sums()
    path = log_path(0).replace("commitlog", "sums")
    damage(fs, path, 50, b"XX")
    sound, lines = look(fs)
    assert not sound and path in lines
    assert look(fs, repair=True)[0]
    assert sealed(open_store(fs)) == [1, 2, 3]


def test_sums_that_may_be_stale_are_not_compared() -> None:
    fs = stored_with_sums()
    damage(fs, log_path(0), record_starts(fs)[3] + HEAD_V4.starts["born_timestamp"], b"X")
    damage(fs, "/store/checkpoint", 16, b"\1")  # as RocketMQ leaves it
    sound, lines = look(fs)
    assert sound and "not checked: block sums" in lines


def test_a_torn_tail_is_no_damage() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    put(store, "t", 0, b"whole")
    end = store.log.end
    fs = fs.killed()
    damage(fs, log_path(0), end, b"\0\0\0\x70torn")
    sound, said = look(fs)
    assert sound and f"torn tail, which the next start cuts: {log_path(0)}: offset {end}" in said
    report = new_store(fs).open()
    assert report.torn_file == log_path(0) and report.end == end


def test_random_damage_never_costs_a_sound_record() -> None:
    for seed in range(amount(8, 400)):
        random = Random(seed)
        fs = stored()
        starts = record_starts(fs)
        hit = set()
        for _ in range(random.randint(1, 4)):
            n = random.randrange(len(starts))
            body_at = starts[n] + 88 + random.randrange(60)
            damage(fs, log_path(body_at // 4096), body_at % 4096, bytes([random.randrange(1, 0x30)]))
            hit.add(n)
        assert look(fs, repair=True)[0], seed
        store = open_store(fs)
        left = {record.body for queue_id in (0, 1) for record in read_all(store, "t", queue_id)}
        assert {body for n, body in enumerate(SENT) if n not in hit} <= left, seed
        store.close()


def test_mistakes_are_said() -> None:
    fs = stored()
    with pytest.raises(UserError, match="holds no store"):
        verify(fs, replace(SMALL, directory="/elsewhere"), repair=False, say=print)
    store: MessageStore = open_store(fs)
    with pytest.raises(UserError, match="stop it first"):
        look(fs)
    store.close()


DIRECTORY = "/store/batchconsumequeue/b/0"
PATH = f"{DIRECTORY}/{0:020d}"
BATCHES = [b"%d" % number for number in range(26)]


def stored_batches() -> MemoryFiles:
    """Batches of 5 and one message alone, in two files of entries."""
    fs = MemoryFiles()
    store = open_store(fs)
    store.queues.use_kinds(lambda topic: topic == "b")
    for start in range(0, 25, 5):
        put_inner(store, "b", 0, [(0, body, b"") for body in BATCHES[start : start + 5]])
    put(store, "b", 0, BATCHES[25])
    put(store, "plain", 0, b"x")
    store.close()
    return fs


def test_a_sound_batch_queue_is_said_to_be_sound() -> None:
    fs = stored_batches()
    before = snapshot(fs)
    sound, text = look(fs)
    assert sound and "no damage" in text and "2 consume queues" in text
    assert snapshot(fs) == before


@pytest.mark.parametrize(
    ("at", "data", "told"),
    [
        (46 * 2 + 36, b"\0\x04", "offset 92: the entry of messages 10 to 14 is"),
        (46 * 2 + 12, b"\0" * 7 + b"\x05", "offset 92: the entry of messages 10 to 14 is"),
        (46 * 1, bytes(46), f"{184:020d}: offset 0: messages 5 to 9 have no entry"),
        (46 * 3, BATCH_ENTRY.pack(7, 1, 0, 1, 15, 5, -1, 0), "offset 138: messages 15 to 19 are not in the log"),
    ],
)
def test_each_damage_is_told_and_repaired(at: int, data: bytes, told: str) -> None:
    fs = stored_batches()
    damage(fs, PATH, at, data)
    sound, text = look(fs)
    assert not sound and told in text, text
    sound, text = look(fs, repair=True)
    assert sound, text
    store = open_store(fs)
    assert bodies(store, "b", 0) == BATCHES and store.queues.get("b", 0).is_batch


def test_a_missing_queue_is_told_and_made_again() -> None:
    fs = stored_batches()
    for path in fs.paths():
        if path.startswith(DIRECTORY):
            fs.remove(path)
    sound, text = look(fs)
    assert not sound and f"{DIRECTORY}: offset 0: no file, but the log has messages up to 25" in text
    assert bodies(open_store(fs), "b", 0) == BATCHES


def test_a_short_file_is_told() -> None:
    fs = stored_batches()
    fs.overwrite(f"{DIRECTORY}/{SMALL.batchqueue_segment_bytes:020d}", bytes(46))
    _, text = look(fs)
    assert "the file ends after 46 of 184 bytes" in text


def test_the_comparison_with_sums_counts_as_a_second_reading_of_the_log() -> None:
    fs = stored_with_sums()
    seen: list[tuple[int, int]] = []
    assert verify(fs, SMALL, repair=False, say=lambda line: None, progress=lambda *each: seen.append(each))
    log_bytes = sum(fs.size(path) for path in fs.paths() if path.startswith("/store/commitlog/"))
    assert seen == sorted(seen) and {most for _, most in seen} == {2 * log_bytes}
    assert log_bytes < seen[0][0] <= seen[-1][0] <= 2 * log_bytes


# --- sectors that the disk cannot read

PAGE = 4096
PAGES = replace(SMALL, commitlog_segment_bytes=5 * PAGE, consumequeue_segment_bytes=5 * PAGE)


def stored_on_pages() -> MemoryFiles:
    """Two files of the log, and the beginning of a third one; nothing is in memory."""
    fs = MemoryFiles()
    store = open_store(fs, options=PAGES)
    number = 0
    while store.log.end < 11 * PAGE:
        put(store, "t", 0, b"%04d" % number * 20, b"KEYS\x01k%d\x02" % number)
        number += 1
    store.build_index(1000)
    store.flush()
    seal(store)
    store.close()
    for path in fs.paths():
        fs.cold.mark(path)
    return fs


def verified(fs: MemoryFiles, *, repair: bool = False) -> tuple[bool, list[str]]:
    lines: list[str] = []
    return verify(fs, PAGES, repair=repair, say=lines.append), lines


def lost_lines(lines: list[str]) -> list[str]:
    return [line for line in lines if "the disk cannot read" in line]


def test_a_check_goes_on_behind_what_the_disk_cannot_read_and_names_each_place() -> None:
    fs = stored_on_pages()
    first, second = (f"/store/commitlog/{number * 5 * PAGE:020d}" for number in range(2))
    queue, index = "/store/consumequeue/t/0/" + "0" * 20, fs.listdir("/store/index")[0]
    for path, at in ((first, 0), (first, 3 * PAGE + 600), (first, 4 * PAGE), (second, 2 * PAGE)):
        fs.make_unreadable(path, at, 1)
    fs.make_unreadable(queue, 10, 1)
    fs.make_unreadable(f"/store/index/{index}", 10, 1)
    before = snapshot(fs)
    is_sound, lines = verified(fs)
    assert not is_sound and snapshot(fs) == before
    assert lost_lines(lines) == [
        f"commit log: {first}: offset 0: the disk cannot read 4,096 bytes: it is failing",
        f"commit log: {first}: offset {3 * PAGE}: the disk cannot read 8,192 bytes: it is failing",
        f"commit log: {second}: offset {2 * PAGE}: the disk cannot read 4,096 bytes: it is failing",
        f"consume queue: {queue}: offset 0: the disk cannot read 4,096 bytes: it is failing",
        f"index: /store/index/{index}: offset 0: the disk cannot read {fs.size(f'/store/index/{index}'):,} bytes: it is"
        " failing",
    ]  # fmt: skip
    # What is behind the lost places was read.
    assert f"{second}: offset" in "\n".join(line for line in lines if "next sound record" in line)


def test_a_repair_makes_lost_sectors_readable_and_keeps_all_messages_that_can_be_read() -> None:
    fs = stored_on_pages()
    before = bodies(open_store(fs.killed(), options=PAGES), "t", 0)
    path = f"/store/commitlog/{5 * PAGE:020d}"
    fs.make_unreadable(path, 2 * PAGE, 1)
    is_sound, lines = verified(fs, repair=True)
    assert is_sound, lines
    assert f"{path}: 4,096 bytes at offset {2 * PAGE} are zeros now: the disk could not read them" in lines
    assert lines[-1].endswith("no damage") and verified(fs)[0]
    left = bodies(open_store(fs, options=PAGES), "t", 0)
    lost = [body for body in before if body not in left]
    assert [body for body in before if body in left] == left and 0 < len(lost) <= PAGE // len(before[0])


def test_a_repair_says_what_to_do_where_the_disk_refuses_to_write() -> None:
    fs = stored_on_pages()
    fs.make_unreadable(f"/store/commitlog/{5 * PAGE:020d}", 2 * PAGE, 1, stuck=True)
    with pytest.raises(UserError, match=r"can neither read nor write 4,096 bytes at offset 8192 .* to a sound disk"):
        verified(fs, repair=True)


def test_metadata_that_the_disk_cannot_read_is_named_after_all_else() -> None:
    fs = stored_on_pages()
    fs.mkdirs("/store/config")
    path = "/store/config/metadata.journal.1"
    fs.overwrite(path, bytes(10))
    fs.faults.fail("read", code=errno.EIO, path_part="metadata")
    is_sound, lines = verified(fs)
    assert not is_sound and any(line.startswith(f"metadata: {path}: the disk cannot read this file") for line in lines)
    assert "no damage" in lines[-1]


NOTES = ["checkpoint", "abort", "inventory", "queueEnds", "queueEnds.since"]


@pytest.mark.parametrize("name", NOTES)
def test_a_check_goes_on_without_a_note_of_the_store_that_the_disk_cannot_read(name: str) -> None:
    fs = stored_on_pages()
    for note in NOTES:
        if not fs.exists(f"/store/{note}"):
            fs.overwrite(f"/store/{note}", b"crc " + bytes(20))
    before, path = snapshot(fs), f"/store/{name}"
    log = f"/store/commitlog/{5 * PAGE:020d}"
    fs.make_unreadable(log, 2 * PAGE, 1)
    fs.faults.fail("read", times=100, path_part=path)
    is_sound, lines = verified(fs)
    fs.faults.clear()
    assert not is_sound and snapshot(fs) == before
    assert (
        lost_lines(lines)[0] == f"commit log: {log}: offset {2 * PAGE}: the disk cannot read 4,096 bytes: it is failing"
    )
    assert lost_lines(lines)[1].startswith(f"notes of the store: {path}: offset 0: the disk cannot read this file (")
    assert any(line.startswith("not checked: ") and line.endswith(f"({path})") for line in lines)
    assert len(lost_lines(lines)) == 2 and "1 consume queues, 5 index files" in lines[-1]


def emptied(data: bytes) -> bytes:
    return b""


def cut(data: bytes) -> bytes:
    return data[:-1]


def flipped(data: bytes) -> bytes:
    """The checkpoint has a slot at each of these places."""
    spoilt = bytearray(data)
    for at in (len(data) // 2, len(data) * 3 // 4):
        spoilt[at] ^= 4
    return bytes(spoilt)


@pytest.mark.parametrize("name", ["checkpoint", "inventory", "queueEnds"])
@pytest.mark.parametrize("spoil", [emptied, cut, flipped])
def test_a_damaged_note_of_the_store_is_named_beside_all_other_damage_and_repaired(
    name: str, spoil: Callable[[bytes], bytes]
) -> None:
    fs, path = stored_with_sums(), f"/store/{name}"
    spoilt = spoil(fs.read(path))
    fs.overwrite(path, spoilt)
    damage(fs, log_path(1), fs.read(log_path(1)).index(SENT[40]), b"X")
    before = snapshot(fs)
    is_sound, said = look(fs)
    assert not is_sound and snapshot(fs) == before
    assert f"notes of the store: {path}: offset 0: the file is {'damaged' if spoilt else 'empty'}" in said
    assert f"({path})" in said and "2 damaged places" in said and f"commit log: {log_path(1)}" in said
    is_sound, said = look(fs, repair=True)
    assert is_sound and f"{path}: removed, and the next start goes on without it; its bytes: /store/damaged/" in said
    assert [fs.read(each) for each in fs.paths() if each.startswith("/store/damaged/")] == [spoilt]
    assert look(fs)[0]
    store = open_store(fs)
    left = bodies(store, "t", 0) + bodies(store, "t", 1)
    assert sorted(left) == sorted(body for body in SENT if body != SENT[40])


def test_the_checkpoints_of_rocketmq_and_of_a_store_that_never_had_one_are_no_damage() -> None:
    fs = stored()
    fs.overwrite("/store/checkpoint", fs.read("/store/checkpoint")[:40].ljust(4096, b"\0"))
    assert look(fs)[0]
    fs.remove("/store/checkpoint")
    assert look(fs)[0]


@pytest.mark.parametrize("name", NOTES)
def test_a_repair_removes_a_note_of_the_store_that_the_disk_cannot_read(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = stored_on_pages()
    sent, path = bodies(open_store(fs.killed(), options=PAGES), "t", 0), f"/store/{name}"
    fs.overwrite(path, fs.read(path) if fs.exists(path) else b"crc " + bytes(20))
    unreadable, read = {path}, MemoryFiles.read

    def failing(files: MemoryFiles, path: str) -> bytes:
        if path in unreadable:
            raise OSError(errno.EIO, "Input/output error", path)
        return read(files, path)

    def removed(operation: str, path: str) -> None:
        if operation in ("remove", "truncate"):
            unreadable.discard(path)

    monkeypatch.setattr(MemoryFiles, "read", failing)
    fs.before_call = removed
    is_sound, lines = verified(fs, repair=True)
    assert is_sound, lines
    done = (
        "written anew, as after a power loss" if name == "abort" else "removed, and the next start goes on without it"
    )
    assert f"{path}: {done}: the disk could not read it" in lines
    assert lines[-1].endswith("no damage") and verified(fs)[0]
    assert bodies(open_store(fs, options=PAGES), "t", 0) == sent

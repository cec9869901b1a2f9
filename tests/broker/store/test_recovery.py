"""What a start does after a kill or a power loss; test_schedules.py and test_damage.py have all that can happen."""

import mmap
from dataclasses import replace
from random import Random

import pytest

from skylark.broker.commands.diverged_slave import rows
from skylark.broker.commands.verify_store import verify
from skylark.broker.store.queue.entry import ENTRY_BYTES
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.errors import StoreCorrupt
from skylark.mqcommon.message.flags import BORN_HOST_V6
from skylark.mqcommon.message.ids import encode_host
from skylark.mqcommon.message.layout import SIZE_MAGIC, UNFINISHED_MAGIC
from skylark.mqcommon.names import SCHEDULE_TOPIC, TIMER_TOPIC
from tests.broker.store.support import SMALL, bodies, new_store, open_store, put, put_batch, read_all
from tests.support.amounts import amount
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles


def test_after_a_kill_everything_is_there() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    sent = [b"%03d" % n * 11 for n in range(100)]
    for n, body in enumerate(sent):
        put(store, "t", n % 3, body, b"KEYS\x01k%d\x02" % n)
    fs = fs.killed()
    store = new_store(fs)
    report = store.open()
    assert not report.clean and report.records == 100 and not report.torn_file
    assert [bodies(store, "t", queue_id) for queue_id in range(3)] == [sent[0::3], sent[1::3], sent[2::3]]
    assert len(store.query("t", "k57", 32, 0, 1 << 60).records) == 1


@pytest.mark.parametrize("seed", range(20))
def test_entries_that_a_killed_process_did_not_sync_are_synced_by_the_next_start(seed: int) -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    sent = [b"%d" % n for n in range(40)]
    for number, body in enumerate(sent):
        put(store, "t", 0, body)
        if number == 9:
            store.checkpoint()
    # It dies in a checkpoint, before the first of the queue's files is synced and the next one is written.
    for _, write in store.take_queues(store.begin_checkpoint()):
        first = replace(write, data=write.data[: SMALL.consumequeue_segment_bytes - write.at])
        for file in first.run(fs):
            file.close()
    fs = fs.killed()
    new_store(fs).open()
    store = new_store(fs.crash(Random(seed)))
    store.open()
    assert bodies(store, "t", 0) == sent


@pytest.mark.parametrize("kept", [4, 8, 12, 16])
@pytest.mark.parametrize("topic", ["t", SCHEDULE_TOPIC, TIMER_TOPIC])
def test_of_an_entry_that_a_kill_has_torn_the_tags_code_is_made_again(topic: str, kept: int) -> None:
    """The kernel ends a killed write at a page, and pages end after a multiple of 4 bytes of an entry."""
    fs = MemoryFiles()
    store = open_store(fs)
    properties = b"TAGS\x01order\x02DELAY\x013\x02TIMER_OUT_MS\x011700000009000\x02"
    for n in range(10):
        put(store, topic, 0, b"%d" % n, properties)
    wanted = list(store.queues.get(topic, 0).entries(0, 10))
    for _, write in store.take_queues(store.begin_checkpoint()):
        for file in replace(write, data=write.data[: 6 * ENTRY_BYTES + kept]).run(fs):
            file.close()
    fs = fs.killed()
    store = open_store(fs)
    assert list(store.queues.get(topic, 0).entries(0, 10)) == wanted
    store.close()
    assert list(open_store(fs).queues.get(topic, 0).entries(0, 10)) == wanted


def test_recovery_reads_from_the_checkpoint_only() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    for n in range(50):
        put(store, "t", 0, b"%d" % n)
    store.build_index(1000)
    store.checkpoint()
    for n in range(50, 55):
        put(store, "t", 0, b"%d" % n)
    store = new_store(fs.killed())
    assert store.open().records == 5
    assert bodies(store, "t", 0) == [b"%d" % n for n in range(55)]


def test_a_torn_tail_is_cut_reported_and_never_seen_again() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    put(store, "t", 0, b"whole")
    end = store.log.end
    put(store, "t", 0, b"torn!")
    segment = store.log.chain.segments[0]
    segment.file.view[end + 90] ^= 0xFF
    fs = fs.killed()
    fs.boots += 1
    store = new_store(fs)
    report = store.open()
    assert report.end == end and report.torn_file == segment.path and report.torn_reason
    assert bodies(store, "t", 0) == [b"whole"]
    # The same size again: were the old tail still there, what follows it could come back.
    put(store, "t", 0, b"other")
    store = open_store(fs.killed())
    assert bodies(store, "t", 0) == [b"whole", b"other"]


class WrittenIn:
    """A view of the log that notes the order of writes."""

    def __init__(self, view: mmap.mmap) -> None:
        self._view = view
        self.writes: list[tuple[int, int]] = []

    def __setitem__(self, part: slice, data: bytes) -> None:
        self.writes.append((part.start, part.stop))
        self._view[part] = data


def test_a_batch_begins_with_its_first_8_bytes_when_all_of_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(MemoryFiles())
    put(store, "t", 0, b"0")
    start = store.log.end
    segment = store.log.chain.segments[0]
    noted = WrittenIn(segment.file.view)
    monkeypatch.setattr(store.log, "_view", noted)
    put_batch(store, "t", 0, [b"1", b"2", b"3"])
    assert noted.writes == [(start, start + 8), (start + 8, store.log.end), (start, start + 8)]
    assert bodies(store, "t", 0) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("missing", [0, 27, 63, 150, 300])
def test_a_kill_while_a_batch_is_written_is_no_damage(missing: int) -> None:
    """A copy may write its first bytes last: whole records follow torn ones, in a batch that was not acknowledged."""
    fs = MemoryFiles()
    store = open_store(fs)
    put(store, "t", 0, b"before")
    store.checkpoint()
    start = store.log.end
    put_batch(store, "t", 0, [b"%d" % n * 30 for n in range(8)])
    size = store.log.end - start
    view = store.log.chain.segments[0].file.view
    view[start : start + 8] = SIZE_MAGIC.pack(size, UNFINISHED_MAGIC)
    view[start + 8 : start + 8 + missing] = bytes(missing)
    fs = fs.killed()
    lines: list[str] = []
    assert verify(fs, SMALL, repair=False, say=lines.append), lines
    store = new_store(fs)
    report = store.open()
    assert report.end == start and report.torn_reason
    assert bodies(store, "t", 0) == [b"before"]
    put_batch(store, "t", 0, [b"after"])
    assert bodies(open_store(fs.killed()), "t", 0) == [b"before", b"after"]


def same_boot(fs: MemoryFiles, random: Random) -> MemoryFiles:
    """The file system lost pages, as when it was mounted anew or repaired, and the machine went on."""
    after = fs.crash(random)
    after.boots = fs.boots
    return after


@pytest.mark.parametrize("seed", range(amount(10, 400)))
def test_a_killed_broker_whose_pages_are_lost_starts_with_all_that_was_flushed(seed: int) -> None:
    random = Random(seed)
    fs = MemoryFiles()
    sent: list[bytes] = []
    for _ in range(4):
        store = new_store(fs)
        report = store.open()
        left = bodies(store, "t", 0)
        assert left == sent[: len(left)]
        if report.cut_messages:
            assert report.torn_file and report.torn_reason
            assert fs.size(report.kept_in) == report.cut_bytes
        sent = left
        for _ in range(random.randrange(25)):
            match random.randrange(6):
                case 0:
                    store.flush()
                case 1:
                    store.checkpoint(as_flushed=True)
                case 2:
                    store.build_index(100)
                case 3:
                    batch = [b"%d" % (len(sent) + n) * random.choice((1, 200)) for n in range(5)]
                    put_batch(store, "t", 0, batch)
                    sent += batch
                case _:
                    sent.append(b"%d" % len(sent) * random.choice((1, 20, 400)))
                    put(store, "t", 0, sent[-1])
        flushed_to = store.log.flushed
        flushed = [record.body for record in read_all(store, "t", 0) if record.physical_offset < flushed_to]
        fs = same_boot(fs, random)
        store = open_store(fs)
        assert bodies(store, "t", 0)[: len(flushed)] == flushed
        fs = fs.killed()


def holed(*, flushed: bool) -> tuple[MemoryFiles, int, int]:
    """A killed broker's disk on which the second message of three is zeros; from where on, and the log's end."""
    fs = MemoryFiles()
    store = open_store(fs)
    put(store, "t", 0, b"first")
    start = store.log.end
    put(store, "t", 0, b"second")
    following = store.log.end
    put(store, "t", 0, b"third")
    if flushed:
        store.flush()
    end = store.log.end
    fs = fs.killed()
    path = "/store/commitlog/" + "0" * 20
    data = bytearray(fs.read(path))
    data[start:following] = bytes(following - start)
    fs.overwrite(path, bytes(data))
    return fs, start, end


@pytest.mark.parametrize("boots", [0, 1], ids=["kill", "power loss"])
def test_a_gap_before_the_flush_mark_is_damage_and_the_way_on_is_named(boots: int) -> None:
    fs, start, end = holed(flushed=True)
    fs.boots += boots
    with pytest.raises(StoreCorrupt) as refused:
        new_store(fs).open()
    assert refused.value.offset == start
    assert f"zeros where a record was; the log went on to offset {end}" in str(refused.value)
    for command in ("verifyStore /store", "resyncSlave /store", "verifyStore --repair /store"):
        assert command in str(refused.value)
    assert verify(fs, SMALL, repair=True, say=lambda line: None)
    assert bodies(open_store(fs), "t", 0) == [b"first", b"third"]


@pytest.mark.parametrize("boots", [0, 1], ids=["kill", "power loss"])
def test_bytes_after_a_gap_that_was_not_flushed_are_cut_and_kept(boots: int) -> None:
    fs, start, end = holed(flushed=False)
    fs.boots += boots
    store = new_store(fs)
    report = store.open()
    assert bodies(store, "t", 0) == [b"first"]
    assert (report.end, report.cut_bytes, report.cut_messages) == (start, end - start, 1)
    assert report.torn_reason.startswith("zeros where a record was")
    gaps: list[str] = []
    assert [row["body"] for row in rows(fs, report.kept_in, gaps)] == ["third"] and len(gaps) == 1
    put(store, "t", 0, b"after")
    assert bodies(open_store(fs.killed()), "t", 0) == [b"first", b"after"]


def test_bytes_after_a_gap_are_cut_also_where_there_is_no_room_to_keep_them() -> None:
    fs, start, _ = holed(flushed=False)
    fs.capacity = fs.used() + 10
    report = new_store(fs).open()
    assert report.end == start and report.cut_bytes and not report.kept_in and "no room" in report.not_kept


def test_without_a_flush_mark_a_gap_after_a_kill_stays_damage() -> None:
    """An older version wrote the checkpoint: it is not known what it had flushed, and acknowledged."""
    fs, start, _ = holed(flushed=False)
    path = "/store/checkpoint"
    data = fs.read(path)
    for slot in (2048, 3072):
        data = data[: slot + 128] + bytes(128) + data[slot + 256 :]
    fs.overwrite(path, data)
    with pytest.raises(StoreCorrupt) as refused:
        new_store(fs).open()
    assert refused.value.offset == start


def test_a_start_that_dies_after_pages_were_lost_does_not_trust_them_the_next_time() -> None:
    fs, _, _ = holed(flushed=False)
    images: list[MemoryFiles] = []
    fs.before_call = lambda operation, path: images.append(fs.killed())
    open_store(fs)
    assert len(images) > 20
    for image in images:
        assert bodies(open_store(image), "t", 0) == [b"first"]


def test_what_follows_an_unfinished_batch_is_damage() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    start = store.log.end
    put_batch(store, "t", 0, [b"1", b"2"])
    size = store.log.end - start
    put(store, "t", 0, b"after")
    store.flush()
    store.log.chain.segments[0].file.view[start : start + 8] = SIZE_MAGIC.pack(size, UNFINISHED_MAGIC)
    with pytest.raises(StoreCorrupt):
        new_store(fs.killed()).open()


def test_a_crash_of_rocketmq_is_read_from_what_was_flushed_also_when_files_begin_with_ipv6() -> None:
    """The log's files tell by their first store time whether they were flushed; ::1 looks like the year 1970."""
    fs, clock = MemoryFiles(), ManualClock(5_000_000)
    store = open_store(fs, clock)
    born_host = encode_host("::1", 50001)
    for number in range(40):
        body = b"%03d" % number * 50
        store.put("t", 0, body, b"", sys_flag=BORN_HOST_V6, born_timestamp=1, born_host=born_host)
        clock.advance(10_000)
        if number == 1:
            store.checkpoint()
    assert len(store.log.chain.segments) > 2
    fs = fs.killed()
    data = fs.read("/store/checkpoint")
    fs.overwrite("/store/checkpoint", data[:2048] + bytes(2048))
    store = new_store(fs, clock)
    report = store.open()
    assert (report.scanned_from, report.records) == (0, 40)


def leave(fs: MemoryFiles, store: MessageStore, how: str) -> MemoryFiles:
    """Stop ``store``; ``how`` names what is left of it."""
    if how == "stopped":
        store.close()
    store.flush()
    fs = fs.crash(Random(1)) if how == "power lost" else fs.killed()
    if how == "java":
        # A clean stop of RocketMQ: the checkpoint has no slots of ours.
        data = fs.read("/store/checkpoint")
        fs.overwrite("/store/checkpoint", data[:2048] + bytes(2048))
        fs.remove("/store/abort")
    if how == "checkpoint lost":
        fs.overwrite("/store/checkpoint", bytes(4096))
        fs.remove("/store/abort")
    return fs


@pytest.mark.parametrize("how", ["stopped", "killed", "power lost", "java", "checkpoint lost"])
@pytest.mark.parametrize("deleted", [False, True])
def test_store_times_never_go_back_over_a_restart(how: str, deleted: bool) -> None:
    fs, clock = MemoryFiles(), ManualClock(5_000_000)
    store = open_store(fs, clock)
    put(store, "t", 0, b"before")
    if deleted:
        clock.advance(1000)
        put(store, "gone", 0, b"last of the log")
        store.delete_topic("gone")
    store.checkpoint()
    latest = clock.now_ms()
    fs = leave(fs, store, how)
    clock = ManualClock(latest - 3_600_000)
    store = new_store(fs, clock)
    report = store.open()
    put(store, "t", 0, b"after")
    times = [store.store_time("t", 0, offset) for offset in range(2)]
    assert times == [5_000_000, latest]
    assert store.offset_by_time("t", 0, latest) == (1 if deleted else 0)
    assert report.ahead_ms == latest - clock.now_ms()
    clock.advance(3_600_001)
    put(store, "t", 0, b"the clock has caught up")
    assert store.store_time("t", 0, 2) == clock.now_ms()


def test_a_checkpoint_with_a_time_of_the_far_future_does_not_count_where_the_log_tells_the_time() -> None:
    fs, clock = MemoryFiles(), ManualClock(5_000_000)
    store = open_store(fs, clock)
    put(store, "t", 0, b"before")
    store.checkpoint()
    fs = leave(fs, store, "java")
    fs.overwrite("/store/checkpoint", b"\x7f" * 24 + bytes(4096 - 24))
    clock.advance(10)
    store = open_store(fs, clock)
    put(store, "t", 0, b"after")
    assert store.store_time("t", 0, 1) == clock.now_ms()


@pytest.mark.parametrize("known_to", ["index", "queue", "nobody"])
def test_a_last_record_that_ends_in_zeros_is_whole_when_its_queue_or_the_index_has_it(known_to: str) -> None:
    """A Java master's may. After a kill neither has a record that was not written to its end."""
    fs = MemoryFiles()
    store = open_store(fs)
    put(store, "t", 0, b"first", b"UNIQ_KEY\x01id0\x02")
    store.flush()
    put(store, "t", 0, b"second", b"UNIQ_KEY\x01id1\x02k\x01v\0")
    if known_to == "index":
        store.build_index(10)
    if known_to == "queue":
        store.checkpoint(as_flushed=True)
    store = new_store(fs.killed())
    report = store.open()
    assert bodies(store, "t", 0) == [b"first", b"second"][: 1 if known_to == "nobody" else 2]
    assert bool(report.torn_reason) == (known_to == "nobody")

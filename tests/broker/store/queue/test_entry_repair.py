"""Damaged entries of queues: no reader gets a message of another queue or loses one, and the files are mended."""

from dataclasses import replace
from random import Random

import pytest

from skylark.broker.store.filter import ALL, Filter
from skylark.broker.store.log.residency import NotResident, resident_only, warm
from skylark.broker.store.queue.batch_queue import BatchAt, BatchConsumeQueue
from skylark.broker.store.queue.consumequeue import ConsumeQueue
from skylark.broker.store.queue.entry import BATCH_ENTRY, BATCH_ENTRY_BYTES, BLANK_SIZE, ENTRY, ENTRY_BYTES
from skylark.broker.store.queue.entry_repair import (
    EntriesDamaged,
    are_own,
    are_sound,
    is_place_of,
    name_batches,
    names_message,
)
from skylark.broker.store.reader import GetResult, GetStatus, read_queue
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.errors import StoreError
from skylark.mqcommon.message.columns import record_starts
from skylark.mqcommon.message.javahash import java_hash
from skylark.mqcommon.message.layout import HEAD_V4
from skylark.mqcommon.message.record import decode_record
from tests.broker.store.support import SMALL, open_store, put, put_inner
from tests.support.amounts import amount, share_of
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles

RED = b"TAGS\x01red\x02"
FILE = "/store/consumequeue/t/0/00000000000000000000"
BATCHES = "/store/batchconsumequeue/b/0/00000000000000000000"
# Of 16 entries in a file.
COUNT = 40
WANTED = {
    "all": ALL,
    "tag": Filter(frozenset([java_hash("red")])),
    "properties": Filter(None, lambda properties: b"red" in properties, 1000),
}


def stopped() -> tuple[MemoryFiles, list[bytes]]:
    """A store with two topics whose messages take turns, and the bodies in topic t."""
    fs = MemoryFiles()
    store = open_store(fs)
    bodies = [b"t%02d" % number for number in range(COUNT)]
    for number, body in enumerate(bodies):
        put(store, "t", 0, body, RED)
        # Messages of the same size, with the same queue id and offsets; some follow directly.
        if number % 5:
            put(store, "u", 0, b"u" + body[1:], RED)
    store.close()
    return fs, bodies


def read(store: MessageStore, topic: str, offset: int, count: int, wanted: Filter = ALL) -> GetResult:
    """A read as the event loop makes it: what it lacks comes from a thread."""
    queue, got = store.queues.find(topic, 0), None
    for _ in range(100):
        try:
            with resident_only(got):
                return read_queue(store.log, queue, offset, count, 1 << 20, wanted)
        except NotResident as cold:
            got = warm(cold)
    raise AssertionError("it needs more and more")


def bodies_of(store: MessageStore, topic: str, count: int, wanted: Filter = ALL) -> list[bytes]:
    found: list[bytes] = []
    offset, end = store.min_offset(topic, 0), store.max_offset(topic, 0)
    while offset < end:
        result = read(store, topic, offset, count, wanted)
        assert result.status in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE) and result.next_offset > offset
        found += [decode_record(result.records, at).body for at in record_starts(result.records)]
        offset = result.next_offset
    return found


@pytest.mark.parametrize("entry", [0, 1, 7, 14])
@pytest.mark.parametrize("wanted", WANTED)
def test_each_bit_of_an_entry(entry: int, wanted: str, caplog: pytest.LogCaptureFixture) -> None:
    before, bodies = stopped()
    sound = before.read(FILE)
    for bit in share_of(range(96)):
        fs = before.killed()
        fs.flip(FILE, entry * ENTRY_BYTES + bit // 8, bit % 8)
        store = open_store(fs)
        caplog.clear()
        for count in (1, 5, 300):
            assert bodies_of(store, "t", count, WANTED[wanted]) == bodies, f"bit {bit}, {count} at once"
        assert len(caplog.records) <= 1 and all(FILE in each.getMessage() for each in caplog.records)
        store.close()
        assert fs.read(FILE) == sound


def test_the_log_names_the_file_and_the_place_once(caplog: pytest.LogCaptureFixture) -> None:
    fs, bodies = stopped()
    for at in (5, 6):
        fs.flip(FILE, at * ENTRY_BYTES + 7, 3)
    store = open_store(fs)
    for _ in range(3):
        assert bodies_of(store, "t", 300) == bodies
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"{FILE} is damaged from byte 100 to 140: 2 entries of queue t/0 did not name its messages")


@pytest.mark.parametrize("size", [ENTRY_BYTES, 5 * ENTRY_BYTES, 16 * ENTRY_BYTES - 8])
@pytest.mark.parametrize("kind", ["zeros", "noise", "another queue"])
def test_many_entries(kind: str, size: int) -> None:
    before, bodies = stopped()
    random = Random(size)
    for _ in range(amount(3, 100)):
        fs = before.killed()
        raw = bytearray(fs.read(FILE))
        at = random.randrange(4, len(raw) - size + 1)
        other = fs.read(FILE.replace("/t/", "/u/"))
        raw[at : at + size] = {"zeros": bytes(size), "noise": random.randbytes(size), "another queue": other[:size]}[
            kind
        ]
        fs.overwrite(FILE, bytes(raw))
        store = open_store(fs)
        assert bodies_of(store, "t", 7) == bodies
        store.close()


@pytest.mark.parametrize("earlier", [1, 2, 5])
def test_an_entry_that_names_an_earlier_message_of_the_log(earlier: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges of the log that go back are not joined to be read from the disk."""
    monkeypatch.setattr("skylark.broker.store.reader.THREAD_BYTES", 1)
    fs, bodies = stopped()
    raw = bytearray(fs.read(FILE))
    raw[9 * ENTRY_BYTES : 9 * ENTRY_BYTES + 8] = raw[(9 - earlier) * ENTRY_BYTES :][:8]
    fs.overwrite(FILE, bytes(raw))
    store = open_store(fs)
    for path in fs.paths():
        fs.cold.mark(path)
    for wanted in WANTED.values():
        assert bodies_of(store, "t", 300, wanted) == bodies


def test_outside_of_the_loop_it_is_mended_at_once() -> None:
    fs, bodies = stopped()
    fs.flip(FILE, 3 * ENTRY_BYTES + 6, 1)
    store = open_store(fs)
    result = store.get("t", 0, 0, 5, 1 << 20)
    assert [decode_record(result.records, at).body for at in record_starts(result.records)] == bodies[:5]


def test_a_message_that_the_log_lost_is_skipped_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    fs, bodies = stopped()
    store = open_store(fs)
    queue = store.queues.find("t", 0)
    assert queue is not None
    physical, size, _ = queue.entry(3)
    store.close()
    log = f"/store/commitlog/{physical // SMALL.commitlog_segment_bytes * SMALL.commitlog_segment_bytes:020d}"
    raw = bytearray(fs.read(log))
    at = physical % SMALL.commitlog_segment_bytes
    raw[at + 4 : at + size] = bytes(size - 4)
    fs.overwrite(log, bytes(raw))
    store = open_store(fs)
    assert bodies_of(store, "t", 7) == bodies[:3] + bodies[4:]
    assert "1 messages of queue t/0, from offset 3 to 3, are damaged or gone" in caplog.text
    queue = store.queues.find("t", 0)
    assert queue is not None and queue.entry(3)[1] == BLANK_SIZE


def damage_body(fs: MemoryFiles, body: bytes, after: int = 0) -> str:
    """Flip a bit of a stored body, or ``after`` bytes after its beginning; returns the place."""
    for path in fs.paths():
        if "/commitlog/" in path and (at := fs.read(path).find(body)) >= 0:
            fs.flip(path, at + after)
            return path
    raise AssertionError("it is not there")


@pytest.mark.parametrize("after", [0, len(b"t10\x01t\x00")], ids=["body", "length of the properties"])
@pytest.mark.parametrize("wanted", WANTED)
@pytest.mark.parametrize("count", [1, 7, 300])
def test_a_message_that_is_damaged_is_skipped(
    count: int, wanted: str, after: int, caplog: pytest.LogCaptureFixture
) -> None:
    fs, bodies = stopped()
    path = damage_body(fs, b"t10", after)
    store = open_store(fs)
    for _ in range(3):
        assert bodies_of(store, "t", count, WANTED[wanted]) == bodies[:10] + bodies[11:]
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("1 messages of queue t/0, from offset 10 to 10, are damaged or gone") and path in line
    assert store.log.messages_skipped == 1 and store.log.entries_mended == 0
    store.close()


def test_new_messages_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(MemoryFiles())
    for number in range(5):
        put(store, "t", 0, b"%d" % number)
    store.checkpoint()
    compared: list[int] = []
    monkeypatch.setattr("skylark.broker.store.reader.are_own", lambda *args: compared.append(1))
    assert bodies_of(store, "t", 2) == [b"%d" % number for number in range(5)]
    assert not compared
    store.close()


def test_a_cut_after_the_search_is_left_alone() -> None:
    """The entries that the search found belong to a tail of the log that was cut and written anew."""
    fs, _ = stopped()
    fs.flip(FILE, 3 * ENTRY_BYTES + 6, 1)
    store = open_store(fs)
    queue = store.queues.find("t", 0)
    assert queue is not None
    wrong = fs.read(FILE)[3 * ENTRY_BYTES : 4 * ENTRY_BYTES]
    assert queue.replace_entries(3, ENTRY.pack(1, 2, 3), ENTRY.pack(4, 5, 6)) == []
    assert fs.read(FILE)[3 * ENTRY_BYTES : 4 * ENTRY_BYTES] == wrong
    queue.move_to(2)
    assert queue.replace_entries(3, wrong, ENTRY.pack(4, 5, 6)) == []
    store.close()


@pytest.mark.parametrize("wanted", WANTED)
@pytest.mark.parametrize(
    ("physical", "size"),
    [(1 << 40, None), (-1, None), (None, 1 << 20), (None, 0), (None, -5), (None, 4), (-1, BLANK_SIZE - 1), (0, 0)],
)
@pytest.mark.parametrize("entry", [0, 7])
def test_an_entry_that_names_no_bytes_of_the_log_is_made_again(
    entry: int, physical: int | None, size: int | None, wanted: str
) -> None:
    fs, bodies = stopped()
    sound = fs.read(FILE)
    known, known_size, code = ENTRY.unpack_from(sound, entry * ENTRY_BYTES)
    wrong = ENTRY.pack(known if physical is None else physical, known_size if size is None else size, code)
    fs.overwrite(FILE, sound[: entry * ENTRY_BYTES] + wrong + sound[(entry + 1) * ENTRY_BYTES :])
    store = open_store(fs)
    assert bodies_of(store, "t", 300, WANTED[wanted]) == bodies
    store.close()
    assert fs.read(FILE) == sound


@pytest.mark.parametrize("wanted", WANTED)
def test_an_entry_before_the_log_is_of_a_message_that_was_removed(wanted: str) -> None:
    fs, bodies = stopped()
    store = open_store(fs)
    chain = store.log.chain
    chain.retire_before(chain.segments[0].end)
    queue = store.queues.find("t", 0)
    assert queue is not None
    first = next(offset for offset in range(COUNT) if queue.entry(offset)[0] >= store.log.start)
    assert 0 < first < COUNT
    result = read(store, "t", 0, 5, WANTED[wanted])
    assert (result.status, result.next_offset, result.min_offset) == (GetStatus.OFFSET_TOO_SMALL, first, first)
    assert bodies_of(store, "t", 5, WANTED[wanted]) == bodies[first:]


def test_a_place_after_all_entries_is_no_damage_that_can_be_mended() -> None:
    fs, _ = stopped()
    store = open_store(fs)
    queue = store.queues.find("t", 0)
    assert queue is not None
    with pytest.raises(StoreError, match=f"entry {COUNT} of queue t/0 names another message"):
        EntriesDamaged(store.log, queue, COUNT, COUNT + 1)


class Runs:
    """``runs`` runs of ``length`` messages of a queue, between messages of another queue; and what a read has."""

    def __init__(self, runs: int, length: int) -> None:
        store = open_store(MemoryFiles(), options=replace(SMALL, commitlog_segment_bytes=1 << 18))
        for number in range(runs * length):
            put(store, "t", 0, b"%05d" % number)
            if number % length == length - 1:
                put(store, "u", 0, b"between")
        queue = store.queues.find("t", 0)
        assert queue is not None
        self.queue: ConsumeQueue = queue
        self.entries = queue.raw_entries(0, runs * length)
        places = list(ENTRY.iter_unpack(self.entries))
        self.size = places[0][1]
        self.ranges = [(places[at][0], places[at + length - 1][0] + self.size) for at in range(0, len(places), length)]
        self.data = b"".join([store.log.read(start, end - start) for start, end in self.ranges])

    def spoiled(self, number: int, at: int) -> bytes:
        """The data with another byte at ``at`` of message ``number``."""
        place = number * self.size + at
        return self.data[:place] + bytes([self.data[place] ^ 1]) + self.data[place + 1 :]


@pytest.mark.parametrize(("runs", "length"), [(1, 1), (1, 5), (3, 2), (8, 1), (8, 3), (7, 25)])
@pytest.mark.parametrize("field", ["queue_id", "queue_offset", "physical_offset"])
def test_the_ends_of_each_range_of_the_log_are_compared(runs: int, length: int, field: str) -> None:
    each = Runs(runs, length)
    count, at = runs * length, HEAD_V4.starts[field]
    whole = each.queue, 0, each.entries, each.ranges
    assert are_own(*whole, each.data) and are_sound(*whole, each.data)
    assert not are_own(each.queue, 1, each.entries, each.ranges, each.data), "the next messages"
    ends = {n for n in range(count) if n % length in (0, length - 1)}
    for number in ends:
        assert not are_own(*whole, each.spoiled(number, at)), number
    for number in range(count):
        assert not are_sound(*whole, each.spoiled(number, at)), number


@pytest.mark.parametrize("runs", [2, 8])
def test_entries_that_do_not_reach_the_end_of_the_ranges_are_not_right(runs: int) -> None:
    each = Runs(runs, 3)
    fewer = each.entries[:-ENTRY_BYTES]
    assert not are_own(each.queue, 0, fewer, each.ranges, each.data)
    assert not are_sound(each.queue, 0, fewer, each.ranges, each.data)


def test_bytes_that_are_too_few_name_no_message() -> None:
    each = Runs(1, 1)
    physical, size, _ = ENTRY.unpack(each.entries)
    assert names_message(each.queue, 0, physical, size, each.data, 0)
    for at, many, data in ((-1, size, each.data), (1, size, each.data), (0, 5, each.data), (0, size, each.data[:50])):
        assert not names_message(each.queue, 0, physical, many, data, at)


# --- batch queues


def with_batches(batches: int = 7) -> tuple[MemoryFiles, list[bytes]]:
    fs = MemoryFiles()
    store = open_store(fs)
    store.queues.use_kinds(lambda topic: topic in ("b", "c"))
    bodies: list[bytes] = []
    for number in range(batches):
        for topic in ("b", "c"):
            rows = [(0, b"%s%d-%d" % (topic.encode(), number, each), b"") for each in range(3)]
            put_inner(store, topic, 0, rows)
            bodies += [body for _, body, _ in rows] if topic == "b" else []
    store.close()
    return fs, bodies


def test_each_bit_of_a_batch_entry() -> None:
    before, bodies = with_batches()
    path = BATCHES
    wrong: list[tuple[int, int]] = []
    for entry in (0, 1, 2):
        # physical offset and size, and then the offset of its first message and their number
        for bit in share_of((*range(96), *range(28 * 8, 38 * 8))):
            fs = before.killed()
            fs.flip(path, entry * BATCH_ENTRY_BYTES + bit // 8, bit % 8)
            store = open_store(fs, ManualClock())
            if any(bodies_of(store, "b", count) != bodies for count in (1, 100)):
                wrong.append((entry, bit))
            store.close()
    assert not wrong


@pytest.mark.parametrize("unwraps", [False, True])
def test_a_damaged_batch_is_skipped(unwraps: bool, caplog: pytest.LogCaptureFixture) -> None:
    fs, bodies = with_batches()
    damage_body(fs, b"b1-1")
    store = open_store(fs)
    for _ in range(3):
        assert bodies_of(store, "b", 4) == bodies[:3] + bodies[6:]
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("3 messages of queue b/0, from offset 3 on, are in a batch that is damaged")
    result = read_queue(store.log, store.queues.find("b", 0), 3, 3, 1 << 20, unwraps=unwraps)
    assert b"b1" not in result.records and result.next_offset > 3
    store.close()


def batch_queue(batches: int = 7) -> tuple[MessageStore, BatchConsumeQueue]:
    """Batches of three messages each; all were written before the store was opened."""
    fs, _ = with_batches(batches)
    store = open_store(fs)
    queue = store.queues.find("b", 0)
    assert isinstance(queue, BatchConsumeQueue)
    return store, queue


@pytest.mark.parametrize(
    ("place", "offset", "is_it"),
    [(0, 0, True), (1, 3, True), (1, 5, True), (0, 3, False), (2, 5, False), (6, 20, True), (7, 21, True)],
)
def test_a_place_that_was_found_is_compared_with_the_entries_around_it(place: int, offset: int, is_it: bool) -> None:
    store, queue = batch_queue()
    assert is_place_of(store.log, queue, place, offset) is is_it


@pytest.mark.parametrize("wrong", ["physical", "size", "base", "messages"])
def test_a_wrong_entry_beside_a_place_makes_it_doubtful(wrong: str) -> None:
    store, queue = batch_queue()
    batch = queue.at(1)
    segment = queue.chain.at(BATCH_ENTRY_BYTES)
    assert segment is not None
    entry = batch._replace(**{wrong: getattr(batch, wrong) - 1})
    segment.file.pwrite(BATCH_ENTRY_BYTES, memoryview(BATCH_ENTRY.pack(*entry)))
    assert not is_place_of(store.log, queue, 2, 6)


def test_an_entry_before_the_log_vouches_for_a_place_only_if_files_were_removed() -> None:
    store, queue = batch_queue(30)
    segment = queue.chain.at(0)
    assert segment is not None
    sound = queue.at(0)
    segment.file.pwrite(0, memoryview(BATCH_ENTRY.pack(*sound._replace(physical=1 << 40))))
    assert not is_place_of(store.log, queue, 1, 3)
    segment.file.pwrite(0, memoryview(BATCH_ENTRY.pack(*sound)))
    store.log.chain.retire_before(store.log.chain.segments[0].end)
    late = next(place for place in range(30) if queue.at(place).physical >= store.log.start)
    assert late > 1
    assert is_place_of(store.log, queue, late, 3 * late)


@pytest.mark.parametrize("counted", [False, True])
def test_batches_are_compared_with_their_records(counted: bool) -> None:
    store, queue = batch_queue()
    batches = [queue.at(1)]
    data = store.log.read(batches[0].physical, batches[0].size)
    assert name_batches(queue, batches, data, counted=counted)
    assert not name_batches(queue, [batches[0]._replace(base=4)], data, counted=counted)
    assert name_batches(queue, [batches[0]._replace(messages=4)], data, counted=counted) is not counted


@pytest.mark.parametrize("entry", [1, 3, 6])
@pytest.mark.parametrize(
    ("field", "value"),
    [("physical", 1 << 40), ("physical", 1), ("size", 1 << 20), ("base", 0), ("base", 1000), ("messages", 2)],
)
def test_a_wrong_batch_entry_is_made_again(entry: int, field: str, value: int) -> None:
    fs, bodies = with_batches()
    path = BATCHES if entry < 4 else f"{BATCHES[:-20]}{4 * BATCH_ENTRY_BYTES:020d}"
    at, raw = entry % 4 * BATCH_ENTRY_BYTES, fs.read(path)
    batch = BatchAt._make(BATCH_ENTRY.unpack_from(raw, at))._replace(**{field: value})
    fs.overwrite(path, raw[:at] + BATCH_ENTRY.pack(*batch) + raw[at + BATCH_ENTRY_BYTES :])
    assert bodies_of(open_store(fs), "b", 100) == bodies


def test_batches_before_the_log_were_removed() -> None:
    store, queue = batch_queue(30)
    store.log.chain.retire_before(store.log.chain.segments[0].end)
    first = next(batch.base for batch in queue.batches(0) if batch.physical >= store.log.start)
    assert first > 0
    result = read(store, "b", 0, 5)
    assert (result.status, result.next_offset) == (GetStatus.OFFSET_TOO_SMALL, first)


def test_batches_whose_tag_nobody_wants_are_passed_over() -> None:
    store, _ = batch_queue()
    result = read(store, "b", 4, 5, WANTED["tag"])
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 21)


@pytest.mark.parametrize(
    ("entry", "field", "value"),
    [
        (1, "physical", 1 << 40),
        (1, "physical", 1),
        (2, "size", 1 << 20),
        (1, "base", 0),
        (2, "base", 1000),
        (1, "messages", 2),
        (6, "messages", 4),
    ],
)
def test_a_batch_entry_that_changes_after_its_block_was_compared(entry: int, field: str, value: int) -> None:
    _, bodies = with_batches()
    for first in (0, 4):
        store, queue = batch_queue()
        assert bodies_of(store, "b", 100) == bodies
        sound, segment = queue.at(entry), queue.chain.at(entry * BATCH_ENTRY_BYTES)
        assert segment is not None
        wrong = BATCH_ENTRY.pack(*sound._replace(**{field: value}))
        segment.file.pwrite(entry * BATCH_ENTRY_BYTES - segment.base, memoryview(wrong))
        result = read(store, "b", first, 100)
        found = [decode_record(result.records, at).body for at in record_starts(result.records)]
        assert found == bodies[first:][: len(found)], first
        assert bodies_of(store, "b", 100) == bodies


@pytest.mark.parametrize("wanted", WANTED)
@pytest.mark.parametrize("physical", [1 << 40, -1, 1])
def test_an_entry_that_changes_after_its_block_was_compared(physical: int, wanted: str) -> None:
    fs, bodies = stopped()
    store = open_store(fs)
    assert bodies_of(store, "t", 300, WANTED[wanted]) == bodies
    queue = store.queues.find("t", 0)
    assert queue is not None
    segment = queue.chain.at(0)
    assert segment is not None
    for entry in (0, 5):
        sound = queue.entry(entry)
        segment.file.pwrite(entry * ENTRY_BYTES, memoryview(ENTRY.pack(physical, *sound[1:])))
        assert bodies_of(store, "t", 300, WANTED[wanted]) == bodies
        assert queue.entry(entry) == sound

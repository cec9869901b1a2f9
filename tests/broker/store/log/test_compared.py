"""Blocks of the log are compared with their sums before anybody sees their bytes."""

import errno
from collections.abc import Callable, Sequence
from random import Random
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.store.filter import ALL, Filter
from skylark.broker.store.log import compared
from skylark.broker.store.log.compared import ComparedBlocks
from skylark.broker.store.log.residency import Damaged, NotResident, resident_only, warm
from skylark.broker.store.log.segment import SegmentChain
from skylark.broker.store.queue.entry import BLANK_SIZE
from skylark.broker.store.reader import GetStatus, read_queue
from skylark.broker.store.store import MessageStore
from skylark.broker.store.sums.block_sums import Block, BlockSums
from skylark.mqcommon.message.columns import record_starts
from skylark.mqcommon.message.record import Record, decode_record
from tests.broker.store.support import open_store, put, put_inner
from tests.support.memory_files import MemoryFiles

COUNT = 100
WANTED = {"all": ALL, "properties": Filter(None, lambda properties: b"KEYS" in properties, 1000)}


class Nobody:
    """A hold in which nothing waits."""

    async def wait(self, blocks: Sequence[Block]) -> None:
        raise AssertionError("no read of these tests waits")


def seal(store: MessageStore) -> None:
    """Seal all full blocks; here a file of the log is a block."""
    log = store.log
    for block in log.sums.blocks(log.start, log.end):
        if block.end <= log.end:
            log.sums.seal(block, crc32(log.copy(block.start, block.size)))


def filled(*, sealed: bool = True) -> tuple[MemoryFiles, MessageStore]:
    """A store with messages of this process, in several blocks."""
    fs = MemoryFiles()
    store = open_store(fs)
    store.queues.use_kinds(lambda topic: topic == "b")
    for number in range(COUNT):
        put(store, "t", 0, b"body-%03d" % number, b"KEYS\x01key-%03d\x02" % number)
        if not number % 10:
            put_inner(store, "b", 0, [(0, b"batch-%03d-%d" % (number, each), b"") for each in range(3)])
    store.checkpoint()
    store.log.blocks.hold = Nobody()
    if sealed:
        seal(store)
    return fs, store


def flip(fs: MemoryFiles, what: bytes) -> Callable[[], None]:
    """Flip a bit of the log; returns what flips it back."""
    for path in fs.paths():
        if "/commitlog/" in path and (at := fs.read(path).find(what)) >= 0:
            fs.flip(path, at)
            return lambda: fs.flip(path, at)
    raise AssertionError("it is not there")


def read(store: MessageStore, topic: str, count: int = 10, wanted: Filter = ALL) -> list[Record]:
    """All messages of a queue, as the event loop reads them; Damaged."""
    queue, found, offset = store.queues.find(topic, 0), list[Record](), 0
    assert queue is not None
    while offset < queue.next_offset:
        got = None
        while True:
            try:
                with resident_only(got):
                    result = read_queue(store.log, queue, offset, count, 1 << 20, wanted)
                break
            except NotResident as cold:
                got = warm(cold)
        assert result.status in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE) and result.next_offset > offset
        found += [decode_record(result.records, at) for at in record_starts(result.records)]
        offset = result.next_offset
    return found


def give_up(store: MessageStore, blocks: Sequence[Block]) -> None:
    for block in blocks:
        store.log.blocks.give_up(block, store.log.blocks.suspects(block))


def numbers(records: list[Record]) -> list[int]:
    """The numbers of the messages, whose bodies and properties must be as they were sent."""
    found = [int(record.body[-3:]) for record in records]
    for number, record in zip(found, records, strict=True):
        assert record.body == b"body-%03d" % number and record.properties.startswith(b"KEYS\x01key-%03d" % number)
    return found


@pytest.mark.parametrize("what", [b"body-050", b"key-050"])
@pytest.mark.parametrize("wanted", WANTED)
@pytest.mark.parametrize("count", [1, 40, 300])
def test_damage_of_a_body_or_a_property_is_found_before_a_reader_sees_it(what: bytes, wanted: str, count: int) -> None:
    fs, store = filled()
    for _ in range(2):
        assert numbers(read(store, "t", count, WANTED[wanted])) == list(range(COUNT))
    store.log.blocks.repaired(store.log.sums.blocks(0, store.log.end))  # forget what was compared
    mend = flip(fs, what)
    for _ in range(2):
        with pytest.raises(Damaged) as damaged:
            read(store, "t", count, WANTED[wanted])
    (block,) = damaged.value.blocks
    assert what in fs.read(f"/store/commitlog/{block.start:020d}") or block.size == 4096
    mend()
    store.log.blocks.repaired([block])
    assert numbers(read(store, "t", count, WANTED[wanted])) == list(range(COUNT))
    store.close()


def test_damage_of_a_batch_is_found_before_a_reader_sees_it() -> None:
    fs, store = filled()
    sent = [record.body for record in read(store, "b")]
    assert len(sent) == 30
    mend = flip(fs, b"batch-050-1")
    store.log.blocks.repaired(store.log.sums.blocks(0, store.log.end))
    with pytest.raises(Damaged) as damaged:
        read(store, "b")
    mend()
    store.log.blocks.repaired(damaged.value.blocks)
    assert [record.body for record in read(store, "b")] == sent
    store.close()


def test_a_compared_block_stays_right_when_the_disk_changes_its_bytes() -> None:
    fs, store = filled()
    assert len(read(store, "t")) == COUNT
    flip(fs, b"body-010")
    assert numbers(read(store, "t")) == list(range(COUNT))
    store.close()


def test_a_block_is_compared_again_when_it_was_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compared, "KEPT_BLOCKS", 1)
    fs, store = filled()
    assert len(read(store, "t")) == COUNT
    flip(fs, b"body-010")
    with pytest.raises(Damaged):
        read(store, "t")
    store.close()


def test_blocks_that_are_read_often_are_kept_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compared, "KEPT_BLOCKS", 2)
    fs, store = filled()
    blocks = list(store.log.sums.blocks(0, store.log.end))[:3]

    def bytes_of(block: Block) -> bytes:
        return store.log.blocks.read(block.start, 10)

    first = bytes_of(blocks[0])
    bytes_of(blocks[1])
    assert bytes_of(blocks[0]) == first
    bytes_of(blocks[2])
    fs.damage(f"/store/commitlog/{0:020d}", 0, b"xx")
    fs.damage(f"/store/commitlog/{blocks[1].start:020d}", 0, b"xx")
    assert bytes_of(blocks[0]) == first
    with pytest.raises(Damaged):
        bytes_of(blocks[1])
    store.close()


@pytest.mark.parametrize("sealed", [False, True])
def test_messages_of_a_block_that_was_given_up_are_skipped_in_memory_until_it_is_mended(
    sealed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    fs, store = filled(sealed=sealed)
    store.log._opened_at = store.log.end  # not written lately
    queue = store.queues.find("t", 0)
    assert queue is not None
    before = {path: fs.read(path) for path in fs.paths() if "consumequeue" in path}
    mend = flip(fs, b"body-050")
    with pytest.raises(Damaged) as damaged:
        read(store, "t")
    give_up(store, damaged.value.blocks)
    for _ in range(2):
        assert numbers(read(store, "t")) == [number for number in range(COUNT) if number != 50]
    assert queue.entry(50)[1] == BLANK_SIZE and store.log.messages_skipped == 1
    assert "from offset 50 to 50, are damaged or gone" in caplog.text and "until they are mended" in caplog.text
    assert {path: fs.read(path) for path in before} == before
    mend()
    store.log.blocks.repaired(damaged.value.blocks)
    assert numbers(read(store, "t")) == list(range(COUNT))
    store.close()


@pytest.mark.parametrize("wanted", WANTED)
@pytest.mark.parametrize("count", [1, 300])
def test_only_the_message_with_a_damaged_property_is_skipped(wanted: str, count: int) -> None:
    fs, store = filled()
    mend = flip(fs, b"key-050")
    with pytest.raises(Damaged) as damaged:
        read(store, "t")
    give_up(store, damaged.value.blocks)
    queue = store.queues.find("t", 0)
    assert queue is not None and store.record_at(queue.entry(50)[0]) is None
    for _ in range(2):
        left = numbers(read(store, "t", count, WANTED[wanted]))
        assert left == [number for number in range(COUNT) if number != 50]
    mend()
    store.log.blocks.repaired(damaged.value.blocks)
    assert numbers(read(store, "t")) == list(range(COUNT))
    store.close()


@pytest.mark.parametrize("sealed", [False, True])
def test_a_damaged_batch_is_skipped_until_it_is_mended(sealed: bool) -> None:
    fs, store = filled(sealed=sealed)
    store.log._opened_at = store.log.end
    mend = flip(fs, b"batch-050-1")
    with pytest.raises(Damaged) as damaged:
        read(store, "b")
    give_up(store, damaged.value.blocks)
    for _ in range(2):
        assert len(read(store, "b")) == 27
    mend()
    store.log.blocks.repaired(damaged.value.blocks)
    assert len(read(store, "b")) == 30
    store.close()


def test_a_damaged_head_is_not_taken_for_a_message_that_is_gone() -> None:
    fs, store = filled(sealed=False)
    store.log._opened_at = store.log.end
    queue = store.queues.find("t", 0)
    assert queue is not None
    physical, _, _ = queue.entry(50)
    fs.flip(f"/store/commitlog/{physical // 4096 * 4096:020d}", physical % 4096 + 4)
    with pytest.raises(Damaged) as damaged:
        read(store, "t")
    assert damaged.value.blocks[0].start == physical // 4096 * 4096
    give_up(store, damaged.value.blocks)
    assert len(read(store, "t")) == COUNT - 1
    fs.flip(f"/store/commitlog/{physical // 4096 * 4096:020d}", physical % 4096 + 4)
    store.log.blocks.repaired(damaged.value.blocks)
    assert numbers(read(store, "t")) == list(range(COUNT))
    store.close()


def test_a_record_at_a_place_of_the_log_is_compared() -> None:
    fs, store = filled()
    queue = store.queues.find("t", 0)
    assert queue is not None
    physical, _, _ = queue.entry(50)
    flip(fs, b"key-050")
    with pytest.raises(NotResident) as cold, resident_only():
        store.record_at(physical)
    assert not cold.value.on_disk, "it is in memory, and was not compared"
    with pytest.raises(Damaged):
        warm(cold.value)
    with pytest.raises(Damaged):
        store.record_at(physical)  # outside of the event loop
    # Bytes that are no record say nothing about the next file.
    other, _, _ = queue.entry(99)
    assert store.record_at(other - 100) is None
    store.close()


def test_a_cut_log_is_read_as_it_was_written_anew() -> None:
    _, store = filled()
    assert numbers(read(store, "t")) == list(range(COUNT))
    block = store.log.sums.block_at(0)
    store.log.blocks.give_up(block, [])
    store.log.end_at(0)
    assert not store.log.blocks.is_given_up(0) and not store.log.blocks.is_sealed(0)
    store.log.write(0, b"x" * 4096)
    store.log.sums.seal(block, crc32(b"x" * 4096))
    assert store.log.read(0, 4096) == b"x" * 4096


class Medium:
    """A file of the log whose disk has lost sectors."""

    def __init__(self, data: bytes, lost: Sequence[int] = ()) -> None:
        self.path, self.size, self.view = "log", len(data), data
        self.lost = lost

    def resident(self, at: int, size: int) -> bool:
        return True

    def pread(self, at: int, size: int) -> bytes:
        if any(at < place + 4096 and place < at + size for place in self.lost):
            raise OSError(errno.EIO, "lost")
        return self.view[at : at + size]


SIZE = 3 * 256 * 1024 + 5_000


def of(sound: bytes, sealed: Sequence[int]) -> ComparedBlocks:
    sums = BlockSums(SIZE)
    for number in sealed:
        block = list(sums.blocks(0, SIZE))[number]
        sums.seal(block, crc32(sound[block.start : block.end]))
    blocks = ComparedBlocks(SegmentChain(MemoryFiles(), "/log", SIZE, durable_files=True), sums)
    blocks.hold = Nobody()
    return blocks


class Replacing(Medium):
    """The sum of the first block is replaced, by the sum of ``sound``, while the block is read."""

    def __init__(self, data: bytes, sums: BlockSums, sound: bytes) -> None:
        super().__init__(data)
        self.sums, self.sound = sums, sound

    def pread(self, at: int, size: int) -> bytes:
        block = self.sums.block_at(0)
        self.sums.replace(block, crc32(self.sound[: block.size]), is_attested=False)
        return super().pread(at, size)


@pytest.mark.parametrize("is_sound", [True, False])
def test_a_sum_that_is_replaced_during_a_read_lets_no_wrong_bytes_pass(is_sound: bool) -> None:
    sound, sums = Random(2).randbytes(SIZE), BlockSums(SIZE)
    sums.seal(sums.block_at(0), 7)
    blocks = ComparedBlocks(SegmentChain(MemoryFiles(), "/log", SIZE, durable_files=True), sums)
    blocks.hold = Nobody()
    file = Replacing(sound if is_sound else bytes(SIZE), sums, sound)
    if is_sound:
        assert blocks.read_file(file, 0, 0, 100) == sound[:100]  # type: ignore[arg-type]
    else:
        with pytest.raises(Damaged):
            blocks.read_file(file, 0, 0, 100)  # type: ignore[arg-type]


@pytest.mark.parametrize("at_once", [0, 8])
def test_a_sector_that_cannot_be_read_is_damage_and_zeros_when_it_was_given_up(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compared, "KEPT_AT_ONCE", at_once)
    sound = Random(1).randbytes(SIZE)
    for sealed in ([], [0, 1, 2, 3]):
        blocks, file = of(sound, sealed), Medium(sound, lost=[270_336])
        with pytest.raises(Damaged) as damaged:
            blocks.read_file(file, 0, 100, 600_000)  # type: ignore[arg-type]
        (block,) = damaged.value.blocks
        assert block == Block(262_144, 262_144)
        blocks.give_up(block, [])
        wanted = sound[100:270_336] + bytes(4096) + sound[274_432:600_000]
        found = blocks.read_file(file, 0, 100, 600_000)  # type: ignore[arg-type]
        assert (
            len(found) == len(wanted) and found[:270_000] == wanted[:270_000] and found[-300_000:] == wanted[-300_000:]
        )
        assert blocks.read_file(file, 0, 0, 1_000) == sound[:1_000]  # type: ignore[arg-type]


@given(
    sealed=st.sets(st.integers(0, 3)),
    wrong=st.sets(st.integers(0, SIZE - 1), max_size=3),
    ends=st.lists(st.integers(0, SIZE), min_size=2, max_size=2, unique=True).map(sorted),
    at_once=st.sampled_from([0, 8]),
)
def test_any_read_returns_the_bytes_or_names_the_damaged_blocks(
    sealed: set[int], wrong: set[int], ends: list[int], at_once: int
) -> None:
    sound = bytes(SIZE)
    raw = bytearray(sound)
    for place in wrong:
        raw[place] ^= 1
    blocks, (start, end) = of(sound, sorted(sealed)), ends
    sums = BlockSums(SIZE)
    numbered = dict(enumerate(sums.blocks(0, SIZE)))
    bad = [
        numbered[number]
        for number in sorted(sealed)
        if numbered[number].start < end
        and start < numbered[number].end
        and any(numbered[number].start <= place < numbered[number].end for place in wrong)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compared, "KEPT_AT_ONCE", at_once)
        try:
            found = blocks.read_file(Medium(bytes(raw)), 0, start, end)  # type: ignore[arg-type]
        except Damaged as damaged:
            assert damaged.blocks == bad and bad
        else:
            assert found == bytes(raw[start:end]) and not bad


class Cold(Medium):
    """A file of which the bytes at these places are not in memory."""

    def __init__(self, data: bytes, places: set[int]) -> None:
        super().__init__(data)
        self.places = places

    def resident(self, at: int, size: int) -> bool:
        return not any(at <= place < at + size for place in self.places)


@given(
    sealed=st.sets(st.integers(0, 3)),
    kept=st.sets(st.integers(0, 3)),
    cold=st.sets(st.integers(0, SIZE - 1), max_size=2),
    ends=st.lists(st.integers(0, SIZE), min_size=2, max_size=2, unique=True).map(sorted),
    is_compared=st.booleans(),
)
def test_bytes_are_at_hand_if_they_are_in_memory_and_compared(
    sealed: set[int], kept: set[int], cold: set[int], ends: list[int], is_compared: bool
) -> None:
    sound = Random(3).randbytes(SIZE)
    blocks, file, (start, end) = of(sound, sorted(sealed)), Cold(sound, cold), ends
    numbered = dict(enumerate(BlockSums(SIZE).blocks(0, SIZE)))
    for number in sealed & kept:
        blocks.read_file(file, 0, numbered[number].start, numbered[number].end)  # type: ignore[arg-type]
    if not is_compared:
        blocks.hold = None
    is_there = not any(
        number not in kept if number in sealed and is_compared else not file.resident(first, last - first)
        for number, block in numbered.items()
        if (first := max(start, block.start)) < (last := min(end, block.end))
    )
    assert blocks.copy_at_hand(file, 0, start, end) == (sound[start:end] if is_there else None)  # type: ignore[arg-type]
    assert blocks.at_hand(file, 0, start, end) == is_there  # type: ignore[arg-type]


def test_the_last_block_is_read_as_this_process_has_written_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no sum before it is full, which may take days."""
    fs = MemoryFiles()
    store = open_store(fs)
    store.log.blocks.hold = Nobody()
    for number in range(5):
        put(store, "t", 0, b"body-%03d" % number, b"KEYS\x01key-%03d\x02" % number)
    store.checkpoint()
    store.log.age()
    for number in range(5, 8):
        put(store, "t", 0, b"body-%03d" % number, b"KEYS\x01key-%03d\x02" % number)
    store.log.age()
    store.log.age()
    assert not store.log.is_recent(0)
    written = store.log.copy(0, store.log.end)
    mends = [flip(fs, what) for what in (b"body-003", b"key-004", b"key-006")]
    store.log.age()
    for count in (1, 300):
        assert numbers(read(store, "t", count)) == list(range(8))
    for at_once in (0, 8):
        monkeypatch.setattr(compared, "KEPT_AT_ONCE", at_once)
        assert store.log.copy(0, store.log.end) != written == store.log.blocks.read(0, store.log.end)
    # What is written anew after a cut is read, and not what was kept.
    queue = store.queues.find("t", 0)
    assert queue is not None
    end = queue.entry(7)[0]
    store.log.end_at(end)
    store.log.write(end, b"y" * 100)
    assert store.log.read(end, 100) == b"y" * 100
    store.log.age()
    assert store.log.read(end, 100) == b"y" * 100
    for mend in mends:
        mend()


def test_bytes_of_an_earlier_process_in_the_last_block_are_compared_with_their_crcs() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    for number in range(5):
        put(store, "t", 0, b"body-%03d" % number, b"KEYS\x01key-%03d\x02" % number)
    store.close()
    store = open_store(fs)
    store.log.blocks.hold = Nobody()
    store.log.age()
    assert numbers(read(store, "t")) == list(range(5))
    flip(fs, b"body-003")
    with pytest.raises(Damaged):
        read(store, "t")
    store.close()


def test_all_of_a_block_that_cannot_be_read_may_be_wrong() -> None:
    fs, store = filled()
    (block, *_) = store.log.sums.blocks(0, store.log.end)

    def fail(path: str) -> None:
        raise OSError(errno.EIO, "Input/output error", path)

    fs.cold.before_read = fail
    assert store.log.blocks.suspects(block) == [(block.start, block.end)]
    fs.cold.before_read = None
    store.close()

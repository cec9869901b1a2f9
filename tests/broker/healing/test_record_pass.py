"""Blocks without sums: only those all of whose records are sound get one, and unsound bytes are told with both ends."""

from collections.abc import Sequence
from random import Random
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.healing.record_pass import RecordPass, Unsound
from skylark.broker.store.sums.block_sums import Block
from skylark.mqcommon.message.layout import BLANK_MAGIC, HEAD_V4, MAGIC_V1, SIZE_MAGIC
from skylark.mqcommon.message.record import encode_record, topic_field

BASE = 7_000
HOST = b"\x7f\0\0\1\0\0\x2a\x9f"
# The pass does not care how large blocks are.
BLOCK = 150


def record(offset: int, body: bytes) -> bytes:
    magic, topic = topic_field("t")
    return encode_record(magic, topic, 0, 3, offset, body, b"", 0, 0, 1, HOST, 2, HOST, 0, 0)


class LogBytes:
    """A file of the log that begins at `BASE`: records with bodies of these sizes, a filler, and bytes of nobody."""

    def __init__(self, sizes: Sequence[int], left: int = 40) -> None:
        data, self.starts = bytearray(), list[int]()
        for number, size in enumerate(sizes):
            self.starts.append(BASE + len(data))
            data += record(BASE + len(data), Random(number).randbytes(size))
        if left >= 8:
            data += SIZE_MAGIC.pack(left, BLANK_MAGIC) + Random(9).randbytes(left - 8)
        else:
            data += bytes(left)
        self.data = data
        self.records_end = BASE + len(data) - left
        self.end = BASE + len(data)

    def blocks(self, start: int = BASE) -> list[Block]:
        return [
            Block(BASE + at, min(BLOCK, len(self.data) - at))
            for at in range((start - BASE) // BLOCK * BLOCK, len(self.data), BLOCK)
        ]

    def read(self, records: RecordPass, start: int = BASE) -> tuple[list[Block], list[Unsound]]:
        sound: list[Block] = []
        found: list[Unsound] = []
        for block in self.blocks(start):
            data = bytes(self.data[block.start - BASE : block.end - BASE])
            more, unsound = records.feed(block, crc32(data), data)
            sound += [each for each, _ in more]
            found += unsound
            for each, crc in more:
                assert crc == crc32(self.data[each.start - BASE : each.end - BASE])
        return sound, found


SIZES = st.lists(st.integers(0, 500), min_size=1, max_size=12)
LEFT = st.sampled_from([0, 1, 7, 8, 9, 40, 400])


@given(SIZES, LEFT)
def test_every_block_of_sound_records_is_sound(sizes: list[int], left: int) -> None:
    log = LogBytes(sizes, left)
    assert log.read(RecordPass(BASE, log.end)) == (log.blocks(), [])


@given(SIZES, LEFT, st.sets(st.integers(0, 11), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_unsound_bytes_are_those_of_damaged_records(
    sizes: list[int], left: int, damaged: set[int], random: Random
) -> None:
    log = LogBytes(sizes, left)
    ends = [*log.starts[1:], log.records_end]
    # Of what a CRC or the place covers, any byte.
    head = [
        at
        for field in ("size", "magic", "body_crc", "physical_offset")
        for at in range(*HEAD_V4.span(field).indices(200)[:2])
    ]
    spans: list[tuple[int, int]] = []
    for number in sorted(each % len(sizes) for each in damaged):
        places = [*head, *range(HEAD_V4.size, HEAD_V4.size + sizes[number])]
        log.data[log.starts[number] - BASE + random.choice(places)] ^= 1 << random.randrange(8)
        spans.append((log.starts[number], ends[number]))
    sound, found = log.read(RecordPass(BASE, log.end))
    # A filler is found from the record before it only: after a damaged last record all up to the file's end is unsound.
    spans = [(start, log.end if end == log.records_end and left else end) for start, end in spans]
    touched = {block for block in log.blocks() if any(s < block.end and block.start < e for s, e in spans)}
    assert sound == [block for block in log.blocks() if block not in touched]
    covered = {at for one in found for at in range(one.start, one.end)}
    assert covered == {at for start, end in spans for at in range(start, end)}
    assert all(one.reason for one in found)


@given(SIZES, LEFT, st.integers(0, 5_000))
def test_a_pass_that_begins_anywhere_finds_the_records_and_says_nothing_of_what_is_before(
    sizes: list[int], left: int, begin: int
) -> None:
    log = LogBytes(sizes, left)
    start = BASE + begin % len(log.data) // BLOCK * BLOCK
    sound, found = log.read(RecordPass(start, log.end, searches=True), start)
    assert found == []
    first = next((each for each in log.starts if each >= start), log.end)
    assert sound == [block for block in log.blocks(start) if block.start >= first]


def test_a_pass_can_begin_at_a_record_amid_a_block() -> None:
    log = LogBytes([300, 300, 300])
    sound, found = log.read(RecordPass(log.starts[1], log.end), log.starts[1])
    assert (sound, found) == (log.blocks(log.starts[1]), [])


def test_zeros_and_a_size_that_no_record_has_are_told_at_once() -> None:
    for head, reason in ((bytes(BLOCK), "zeros"), (SIZE_MAGIC.pack(2**31, MAGIC_V1), "no record begins at")):
        records = RecordPass(BASE, BASE + 2**31)
        data = head.ljust(BLOCK, b"x")
        assert records.feed(Block(BASE, BLOCK), crc32(data), data) == ([], [])
        assert records.is_amid_unsound
        (found,) = records.end()
        assert (found.start, found.end) == (BASE, BASE + BLOCK) and reason in found.reason


@pytest.mark.parametrize("cut", [1, 5, 30, 60])
def test_the_last_record_waits_for_its_end(cut: int) -> None:
    log = LogBytes([80, 10], 0)
    block = Block(BASE, len(log.data) - cut)
    records = RecordPass(BASE, log.end)
    assert records.feed(block, 0, bytes(log.data[:-cut])) == ([], [])
    assert records.waiting == [block] and records.end() == []

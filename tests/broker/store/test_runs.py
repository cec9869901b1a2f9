"""Long runs against a plain loop over the same entries."""

from hypothesis import example, given
from hypothesis import strategies as st

from broker.store.filter import ALL, Filter
from broker.store.queue.entry import BLANK_SIZE, ENTRY
from broker.store.reader import GetResult, GetStatus, Range, long_runs, read_queue
from broker.store.store import MessageStore
from tests.broker.store.support import open_store, put
from tests.support.memory_files import MemoryFiles

SEGMENT_BYTES = 1 << 30
MAX_RANGES = 50


class Entries:
    """A queue in memory, whose files have ``per_file`` entries."""

    def __init__(self, entries: list[tuple[int, int]], per_file: int) -> None:
        self.raw = b"".join([ENTRY.pack(physical, size, 0) for physical, size in entries])
        self.per_file = per_file

    def raw_entries(self, offset: int, count: int) -> bytes:
        upto = min(offset + count, (offset // self.per_file + 1) * self.per_file)
        return self.raw[offset * ENTRY.size : upto * ENTRY.size]


def plain(entries: list[tuple[int, int]], max_count: int, max_bytes: int) -> tuple[list[Range], int, int]:
    ranges: list[Range] = []
    count = taken = 0
    for physical, size in entries[:max_count]:
        if count and taken + size > max_bytes:
            break
        if ranges and ranges[-1][1] == physical:
            ranges[-1] = (ranges[-1][0], physical + size)
        elif len(ranges) == MAX_RANGES:
            break
        else:
            ranges.append((physical, physical + size))
        count, taken = count + 1, taken + size
    return ranges, count, taken


# Of each run: the bytes of others before it, and the sizes of its messages, over and over, so many times.
RUNS = st.lists(
    st.tuples(st.integers(1, 10_000), st.lists(st.integers(91, 5_000), min_size=1, max_size=5), st.integers(2, 500)),
    max_size=30,
)


def laid_out(runs: list[tuple[int, list[int], int]]) -> list[tuple[int, int]]:
    entries: list[tuple[int, int]] = []
    end = 0
    for others, sizes, times in runs:
        end += others
        for size in sizes * times:
            entries.append((end, size))
            end += size
    return entries


@given(RUNS, st.integers(1, 20_000), st.integers(0, 4_000_000), st.integers(1_024, 9_000))
@example([(1, [100], 500)] * 5, 20_000, 0, 9_000)
@example([(1, [100], 500)] * 9, 2_048, 4_000_000, 1_024)
def test_they_are_what_a_loop_finds(
    runs: list[tuple[int, list[int], int]], max_count: int, max_bytes: int, per_file: int
) -> None:
    entries = laid_out(runs)
    found = long_runs(Entries(entries, per_file), 0, max_count, max_bytes, MAX_RANGES, SEGMENT_BYTES)
    if found is not None:
        # Reads may stop at the end of a file.
        ranges, count, size = plain(entries, max_count, max_bytes)
        if found[1] < count:
            assert found[1] % per_file == 0 and found[1]
            ranges, count, size = plain(entries, found[1], max_bytes)
        assert found[:3] == (ranges, count, size)
        assert found[3].startswith(Entries(entries, 1 << 20).raw_entries(0, count))
    else:
        upto = plain(entries, max_count, max_bytes)
        assert upto[1] < 8 * len(upto[0]) or any(len(sizes) * times < 64 for _, sizes, times in runs)


def test_blanks_and_the_end_of_a_file_of_the_log_are_for_the_loop() -> None:
    messages = laid_out([(0, [100], 3_000)])
    for blank in (0, 1_000, 2_999):
        entries = [*messages[:blank], (0, BLANK_SIZE), *messages[blank:]]
        assert long_runs(Entries(entries, 9_000), 0, 9_000, 1 << 30, MAX_RANGES, SEGMENT_BYTES) is None
    assert long_runs(Entries(messages, 9_000), 0, 9_000, 1 << 30, MAX_RANGES, 150_000) is None
    found = long_runs(Entries(messages, 9_000), 0, 1_000, 1 << 30, MAX_RANGES, 150_000)
    assert found is not None and found[:3] == ([(0, 100_000)], 1_000, 100_000)


def many(store: MessageStore, count: int, wanted: Filter = ALL) -> GetResult:
    return read_queue(store.log, store.queues.find("t", 0), 1, count, 1 << 20, wanted)


def test_a_large_read_returns_what_small_ones_do() -> None:
    store = open_store(MemoryFiles())
    for number in range(600):
        put(store, "t", 0, b"%d" % number)
    large = many(store, 500)
    assert large.status is GetStatus.FOUND
    assert (large.count, large.next_offset) == (500, 501)
    small = [many_from(store, offset) for offset in range(1, 501, 100)]
    assert large.records == b"".join([result.records for result in small])


def many_from(store: MessageStore, offset: int) -> GetResult:
    return read_queue(store.log, store.queues.find("t", 0), offset, 100, 1 << 20)

"""Searching: a queue by time, the index by key."""

import struct
from bisect import bisect_left, bisect_right
from itertools import accumulate, pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skylark.broker.store import query
from skylark.broker.store.index.index_file import IndexFile
from skylark.broker.store.log.residency import NotResident, resident_only, warm
from skylark.broker.store.older import OlderFound, OlderQuery
from skylark.broker.store.query import KeyQuery, QueryResult, WantedKey, first_at_least
from skylark.broker.store.queue.entry import BLANK_SIZE, ENTRY, ENTRY_BYTES
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.message.layout import HEAD_V4
from skylark.mqcommon.message.message import MessageExt
from tests.broker.store.cleaning import clean
from tests.broker.store.support import HOST, open_store, put, put_batch
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles

START_MS = 1_000_000
PER_FILE = 16  # places in a consume queue file of the small store


def stored_at(times_ms: list[int], fs: MemoryFiles | None = None) -> MessageStore:
    """A store whose queue t 0 has a message of each of these times."""
    clock = ManualClock(START_MS)
    store = open_store(fs or MemoryFiles(), clock)
    for time_ms in times_ms:
        clock.advance(time_ms - clock.now_ms())
        put(store, "t", 0, b"x" * 50)
    store.checkpoint()
    return store


def make_blank(store: MessageStore, offset: int) -> None:
    """Take a message out of its queue, as a repair leaves it when the record is lost."""
    queue = store.queues.get("t", 0)
    segment = queue.chain.at(offset * ENTRY_BYTES)
    assert segment is not None
    ENTRY.pack_into(segment.file.view, offset * ENTRY_BYTES - segment.base, 0, BLANK_SIZE, 0)


def bounds(store: MessageStore, time_ms: int) -> tuple[int, int]:
    return store.offset_by_time("t", 0, time_ms), store.offset_by_time("t", 0, time_ms, "UPPER")


# --- by time


def test_a_queue_that_is_not_there_or_empty() -> None:
    store = stored_at([])
    assert bounds(store, START_MS) == (0, 0)
    assert store.first_store_time("t", 0) == -1
    store.queues.get("t", 0)
    assert bounds(store, START_MS) == (0, 0)
    assert store.first_store_time("t", 0) == store.store_time("t", 0, 0) == -1


def test_a_batch_has_one_time() -> None:
    store = stored_at([START_MS])
    put_batch(store, "t", 0, [b"x"] * 30)
    assert bounds(store, START_MS) == (0, 30)


def test_a_queue_whose_begin_was_cleaned_starts_where_it_starts() -> None:
    fs = MemoryFiles()
    store = stored_at([START_MS + n for n in range(60)], fs)
    assert clean(fs, store, 1) == 1
    first = store.min_offset("t", 0)
    assert 0 < first < 59
    assert bounds(store, START_MS) == (first, first)
    assert bounds(store, START_MS + first) == (first, first)
    assert bounds(store, START_MS + 59) == (59, 59)
    assert store.first_store_time("t", 0) == START_MS + first
    assert store.store_time("t", 0, first - 1) == -1
    assert store.earliest_store_time() == START_MS + first


def test_what_the_log_has_lost_counts_as_older_until_the_queue_knows_of_it() -> None:
    store = stored_at([START_MS + n for n in range(60)])
    store.log.chain.retire_before(store.log.chain.segments[0].end)
    queue = store.queues.get("t", 0)
    first = next(n for n in range(60) if queue.entry(n)[0] >= store.log.start)
    assert 0 == queue.min_offset < first < 59
    assert bounds(store, START_MS)[0] == first
    assert bounds(store, START_MS + 59) == (59, 59)


def test_a_queue_without_any_message_left() -> None:
    fs = MemoryFiles()
    store = stored_at([START_MS] * 3, fs)
    for _ in range(100):
        put(store, "other", 0, b"x" * 50)
    clean(fs, store, 1)
    assert store.min_offset("t", 0) == store.max_offset("t", 0) == 3
    assert bounds(store, START_MS) == (3, 3)
    assert store.first_store_time("t", 0) == -1


def test_an_entry_that_leads_nowhere_has_no_time() -> None:
    store = stored_at([START_MS] * 3)
    segment = store.queues.get("t", 0).chain.at(0)
    assert segment is not None
    for physical, size in ((1 << 40, 100), (-5, 100), (3, 100), (store.log.end - 8, 8)):
        ENTRY.pack_into(segment.file.view, ENTRY_BYTES, physical, size, 0)
        assert store.store_time("t", 0, 1) == -1


def test_the_time_stands_elsewhere_behind_a_long_born_host() -> None:
    store = stored_at([])
    store.put("t", 0, b"x", b"", sys_flag=0x10, born_timestamp=7, born_host=bytes(16) + HOST[4:])
    put(store, "t", 0, b"after")
    assert store.store_time("t", 0, 0) == START_MS


@given(
    steps=st.lists(st.integers(0, 3), min_size=1, max_size=3 * PER_FILE),
    blanks=st.sets(st.integers(0, 3 * PER_FILE - 1)),
    cleaned=st.integers(0, 10),
)
@example(steps=[0] * 3 + [5] + [0] * 39 + [4, 0], blanks=set(), cleaned=0)  # many messages of one time
@example(steps=[1] * 40, blanks={*range(18), 38, 39}, cleaned=0)
def test_any_queue_against_a_plain_list(steps: list[int], blanks: set[int], cleaned: int) -> None:
    """As in RocketMQ: for a time between two store times the lower bound is after the upper bound."""
    times = [START_MS + sum(steps[: n + 1]) for n in range(len(steps))]
    store = stored_at(times)
    start = min(cleaned, len(times))
    store.queues.get("t", 0).min_offset = start
    for offset in blanks:
        if offset < len(times):
            make_blank(store, offset)
    left = [(times[n], n) for n in range(start, len(times)) if n not in blanks]
    for time_ms in (-1, 0, *range(START_MS - 1, times[-1] + 2), 1 << 62):
        at = bisect_left(left, (time_ms, -1))
        after = bisect_right(left, (time_ms, len(times)))
        lower = left[at][1] if at < len(left) else len(times)
        upper = left[after - 1][1] if after else start
        assert bounds(store, time_ms) == (lower, upper)
    assert store.first_store_time("t", 0) == (left[0][0] if left else -1)
    for offset in range(start, len(times)):
        assert store.store_time("t", 0, offset) == (-1 if offset in blanks else times[offset])


def set_times(store: MessageStore, times_ms: list[int]) -> None:
    """Set store times as of an older broker whose clock was set back."""
    queue = store.queues.get("t", 0)
    for offset, time_ms in enumerate(times_ms):
        physical = queue.entry(offset)[0]
        segment = store.log.chain.at(physical)
        assert segment is not None
        struct.pack_into(">q", segment.file.view, physical - segment.base + HEAD_V4.starts["store_timestamp"], time_ms)


def expected(times_ms: list[int], time_ms: int) -> tuple[int, int]:
    lower = next((n for n, stored in enumerate(times_ms) if stored >= time_ms), len(times_ms))
    upper = next((n for n in reversed(range(len(times_ms))) if times_ms[n] <= time_ms), 0)
    return lower, upper


@given(st.lists(st.integers(0, 20), min_size=1, max_size=3 * PER_FILE))
def test_any_times_of_a_short_queue_are_searched_exactly(times: list[int]) -> None:
    store = stored_at([START_MS] * len(times))
    set_times(store, times)
    for time_ms in range(-1, 22):
        assert bounds(store, time_ms) == expected(times, time_ms)


@st.composite
def times_with_steps_back(draw: st.DrawFn) -> list[int]:
    """Times that rise, but for some points where the clock was set back.

    The pieces between are longer, and the steps back larger, than the distance between two places that a search looks
    at: smaller ones it does not promise to see.
    """
    count = draw(st.integers(300, 900))
    distance = 2 * count // 64 + 2
    ends = accumulate(draw(st.lists(st.integers(distance, count), max_size=5)))
    cuts = [0, *(end for end in ends if end <= count - distance), count]
    times: list[int] = []
    for begin, end in pairwise(cuts):
        start = draw(st.integers(0, 3000))
        if times and times[-1] - distance < start < times[-1]:
            start = times[-1]
        times += range(start, start + end - begin)
    return times


@given(times_with_steps_back(), st.lists(st.integers(-1, 4000), min_size=1, max_size=20))
def test_clocks_set_back_hide_no_message(times: list[int], wanted: list[int]) -> None:
    queue_times = dict(enumerate(times))
    for time_ms in wanted:
        lower, upper = expected(times, time_ms)
        assert first_at_least(queue_times.__getitem__, 0, len(times), time_ms) == lower
        back = first_at_least(lambda n: -times[len(times) - 1 - n], 0, len(times), -time_ms)
        assert max(len(times) - 1 - back, 0) == upper


def test_a_search_looks_at_few_places() -> None:
    looked: list[int] = []

    def time_at(place: int) -> int:
        looked.append(place)
        return place

    assert first_at_least(time_at, 0, 1 << 24, 12_345_678) == 12_345_678
    assert len(looked) <= 4 * 64


# --- by key


def keyed(store: MessageStore, body: bytes, properties: str) -> None:
    put(store, "t", 0, body, properties.encode())


def found(store: MessageStore, key: str, begin: int = 0, end: int = 1 << 62, *, unique: bool = False) -> list[bytes]:
    result = store.query("t", key, 32, begin, end, unique=unique)
    return [MessageExt(raw, 0, "").body for raw in result.records]


def test_a_unique_key_is_not_a_word_of_keys() -> None:
    store = open_store(MemoryFiles())
    keyed(store, b"1", "UNIQ_KEY\x01id1\x02KEYS\x01a id2\x02")
    keyed(store, b"2", "UNIQ_KEY\x01id2\x02KEYS\x01a\x02")
    assert found(store, "id2") == [b"2", b"1"]
    assert found(store, "id2", unique=True) == [b"2"]
    assert found(store, "a", unique=True) == []


def test_the_range_of_times_is_exact_though_the_index_knows_seconds_only() -> None:
    clock = ManualClock(START_MS)
    store = open_store(MemoryFiles(), clock)
    for n in range(4):
        keyed(store, b"%d" % n, "KEYS\x01k\x02")
        clock.advance(300)
    assert found(store, "k", START_MS + 300, START_MS + 600) == [b"2", b"1"]
    assert found(store, "k", START_MS + 301, START_MS + 599) == []
    assert found(store, "k", START_MS + 900, START_MS) == []


@pytest.mark.parametrize("max_num", [0, -1])
def test_no_more_than_asked_for(max_num: int) -> None:
    store = open_store(MemoryFiles())
    keyed(store, b"1", "KEYS\x01k\x02")
    assert store.query("t", "k", max_num, 0, 1 << 62).records == []


@pytest.mark.parametrize("field", ["magic", "size"])
@pytest.mark.parametrize("look_bytes", [100, 1 << 20])
@pytest.mark.parametrize("indexed", [0, 6])
def test_messages_after_a_damaged_one_are_found_when_the_index_is_made_anew(
    field: str, look_bytes: int, indexed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skylark.broker.store.index.index._LOOK_BYTES", look_bytes)
    fs = MemoryFiles()
    store = open_store(fs)
    for n in range(10):
        keyed(store, b"%d" % n * 60, f"KEYS\x01k{n}\x02")
    # The key of the last message that the index has, or of a message that the index lacks.
    store.build_index(indexed)
    damaged = store.queues.get("t", 0).entry(5)[0]
    fs.flip(store.log.chain.segments[0].path, damaged + HEAD_V4.starts[field], 3)
    monkeypatch.setattr(store, "build_index", lambda limit: 0)
    store.close()
    store = open_store(fs)
    assert [n for n in range(10) if not found(store, f"k{n}")] == [5]


def test_a_message_that_was_cleaned_away_is_not_found() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    keyed(store, b"gone", "KEYS\x01k\x02")
    for _ in range(60):
        put(store, "t", 0, b"x" * 50)
    keyed(store, b"kept", "KEYS\x01k\x02")
    assert found(store, "k") == [b"kept", b"gone"]
    clean(fs, store, 1)
    assert found(store, "k") == [b"kept"]


# --- by a key that very many messages have


def test_a_frequent_key_is_searched_in_small_steps_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "ENTRIES", 10)
    monkeypatch.setattr(query, "MAX_LOOKED", 100)
    store = open_store(MemoryFiles(), ManualClock(START_MS))
    for _ in range(300):
        put(store, "t", 0, b"x", b"KEYS\x01often\x02")
    store.build_index(1_000)
    looks = []
    walk = IndexFile.walk
    monkeypatch.setattr(IndexFile, "walk", lambda *args: looks.append(found := walk(*args)) or found)
    # nothing of that time: all of the chain would be walked
    search = store.start_query("t", "often", 32, START_MS + 500, 1 << 60)
    while search.step():
        pass
    assert search.result.records == []
    assert max(looked for _, looked, _ in looks) <= 10
    assert sum(looked for _, looked, _ in looks) <= 100
    assert search.result.cut == "only the newest 100 entries of the index were searched"


@pytest.mark.parametrize("high", [3, 64, 130, 1000])
@pytest.mark.parametrize("length", [1, 2, 20])
@pytest.mark.parametrize("at", [0, 1, 30, 700])
def test_a_peak_of_times_hides_no_message(high: int, length: int, at: int) -> None:
    """A clock that was ahead for ``length`` messages; each probe of the search may fall into the peak or beside it."""
    times = [10 * n + (5000 if at <= n < at + length else 0) for n in range(high)]
    for wanted in {0, 1, 10 * high - 10, 10 * high, *times[at : at + length]}:
        found = first_at_least(times.__getitem__, 0, high, wanted)
        assert found == high if found == high else times[found] >= wanted
        if length * 64 >= high:
            assert found == next((n for n, time in enumerate(times) if time >= wanted), high), wanted


class Bucket:
    """Answers each search for a key with ``found``."""

    def __init__(self, found: OlderFound) -> None:
        self.found = found

    def with_key(self, query: OlderQuery) -> OlderFound:
        return self.found


def searched(store: MessageStore, found: OlderFound, max_num: int = 32) -> QueryResult:
    """The result of a search whose messages before the log are in a bucket that answers with ``found``."""
    store.log.older = Bucket(found)  # type: ignore[assignment]
    wanted = WantedKey("t", "k", max_num, 0, 1 << 62, 1 << 20, False)
    query, got = KeyQuery(store.log, store.index, lambda most: 0, wanted), None
    for _ in range(100):
        try:
            with resident_only(got):
                if not query.step():
                    return query.result
        except NotResident as missing:
            got = warm(missing)
    raise AssertionError("it never ends")


def cleaned_store() -> tuple[MessageStore, list[bytes]]:
    """A store whose first messages were removed, and the records of these messages, which a bucket may have."""
    fs = MemoryFiles()
    store = open_store(fs)
    for number in range(60):
        keyed(store, b"%02d" % number, "KEYS\x01k\x02")
    queue = store.queues.get("t", 0)
    records = [store.log.record_at(queue.entry(offset)[0]) for offset in range(10)]
    store.build_index(1000)
    assert clean(fs, store, 1) == 1 and store.min_offset("t", 0) > 10
    return store, [bytes(record) for record in records if record is not None]


def test_a_search_in_the_bucket_that_ended_early_says_so_and_how_to_go_on() -> None:
    store, older = cleaned_store()
    result = searched(store, OlderFound(older[:2], "it took 5 s", 77), 99)
    assert (result.cut, result.next_end_ms) == ("the search in the bucket ended early: it took 5 s", 77)
    assert result.records[-2:] == older[:2]


def test_a_bucket_that_finds_more_than_was_asked_for() -> None:
    store, older = cleaned_store()
    here = len(searched(store, OlderFound([]), 99).records)
    assert 0 < here < 60
    assert searched(store, OlderFound(older), here + 3).records[here:] == older[:3]


def test_what_a_bucket_has_beside_wanted_messages_is_left_out() -> None:
    store, older = cleaned_store()
    broken = older[0][:28] + b"\0\0\0\1" + older[0][32:40]
    result = searched(store, OlderFound([broken, older[1], older[2][:60]]), 99)
    assert not result.cut and result.records[-1] == older[1]
    assert broken not in result.records and older[2][:60] not in result.records


def test_an_index_file_that_is_removed_during_a_search_ends_it_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "ENTRIES", 1)
    store, _ = cleaned_store()
    search = KeyQuery(store.log, store.index, lambda most: 0, WantedKey("t", "k", 99, 0, 1 << 62, 1 << 20, False))
    while not search.result.records:
        assert search.step()
    store.index.files.clear()
    while search.step():
        pass
    assert len(search.result.records) == 1 and not search.result.cut

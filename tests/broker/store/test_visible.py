"""What consumers see of a store whose log is confirmed up to some offset only."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.store.filter import ALL, Filter
from skylark.broker.store.queue.entry import BLANK_SIZE
from skylark.broker.store.reader import GetResult, GetStatus, read_queue
from skylark.broker.store.store import MessageStore
from skylark.broker.store.visible import first_hidden, visible_end
from skylark.mqcommon.message.columns import record_starts
from skylark.mqcommon.message.record import decode_record
from tests.broker.store.support import open_store, put
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles

FAR = 1 << 50
MATCHES_ALL = Filter(None, lambda properties: True, max_messages=100)


class Half:
    """Messages 0 to 5 of two queues, one second apart, some of which have a tag and all a key."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store: MessageStore = open_store(MemoryFiles(), self.clock)
        self.ends: list[int] = []
        self.confirmed = 0
        self.store.confirmed = lambda: self.confirmed
        self.started_ms = self.clock.now_ms()
        for number in range(6):
            for queue_id in (0, 1):
                put(self.store, "t", queue_id, b"%d" % number, b"KEYS\x01k\x02TAGS\x01a\x02")
                if queue_id == 0:
                    self.ends.append(self.store.log.end)
            self.clock.advance(1000)

    def read(self, offset: int, count: int = 32, wanted: Filter = ALL) -> GetResult:
        queue = self.store.queues.find("t", 0)
        return read_queue(self.store.log, queue, offset, count, 1 << 20, wanted, self.store.confirmed)


def bodies_of(result: GetResult) -> list[bytes]:
    return [decode_record(result.records, at).body for at in record_starts(result.records)]


@pytest.mark.parametrize("before", [0, 1], ids=["at the end of a message", "a byte before it"])
@pytest.mark.parametrize("wanted", [ALL, Filter(frozenset({97})), MATCHES_ALL], ids=["all", "tag", "properties"])
def test_a_read_at_each_boundary(before: int, wanted: Filter) -> None:
    half = Half()
    for number in range(1, 7):
        half.confirmed = half.ends[number - 1] - before
        seen = number - before
        assert half.store.visible_end("t", 0) == seen
        for offset in range(7):
            result = half.read(offset, wanted=wanted)
            assert result.max_offset == seen
            if offset < seen:
                assert bodies_of(result) == [b"%d" % each for each in range(offset, seen)]
                assert result.next_offset == seen
            else:
                assert (result.status, result.next_offset) == (GetStatus.OFFSET_OVERFLOW_ONE, offset), "it waits"
        beyond = half.read(7, wanted=wanted)
        assert beyond.status in (GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.NO_MESSAGE_IN_QUEUE)
        assert beyond.next_offset == seen


def test_an_unwanted_tag_is_passed_over_up_to_what_is_visible() -> None:
    half = Half()
    half.confirmed = half.ends[2]
    result = half.read(0, wanted=Filter(frozenset({98})))
    assert (result.status, result.next_offset, result.max_offset) == (GetStatus.NO_MATCHED_MESSAGE, 3, 3)


def test_a_search_by_time_ends_where_the_visible_messages_end() -> None:
    half = Half()
    half.confirmed = half.ends[2]
    by_time = half.store.offset_by_time
    for number in range(8):
        at_ms = half.started_ms + number * 1000
        assert by_time("t", 0, at_ms) == min(number, 3)
        assert by_time("t", 0, at_ms, "UPPER") == min(number, 2)
    half.confirmed = 0
    assert by_time("t", 0, half.started_ms) == by_time("t", 0, half.started_ms, "UPPER") == 0


def test_a_query_finds_visible_messages_only() -> None:
    half = Half()
    for number in range(6):
        half.confirmed = half.ends[number]
        found = half.store.query("t", "k", 32, 0, FAR)
        newest = [decode_record(record) for record in found.records]
        # Queue 1 has one less: its last message comes after the last message of queue 0.
        assert [record.body for record in newest if record.queue_id == 0] == [b"%d" % n for n in range(number, -1, -1)]
        assert len(newest) == 2 * number + 1


def test_a_message_is_not_found_by_its_place_until_it_is_confirmed() -> None:
    half = Half()
    half.confirmed = half.ends[0] - 1
    assert half.store.visible_record_at(0) is None
    assert half.store.record_at(0) is not None
    half.confirmed = half.ends[0]
    assert half.store.visible_record_at(0) == half.store.record_at(0)


def test_the_broker_itself_reads_all() -> None:
    half = Half()
    assert half.store.max_offset("t", 0) == 6
    assert len(bodies_of(half.store.get("t", 0, 0, 32, 1 << 20))) == 6


def test_what_may_be_saved_is_on_disk_and_confirmed() -> None:
    half = Half()
    half.confirmed = half.ends[3]
    assert half.store.safe_end == 0
    half.store.flush()
    assert half.store.safe_end == half.ends[3]
    half.confirmed = FAR
    assert half.store.safe_end == half.store.log.end
    half.store.confirmed = None
    assert half.store.safe_end == half.store.log.end


class Entries:
    """A queue and its log, as far as the search looks at them; None is a blank entry."""

    def __init__(self, ends: Sequence[int | None], min_offset: int) -> None:
        self.min_offset, self.next_offset = min_offset, len(ends)
        self._ends = ends
        self.end = max([end for end in ends if end is not None], default=0)
        self.looked = 0

    def entry(self, offset: int) -> tuple[int, int, int]:
        assert self.min_offset <= offset < self.next_offset
        self.looked += 1
        end = self._ends[offset]
        return (0, BLANK_SIZE, 0) if end is None else (end - 10, 10, 0)


@given(st.lists(st.one_of(st.integers(1, 5), st.none()), max_size=40), st.integers(0, 40), st.integers(-5, 1500))
def test_the_search_agrees_with_looking_at_each(steps: list[int | None], low: int, confirmed: int) -> None:
    steps = [*steps, 1]  # blanks are made before a message
    ends: list[int | None] = []
    at = 0
    for step in steps:
        at += 0 if step is None else 10 * step
        ends.append(None if step is None else at)
    queue = Entries(ends, min(low, len(ends)))
    hidden = [place for place, end in enumerate(ends) if end is not None and end > confirmed]
    first = next((place for place in hidden if place >= queue.min_offset), None)
    found = visible_end(queue, queue, confirmed)  # type: ignore[arg-type]
    if first is None:
        assert found == queue.next_offset
        return
    assert queue.min_offset <= found <= first
    assert all(ends[place] is None for place in range(found, first)), "a hole before a hidden message is hidden, too"
    assert first_hidden(queue, found) == ends[first]  # type: ignore[arg-type]


def test_few_entries_are_looked_at_when_few_are_hidden() -> None:
    queue = Entries([10 * (number + 1) for number in range(100_000)], 0)
    assert visible_end(queue, queue, queue.end - 20) == 99_998  # type: ignore[arg-type]
    assert queue.looked <= 10


@pytest.mark.parametrize("wanted", [ALL, MATCHES_ALL], ids=["all", "properties"])
@pytest.mark.parametrize("sees_all", [True, False])
def test_a_read_where_the_file_is_gone_goes_on_in_the_next_file(sees_all: bool, wanted: Filter) -> None:
    store = open_store(MemoryFiles())
    for number in range(40):
        put(store, "t", 0, b"%d" % number)
    store.checkpoint()
    queue = store.queues.get("t", 0)
    confirmed = store.log.end - (0 if sees_all else 1)
    queue.chain.retire_before(16 * 20)
    for offset in (0, 7, 15):
        result = read_queue(store.log, queue, offset, 32, 1 << 20, wanted, lambda: confirmed)
        assert (result.status, result.next_offset) == (GetStatus.OFFSET_FOUND_NULL, 16)
    assert bodies_of(read_queue(store.log, queue, 16, 1, 1 << 20, wanted, lambda: confirmed)) == [b"16"]


@pytest.mark.parametrize("confirmed", ["nothing", "the last message"])
def test_blanks_at_the_end_of_a_queue_are_not_visible(confirmed: str) -> None:
    store = open_store(MemoryFiles())
    put(store, "t", 0, b"0")
    end = store.log.end
    put(store, "other", 0, b"not confirmed")
    queue = store.queues.get("t", 0)
    queue.move_to(4)
    at = end if confirmed == "the last message" else 0
    assert visible_end(store.log, queue, at) == (1 if at else 0)
    assert first_hidden(queue, 0) == end
    assert [first_hidden(queue, offset) for offset in (1, 3, 4)] == [0, 0, 0], "no message is hidden there"


@pytest.mark.parametrize("wanted", [ALL, MATCHES_ALL], ids=["all", "properties"])
def test_blanks_are_passed_over(wanted: Filter) -> None:
    store = open_store(MemoryFiles())
    put(store, "t", 0, b"0")
    store.queues.get("t", 0).move_to(4)
    queue = store.queues.get("t", 0)
    result = read_queue(store.log, queue, 1, 32, 1 << 20, wanted)
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 4)

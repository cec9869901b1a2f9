"""Messages are delivered when they are due: in their order, once, by the master only, whatever fails meanwhile."""

import logging
import threading
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from skylark.broker.delivery import delayed_delivery as part_module
from skylark.broker.delivery.delayed_delivery import MAX_ROWS, POLL_S, SAVE_S, SLICE, LevelProgress
from skylark.broker.store.queue.delay_levels import DelayLevels
from skylark.broker.store.queue.entry import ENTRY_BYTES
from skylark.broker.store.queue.tags import TagCodes
from skylark.broker.writing.admission import Reason
from skylark.mqcommon.message.javahash import java_hash
from skylark.mqcommon.names import SCHEDULE_TOPIC
from skylark.remoting.protocol.requests.offsets import DelayOffsetTable
from tests.broker.delivery.later import Delays, Timers
from tests.broker.store.support import BORN_HOST, open_store, put, read_all
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import until

LATE_S = POLL_S + 0.01


async def test_when_it_is_due_and_not_before(autojump_clock: MockClock) -> None:
    delays = Delays()
    async with delays.running():
        delays.send(b"five", 2)
        delays.send(b"one", 1)
        delays.send(b"now", 0)
        assert delays.bodies() == [b"now"]
        await trio.sleep(0.9)
        assert delays.bodies() == [b"now"]
        await trio.sleep(0.1 + LATE_S)
        assert delays.bodies() == [b"now", b"one"]
        await trio.sleep(3.8)
        assert delays.bodies() == [b"now", b"one"]
        await trio.sleep(0.2 + LATE_S)
        assert delays.bodies() == [b"now", b"one", b"five"]
        assert delays.turns >= 2, "those who wait for messages hear of them"
        queue = delays.store.queues.find("t", 0)
        assert queue is not None
        assert [queue.entry(offset)[2] for offset in range(3)] == [java_hash("a")] * 3


@pytest.mark.parametrize(("kind", "delay"), [(Delays, 1), (Timers, 1_000)], ids=["level", "time"])
async def test_messages_for_a_topic_that_was_deleted_since_are_dropped(
    kind: type[Delays | Timers], delay: int, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = kind()
    async with waiting.running():
        waiting.send(b"old", delay)
        waiting.send(b"older", delay)
        deletions = waiting.meta.topics.deletions
        deletions.begin("t")
        assert deletions.covers("t", waiting.store.log.end)
        deletions.finish("t", waiting.store.log.end)
        waiting.send(b"new", delay)
        await trio.sleep(3)
        assert waiting.bodies() == [b"new"]
    assert waiting.dropped.count == 2
    assert len([line for line in caplog.messages if "delivered to t are dropped" in line]) == 1


async def test_a_backlog_is_delivered_in_its_order_and_in_slices(autojump_clock: MockClock) -> None:
    delays = Delays()
    count = 3 * SLICE + 5
    async with delays.running():
        for number in range(count):
            delays.send(b"%d" % number, 1)
        await trio.sleep(1 + LATE_S)
        assert delays.bodies() == [b"%d" % number for number in range(count)]
        assert delays.turns == 4
        await trio.sleep(SAVE_S + LATE_S)
        assert delays.offsets.table.offset_table == {1: count}
        version = delays.offsets.table.data_version
        await trio.sleep(10 * SAVE_S)
        assert delays.offsets.table.data_version == version, "nothing is saved while nothing is delivered"


async def test_an_offset_is_saved_when_the_copies_before_it_are_confirmed(autojump_clock: MockClock) -> None:
    delays, confirmed = Delays(), 0
    async with delays.running():
        delays.store.confirmed = lambda: confirmed
        delays.send(b"a", 1)
        await trio.sleep(1 + LATE_S)
        assert delays.bodies() == [b"a"]
        confirmed = delays.store.log.end - 1
        await trio.sleep(2 * SAVE_S)
        assert delays.offsets.table.offset_table == {}
        confirmed += 1
        await trio.sleep(SAVE_S + LATE_S)
        assert delays.offsets.table.offset_table == {1: 1}


async def test_a_slave_delivers_nothing_and_a_promoted_one_goes_on_at_the_offsets(autojump_clock: MockClock) -> None:
    delays = Delays()
    async with delays.running():
        delays.is_master = False
        await trio.sleep(POLL_S + 0.01)
        for body in (b"a", b"b", b"c"):
            delays.send(body, 1)
        await trio.sleep(10)
        assert delays.bodies() == []
        delays.offsets.put(DelayOffsetTable({1: 1}))
        delays.is_master = True
        await trio.sleep(LATE_S)
        assert delays.bodies() == [b"b", b"c"]
        delays.is_master = False
        await trio.sleep(LATE_S)
        before = delays.offsets.table
        await trio.sleep(5 * SAVE_S)
        assert delays.offsets.table == before, "a demoted broker saves nothing more"


async def test_what_was_read_before_two_changes_of_the_role_is_not_delivered(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays, read_at, bodies = Delays(), part_module.from_disk, list[list[bytes]]()

    async def from_disk(read: Any) -> Any:
        found = await read_at(read)
        if found is not None:
            bodies.append(delays.bodies())
            if len(bodies) == 1:
                delays.part.forget()
        return found

    monkeypatch.setattr(part_module, "from_disk", from_disk)
    async with delays.running():
        delays.send(b"a", 1)
        await trio.sleep(1 + 3 * LATE_S)
        assert bodies == [[], []], "the first read is for nothing"
        assert delays.bodies() == [b"a"]


async def test_offsets_of_a_slave_that_delivered_are_taken_over_while_it_runs(autojump_clock: MockClock) -> None:
    delays = Delays()
    async with delays.running():
        for body in (b"a", b"b"):
            delays.send(body, 1)
        delays.offsets.advance(DelayOffsetTable({1: 1}))
        await trio.sleep(1 + LATE_S)
        assert delays.bodies() == [b"b"]


async def test_offsets_past_the_end_of_a_level_are_those_of_another_store(autojump_clock: MockClock) -> None:
    delays = Delays()
    delays.start()
    delays.offsets.put(DelayOffsetTable({1: 100}))
    delays.meta.journal.close()
    delays.store.close()
    async with delays.running():
        delays.send(b"a", 1)
        await trio.sleep(1 + LATE_S)
        assert delays.bodies() == [b"a"]
        await trio.sleep(SAVE_S + LATE_S)
        assert delays.offsets.table.offset_table == {1: 1}


async def test_offsets_past_the_end_of_a_level_hide_no_later_messages_after_a_kill(autojump_clock: MockClock) -> None:
    """As on a slave that lacked the end of its master's log, and became the master."""
    delays = Delays()
    delays.start()
    delays.offsets.put(DelayOffsetTable({3: 2}))
    delays.meta.journal.close()
    delays.store.close()
    async with delays.killed():
        for number in range(3):
            delays.send(b"%d" % number, 3)
        await trio.sleep(LATE_S)
    async with delays.running():
        await trio.sleep(60 + LATE_S)
        assert delays.bodies() == [b"0", b"1", b"2"]


@pytest.mark.parametrize("set_by_ms", [-3_600_000, -2_000, -50, 50, 2_000, 3_600_000])
async def test_a_clock_that_is_set_makes_no_delay_shorter_or_longer(set_by_ms: int, autojump_clock: MockClock) -> None:
    delays, late_s = Delays(), LATE_S + (0.05 if abs(set_by_ms) == 50 else 0)
    async with delays.running():
        delays.send(b"plain", 0)
        delays.send(b"long before", 2)
        await trio.sleep(1.5)
        delays.send(b"before", 2)
        delays.clock.set_by_ms += set_by_ms
        delays.send(b"after", 2)
        await trio.sleep(3.4)
        delays.send(b"long after", 2)
        assert delays.bodies() == [b"plain"]
        await trio.sleep(0.1 + late_s)
        assert delays.bodies() == [b"plain", b"long before"]
        await trio.sleep(1.4 - late_s)
        assert delays.bodies() == [b"plain", b"long before"]
        await trio.sleep(0.1 + late_s)
        assert delays.bodies() == [b"plain", b"long before", b"before", b"after"]
        await trio.sleep(3.3 - late_s)
        assert delays.bodies() == [b"plain", b"long before", b"before", b"after"]
        await trio.sleep(0.1 + late_s)
        assert delays.bodies()[4:] == [b"long after"]


async def test_a_clock_that_was_ahead_once_collapses_no_delay_after_a_restart_either(autojump_clock: MockClock) -> None:
    delays = Delays()
    delays.clock.set_by_ms = 86_400_000
    async with delays.running():
        delays.send(b"plain", 0)
        delays.send(b"ahead", 2)
    delays.clock.set_by_ms = 0
    async with delays.running():
        delays.send(b"now", 2)
        await trio.sleep(4.9)
        assert delays.bodies() == [b"plain"]
        await trio.sleep(0.1 + LATE_S)
        assert delays.bodies() == [b"plain", b"ahead", b"now"], "it waited once more for all of its delay"
        delays.send(b"later", 2)
    async with delays.running():
        await trio.sleep(4.8)
        assert len(delays.bodies()) == 3
        await trio.sleep(0.2 + LATE_S)
        assert delays.bodies()[3:] == [b"later"]


def test_the_due_time_in_an_entry_is_the_store_time_and_the_delay_also_when_the_clock_was_set_back() -> None:
    clock = ManualClock()
    store = open_store(MemoryFiles(), clock)
    put(store, "t", 0, b"x")
    clock.set_by(-3_600_000)
    for number in range(2):
        put(store, SCHEDULE_TOPIC, 1, b"%d" % number, b"DELAY\x012\x02")
    put(store, "t", 0, b"y")
    assert store.store_time("t", 0, 1) == store.store_time("t", 0, 0), "plain queues are searched by time"
    queue = store.queues.find(SCHEDULE_TOPIC, 1)
    assert queue is not None
    for record, (_, _, due_ms) in zip(read_all(store, SCHEDULE_TOPIC, 1), queue.entries(0, 2), strict=True):
        assert record.store_timestamp == clock.now_ms()
        assert due_ms == store.tag_codes.of_record(record) == clock.now_ms() + 5_000


async def test_a_full_disk_holds_messages_up_and_loses_none(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    delays = Delays()
    async with delays.running():
        for number in range(5):
            delays.send(b"%d" % number, 1)
        delays.writer.admission.refuse(Reason.DISK_FULL, "no room")
        with caplog.at_level(logging.ERROR):
            await trio.sleep(30)
        assert len(caplog.records) == 1, "it is said once"
        assert delays.bodies() == []
        delays.writer.admission.allow(Reason.DISK_FULL)
        await trio.sleep(part_module.PAUSE_S + LATE_S)
        assert delays.bodies() == [b"%d" % number for number in range(5)]


async def test_a_message_that_cannot_be_delivered_is_skipped(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    delays = Delays()
    async with delays.running():
        delays.send(b"a", 1)
        put(delays.store, SCHEDULE_TOPIC, 0, b"lost", b"DELAY\x011\x02")
        delays.store.put(
            SCHEDULE_TOPIC, 0, b"no queue", b"DELAY\x011\x02REAL_TOPIC\x01%s\x02REAL_QID\x010\x02" % (b"x" * 2_000),
            born_timestamp=1, born_host=BORN_HOST,
        )  # fmt: skip
        delays.send(b"b", 1)
        with caplog.at_level(logging.ERROR):
            await trio.sleep(1 + LATE_S)
        assert delays.bodies() == [b"a", b"b"]
        first, second = [record.getMessage() for record in caplog.records]
        assert "message 1 of delay level 1 cannot be delivered, it is skipped: its properties name" in first
        assert "message 2 of delay level 1 cannot be delivered" in second
        assert len(second) < 1_000


async def test_a_bug_at_one_level_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    delays = Delays()
    async with delays.running():
        real = delays.part._find_due

        def broken(level: object, queue: object) -> object:
            if level.number == 1:  # type: ignore[attr-defined]
                raise RuntimeError("a bug")
            return real(level, queue)  # type: ignore[arg-type]

        monkeypatch.setattr(delays.part, "_find_due", broken)
        delays.send(b"one", 1)
        delays.send(b"two", 2)
        with caplog.at_level(logging.ERROR):
            await trio.sleep(6)
        assert delays.bodies() == [b"two"]
        assert "a bug" in caplog.text
        monkeypatch.undo()
        await trio.sleep(part_module.PAUSE_S + LATE_S)
        assert delays.bodies() == [b"two", b"one"]


async def test_a_deleted_topic_stops_nothing(autojump_clock: MockClock) -> None:
    delays = Delays()
    async with delays.running():
        delays.send(b"gone", 1, "old")
        delays.send(b"here", 1)
        delays.store.delete_topic("old")
        await trio.sleep(1 + LATE_S)
        assert (delays.bodies(), delays.bodies("old")) == ([b"here"], [b"gone"])


def test_entries_of_a_level_hold_the_due_time_with_custom_levels() -> None:
    assert TagCodes(DelayLevels((7_000,))).of_delayed(b"DELAY\x0118\x02", 100) == 7_100


async def test_a_backlog_that_is_on_disk_only_is_read_in_threads() -> None:
    delays = Delays()
    async with delays.running():
        for number in range(10):
            delays.send(b"%d" % number, 1)
    readers: set[int] = set()
    delays.fs.cold.before_read = lambda path: readers.add(threading.get_ident())
    # Opening the store reads it on this thread, so its bytes are cold only from then on.
    delays.is_master = False
    async with delays.running():
        for path in delays.fs.paths():
            delays.fs.cold.mark(path)
        readers.clear()
        delays.clock.set_by_ms += 2_000
        delays.is_master = True
        await until(lambda: len(delays.bodies()) >= 10, "all is delivered")
        assert readers - {threading.get_ident()}
        assert delays.bodies() == [b"%d" % number for number in range(10)]


async def test_messages_after_one_whose_queue_entry_is_damaged_are_whole() -> None:
    delays, bodies = Delays(), [b"%d" % number for number in range(5)]
    async with delays.running():
        for body in bodies:
            delays.send(body, 1)
    # A bit of the size in the second entry. The read finds that, and mends it.
    delays.fs.flip(f"/store/consumequeue/{SCHEDULE_TOPIC}/0/{0:020}", ENTRY_BYTES + 11, 1)
    delays.clock.set_by_ms += 2_000
    async with delays.running():
        # Not with a clock that jumps: the entry is made again in a thread.
        await until(lambda: bool(delays.bodies()), "they are delivered")
        assert delays.bodies() == bodies


# --- progress


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5))), st.integers(0, 9))
def test_an_offset_is_safe_when_the_log_is_on_disk_past_its_copies(steps: list[tuple[bool, int]], first: int) -> None:
    progress, end, reached, ends = LevelProgress(first), 0, 0, {first: 0}
    for delivers, count in steps:
        if delivers:
            end += count
            progress.delivered(progress.next_offset + count, end)
            ends[progress.next_offset] = end
        else:
            reached = min(reached + count, end)
            safe = progress.flushed(reached)
            assert safe == max(offset for offset, its_end in ends.items() if its_end <= reached)
    assert progress.flushed(end) == progress.next_offset
    assert progress.is_saved


def test_what_waits_is_bounded_and_the_last_offset_counts() -> None:
    progress = LevelProgress(0)
    for number in range(1, 3 * MAX_ROWS):
        progress.delivered(number, number * 10)
    assert len(progress._rows) == MAX_ROWS
    assert progress.flushed(10 * MAX_ROWS) < 3 * MAX_ROWS
    assert progress.flushed(30 * MAX_ROWS) == 3 * MAX_ROWS - 1

"""Files leave the front of the log; queues, index and readers follow, whatever breaks a cleaning off."""

from contextlib import suppress
from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from skylark.broker.commands.verify_store import verify
from skylark.broker.store.reader import GetStatus
from skylark.broker.store.removal import Removal
from skylark.broker.store.retention import HOUR_MS
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.message.message import MessageExt
from tests.broker.store.cleaning import RULES, clean, follow
from tests.broker.store.support import SMALL, bodies, new_store, open_store, put, put_batch, read_all
from tests.support.amounts import share_of
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles

SEEDS = tuple(share_of(range(30), 10))


def filled(fs: MemoryFiles, count: int = 200) -> tuple[MessageStore, list[bytes]]:
    """A store whose topic t has got ``count`` messages, over several files of every kind."""
    store = open_store(fs)
    sent = [b"%04d" % number * 20 for number in range(count)]
    for number, body in enumerate(sent):
        put(store, "t", 0, body, b"KEYS\x01k%d\x02" % number)
    store.build_index(1000)
    return store, sent


def files_of(fs: MemoryFiles, kind: str) -> list[str]:
    return [path for path in fs.paths() if path.startswith(f"/store/{kind}/")]


def test_the_log_starts_behind_what_was_removed_and_the_queue_follows() -> None:
    fs = MemoryFiles()
    store, sent = filled(fs)
    assert clean(fs, store, 3) == 3
    assert store.log.start == 3 * 4096
    assert files_of(fs, "commitlog")[0].endswith(f"{3 * 4096:020d}")
    low = store.min_offset("t", 0)
    assert 0 < low < 200 and store.max_offset("t", 0) == 200
    assert bodies(store, "t", 0) == sent[low:]
    assert read_all(store, "t", 0)[0].physical_offset >= store.log.start
    assert files_of(fs, "consumequeue")[0].endswith(f"{low // 16 * 16 * 20:020d}")
    put(store, "t", 0, b"more")
    assert bodies(store, "t", 0) == [*sent[low:], b"more"]


def test_the_last_file_of_the_log_stays() -> None:
    fs = MemoryFiles()
    store, _ = filled(fs)
    files = len(files_of(fs, "commitlog"))
    assert clean(fs, store, 1000) == files - 1
    assert len(files_of(fs, "commitlog")) == 1
    put(store, "t", 0, b"more")
    assert bodies(store, "t", 0)[-1] == b"more"


def test_what_is_not_durable_yet_stays() -> None:
    fs = MemoryFiles()
    store, _ = filled(fs)
    removal = Removal(fs, "/store", store)
    assert removal.retire_log_file(store.durable_end) is None
    store.flush()
    assert removal.retire_log_file(store.durable_end) is None, "the queues are not on disk yet"
    store.checkpoint()
    assert removal.retire_log_file(store.durable_end) is not None


def test_index_files_that_know_nothing_any_more_go() -> None:
    fs = MemoryFiles()
    store, _ = filled(fs)
    before = len(files_of(fs, "index"))
    assert before > 3
    clean(fs, store, 4)
    assert 1 <= len(files_of(fs, "index")) < before

    def found(store: MessageStore, number: int) -> list[bytes]:
        records = store.query("t", f"k{number}", 32, 0, 1 << 60).records
        return [MessageExt(raw, 0, "").body for raw in records]

    for _ in range(2):
        low = store.min_offset("t", 0)
        assert [found(store, low - 1), found(store, 0)] == [[], []]
        assert found(store, low) == [b"%04d" % low * 20]
        assert found(store, 199) == [b"0199" * 20]
        fs = fs.killed()
        store = open_store(fs)
        clean(fs, store, 1)
    put(store, "t", 0, b"new", b"KEYS\x01k-new\x02")
    assert len(store.query("t", "k-new", 32, 0, 1 << 60).records) == 1


@pytest.mark.parametrize("how", ["stop", "kill", "power"])
def test_a_queue_whose_messages_are_all_gone_keeps_its_offset(how: str) -> None:
    for seed in SEEDS:
        fs = MemoryFiles()
        store = open_store(fs)
        for number in range(21):
            put(store, "gone", 0, b"%d" % number)
        for _ in range(100):
            put(store, "t", 0, bytes(80))
        clean(fs, store, 1000)
        assert (store.min_offset("gone", 0), store.max_offset("gone", 0)) == (21, 21)
        result = store.get("gone", 0, 5, 10, 1000)
        assert (result.status, result.next_offset) == (GetStatus.OFFSET_TOO_SMALL, 21)
        assert store.get("gone", 0, 21, 10, 1000).status is GetStatus.OFFSET_OVERFLOW_ONE
        if how == "stop":
            store.close()
        else:
            fs = fs.killed() if how == "kill" else fs.crash(Random(seed))
        store = open_store(fs)
        assert (store.min_offset("gone", 0), store.max_offset("gone", 0)) == (21, 21)
        assert put(store, "gone", 0, b"back") == 21
        assert bodies(store, "gone", 0) == [b"back"]
        if how == "stop":
            break


def test_verify_store_finds_nothing_wrong_with_a_store_that_was_cleaned() -> None:
    fs = MemoryFiles()
    store, _ = filled(fs)
    put(store, "gone", 0, b"x")
    clean(fs, store, 3)
    store.close()
    lines: list[str] = []
    assert verify(fs, SMALL, repair=False, say=lines.append), lines


def test_a_reader_of_a_file_that_has_just_gone_is_told_where_to_go_on() -> None:
    fs = MemoryFiles()
    store, sent = filled(fs)
    store.checkpoint()
    removal = Removal(fs, "/store", store)
    for _ in range(2):
        removal.retire_log_file(store.durable_end)
    # Nobody has looked through the queues yet.
    result = store.get("t", 0, 3, 10, 1 << 20)
    low = result.next_offset
    assert (result.status, result.records, result.min_offset) == (GetStatus.OFFSET_TOO_SMALL, b"", low)
    assert store.min_offset("t", 0) == low
    assert bodies(store, "t", 0) == sent[low:]
    removal.remove_log_files()
    follow(removal, store)
    assert store.min_offset("t", 0) == low
    assert bodies(store, "t", 0) == sent[low:]


def test_bytes_of_a_removed_file_stay_readable_for_those_who_read_it() -> None:
    fs = MemoryFiles()
    store, _ = filled(fs)
    raw = store.record_at(0)
    assert raw is not None
    view = memoryview(store.log.chain.segments[0].file.view)
    clean(fs, store, 1)
    assert view[: len(raw)] == raw


def test_a_file_that_cannot_be_removed_holds_up_those_behind_it_and_is_tried_again() -> None:
    fs = MemoryFiles()
    store, sent = filled(fs)
    store.checkpoint()
    removal = Removal(fs, "/store", store)
    oldest = removal.retire_log_file(store.durable_end)
    assert oldest is not None
    fs.faults.fail("remove")
    with pytest.raises(OSError, match="remove"):
        removal.remove_log_files()
    assert fs.exists(oldest.path)
    assert store.log.start == 4096, "nobody reads it any more"
    store_after = open_store(fs.killed())
    assert store_after.log.start == 0, "a start finds it again"
    assert bodies(store_after, "t", 0) == sent
    removal.remove_log_files()
    assert not fs.exists(oldest.path)


class Broken(Exception):
    """The process ends here."""


def test_a_cleaning_that_is_broken_off_anywhere_leaves_a_store_that_starts() -> None:
    steps = 0
    for step in share_of(range(1000), 6):
        fs = MemoryFiles()
        store, sent = filled(fs)
        calls = 0

        def before_call(operation: str, path: str, step: int = step) -> None:
            nonlocal calls
            if operation == "read":
                return
            if calls == step:
                raise Broken
            calls += 1

        fs.before_call = before_call
        try:
            clean(fs, store, 3)
        except Broken:
            steps += 1
        else:
            break
        fs.before_call = None
        for after in (fs.killed(), fs.crash(Random(step)), fs.crash(Random(step + 1000))):
            power_lost = after.boots > fs.boots
            store = open_store(after)
            low = store.min_offset("t", 0)
            found = bodies(store, "t", 0)
            assert found == sent[low : low + len(found)]
            if store.log.start or not power_lost:
                assert len(found) == 200 - low, "all was durable before the first file went"
            assert store.log.start % 4096 == 0 and store.log.start <= 3 * 4096
            assert put(store, "t", 0, b"more") == low + len(found)
            clean(after, store, 2)
            assert bodies(store, "t", 0)[-1] == b"more"
    assert steps > 5


def test_the_decision_looks_at_the_disk_and_at_the_beginnings_of_files() -> None:
    fs = MemoryFiles()
    clock = ManualClock()
    store = open_store(fs, clock)
    started = clock.now_ms()
    for number in range(200):
        put(store, "t", 0, bytes(100))
        if number == 100:
            clock.advance(HOUR_MS)
    removal = Removal(fs, "/store", store)
    files = len(files_of(fs, "commitlog"))

    def expired(now_ms: int) -> int:
        fs.calls.clear()
        found = removal.decide(RULES, now_ms, 12, asked=True)
        assert fs.calls["read"] <= found.expired + 1
        return found.expired

    assert expired(started + 72 * HOUR_MS - 1) == 0
    # The file in which the hour passed has messages of both sides of it.
    early = expired(started + 72 * HOUR_MS)
    assert 0 < early < files - 1
    assert expired(started + 73 * HOUR_MS) == files - 1
    fs.capacity = fs.used() * 100 // 88
    assert removal.decide(RULES, started, 12, asked=False).forced > 0
    fs.capacity = fs.used() * 100 // 95
    assert removal.decide(RULES, started, 12, asked=False).refuse


class CleanedStore(RuleBasedStateMachine):
    """A store that is cleaned now and then, beside plain lists."""

    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        self.random = Random(seed)
        self.fs = MemoryFiles()
        self.store: MessageStore = open_store(self.fs)
        # (queue, body, physical offset) in log order, and how many of them are known to be on disk.
        self.log: list[tuple[int, bytes, int]] = []
        self.durable = 0
        # How far the log's start has ever been.
        self.gone = 0

    def queue(self, queue_id: int) -> list[tuple[bytes, int]]:
        return [(body, physical) for number, body, physical in self.log if number == queue_id]

    @rule(queue_id=st.integers(0, 2), size=st.integers(1, 400))
    def put(self, queue_id: int, size: int) -> None:
        body = b"%d-" % len(self.log) + bytes(size)
        assert put(self.store, "t", queue_id, body) == len(self.queue(queue_id))
        self.log.append((queue_id, body, self.store.log.end - 1))

    @rule(queue_id=st.integers(0, 2), count=st.integers(2, 18))
    def batch(self, queue_id: int, count: int) -> None:
        sent = [b"%d-" % (len(self.log) + number) + bytes(80) for number in range(count)]
        first = put_batch(self.store, "t", queue_id, sent)
        assert first == len(self.queue(queue_id))
        places = [record.physical_offset for record in read_all(self.store, "t", queue_id)[-count:]]
        self.log += [(queue_id, body, place) for body, place in zip(sent, places, strict=True)]

    @rule(files=st.integers(1, 4))
    def clean(self, files: int) -> None:
        clean(self.fs, self.store, files)
        self.durable = len(self.log)

    @rule(files=st.integers(1, 4), calls=st.integers(0, 40), power=st.booleans())
    def clean_and_die(self, files: int, calls: int, power: bool) -> None:
        left = calls

        def before_call(operation: str, path: str) -> None:
            nonlocal left
            if left == 0:
                raise Broken
            left -= 1

        self.fs.before_call = before_call
        with suppress(Broken):
            clean(self.fs, self.store, files)
        self.fs.before_call = None
        if power:
            self.lose_power()
        else:
            self.kill()

    @rule()
    def checkpoint(self) -> None:
        self.store.build_index(1000)
        self.store.checkpoint()
        self.durable = len(self.log)

    @rule()
    def stop(self) -> None:
        self.store.close()
        self.durable = len(self.log)
        self.store = open_store(self.fs)

    @rule()
    def kill(self) -> None:
        self.fs = self.fs.killed()
        self.store = open_store(self.fs)

    @rule()
    def lose_power(self) -> None:
        self.fs = self.fs.crash(self.random)
        self.store = new_store(self.fs)
        self.store.open()
        kept = sum(self.store.max_offset("t", queue_id) for queue_id in range(3))
        assert kept >= self.durable, "what was on disk is lost, or a queue's offsets went back"
        self.log = self.log[:kept]
        self.durable = kept

    @invariant()
    def queues_start_where_the_log_does(self) -> None:
        for queue_id in range(3):
            sent = self.queue(queue_id)
            low = self.store.min_offset("t", queue_id)
            assert self.store.max_offset("t", queue_id) == len(sent)
            # A power loss may bring a removed file back; the queue may know by then that its messages were gone.
            self.gone = max(self.gone, self.store.log.start)
            assert low >= sum(physical < self.store.log.start for _, physical in sent)
            assert low <= sum(physical < self.gone for _, physical in sent)
            assert bodies(self.store, "t", queue_id) == [body for body, _ in sent[low:]]


TestCleanedStore = CleanedStore.TestCase


def old_files(fs: MemoryFiles, store: MessageStore, clock: ManualClock) -> int:
    """How many files are expired now."""
    decision = Removal(fs, "/store", store).decide(RULES, clock.now_ms(), 4, asked=False)
    assert not decision.forced
    return decision.expired


def fill_file(fs: MemoryFiles, store: MessageStore) -> None:
    files = len(files_of(fs, "commitlog"))
    while len(files_of(fs, "commitlog")) == files:
        put(store, "t", 0, bytes(1000))


def test_files_with_store_times_in_the_future_expire_by_the_time_when_they_were_written() -> None:
    fs, clock = MemoryFiles(), ManualClock()
    store = open_store(fs, clock)
    put(store, "t", 0, b"x")
    fill_file(fs, store)
    clock.set_by(365 * 24 * HOUR_MS)
    fill_file(fs, store)
    paths = files_of(fs, "commitlog")
    store.close()
    # The start does not know that the clock was set back.
    clock.set_by(-365 * 24 * HOUR_MS)
    store = open_store(fs, clock)
    fill_file(fs, store)
    fs.modified = {paths[0]: clock.now_ms() + 365 * 24 * HOUR_MS, paths[1]: clock.now_ms()}
    clock.advance(RULES.reserved_ms - 1)
    assert old_files(fs, store, clock) == 0
    clock.advance(1)
    assert old_files(fs, store, clock) == 2, "the first file is no younger than the second"


def test_a_clock_that_is_set_while_the_broker_runs_makes_no_file_older_or_younger() -> None:
    for set_by_ms in (100 * HOUR_MS, -100 * HOUR_MS):
        fs, clock = MemoryFiles(), ManualClock()
        store = open_store(fs, clock)
        store.check_clock()
        for _ in range(2):
            fill_file(fs, store)
        clock.set_by(set_by_ms)
        store.check_clock()
        assert old_files(fs, store, clock) == 0, "nothing is deleted because the clock was set forward"
        clock.advance(RULES.reserved_ms)
        assert old_files(fs, store, clock) == len(files_of(fs, "commitlog")) - 1

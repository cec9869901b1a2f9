"""When the store becomes durable, and who waits for that."""

import errno
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from random import Random
from typing import Any

import pytest
import trio
import trio.testing

from skylark.broker.options import BrokerOptions
from skylark.broker.store.checkpoint import CheckpointMark
from skylark.broker.store.log import commitlog
from skylark.broker.store.log.residency import Span
from skylark.broker.store.queue.ends import read_queue_ends
from skylark.broker.store.removal import Removal
from skylark.broker.store.store import MessageStore, QueueStep, StoreOptions
from skylark.broker.tasks import flush
from skylark.broker.tasks.clean import Cleaner
from skylark.broker.tasks.flush import PAGE_BYTES, Flusher, PopulatePages
from skylark.broker.writing.admission import Admission
from skylark.broker.writing.waits import LogWaits
from skylark.mqcommon.errors import OutOfDescriptors, RequestRefused, StoreError
from skylark.mqcommon.message.message import decode_messages
from skylark.remoting.protocol.codes import ResponseCode
from tests.broker.running import pull_request, running, send_request
from tests.broker.store.support import bodies, new_store, open_store, put
from tests.support.clock import ManualClock, pass_until
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import DEADLINE_S, until

OPTIONS = StoreOptions(
    directory="/store",
    commitlog_segment_bytes=64 * PAGE_BYTES,
    consumequeue_segment_bytes=20 * 1000,
    index_slots=50,
    index_capacity=2000,
)


class Gate:
    """Holds up every sync of one kind of file until it is opened; knows which threads sync."""

    def __init__(self, fs: MemoryFiles, kind: str, *, closed: bool = True) -> None:
        self._kind = f"/store/{kind}"
        self.inside = threading.Event()
        self.open = threading.Event()
        self.threads: set[int] = set()
        self.synced: set[str] = set()
        if not closed:
            self.open.set()
        fs.before_call = self._before_call

    def _before_call(self, operation: str, path: str) -> None:
        if operation == "sync":
            self.threads.add(threading.get_ident())
            if path.startswith(self._kind):
                self.inside.set()
                assert self.open.wait(DEADLINE_S)
            self.synced.add(path.split("/")[2])


class Parts:
    """A store with its flusher."""

    def __init__(self, **options: Any) -> None:
        self.fs = MemoryFiles()
        self.store = open_store(self.fs, options=OPTIONS)
        # The log's first file is made, and synced, by the first message.
        put(self.store, "first", 0, b"")
        self.store.flush()
        self.synced = self.store.log.syncs
        self.commits = LogWaits()
        self.settle_error = ""
        self.admission = Admission()
        self.flusher = Flusher(self.store, self.commits, self.admission, BrokerOptions(**options), self._settle)

    async def _settle(self) -> None:
        if self.settle_error:
            raise StoreError(self.settle_error)

    def put_waiting(self, heard: list[bool], *, deadline: float = float("inf")) -> None:
        """Put a message whose sender waits for the disk."""
        put(self.store, "t", 0, b"message")
        self.commits.wait(self.store.log.end, deadline, heard.append)
        self.flusher.after_turn()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.flusher.run)
            yield
            nursery.cancel_scope.cancel()


async def test_one_fsync_serves_all_who_wait_when_it_starts() -> None:
    parts = Parts(flush_disk_type="SYNC_FLUSH")
    gate = Gate(parts.fs, "commitlog")
    heard: list[bool] = []
    with trio.fail_after(DEADLINE_S):
        async with parts.running():
            parts.put_waiting(heard)
            await until(gate.inside.is_set)
            for _ in range(50):
                parts.put_waiting(heard)
            await trio.testing.wait_all_tasks_blocked()
            assert not heard, "what came during an fsync waits for the next one"
            gate.open.set()
            await until(lambda: len(heard) == 51)
    assert all(heard) and parts.store.log.syncs == parts.synced + 2


async def test_who_waits_for_the_log_does_not_wait_for_queues_and_index(mock_clock: trio.testing.MockClock) -> None:
    parts = Parts(flush_disk_type="SYNC_FLUSH")
    gate = Gate(parts.fs, "consumequeue")
    heard: list[bool] = []
    async with parts.running():
        parts.put_waiting(heard)
        await pass_until(mock_clock, gate.inside.is_set)
        syncs = parts.store.log.syncs
        parts.put_waiting(heard)
        await pass_until(mock_clock, lambda: len(heard) == 2)
        gate.open.set()
    assert heard == [True, True] and parts.store.log.syncs == syncs + 1


@pytest.mark.parametrize("flush_disk_type", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_no_fsync_runs_on_the_loop(flush_disk_type: str, autojump_clock: trio.testing.MockClock) -> None:
    parts = Parts(flush_disk_type=flush_disk_type)
    gate = Gate(parts.fs, "", closed=False)
    heard: list[bool] = []
    async with parts.running():
        while parts.store.durable_end < 50_000:
            parts.put_waiting(heard)
            await trio.sleep(0.1)
    assert gate.threads and threading.get_ident() not in gate.threads


async def test_a_roll_of_the_log_does_not_wait_for_the_disk(autojump_clock: trio.testing.MockClock) -> None:
    parts = Parts()
    log = parts.store.log
    gate = Gate(parts.fs, "", closed=False)
    async with parts.running():
        put_pages(parts, 47)
        await trio.sleep(1)
        assert len(parts.fs.listdir("/store/commitlog")) == 1
        put_pages(parts, 2)
        while log.wants_file:  # noqa: ASYNC110  ends in a thread
            await trio.sleep(0.1)
        assert len(parts.fs.listdir("/store/commitlog")) == 2
        put_pages(parts, 20)
    assert len(log.chain.segments) == 2
    assert gate.threads and threading.get_ident() not in gate.threads
    assert len(open_store(parts.fs.killed(), options=OPTIONS).log.chain.segments) == 2


async def test_a_file_made_ahead_does_not_stay(autojump_clock: trio.testing.MockClock) -> None:
    parts = Parts()
    async with parts.running():
        put_pages(parts, 50)
        while parts.store.log.wants_file:  # noqa: ASYNC110  ends in a thread
            await trio.sleep(0.1)
    after_kill = open_store(parts.fs.killed(), options=OPTIONS)
    assert len(after_kill.log.chain.segments) == 1
    assert bodies(after_kill, "t", 0) == bodies(parts.store, "t", 0)
    parts.store.close()
    assert len(parts.fs.listdir("/store/commitlog")) == 1


async def test_no_room_for_the_next_file_is_told_when_the_log_gets_there(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    parts = Parts()
    parts.fs.capacity = parts.fs.used() + 40 * PAGE_BYTES
    async with parts.running():
        put_pages(parts, 50)
        while not caplog.text:  # noqa: ASYNC110  comes from a thread
            await trio.sleep(0.1)
        put_pages(parts, 10)
        parts.fs.capacity *= 2
        while parts.store.log.wants_file:  # noqa: ASYNC110  ends in a thread
            await trio.sleep(0.1)
        put_pages(parts, 10)
    assert "the next file of the commit log cannot be made yet" in caplog.text


async def test_an_fsync_that_does_not_end_is_told_and_shown(
    mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    parts = Parts(flush_disk_type="SYNC_FLUSH")
    gate = Gate(parts.fs, "commitlog")
    heard: list[bool] = []
    async with parts.running():
        parts.put_waiting(heard)
        await pass_until(mock_clock, lambda: "the disk is slow" in caplog.text)
        assert parts.flusher.disk_fault == ""
        await pass_until(mock_clock, lambda: parts.flusher.disk_fault != "")
        assert parts.flusher.disk_fault.startswith("the disk has not finished an fsync for 1")
        gate.open.set()
        await pass_until(mock_clock, lambda: heard == [True])
        assert parts.flusher.disk_fault == ""
        assert parts.flusher.slowest_ms >= 10_000
    # How much time passes until the thread has told its end depends on the machine.
    assert "the fsync of the commit log has ended after " in caplog.text
    assert caplog.text.count("the disk is slow") == 1


async def test_a_wait_ends_at_its_deadline_and_the_message_stays(mock_clock: trio.testing.MockClock) -> None:
    parts = Parts(flush_disk_type="SYNC_FLUSH")
    gate = Gate(parts.fs, "commitlog")
    heard: list[bool] = []
    async with parts.running():
        parts.put_waiting(heard, deadline=trio.current_time() + 5)
        await pass_until(mock_clock, lambda: bool(heard))
        gate.open.set()
    assert heard == [False] and bodies(parts.store, "t", 0) == [b"message"]


async def test_a_send_that_waits_too_long_is_answered_10_and_its_message_is_there() -> None:
    fs = MemoryFiles()
    async with running(fs, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=1) as (client, addr):
        await client.invoke(addr, send_request("t", b"first"))
        gate = Gate(fs, "commitlog")
        answer = await client.invoke(addr, send_request("t", b"late"))
        gate.open.set()
        assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
        assert answer.ext is not None and int(answer.ext["queueOffset"]) == 1
        pulled = await client.invoke(addr, pull_request("t", 1))
        assert [message.body for message in decode_messages(pulled.body)] == [b"late"]


async def test_a_message_that_need_not_wait_does_not() -> None:
    fs = MemoryFiles()
    async with running(fs, flush_disk_type="SYNC_FLUSH") as (client, addr):
        await client.invoke(addr, send_request("t", b"first"))
        gate = Gate(fs, "commitlog")
        assert (await client.invoke(addr, send_request("t", b"x", properties="WAIT\x01false\x02"))).code == 0
        gate.open.set()


async def test_a_send_that_makes_its_topic_waits_for_the_topic_too() -> None:
    fs = MemoryFiles()
    async with running(fs, flush_disk_type="SYNC_FLUSH") as (client, addr), trio.open_nursery() as nursery:
        await client.invoke(addr, send_request("t", b"first"))
        gate = Gate(fs, "config")
        after: list[MemoryFiles] = []
        threads = trio.to_thread.current_default_thread_limiter()

        async def send() -> None:
            assert (await client.invoke(addr, send_request("new", b"x"))).code == 0
            after.extend(fs.crash(Random(seed)) for seed in range(5))

        with trio.fail_after(DEADLINE_S):
            nursery.start_soon(send)
            await until(gate.inside.is_set)
            await until(lambda: "commitlog" in gate.synced and threads.borrowed_tokens == 1)
            await client.invoke(addr, pull_request("t", 0))
            assert not after
            gate.open.set()
            await until(lambda: len(after) == 5)
    for disk in after:
        async with running(disk) as (client, addr):
            pulled = await client.invoke(addr, pull_request("new", 0))
            assert [message.body for message in decode_messages(pulled.body)] == [b"x"]


async def test_a_topic_that_cannot_be_made_durable_is_told_to_its_senders(caplog: pytest.LogCaptureFixture) -> None:
    parts = Parts(flush_disk_type="SYNC_FLUSH")
    heard: list[bool] = []
    with trio.fail_after(DEADLINE_S):
        async with parts.running():
            parts.settle_error = "no metadata"
            parts.put_waiting(heard)
            await until(lambda: heard == [False])
            parts.put_waiting(heard)
            await until(lambda: heard == [False, False])
            parts.settle_error = ""
            parts.put_waiting(heard)
            await until(lambda: heard == [False, False, True])
    assert caplog.text.count("their topic may not be on disk: no metadata") == 1


# --- ASYNC_FLUSH


async def jump(clock: trio.testing.MockClock, seconds: float) -> None:
    """Let this time pass, in steps; after each step all work that is due is done, in threads, too."""
    threads = trio.to_thread.current_default_thread_limiter()
    await trio.testing.wait_all_tasks_blocked()
    for _ in range(round(seconds * 10)):
        clock.jump(0.1)
        await trio.testing.wait_all_tasks_blocked()
        while threads.borrowed_tokens:
            await trio.testing.wait_all_tasks_blocked()


def put_pages(parts: Parts, pages: int) -> None:
    end = parts.store.log.end + pages * PAGE_BYTES
    while parts.store.log.end < end:
        put(parts.store, "t", 0, bytes(500))


async def test_few_pages_wait_for_the_thorough_interval(mock_clock: trio.testing.MockClock) -> None:
    parts = Parts()
    log = parts.store.log
    async with parts.running():
        put(parts.store, "t", 0, b"one")
        await jump(mock_clock, 9.5)
        assert log.flushed < log.end and log.syncs == parts.synced
        await jump(mock_clock, 1.0)
        assert log.flushed == log.end and log.syncs == parts.synced + 1


async def test_enough_pages_go_to_disk_at_the_interval(mock_clock: trio.testing.MockClock) -> None:
    parts = Parts(flush_interval_commit_log=2000)
    log = parts.store.log
    async with parts.running():
        put_pages(parts, 3)
        await jump(mock_clock, 2.5)
        put_pages(parts, 1)
        assert log.syncs == parts.synced
        await jump(mock_clock, 2.0)
        assert log.flushed == log.end and log.syncs == parts.synced + 1
        await jump(mock_clock, 20.0)
        assert log.syncs == parts.synced + 1, "nothing new, nothing to do"


async def test_least_pages_of_zero_flush_any_message(mock_clock: trio.testing.MockClock) -> None:
    parts = Parts(flush_commit_log_least_pages=0)
    async with parts.running():
        put(parts.store, "t", 0, b"one")
        await jump(mock_clock, 0.6)
        assert parts.store.log.flushed == parts.store.log.end


async def test_the_checkpoint_follows_what_is_on_disk_of_the_log(mock_clock: trio.testing.MockClock) -> None:
    parts = Parts()
    async with parts.running():
        put_pages(parts, 5)
        flushed = parts.store.log.end
        await jump(mock_clock, 0.6)
        put(parts.store, "t", 0, b"later")
        await jump(mock_clock, 1.0)
        assert parts.store.durable_end == parts.store.log.flushed == flushed < parts.store.log.end
        after = open_store(parts.fs.crash(Random(3)), options=OPTIONS)
        assert after.max_offset("t", 0) >= parts.store.max_offset("t", 0) - 1


# --- the index


async def test_the_index_falls_back_no_further_than_it_may(
    monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    monkeypatch.setattr(flush, "MAX_INDEX_BEHIND_BYTES", 3 * PAGE_BYTES)
    monkeypatch.setattr(flush, "INDEX_STEP_BUSY", 1)
    monkeypatch.setattr(flush, "INDEX_STEP_IDLE", 1)
    parts = Parts()
    build = parts.store.build_index

    def build_while_busy(limit: int) -> int:
        parts.flusher.after_turn()
        return build(limit)

    monkeypatch.setattr(parts.store, "build_index", build_while_busy)
    put_pages(parts, 8)
    behind = parts.store.index_behind
    async with parts.running():
        for _ in range(10):
            await jump(mock_clock, 0.1)
            assert 7 * PAGE_BYTES < parts.store.index_behind <= behind, "what it had to do before may take its time"
            behind = parts.store.index_behind
            put_pages(parts, 2)


@pytest.mark.parametrize(
    ("waiting", "pause_s"),
    [
        (flush.INDEX_STEP_BUSY + 1, flush.INDEX_PAUSE_BUSY_S),
        (1, flush.INDEX_PAUSE_NEAR_S),
        (0, flush.INDEX_PAUSE_DONE_S),
    ],
)
async def test_the_index_of_a_busy_broker_rests_longer_the_less_there_is_to_index(
    monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock, waiting: int, pause_s: float
) -> None:
    parts = Parts()
    parts.store.build_index(flush.INDEX_STEP_IDLE)
    build, limits = parts.store.build_index, list[int]()

    def note_step(limit: int) -> int:
        limits.append(limit)
        return build(limit)

    monkeypatch.setattr(parts.store, "build_index", note_step)
    for _ in range(waiting):
        put(parts.store, "t", 0, b"message")
    parts.flusher.after_turn()
    async with parts.running():
        for part in (0.9, 0.2):
            await trio.testing.wait_all_tasks_blocked()
            assert limits == [flush.INDEX_STEP_BUSY]
            mock_clock.jump(pause_s * part)
        await trio.testing.wait_all_tasks_blocked()
        assert len(limits) > 1


@pytest.mark.parametrize("operation", ["sync", "fsync_dir", "open", "create"])
async def test_a_file_that_cannot_be_opened_stops_nothing(
    operation: str, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a flush or a checkpoint opens, there may be no descriptor for it: a later try makes all durable."""
    parts = Parts(flush_disk_type="SYNC_FLUSH", sync_flush_timeout=60_000)
    heard: list[bool] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(parts.flusher.run)
        parts.put_waiting(heard)
        parts.store.delete_topic("first")
        for n in range(2):
            parts.fs.faults.fail(operation, times=3, code=errno.EMFILE)
            with suppress(OutOfDescriptors):
                put(parts.store, f"t{n}", 0, b"message %d" % n)
            parts.put_waiting(heard)
            await trio.sleep(30)
            parts.fs.faults.clear()
        with trio.move_on_after(1_000_000):  # the clock does not wait for threads
            while parts.store.durable_end != parts.store.log.end:  # noqa: ASYNC110
                await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert heard == [True] * 3
    assert "nothing can be made durable, next try" in caplog.text or operation == "create"
    assert parts.store.durable_end == parts.store.log.end
    sent = {queue.topic: queue.next_offset for queue in parts.store.queues if queue.next_offset}
    assert sent["t"] == 3
    for seed in range(5):
        after = open_store(parts.fs.crash(Random(seed)), options=OPTIONS)
        assert {queue.topic: queue.next_offset for queue in after.queues if queue.next_offset} == sent


async def test_a_failed_fsync_still_stops_the_broker(autojump_clock: trio.testing.MockClock) -> None:
    parts = Parts(flush_disk_type="SYNC_FLUSH")
    parts.fs.faults.fail("sync")
    with pytest.RaisesGroup(StoreError, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts.flusher.run)
            parts.put_waiting([])
            await trio.sleep(30)


AHEAD, STEP = 1_200, 300


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commitlog, "AHEAD_BYTES", AHEAD)
    monkeypatch.setattr(commitlog, "POPULATE_BYTES", STEP)


def populated(fs: MemoryFiles) -> list[range]:
    """Offsets in the log, one range a call."""
    return [range(int(path[-20:]) + at, int(path[-20:]) + at + size) for path, at, size in fs.cold.populated]


async def put_and_wake(store: MessageStore, pages: PopulatePages, count: int) -> None:
    for _ in range(count):
        put(store, "t", 0, bytes(100))
        pages.after_turn()
        await until(lambda: store.log.end <= store.log.populate_at, "pages are ready")


async def test_the_pages_ahead_of_the_end_are_ready(nursery: trio.Nursery) -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    pages = PopulatePages(store.log)
    nursery.start_soon(pages.run)
    pages.after_turn()
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert populated(fs) == [], "not before something is written"
    await put_and_wake(store, pages, 60)
    assert len(store.log.chain.segments) > 2
    ready = populated(fs)
    assert all(len(piece) <= STEP for piece in ready)
    assert all(a.stop <= b.start for a, b in pairwise(ready)), "each page once, in order"
    for segment in store.log.chain.segments[:-1]:
        assert max(piece.stop for piece in ready if piece.start < segment.end) == segment.end, "to the end of the file"
    assert store.log.end + AHEAD // 2 - 200 <= ready[-1].stop or ready[-1].stop == store.log.chain.end
    assert ready[-1].stop <= store.log.end + AHEAD + STEP
    nursery.cancel_scope.cancel()


async def test_a_file_that_is_gone_does_no_harm(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    pages = PopulatePages(store.log)
    put(store, "t", 0, bytes(100))
    pages.after_turn()
    segment = store.log.chain.segments[0]
    file = segment.file
    monkeypatch.setattr(store.log, "span", lambda start, stop: Span(file, start, stop - start))
    segment.close()
    nursery.start_soon(pages.run)
    await until(lambda: store.log.end <= store.log.populate_at, "it has gone on")
    assert populated(fs) == []
    nursery.cancel_scope.cancel()


async def test_a_checkpoint_that_is_cancelled_leaves_its_entries_to_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = Parts()
    put(parts.store, "t", 0, b"message")
    take = parts.store.take_queues

    with trio.CancelScope() as scope:

        def take_and_stop(mark: CheckpointMark) -> list[QueueStep]:
            scope.cancel()
            return take(mark)

        monkeypatch.setattr(parts.store, "take_queues", take_and_stop)
        await parts.flusher.checkpoint()
    assert scope.cancelled_caught
    monkeypatch.undo()
    assert parts.store.close() == ""
    store = new_store(parts.fs, options=OPTIONS)
    assert store.open().clean
    assert bodies(store, "t", 0) == [b"message"]


async def test_sends_are_refused_while_too_many_entries_wait(
    monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    monkeypatch.setattr(flush, "MAX_ENTRIES_WAITING", 10)
    parts = Parts()
    gate = Gate(parts.fs, "consumequeue")
    sent = 0
    async with parts.running():
        while not parts.admission.no_room:
            put(parts.store, "t", 0, b"%d" % sent)
            sent += 1
            mock_clock.jump(0.1)
            await trio.testing.wait_all_tasks_blocked()
        assert 10 < parts.store.entries_waiting <= 12
        with pytest.raises(RequestRefused, match="entries of consume queues wait in memory"):
            parts.admission.check_room()
        gate.open.set()
        await pass_until(mock_clock, lambda: not parts.admission.no_room)
        put(parts.store, "t", 0, b"%d" % sent)
    assert bodies(parts.store, "t", 0) == [b"%d" % n for n in range(sent + 1)]


SENT = [b"message %d" % n for n in range(50)]
# Enough for the ends, too little for the first block of a queue's file.
SOME_FREE = 2_000


def full_disk(free: int) -> Parts:
    """A store on a disk that has ``free`` bytes left; the entries of ``SENT`` are in memory only."""
    parts = Parts()
    for body in SENT:
        put(parts.store, "t", 0, body)
    parts.fs.capacity = parts.fs.used() + free
    return parts


def after_power_loss(parts: Parts, seed: int) -> MessageStore:
    left = parts.fs.crash(Random(seed))
    left.capacity = 1 << 40
    return open_store(left, options=OPTIONS)


async def test_the_ends_are_noted_and_the_log_is_as_durable_as_they_say() -> None:
    parts = full_disk(SOME_FREE)
    store = parts.store
    await parts.flusher.checkpoint(note_ends=True)
    assert parts.admission.no_room
    ends = read_queue_ends(parts.fs, "/store")
    assert ends is not None and ends.queues["t"] == {0: (0, len(SENT))}
    assert store.log.flushed == store.log.end
    assert store.ends_noted_to == store.durable_end < store.log.end
    for seed in range(10):
        assert bodies(after_power_loss(parts, seed), "t", 0) == SENT


async def test_without_room_for_the_ends_the_old_ones_go() -> None:
    parts = full_disk(0)
    await parts.flusher.checkpoint(note_ends=True)
    assert read_queue_ends(parts.fs, "/store") is None
    assert parts.store.ends_noted_to == parts.store.durable_end
    for seed in range(10):
        assert bodies(after_power_loss(parts, seed), "t", 0) == SENT


async def test_ends_are_not_noted_when_nobody_asked() -> None:
    parts = full_disk(SOME_FREE)
    before = read_queue_ends(parts.fs, "/store")
    await parts.flusher.checkpoint()
    assert read_queue_ends(parts.fs, "/store") == before and parts.admission.no_room


@pytest.mark.parametrize("free", [0, SOME_FREE])
async def test_the_cleaner_makes_room_for_the_queues(free: int) -> None:
    parts = Parts()
    store = parts.store
    while len(store.log.chain.segments) < 6:
        put(store, "t", 0, bytes(30_000))
    await parts.flusher.checkpoint()
    put(store, "u", 0, b"last")
    parts.fs.capacity = parts.fs.used() + free
    options = BrokerOptions(delete_commit_log_files_interval=0, delete_when="00")
    cleaner = Cleaner(store, Removal(parts.fs, "/store", store), parts.flusher, parts.admission, options, ManualClock())
    await parts.flusher.checkpoint()
    with pytest.raises(RequestRefused, match="no room"):
        parts.admission.check_room()
    noted = store.log.start
    assert await cleaner._clean(await cleaner._decide(asked=True))
    assert noted < store.log.start <= store.ends_noted_to
    await parts.flusher.checkpoint()
    assert bodies(store, "u", 0) == [b"last"]
    for seed in range(10):
        again = after_power_loss(parts, seed)
        assert bodies(again, "u", 0) == [b"last"]
        assert again.max_offset("t", 0) == store.max_offset("t", 0)


OLD, NEW = [b"old %d" % n for n in range(3000)], [b"new %d" % n for n in range(5)]


class HeldUp:
    """Holds up each removal of a queue's file in a thread until it is let go; knows which threads remove."""

    def __init__(self, parts: Parts) -> None:
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.threads: set[int] = set()
        self._loop = threading.get_ident()
        parts.fs.before_call = self._before_call

    def _before_call(self, operation: str, path: str) -> None:
        if operation == "remove" and path.startswith("/store/consumequeue/"):
            self.threads.add(threading.get_ident())
            self.inside.set()
            if threading.get_ident() != self._loop:
                assert self.go_on.wait(DEADLINE_S)


async def with_old_messages() -> Parts:
    parts = Parts()
    for body in OLD:
        put(parts.store, "t", 0, body)
    await parts.flusher.checkpoint()
    assert len(files(parts)) == 3
    return parts


def files(parts: Parts) -> list[str]:
    return [path for path in parts.fs.paths() if path.startswith("/store/consumequeue/t/")]


def after_a_kill(parts: Parts) -> MessageStore:
    return open_store(parts.fs.killed(), options=OPTIONS)


async def test_a_topic_that_is_made_again_while_its_files_go_keeps_its_new_messages() -> None:
    parts = await with_old_messages()
    held_up = HeldUp(parts)
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts.flusher.delete_topic, "t")
            await until(held_up.inside.is_set)
            # The loop goes on: the topic is made again, and a checkpoint waits for its turn.
            assert [put(parts.store, "t", 0, body) for body in NEW] == list(range(5))
            nursery.start_soon(parts.flusher.checkpoint)
            await trio.testing.wait_all_tasks_blocked()
            assert bodies(parts.store, "t", 0) == NEW
            held_up.go_on.set()
    assert held_up.threads and threading.get_ident() not in held_up.threads
    assert bodies(parts.store, "t", 0) == NEW
    assert len(files(parts)) == 1
    assert bodies(after_a_kill(parts), "t", 0) == NEW


async def test_files_that_could_not_be_removed_go_before_new_ones_are_written() -> None:
    parts = await with_old_messages()
    parts.fs.faults.fail("remove", nth=2)
    with pytest.raises(OSError, match="injected into remove") as raised:
        await parts.flusher.delete_topic("t")
    assert raised.value.errno == errno.EIO and len(files(parts)) == 2
    for body in NEW:
        put(parts.store, "t", 0, body)
    parts.fs.faults.fail("remove")
    await parts.flusher.checkpoint()
    assert "injected into remove" in parts.admission.no_room
    assert len(files(parts)) == 2
    await parts.flusher.checkpoint()
    assert not parts.admission.no_room
    assert len(files(parts)) == 1
    assert bodies(parts.store, "t", 0) == NEW
    assert bodies(after_a_kill(parts), "t", 0) == NEW


async def test_files_that_could_not_be_removed_go_when_the_store_is_closed() -> None:
    parts = await with_old_messages()
    parts.fs.faults.fail("remove")
    with pytest.raises(OSError, match="injected into remove"):
        await parts.flusher.delete_topic("t")
    assert parts.store.close() == ""
    assert files(parts) == []
    again = open_store(parts.fs, options=OPTIONS)
    assert again.max_offset("t", 0) == 0


async def test_files_that_could_not_be_removed_are_tried_again_without_a_message(
    autojump_clock: trio.testing.MockClock,
) -> None:
    parts = await with_old_messages()
    parts.fs.faults.fail("remove")
    with pytest.raises(OSError, match="injected into remove"):
        await parts.flusher.delete_topic("t")
    async with parts.running():
        with trio.move_on_after(1_000_000):  # the clock does not wait for threads
            while files(parts):  # noqa: ASYNC110
                await trio.sleep(1)
    assert files(parts) == []

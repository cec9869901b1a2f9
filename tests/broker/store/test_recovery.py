"""After kill -9 all is there; after power loss all that was flushed is, and nothing is made up."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.store.store import MessageStore
from common.clock import ManualClock
from tests.broker.store.support import SMALL, bodies, new_store, open_store, put, put_batch
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


def test_recovery_reads_from_the_checkpoint_only() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    for n in range(50):
        put(store, "t", 0, b"%d" % n)
    store.build_index(1000)
    store.finish_checkpoint(store.begin_checkpoint())
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
    store = new_store(fs)
    report = store.open()
    assert report.end == end and report.torn_file == segment.path and report.torn_reason
    assert bodies(store, "t", 0) == [b"whole"]
    # The same size again: were the old tail still there, what follows it could come back.
    put(store, "t", 0, b"other")
    store = open_store(fs.killed())
    assert bodies(store, "t", 0) == [b"whole", b"other"]


@pytest.mark.parametrize("kind", ["consumequeue", "index", "checkpoint"])
def test_lost_side_files_are_made_anew(kind: str) -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    for n in range(60):
        put(store, "t", 0, b"%d" % n, b"KEYS\x01k%d\x02" % n)
    store.build_index(1000)
    fs = fs.killed()
    for path in [path for path in fs.paths() if path.startswith(f"/store/{kind}")]:
        fs.remove(path)
    store = open_store(fs)
    assert bodies(store, "t", 0) == [b"%d" % n for n in range(60)]
    assert len(store.query("t", "k3", 32, 0, 1 << 60).records) == 1


class StoreModel(RuleBasedStateMachine):
    """The store beside plain lists, through kills and power losses."""

    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        self.random = Random(seed)
        self.fs = MemoryFiles()
        self.clock = ManualClock()
        self.store: MessageStore = open_store(self.fs, self.clock)
        self.queues: dict[int, list[bytes]] = {0: [], 1: []}
        # (queue, body) in log order, and how many of them are known to be on disk.
        self.log: list[tuple[int, bytes]] = []
        self.durable = 0

    def _new_body(self) -> bytes:
        return b"%d-" % len(self.log) + bytes(self.random.randrange(1, 300))

    @rule(queue_id=st.integers(0, 1))
    def put(self, queue_id: int) -> None:
        body = self._new_body()
        assert put(self.store, "t", queue_id, body) == len(self.queues[queue_id])
        self.queues[queue_id].append(body)
        self.log.append((queue_id, body))

    @rule(queue_id=st.integers(0, 1), count=st.integers(2, 8))
    def batch(self, queue_id: int, count: int) -> None:
        sent = [self._new_body() for _ in range(count)]
        assert put_batch(self.store, "t", queue_id, sent) == len(self.queues[queue_id])
        self.queues[queue_id] += sent
        self.log += [(queue_id, body) for body in sent]

    @rule(ms=st.integers(0, 2_000))
    def time_goes_on(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule()
    def flush(self) -> None:
        self.store.flush()
        self.durable = len(self.log)

    @rule()
    def checkpoint(self) -> None:
        self.store.build_index(1000)
        self.store.finish_checkpoint(self.store.begin_checkpoint())
        self.durable = len(self.log)

    @rule()
    def stop(self) -> None:
        self.store.close()
        self.durable = len(self.log)
        self.store = open_store(self.fs, self.clock)

    @rule()
    def kill(self) -> None:
        self.fs = self.fs.killed()
        self.store = open_store(self.fs, self.clock)

    @rule()
    def lose_power(self) -> None:
        self.fs = self.fs.crash(self.random)
        self.store = open_store(self.fs, self.clock)
        kept = sum(self.store.max_offset("t", queue_id) for queue_id in (0, 1))
        assert kept >= self.durable, "what was flushed is lost"
        # What is left is a beginning of the log: nothing in the middle is gone.
        self.log = self.log[:kept]
        self.queues = {n: [body for queue_id, body in self.log if queue_id == n] for n in (0, 1)}
        self.durable = kept

    @invariant()
    def reads_what_was_put(self) -> None:
        for queue_id, sent in self.queues.items():
            assert bodies(self.store, "t", queue_id) == sent


TestStoreModel = StoreModel.TestCase


@given(st.data())
def test_the_log_cut_at_any_byte_starts(data: st.DataObject) -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    sent = [b"%d" % n for n in range(25)]
    ends = []
    for body in sent:
        put(store, "t", 0, body)
        ends.append(store.log.end)
    cut = data.draw(st.integers(0, store.log.end - 1))
    fs = fs.killed()
    segment = cut // SMALL.commitlog_segment_bytes
    path = f"/store/commitlog/{segment * SMALL.commitlog_segment_bytes:020d}"
    whole = fs.read(path)
    keep = cut - segment * SMALL.commitlog_segment_bytes
    fs.overwrite(path, whole[:keep] + bytes(len(whole) - keep))
    store = open_store(fs)
    left = bodies(store, "t", 0)
    assert left == sent[: len(left)]
    # A record whose lost bytes were zeros anyway is whole.
    unharmed = whole[:keep] + bytes(len(whole) - keep)
    last = next((end for end in ends if end > cut), 0)
    intact = last and unharmed[keep : last % 4096 or 4096] == whole[keep : last % 4096 or 4096]
    assert len(left) == sum(end <= cut for end in ends) + bool(intact)

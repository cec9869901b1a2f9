"""Random histories of a set whose old files go to a bucket that fails: lost answers, late creates, crashes, two owners.

The store, the tier, its owner, the manifests and the cleaner are the product's; the disks and the bucket are in memory.
When another broker becomes the master it has the same log, as replication has it, and the old master does not know yet:
it goes on uploading and cleaning. After each event each acknowledged message is in the log of the newest master, or can
be read from the bucket. In the end, without new faults: all is uploaded, and the bucket is as its manifest says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple
from zlib import crc32

import trio
from trio.testing import MockClock

from skylark.broker.options import BrokerOptions
from skylark.broker.store.removal import Removal
from skylark.broker.store.store import MessageStore
from skylark.broker.tasks.clean import Cleaner
from skylark.broker.tasks.flush import Flusher
from skylark.broker.tier.tasks import UploadTask
from skylark.broker.tier.upload import upload_rows
from skylark.broker.writing.admission import Admission
from skylark.broker.writing.waits import LogWaits
from skylark.mqcommon.message.record import decode_record
from skylark.mqcommon.tier.bucket import Bucket
from skylark.mqcommon.tier.gather import Gathered, gather
from skylark.mqcommon.tier.manifest import Segment
from skylark.mqcommon.tier.manifests import ManifestLog
from skylark.mqcommon.tier.records import records_between
from skylark.mqcommon.tier.verify import verify_set
from skylark.mqcommon.tier.view import TierView
from tests.broker.store.support import BORN_HOST, SMALL, open_store
from tests.support.clock import ManualClock
from tests.support.faulty_bucket import GOOD_STORE, Faults, FaultyBucket, Stopped
from tests.support.inline_tier import SET, InlineTier, InlineUploader
from tests.support.memory_bucket import MemoryBucket
from tests.support.memory_files import MemoryFiles

TOPICS = "orders", "prices", "rare"
QUEUES = 2
STEPS = 60
SECOND_MS, HOUR_MS = 1_000, 3_600_000
# Steps without faults after which everything must be in the bucket.
LAST_STEPS = 400
# The acknowledged messages that are looked up after an event; at the end all are.
SAMPLES = 3
VIEW_BYTES = 1 << 20

OPTIONS = {
    "file_reserved_time": 1,
    "delete_when": ";".join(f"{hour:02}" for hour in range(24)),
    "delete_commit_log_files_interval": 0,
    "tier_tail_bytes": 2_000,
    "tier_tail_interval_ms": 60_000,
}


class Sent(NamedTuple):
    """An acknowledged message."""

    topic: str
    queue_id: int
    offset: int
    body: bytes


class RememberingUploader(InlineUploader):
    """Sorts each file once in a history, where it is tried often."""

    def __init__(self, bucket: Bucket, fs: MemoryFiles, sorted_files: dict[tuple[int, int], Gathered]) -> None:
        """``sorted_files``: by where a file begins, and its CRC."""
        super().__init__(bucket, fs)
        self._sorted = sorted_files

    async def upload(self, path: str, task: UploadTask) -> Segment:
        data = self._fs.read(path)
        key = task.start, crc32(data)
        if key not in self._sorted:
            self._sorted[key] = gather(data, task.start, lambda topic: task.classes.get(topic, 0), [(0, task.size)])
        return upload_rows(self._bucket, self._sorted[key], task)


@dataclass
class Counts:
    """How often each thing happened in a history, so that a test can tell that histories prove something."""

    uploads: int = 0
    removed: int = 0
    deposed: int = 0
    stops: int = 0
    switches: int = 0
    from_bucket: int = 0


class Node:
    """One broker of the set: its disk, and while it runs its store, tier and cleaner."""

    def __init__(self, history: "TierHistory", name: str, fs: MemoryFiles, term: int) -> None:
        self.name = name
        self.fs = fs
        self.term = term
        self._history = history
        # Up to where the log is on all members; the limit of an old master stays where the new master began.
        self.limit = 0
        self.is_newest = True
        self.open()

    def open(self) -> None:
        """Start the broker on its disk."""
        history = self._history
        self.store: MessageStore = open_store(self.fs, history.clock)
        self.limit = min(self.limit, self.store.log.end) if not self.is_newest else self.store.log.end
        self.bucket = FaultyBucket(history.bucket, Random(history.random.random()))
        self.bucket.faults = history.faults
        options = {**OPTIONS, **history.options}
        rig = InlineTier(
            self.bucket,
            self.fs,
            self.store,
            history.clock,
            term=self.term if history.is_elected else None,
            uploader=RememberingUploader(self.bucket, self.fs, history.sorted_files),
            **options,
        )
        rig.limit = lambda: self.limit
        rig.classes = history.classes
        self.suspects, self.tier = rig.suspects, rig.tier
        admission = Admission()
        broker_options = BrokerOptions(**options)
        flusher = Flusher(self.store, LogWaits(), admission, broker_options, _settled)
        removal = Removal(self.fs, SMALL.directory, self.store)
        self.cleaner = Cleaner(
            self.store,
            removal,
            flusher,
            admission,
            broker_options,
            history.clock,
            uploaded_to=lambda: self.tier.uploaded_to,
            why_kept=self.tier.why_kept,
        )

    async def step(self) -> float:
        return await self.tier.step()

    async def clean(self) -> None:
        decision = await self.cleaner._decide(asked=True)
        self._history.counts.removed += await self.cleaner._clean(decision)


async def _settled() -> None:
    """There is no metadata to wait for."""


class TierHistory:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.trace: list[str] = []
        self.clock = ManualClock()
        self.bucket = MemoryBucket()
        self.counts = Counts()
        self.acked: list[Sent] = []
        self.sorted_files: dict[tuple[int, int], Gathered] = {}
        random = self.random
        self.is_elected = random.random() < 0.5
        self.classes: Mapping[str, int] = {"rare": 24 * 365} if random.random() < 0.3 else {}
        self.options = {"tier_local_bytes": random.choice((0, 0, 2 * SMALL.commitlog_segment_bytes))}
        self.faults = self._some_faults()
        self._term = 1
        self._view = TierView(self.bucket, SET, VIEW_BYTES)
        # Old masters that do not know yet that another broker is the master.
        self.old: list[Node] = []

    def _some_faults(self) -> Faults:
        random = self.random
        strength = random.choice((0.0, 1.0, 3.0))
        faults = Faults(
            lost_request=GOOD_STORE.lost_request * strength,
            lost_answer=GOOD_STORE.lost_answer * strength,
            late_create=GOOD_STORE.late_create * strength,
            stale_list=0.5,
        )
        if random.random() < 0.3:
            # A store that lies.
            faults.cut_put, faults.wrong_byte = random.choice(((0.1, 0.0), (0.0, 0.02), (0.1, 0.02)))
        return faults

    def run(self) -> None:
        try:
            trio.run(self._run, clock=MockClock(autojump_threshold=0))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    @property
    def nodes(self) -> list[Node]:
        """The newest master, then the old ones."""
        return [self.master, *self.old]

    async def _run(self) -> None:
        self.master = Node(self, "b1", MemoryFiles(), self._term)
        for _ in range(STEPS):
            await self._event()
            self._check(self.random.sample(self.acked, min(SAMPLES, len(self.acked))))
        await self._end()

    # --- events

    async def _event(self) -> None:
        random = self.random
        what = random.choices(
            (self._send, self._step, self._clean, self._stop, self._crash, self._switch, self._mood, self._wait),
            (10, 12, 4, 3, 1, 1, 2, 2),
        )[0]
        self.trace.append(what.__name__.strip("_"))
        await what()

    async def _send(self) -> None:
        """Messages to the newest master, on its disk and on all others when they are acknowledged."""
        store, random = self.master.store, self.random
        sent = []
        for _ in range(random.choice((1, 4, 12))):
            topic = random.choices(TOPICS, (10, 5, 1))[0]
            queue_id, body = random.randrange(QUEUES), random.randbytes(random.choice((20, 150, 900)))
            put = store.put(topic, queue_id, body, b"", born_timestamp=1, born_host=BORN_HOST)
            sent.append(Sent(topic, queue_id, put.queue_offset, body))
            self._pass(random.randrange(3_000))
        store.flush()
        self.master.limit = store.log.end
        self.acked += sent
        await trio.lowlevel.checkpoint()

    async def _step(self) -> None:
        node = self.random.choice(self.nodes)
        for _ in range(self.random.choice((1, 2, 6))):
            before, uploads = node.tier._is_stopped, node.tier._uploads
            wait_s = await node.step()
            self.counts.uploads += node.tier._uploads - uploads
            self.counts.deposed += node.tier._is_stopped and not before
            self._pass(int(wait_s * 1000))

    async def _clean(self) -> None:
        await self.random.choice(self.nodes).clean()

    async def _stop(self) -> None:
        """A process is killed in one of its calls of the bucket."""
        node = self.random.choice(self.nodes)
        node.bucket.stop_at(self.random.randrange(12), is_done=self.random.random() < 0.5)
        try:
            for _ in range(8):
                self._pass(int(await node.step() * 1000))
        except Stopped:
            self.counts.stops += 1
            node.fs = node.fs.killed()
            node.open()
        else:
            node.bucket.stop_at(-1, is_done=False)  # it made fewer calls

    async def _crash(self) -> None:
        """A machine loses power."""
        node = self.random.choice(self.nodes)
        node.fs = node.fs.crash(self.random)
        node.open()
        await trio.lowlevel.checkpoint()

    async def _switch(self) -> None:
        """Another broker, whose log is the same, becomes the master; the old one goes on for a while."""
        before, self._term = self.master, self._term + 1
        self.counts.switches += 1
        before.is_newest = False
        self.old = [before, *self.old[:1]]
        self.master = Node(self, f"b{self.counts.switches + 1}", before.fs.killed(), self._term)
        await trio.lowlevel.checkpoint()

    async def _mood(self) -> None:
        """For one broker the bucket is away, takes no writes or no credentials; or it is all right again."""
        bucket = self.random.choice(self.nodes).bucket
        bucket.is_away, bucket.is_read_only, bucket.have_credentials_ended = self.random.choice(
            ((False, False, False),) * 3 + ((True, False, False), (False, True, False), (False, False, True))
        )
        await trio.lowlevel.checkpoint()

    async def _wait(self) -> None:
        self._pass(self.random.choice((60 * SECOND_MS, HOUR_MS, 30 * HOUR_MS)))
        await trio.lowlevel.checkpoint()

    def _pass(self, ms: int) -> None:
        self.clock.advance(ms)
        self.bucket.now_ms = self.clock.now_ms()

    # --- what must hold

    def _check(self, sent: Sequence[Sent]) -> None:
        for each in sent:
            queue = self.master.store.queues.find(each.topic, each.queue_id)
            assert queue is not None
            if each.offset >= queue.min_offset:
                found = self.master.store.get(each.topic, each.queue_id, each.offset, 1, 1 << 20)
                assert decode_record(found.records).body == each.body
            else:
                found_there = self._from_bucket(each.topic, each.queue_id, each.offset, each.offset + 1)
                assert found_there.get(each.offset) == each.body, f"{each[:3]} is in neither place"
                self.counts.from_bucket += 1

    def _from_bucket(self, topic: str, queue_id: int, first: int, end: int) -> dict[int, bytes]:
        """The bodies of these messages, by offset, as far as the bucket has them."""
        self._view.refresh()
        bodies: dict[int, bytes] = {}
        while first < end and (located := self._view.locate(topic, queue_id, first)) is not None:
            data = self._view.read(located, self._view.stretches(located, first, end))
            for record, raw in records_between(data, first, end):
                bodies[record.queue_offset] = decode_record(raw).body
            first = located.row.next_offset
        return bodies

    async def _end(self) -> None:
        """Old masters are gone, and nothing fails any more."""
        self.faults = Faults()
        for node in self.nodes:
            node.bucket.do_late_creates()
            assert node.suspects == [], "no disk is damaged"
        self.old = []
        self.master.fs = self.master.fs.killed()
        self.master.open()
        tier, size = self.master.tier, SMALL.commitlog_segment_bytes
        for _ in range(LAST_STEPS):
            if tier.uploaded_to >= self.master.limit // size * size:
                break
            self._pass(int(await self.master.step() * SECOND_MS) + 1)
        else:
            raise AssertionError(f"not all is in the bucket: {tier.status()}")
        for _ in range(3):
            # Replaced objects go after a day. Objects that no manifest names go after two days, with the weekly sweep.
            self._pass(8 * 24 * HOUR_MS)
            await self.master.step()
            await self.master.clean()
        self._check_all()
        found = verify_set(self.bucket, SET, ManifestLog(self.bucket, SET), full=True)
        assert found.is_sound, found
        assert found.tail_to == self.master.store.log.end

    def _check_all(self) -> None:
        by_queue: dict[tuple[str, int], list[Sent]] = {}
        for each in self.acked:
            by_queue.setdefault((each.topic, each.queue_id), []).append(each)
        for place, sent in by_queue.items():
            queue = self.master.store.queues.find(*place)
            assert queue is not None
            old = [each for each in sent if each.offset < queue.min_offset]
            found = self._from_bucket(*place, 0, queue.min_offset)
            assert {each.offset: each.body for each in old}.items() <= found.items()
            self.counts.from_bucket += len(old)
            self._check(sent[len(old) :])

"""One random schedule of what can happen to a store, from a seed: work, full disks, broken disks, deaths, restarts.

Work goes on while a flush or checkpoint syncs, as it does beside the broker's thread; a death comes between two
operations of the store, or at any call to the disk within one. model.py says what must be there afterwards.
"""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random

from skylark.broker.commands.verify_store import verify
from skylark.broker.store.checkpoint import CHECKPOINT_BYTES
from skylark.broker.store.queue.batch_records import RowBatch
from skylark.broker.store.queue.ends import FILE_NAME
from skylark.broker.store.removal import Removal
from skylark.broker.tasks.block_sealing import BlockSealing
from skylark.broker.writing.light import LightQueues
from skylark.mqcommon.errors import DiskFull, StoreError
from tests.broker.store.model import Queue, Sent, StoreModel
from tests.broker.store.support import BORN_HOST, SMALL, new_store, put_inner
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles

STEPS = 40
TOPICS = ("t", "u", "topic-" + "v" * 130, "inner")
BATCH_TOPIC = "inner"
LIGHT = ("%LMQ%a", "%LMQ%b", "%LMQ%c")
ROOM = 1 << 40
NEVER = 1 << 40
ENDS = f"{SMALL.directory}/{FILE_NAME}"


def is_batch(topic: str) -> bool:
    return topic == BATCH_TOPIC


class Death(Exception):
    """Raised inside a call to the disk, after the image of the disk was taken."""


class Schedule:
    """`run` it; ``trace`` tells what happened so far."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.trace: list[str] = []
        self.model = StoreModel()
        self._beside: list[Callable[[], object]] = []
        self._use(MemoryFiles())
        self._clock = ManualClock()
        self._latest_ms = 0
        self._number = 0
        self._index_may_lack = False
        self._open()
        work = [
            self._put,
            self._put_light,
            self._batch,
            self._put_inner,
            self._make_file,
            self._build_index,
            self._flush,
            self._checkpoint,
            self._seal,
        ]
        deaths = [
            self._kill,
            self._lose_power,
            self._lose_pages,
            self._stop,
            self._die_within,
            self._disk_breaks,
            self._leave_as_rocketmq,
        ]
        rare = [
            self._delete_topic,
            self._clean,
            self._unmap,
            self._fill_disk,
            self._make_room,
            self._time_goes_on,
            self._read,
        ]
        self._steps: list[Callable[[], None]] = [*work, *rare, *deaths]
        # Schedules differ in what happens often in them.
        self._weights = [2 * self.random.random() ** 2 for _ in work]
        self._weights += [0.5 * self.random.random() ** 2 for _ in rare]
        self._weights += [0.4 * self.random.random() ** 2 for _ in deaths]
        self._weights[0] += 1

    def run(self) -> None:
        for step in self.random.choices(self._steps, self._weights, k=STEPS):
            self.trace.append(step.__name__.strip("_"))
            step()
        self._make_room()
        self._kill()
        self._lose_power()
        self._stop()
        self.store.close()
        said: list[str] = []
        is_excused = self.model.half_deleted or self._index_may_lack
        assert verify(self.fs, SMALL, repair=False, say=said.append) or is_excused, said

    # --- work

    def _put(self) -> None:
        queue, (body, keys) = self._any_queue(), self._new_message()
        properties = b"".join(
            [f"UNIQ_KEY\x01{keys[0]}\x02".encode(), f"KEYS\x01{' '.join(keys[1:])}\x02".encode() if keys[1:] else b""]
        )
        with suppress(DiskFull):
            result = self.store.put(*queue, body, properties, born_timestamp=1, born_host=BORN_HOST)
            self.model.put(Sent(queue, result.queue_offset, body, keys, result.physical_offset, result.end))

    def _put_light(self) -> None:
        queue, (body, keys) = self._any_queue(), self._new_message()
        names = self.random.sample(LIGHT, self.random.randint(1, len(LIGHT)))
        properties = f"UNIQ_KEY\x01{keys[0]}\x02INNER_MULTI_DISPATCH\x01{','.join(names)}\x02".encode()
        light = LightQueues(self.store, 100)
        offsets = [self.store.max_offset(name, 0) for name in names]
        with suppress(DiskFull):
            result = light.put(*queue, body, properties, born_timestamp=1, born_host=BORN_HOST)
            also = tuple(
                Sent((name, 0), offset, body, keys[:1], result.physical_offset, result.end)
                for name, offset in zip(names, offsets, strict=True)
            )
            self.model.put(Sent(queue, result.queue_offset, body, keys[:1], result.physical_offset, result.end, also))

    def _put_inner(self) -> None:
        queue = BATCH_TOPIC, self.random.choice((0, 0, 1))
        many = self.random.choice((1, 2, 5, 12, 30))
        rows = [(0, self._new_message()[0][:60], b"") for _ in range(many)]
        with suppress(DiskFull):
            result = put_inner(self.store, *queue, rows)
            for number, (_, body, _) in enumerate(rows, result.queue_offset):
                self.model.put(Sent(queue, number, body, (), result.physical_offsets[0], result.end))

    def _batch(self) -> None:
        queue = self._any_queue()
        if self.store.queues.keeps_batches(*queue):
            return
        messages = [self._new_message() for _ in range(self.random.choice((1, 2, 5, 12)))]
        rows = [(0, body[:60], f"UNIQ_KEY\x01{keys[0]}\x02".encode()) for body, keys in messages]
        with suppress(DiskFull):
            result = self.store.put_batch(*queue, RowBatch(rows), born_timestamp=1, born_host=BORN_HOST)
            ends = [*result.physical_offsets[1:], result.end]
            for n, (start, end) in enumerate(zip(result.physical_offsets, ends, strict=True)):
                offset = result.queue_offset + n
                self.model.put(Sent(queue, offset, rows[n][1], messages[n][1][:1], start, end))

    def _any_queue(self) -> Queue:
        return self.random.choice(TOPICS), self.random.choice((0, 0, 1))

    def _new_message(self) -> tuple[bytes, tuple[str, ...]]:
        self._number += 1
        body = b"%d-" % self._number + bytes(self.random.choice((0, 20, 300, 1500)))
        return body, (f"id{self._number}", f"k{self._number % 3}", "all")[: self.random.randint(1, 3)]

    def _make_file(self) -> None:
        if self.store.log.wants_file:
            with suppress(DiskFull):
                self.store.log.make_file(self.store.log.chain.end)

    def _build_index(self) -> None:
        with suppress(DiskFull):
            self.store.build_index(self.random.choice((1, 7, 1000)))

    def _flush(self) -> None:
        with self._work_beside():
            self.model.durable_end = self.store.flush()

    def _checkpoint(self, *, with_ends: bool = False) -> None:
        """Write a checkpoint as tasks/flush.py does."""
        self._build_index()
        with_ends = with_ends or self.random.random() < 0.2
        mark = self.store.begin_checkpoint(with_ends=with_ends, as_flushed=not with_ends)
        with self._work_beside(self.store.flush):
            try:
                while steps := self.store.take_queues(mark, limit=self.random.choice((1, 2, 1000))):
                    self.store.write_queues(steps)
                    self.store.queues_written(steps)
            except DiskFull:
                self.store.give_up_checkpoint(mark)
                return
        if with_ends:
            self._flush()
        with self._work_beside(self.store.flush):
            self.store.finish_checkpoint(mark)
        self.model.durable_end = self.store.log.flushed
        if with_ends:
            self.model.deleting.clear()

    def _seal(self) -> None:
        """Seal blocks as tasks/block_sealing.py does it."""
        self._flush()
        if work := self._sealing.due():
            self._sealing.keep(work, self._sealing.crcs(work))

    def _check_sums(self) -> None:
        """Each sum is the sum of bytes that the log has."""
        log = self.store.log
        for block in log.sums.newest():
            assert log.start <= block.start and block.end <= log.end
            assert log.sums.is_right(block, log.chain.read_file(block.start, block.size)), block

    def _delete_topic(self) -> None:
        topic = self.random.choice(TOPICS + LIGHT)
        self.store.delete_topic(topic)
        self.store.queues.remove_files()
        self.model.delete(topic)
        if self.random.random() < 0.8:
            self._checkpoint(with_ends=True)

    def _clean(self) -> None:
        """Old files of the log go, queues and index follow; as tasks/clean.py does it."""
        removal = Removal(self.fs, SMALL.directory, self.store)
        self._checkpoint(with_ends=True)
        for _ in range(self.random.randint(1, 3)):
            removal.retire_log_file(self.store.ends_noted_to)
            self.model.clean(self.store.log.start)
            removal.remove_log_files()
        queues = list(self.store.queues)
        starts = removal.find_starts([queue.bounds_search() for queue in queues], self.store.log.start)
        for queue, start in zip(queues, starts, strict=True):
            queue.start_at(start)
            self.store.queues.touch(queue)
        removal.remove_queue_files([queue.chain for queue in queues])
        removal.retire_index_files()
        removal.remove_index_files()

    def _unmap(self) -> None:
        for queue in self.store.queues:
            if self.random.random() < 0.5:
                queue.close()

    def _time_goes_on(self) -> None:
        self._latest_ms = max(self._latest_ms, self._clock.now_ms())
        self._clock.advance(self.random.randrange(-1_000, 5_000))

    def _read(self) -> None:
        self.model.check(self.store)
        self._check_sums()
        if self.fs.capacity == ROOM and not self._index_may_lack:
            self.model.check_keys(self.store)

    # --- full and broken disks

    def _fill_disk(self) -> None:
        self.fs.capacity = self.fs.used() + self.random.choice((0, 300, 5_000))
        if self.random.random() < 0.3:
            self.fs.faults.fail("allocate", nth=self.random.randint(1, 3), code=errno.ENOSPC)

    def _make_room(self) -> None:
        self.fs.capacity = ROOM
        self.fs.faults.clear()

    def _disk_breaks(self) -> None:
        """A sync fails: the broker stops, and what it closed is what the next start finds."""
        self.fs.faults.fail("sync", nth=self.random.randint(1, 3))
        try:
            self.random.choice((self._flush, self._checkpoint))()
        except StoreError:
            self.store.close()
            self.fs.faults.clear()
            self.random.choice((self._kill, self._lose_power))()
        self.fs.faults.clear()

    # --- the end, and what comes after

    def _stop(self) -> None:
        if self.store.close():
            # No room for entries of queues.
            assert self.fs.capacity < ROOM
            self._reopen(self.fs)
            return
        self.model.durable_end = self.store.log.end
        self.model.deleting.clear()
        self._reopen(self.fs.crash(self.random) if self.random.random() < 0.3 else self.fs)

    def _kill(self) -> None:
        self._reopen(self.fs.killed())

    def _leave_as_rocketmq(self) -> None:
        """Stopped or killed, with files of RocketMQ's only: no offset in the checkpoint, no ends of queues."""
        clean = self.random.random() < 0.5
        if clean and self.store.close():
            # No room for entries of queues: such a store is not left so.
            self._reopen(self.fs)
            return
        fs = self.fs.killed()
        path = f"{SMALL.directory}/checkpoint"
        fs.overwrite(path, fs.read(path)[:40].ljust(CHECKPOINT_BYTES, b"\0"))
        if fs.exists(ENDS):
            fs.remove(ENDS)
        if not clean:
            fs.overwrite(f"{SMALL.directory}/abort", b"")
        # Were the first start to die while it cuts the only file, the next one would take that for one of another size.
        self._reopen(fs, may_die=False)

    def _lose_power(self) -> None:
        self._reopen(self.fs.crash(self.random), cut=True)

    def _lose_pages(self) -> None:
        """As a power loss, but the machine goes on: its disk was mounted anew, or its file system repaired."""
        fs = self.fs.crash(self.random)
        fs.boots = self.fs.boots
        # Of the index a start after a kill does not notice it.
        self._index_may_lack = True
        self._reopen(fs, cut=True)

    def _die_within(self) -> None:
        """The end comes at one of the next calls to the disk, in whatever the store does then."""
        work = (
            self._put,
            self._put_light,
            self._batch,
            self._put_inner,
            self._make_file,
            self._flush,
            self._checkpoint,
            self._clean,
            self.store.close,
        )
        what = self.random.choice(work)
        self.trace[-1] += f"({what.__name__.strip('_')})"
        self._death_is_near()
        try:
            what()
        except Death:
            self._reopen(self._image, cut=self._power_loss)
        else:
            self._reopen(self.fs if what == self.store.close else self.fs.killed())

    def _death_is_near(self) -> None:
        self._death_at = self.fs.calls.total() + self.random.choice((1, 2, 3, 5, 8, 13))
        self._power_loss = self.random.random() < 0.7

    def _reopen(self, fs: MemoryFiles, *, cut: bool = False, may_die: bool = True) -> None:
        """Start on ``fs``, now and then twice, because the first start dies; ``cut``: the power was lost."""
        self._use(fs)
        # Store times never go back while the broker runs; when the clock does in between, they may.
        self._latest_ms = max(self._latest_ms, self._clock.now_ms())
        self._clock.advance(self._latest_ms - self._clock.now_ms())
        if may_die and self.random.random() < 0.15:
            self._death_is_near()
        try:
            self._open()
        except Death:
            self.trace.append("died_in_recovery")
            cut = cut or self._power_loss
            self._use(self._image)
            self._open()
        self._death_at = NEVER
        if cut:
            self.model.cut(self.store.log.end)
        self.model.reopened(self.store)
        self._check_sums()
        if self.fs.capacity == ROOM and not self._index_may_lack:
            self.model.check_keys(self.store)

    def _open(self) -> None:
        self.store = new_store(self.fs, self._clock)
        try:
            self.store.open()
        except DiskFull:
            assert self.fs.capacity < ROOM
            self.trace.append("make_room")
            self._use(self.fs.killed())
            self._make_room()
            self.store = new_store(self.fs, self._clock)
            self.store.open()
        self.store.queues.use_kinds(is_batch)
        self._sealing = BlockSealing(self.store.log, lambda: self.store.safe_end)
        # Blocks of earlier runs, too, as the scrub does it.
        self.store.log.sums.next_to_seal = 0

    # --- calls to the disk

    def _use(self, fs: MemoryFiles) -> None:
        self.fs = fs
        self._death_at = NEVER
        fs.before_call = self._before_call
        if not fs.exists(ENDS):
            self.model.forget_ends()

    @contextmanager
    def _work_beside(self, *more: Callable[[], object]) -> Iterator[None]:
        """Puts go on while another thread syncs; and ``more``."""
        puts = [self._put, self._put, self._put_light, self._batch, self._put_inner]
        self._beside = [*puts, self._make_file, self._build_index, *more]
        try:
            yield
        finally:
            self._beside = []

    def _before_call(self, operation: str, path: str) -> None:
        if self.fs.calls.total() >= self._death_at:
            self._death_at = NEVER
            self._image = self.fs.crash(self.random) if self._power_loss else self.fs.killed()
            raise Death
        if self._beside and operation == "sync" and self.random.random() < 0.5:
            beside, self._beside = self._beside, []
            self.random.choice(beside)()
            self._beside = beside

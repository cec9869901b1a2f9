"""Making the store durable: `flush` syncs the log; a checkpoint syncs queues and index and records how far.

A checkpoint has steps, because the event loop owns the queues and a thread writes their files: see `begin_checkpoint`.
The order of steps is the safety argument. The mark is taken first. Then every queue that was touched before the mark is
written and synced, then log and index are synced, and the checkpoint file comes last. So at any crash the file on disk
claims only what is durable; recovery takes the rest from the log. Messages that arrive meanwhile may get to disk early,
which is harmless: recovery checks them against the log. A checkpoint that fails at any step writes nothing to the file;
`give_up_checkpoint` marks its queues as touched again, so that the next checkpoint covers them.
Neighbours: store.py (everything else), checkpoint.py (the file), tasks/flush.py (when, and in which thread).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from broker.store.checkpoint import Checkpoint, CheckpointMark, NotedEnd, make_durable, rocketmq_times
from broker.store.index.index import Index
from broker.store.inventory import Inventory
from broker.store.log.commitlog import CommitLog
from broker.store.queue.consumequeue import ConsumeQueue
from broker.store.queue.ends import EndsTable, QueueEnds, write_queue_ends
from broker.store.queue.queues import Queues
from broker.store.queue.write import QueueWrite
from mqcommon.disk.files import FileSystem
from mqcommon.errors import OutOfDescriptors, StoreError

# Queues that a checkpoint writes in one step: copying their tails takes the event loop some milliseconds.
QUEUES_AT_ONCE = 1_000
# From this many files on, the whole file system is synced instead: one by one they take six times as long.
SYNC_TOGETHER = 100

QueueStep = tuple[ConsumeQueue, QueueWrite]


class DurableStore:
    """The log, queues and index in ``directory``, and how far they are on disk."""

    # Set when the store is opened.
    _checkpoint: Checkpoint

    def __init__(self, fs: FileSystem, directory: str, log: CommitLog, queues: Queues, index: Index) -> None:
        self._fs = fs
        self._directory = directory
        self.log = log
        self.queues = queues
        self.index = index
        self._ends = EndsTable()
        #: What must be there at the next start. Set when the store is opened.
        self.inventory: Inventory
        self._last_timestamp = 0
        self._flushed_timestamp = 0
        self._sync_failed = False
        self._ends_noted_to = 0
        self.puts = 0
        # Messages that came from a master as bytes of its log.
        self.copies = 0
        self._entries_written = 0

    def flush(self) -> int:
        """Make the log durable up to its present end, and return that offset. Runs in any thread, one at a time.

        Raises StoreError on failure: what is on disk is then unknown, and the store can only be closed. Raises
        OutOfDescriptors if the call can be repeated.
        """
        timestamp = self._last_timestamp
        with self._must_succeed():
            reached = self.log.flush()
        self._flushed_timestamp = timestamp
        return reached

    @property
    def durable_end(self) -> int:
        """All of the log before this is on disk, and so are the queue and index entries of its messages."""
        return self._checkpoint.state.log_offset or 0

    @property
    def entries_waiting(self) -> int:
        """Upper bound of the queue entries that are in memory only: those added since the last checkpoint."""
        return self.puts + self.copies - self._entries_written

    @property
    def ends_noted_to(self) -> int:
        """Where `durable_end` was when the ends of the queues were last noted on disk."""
        return self._ends_noted_to

    def begin_checkpoint(self, *, with_ends: bool = False, as_flushed: bool = False) -> CheckpointMark:
        """Begin a checkpoint: fix the offset that it will claim.

        The caller then repeats `take_queues`, `write_queues` and `queues_written` until there is nothing to take, and
        calls `finish_checkpoint`.

        ``with_ends``: also write the ends of all queues, so that a start notices lost ones.
        ``as_flushed``: cover only what is on disk of the log already, instead of flushing it.
        """
        end, timestamp = self.log.end, self._last_timestamp
        if as_flushed:
            end, timestamp = self.log.flushed, self._flushed_timestamp
        head = (self.log.start, self.index.ends()) if with_ends else None
        gone, emptied = self.queues.take_removed()
        left, entries, index_state = self.queues.dirty_count, self.puts + self.copies, self.index.state()
        return CheckpointMark(end, timestamp, left, entries, gone, emptied, head, index_state, noted_to=self.log.end)

    def take_queues(self, mark: CheckpointMark, limit: int = QUEUES_AT_ONCE) -> list[QueueStep]:
        """Copies of the tails of some queues, to be written; empty when ``mark`` needs no more."""
        queues = self.queues.take_dirty(min(limit, mark.left))
        mark.left = mark.left - len(queues) if queues else 0
        if not queues:
            self._entries_written = mark.entries
        mark.noted_to = self.log.end
        mark.noted += [NotedEnd(queue, queue.min_offset, queue.next_offset) for queue in queues]
        return [(queue, queue.unwritten()) for queue in queues]

    def write_queues(self, steps: Sequence[QueueStep]) -> None:
        """Write the copies, and make them durable. Runs in any thread, one at a time, after `Queues.remove_files`.

        Raises DiskFull or OSError if they cannot be written, StoreError as in `flush`. Call `give_up_checkpoint` then.
        """
        together = len(steps) >= SYNC_TOGETHER
        for _, write in steps:
            files = write.run(self._fs)
            try:
                with self._must_succeed():
                    for file in [] if together else files:
                        file.sync()
            finally:
                for file in files:
                    file.close()
        if together:
            with self._must_succeed():
                self._fs.sync_all(self._directory)

    def queues_written(self, steps: Sequence[QueueStep]) -> None:
        """Drop from memory what `write_queues` has put into the files."""
        for queue, write in steps:
            queue.written(write)

    def ends_now(self) -> QueueEnds:
        """The ends of all queues and index files."""
        return QueueEnds(self.log.start, self.queues.ends(), self.index.ends())

    def note_ends(self, ends: QueueEnds) -> None:
        """Write ``ends`` to disk without a checkpoint. Needed on a full disk: no old file may go before this is done.

        The log must be flushed as far as ``ends`` go: a start takes from it the entries that the queues' files lack.
        Runs in any thread, one at a time.
        """
        self._ends.replace(ends.queues)
        with self._must_succeed():
            write_queue_ends(self._fs, self._directory, ends)
        self._ends_noted_to = self.durable_end

    @property
    def last_timestamp(self) -> int:
        """No message was stored later."""
        return self._last_timestamp

    def mark_now(self) -> CheckpointMark:
        """A mark for `lower_checkpoint`."""
        index_state, end = self.index.state(), self.log.end
        return CheckpointMark(end, self._last_timestamp, 0, 0, [], [], None, index_state, noted_to=end)

    def end_was_cut(self, timestamp: int) -> None:
        """The log now ends earlier; the last of its messages was stored at or before ``timestamp``."""
        self._last_timestamp = min(self._last_timestamp, timestamp)
        self._flushed_timestamp = min(self._flushed_timestamp, timestamp)

    def lower_checkpoint(self, mark: CheckpointMark, ends: QueueEnds) -> None:
        """Write a checkpoint for a log that was cut: the one on disk claims what is gone. For any thread.

        Everything that ``mark`` and ``ends`` claim is on disk already, as the one before covered all entries of queues.
        """
        with self._must_succeed():
            self._checkpoint.write(mark.log_offset, mark.timestamp, rocketmq_times(self.log, mark, clean=False))
        self.note_ends(ends)

    @contextmanager
    def no_way_back(self) -> Iterator[None]:
        """An error within leaves the store half changed: it can only be closed, and the next start ends the change."""
        try:
            yield
        except (OSError, StoreError) as error:
            self._sync_failed = True
            raise StoreError(f"the log is cut only in part, the broker stops; its start ends that: {error}") from error

    def give_up_checkpoint(self, mark: CheckpointMark) -> None:
        """Abandon a checkpoint that failed: the next one covers everything in ``mark``."""
        for noted in mark.noted:
            if self.queues.find(noted.queue.topic, noted.queue.queue_id) is noted.queue:
                self.queues.touch(noted.queue)
        self.queues.put_back_removed(mark.gone, mark.emptied)

    def finish_checkpoint(self, mark: CheckpointMark, *, clean: bool = False) -> None:
        """Make log and index durable up to ``mark`` and write the checkpoint. Runs in any thread, one at a time.

        Raises as `flush`. Call `give_up_checkpoint` after either error.
        """
        assert not mark.left, "entries of queues are in memory only"
        ends: dict[str, dict[int, tuple[int, int]]] = {}
        for topic in mark.gone:
            self._ends.drop(topic)
        for queue, low, next_offset in mark.noted:
            if next_offset:
                ends.setdefault(queue.topic, {})[queue.queue_id] = low, next_offset
        for topic, by_id in ends.items():
            self._ends.note(topic, by_id)
        with self._must_succeed():
            make_durable(self._fs, self._directory, self.log, self.index, self._ends, mark)
            if mark.ends_head is None:
                self._ends.add(self._fs, self._directory, mark.gone, ends)
            times = rocketmq_times(self.log, mark, clean=clean)
            self._checkpoint.write(mark.log_offset, mark.timestamp, times, clean=clean)
            if mark.log_offset > self.log.start:
                self.inventory.note_log_start(self.log.start)
        if mark.ends_head is not None:
            self._ends_noted_to = mark.log_offset

    def checkpoint(self, *, with_ends: bool = False, as_flushed: bool = False, clean: bool = False) -> None:
        """All steps of a checkpoint at once. Blocks; only while nothing else uses the store.

        Raises DiskFull or OSError if no checkpoint could be written.
        """
        mark = self.begin_checkpoint(with_ends=with_ends, as_flushed=as_flushed)
        try:
            self.queues.remove_files()
            while steps := self.take_queues(mark):
                self.write_queues(steps)
                self.queues_written(steps)
            self.finish_checkpoint(mark, clean=clean)
        except BaseException:
            self.give_up_checkpoint(mark)
            raise

    def _write_all_queues(self) -> None:
        while queues := self.queues.take_dirty(QUEUES_AT_ONCE):
            steps = [(queue, queue.unwritten()) for queue in queues]
            self.write_queues(steps)
            self.queues_written(steps)

    @contextmanager
    def _must_succeed(self) -> Iterator[None]:
        try:
            yield
        except OutOfDescriptors:
            raise  # a file could not be opened: no sync was tried, so a later one still covers all that was written
        except OSError as error:
            self._sync_failed = True
            raise StoreError(f"the store cannot be made durable, the broker stops: {error}") from error

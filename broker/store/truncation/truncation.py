"""One truncation of a running slave's log at ``start``, in steps.

The order of the steps is the safety argument. What is cut is saved first. Then the intent goes to disk, which is the
moment of the cut: a crash before it leaves the old log, one after it leaves work that the next start ends. Then memory
follows, on the event loop and at once, so that no reader finds what goes. Then the files follow, and the checkpoint,
which claimed what is gone. The intent is removed last.
A reader that is in a removed file goes on there, as its descriptor is open. In the file in which ``start`` lies, bytes
become zeros under a reader's eyes; no consumer reads there, as it never sees beyond the confirm offset.
Neighbours: tasks/truncate.py (calls the steps, with the locks), saved.py, intent.py (also ends it after a crash).
"""

from collections.abc import Sequence

from broker.store.checkpoint import CheckpointMark
from broker.store.index.index_file import IndexFile
from broker.store.log.segment import Segment
from broker.store.queue.bounds_search import BoundsSearch
from broker.store.queue.consumequeue import ConsumeQueue
from broker.store.queue.ends import QueueEnds
from broker.store.store import MessageStore
from broker.store.truncation import saved
from broker.store.truncation.intent import (
    QueueTruncation,
    TruncationIntent,
    remove_intent,
    truncate_log,
    truncate_queues,
    write_intent,
)
from broker.store.truncation.saved import Survey, begins_record
from mqcommon.disk.files import FileSystem
from mqcommon.errors import ReplicationRefused
from mqcommon.message.layout import HEAD_V4

Search = tuple[ConsumeQueue, BoundsSearch]


class Truncation:
    """Call `save`, `searches`, `begin`, `forget`, `cut_files`, `mark`, `finish`, in this order.

    A step whose docstring says that it blocks runs in any thread, the others on the event loop. Before the first one,
    a checkpoint must have covered the whole log; nothing is appended or removed until the last one has returned.
    """

    def __init__(self, fs: FileSystem, directory: str, store: MessageStore, start: int) -> None:
        """ReplicationRefused when the log has no byte ``start``."""
        log = store.log
        self._fs = fs
        self._directory = directory
        self._store = store
        self._start = start
        if not log.start <= start <= log.raw_end:
            raise self._refused(f"it has the bytes {log.start} to {log.raw_end}")
        self._end = log.raw_end
        self._survey = Survey(log.chain.read_file, start, self._end, log.start, log.chain.segment_bytes)
        self._intent: TruncationIntent | None = None
        self._segments: list[Segment] = []
        self._index_files: list[IndexFile] = []

    @property
    def messages(self) -> int:
        """How many messages are cut; known after `save`."""
        return self._survey.messages

    @property
    def bytes(self) -> int:
        """How many bytes are cut."""
        return self._end - self._start

    def save(self) -> str:
        """Save what will be cut; returns the file's path. Blocks. DiskFull changes nothing.

        ReplicationRefused when no message begins at ``start``.
        """
        head = self._store.log.chain.read_file(self._start, min(HEAD_V4.size, self.bytes))
        if not begins_record(head, self._start):
            raise self._refused("no message begins there")
        return saved.save(self._fs, self._directory, self._survey, self._start, self._end)

    def searches(self) -> list[Search]:
        """A search for the new end of each queue that may lose messages."""
        queues = self._store.queues
        if self._survey.read_to >= min(self._store.log.end, self._end):
            found = [queues.find(*place) for place in sorted(self._survey.queues)]
            affected = [queue for queue in found if queue is not None]
        else:
            # Damaged bytes: it is not known which queues have messages behind them.
            affected = list(queues)
        return [(queue, queue.bounds_search()) for queue in affected if not queue.is_empty]

    def begin(self, searches: Sequence[Search]) -> None:
        """Find the ends of queues, and put the intent on disk. Blocks. DiskFull leaves the store as it is."""
        cuts = []
        for queue, search in searches:
            end = search.find_end(self._start)
            if end < queue.next_offset:
                ends = queue.min_offset, end, queue.next_offset
                cuts.append(QueueTruncation(queue.topic, queue.queue_id, *ends, *search.cut_places))
        first_ms = self._survey.first_ms
        timestamp = self._store.last_timestamp if first_ms is None else first_ms
        self._intent = TruncationIntent(self._start, self._end, timestamp, cuts)
        write_intent(self._fs, self._directory, self._intent)

    def forget(self) -> None:
        """Let the log, queues and index in memory end at ``start``."""
        store, intent = self._store, self._intent
        assert intent is not None
        self._segments = store.log.end_at(self._start)
        for cut in intent.queues:
            queue = store.queues.find(cut.topic, cut.queue_id)
            if queue is not None:
                queue.end_at(cut.next_offset)
        self._index_files = store.index.retire_after(self._start)
        store.end_was_cut(intent.timestamp)

    def cut_files(self) -> None:
        """Let the files end at ``start``. Blocks. After a StoreError only a new start helps."""
        intent = self._intent
        assert intent is not None
        with self._store.no_way_back():
            truncate_log(self._fs, self._store.log.chain.directory, intent.start, intent.end)
            for segment in self._segments:
                segment.close()
            self._store.log.chain.cut_ended()
            truncate_queues(self._fs, self._store.queues, intent.queues)
            for file in self._index_files:
                self._fs.remove(file.file.path)
                file.close()
            self._store.index.cut(intent.start)

    def mark(self) -> tuple[CheckpointMark, QueueEnds]:
        """What the new checkpoint will claim."""
        return self._store.mark_now(), self._store.ends_now()

    def finish(self, mark: CheckpointMark, ends: QueueEnds) -> list[str]:
        """Write the checkpoint and remove the intent: the cut is done. Blocks. StoreError as in `cut_files`.

        Returns the paths of older saved files that were removed to make room.
        """
        with self._store.no_way_back():
            self._store.lower_checkpoint(mark, ends)
            remove_intent(self._fs, self._directory)
        return saved.prune(self._fs, self._directory)

    def _refused(self, why: str) -> ReplicationRefused:
        return ReplicationRefused(
            f"the log would have to be cut at {self._start} to follow the master, but {why}. To copy the master's log"
            f" from the start, stop this slave and run: broker resyncSlave {self._directory}"
        )

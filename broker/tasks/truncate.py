"""Cuts the end of a slave's log which its new master does not have; the bytes are saved before they are cut.

Flushes, checkpoints, the cleaner and deletions of topics wait meanwhile; reads go on. A reader in the middle of a
removed file can finish, as its descriptor is open. In the file that contains the cut, bytes become zeros while readers
may have the file open; no consumer reads these bytes, as consumers never read past the confirm offset.
Neighbours: store/truncation (the files on disk, and what a start does after a crash), flush.py (the locks).
"""

import logging
from collections.abc import Sequence

import trio

from skylark.broker.store.checkpoint import CheckpointMark
from skylark.broker.store.index.index_file import IndexFile
from skylark.broker.store.log.segment import Segment
from skylark.broker.store.queue.bounds_search import BoundsSearch
from skylark.broker.store.queue.consumequeue import ConsumeQueue
from skylark.broker.store.queue.ends import QueueEnds
from skylark.broker.store.store import MessageStore
from skylark.broker.store.truncation import saved
from skylark.broker.store.truncation.intent import (
    QueueTruncation,
    TruncationIntent,
    remove_intent,
    truncate_log,
    truncate_queues,
    unshare_files,
    withdraw_intent,
    write_intent,
)
from skylark.broker.store.truncation.saved import Survey, begins_record
from skylark.broker.tasks.flush import Flusher
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.errors import DiskFull, ReplicationRefused
from skylark.mqcommon.message.layout import HEAD_V4

logger = logging.getLogger(__name__)


Search = tuple[ConsumeQueue, BoundsSearch]


class LogTruncation:
    """Cuts the log of one running store, whose ``directory`` is its storePathRootDir."""

    def __init__(self, fs: FileSystem, directory: str, store: MessageStore, flusher: Flusher) -> None:
        self._fs = fs
        self._directory = directory
        self._store = store
        self._flusher = flusher

    async def cut(self, offset: int) -> None:
        """Let the log end at ``offset``, where a message begins, durably.

        The caller must see to it that this broker is a slave, and that nothing appends to the log or builds its queues
        meanwhile. DiskFull when there is no room to save the bytes, OSError when they cannot be written: nothing has
        changed, and the call can be repeated. ReplicationRefused when the log cannot be cut there; nothing has changed
        either. After any other StoreError the broker must stop, and its next start finishes the cut.
        """
        store, log = self._store, self._store.log
        if offset == log.raw_end or log.raw_end == log.start:
            return
        # A checkpoint must cover all queue entries first. Otherwise the lowered checkpoint, which is written below,
        # would claim entries that are only in memory.
        self._flusher.log_ends_at(offset)
        await self._flusher.checkpoint(note_ends=True)
        if store.durable_end != log.end or store.entries_waiting:
            why = self._flusher.unwritten or f"{store.entries_waiting} entries wait in memory"
            raise DiskFull(f"the log cannot be cut at {offset} before its queues are on disk: {why}")
        # The order is the safety argument: a crash at any step leaves the old log or the cut one, never a mixture.
        async with self._flusher.alone():
            cut = Truncation(self._fs, self._directory, store, offset)
            # 1. Save the bytes that will be cut in a file of their own. Until the intent is on disk, this can be
            # repeated.
            path = await trio.to_thread.run_sync(cut.save)
            searches = cut.searches()
            # From here on a cancellation waits: with half a cut, the store in memory could neither be used nor undone.
            with trio.CancelScope(shield=True):
                # 2. Write the intent, which is the moment of the cut: after a crash the next start finishes the cut.
                await trio.to_thread.run_sync(cut.begin, searches)
                # 3. Shorten the log in memory at once, in one turn of the event loop, so that no reader finds the cut
                # bytes.
                cut.forget()
                self._flusher.log_ends_at(offset)
                # 4. Cut the files, lower the checkpoint, which still claims the cut bytes, and remove the intent last.
                await trio.to_thread.run_sync(cut.cut_files)
                removed = await trio.to_thread.run_sync(cut.finish, *cut.mark())
        logger.warning(
            "%d messages were cut from the end of the log, as the new master does not have them: bytes %d to %d."
            " They are saved; to see them, run: broker printCut %s",
            cut.messages,
            offset,
            offset + cut.bytes,
            path,
        )
        for old in removed:
            logger.warning("removed %s, which kept older messages that were cut: newer ones need the room", old)


class Truncation:
    """The steps of one cut: `save`, `searches`, `begin`, `forget`, `cut_files`, `mark`, `finish`, in this order.

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
            # There are damaged bytes: it is not known which queues have messages after them.
            affected = list(queues)
        return [(queue, queue.bounds_search()) for queue in affected if not queue.is_empty]

    def begin(self, searches: Sequence[Search]) -> None:
        """Find the ends of queues, and put the intent on disk. Blocks.

        OSError or DiskFull leaves the store as it is. StoreError as in `cut_files`: the intent may be on disk.
        """
        cuts = []
        for queue, search in searches:
            end = search.find_end(self._start)
            if end < queue.next_offset:
                ends = queue.min_offset, end, queue.next_offset
                cuts.append(QueueTruncation(queue.topic, queue.queue_id, *ends, *search.cut_places))
        first_ms = self._survey.first_ms
        timestamp = self._store.last_timestamp if first_ms is None else first_ms
        self._intent = TruncationIntent(self._start, self._end, timestamp, cuts)
        # While a failure still leaves the store as it is. `forget` lets the maps of these files go.
        unshare_files(self._fs, self._store.log.chain.directory, self._store.queues, self._intent)
        try:
            write_intent(self._fs, self._directory, self._intent)
        except (OSError, DiskFull):
            # The caller continues with the whole log, and may store messages after it. A leftover intent would make the
            # next start cut these messages, too.
            with self._store.truncating_files():
                withdraw_intent(self._fs, self._directory)
            raise

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
        store.lower_timestamps(intent.timestamp)

    def cut_files(self) -> None:
        """Let the files end at ``start``. Blocks. After a StoreError only a restart can finish the cut."""
        intent = self._intent
        assert intent is not None
        with self._store.truncating_files():
            self._store.sum_files.cut(intent.start)
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
        with self._store.truncating_files():
            self._store.lower_checkpoint(mark, ends)
            remove_intent(self._fs, self._directory)
        return saved.prune(self._fs, self._directory)

    def _refused(self, why: str) -> ReplicationRefused:
        return ReplicationRefused(
            f"the log would have to be cut at {self._start} to follow the master, but {why}. To copy the master's log"
            f" from the start, stop this slave and run: broker resyncSlave {self._directory}"
        )

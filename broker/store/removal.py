"""Removes old files from the front of the log; queues and index follow the log's start.

A file is first dropped from memory, on the event loop, so that no reader finds it, and then removed from disk, in a
thread. Invariant: a file of the log is removed only when all bytes before its end are durable and the ends of the
queues are on disk. Otherwise a power loss could reset a queue whose messages are all removed to a lower offset, and its
offsets would be assigned twice. The log's files define where the log starts: if a cleaning is interrupted, the next
start adapts queues and index.
Neighbours: retention.py (which files), tasks/clean.py (when, and the threads), segment.py (how a file goes).
"""

import math
from collections.abc import Iterator, Sequence

from skylark.broker.store.index.index_file import IndexFile
from skylark.broker.store.log.log_files import HEAD_BYTES, stored_ms
from skylark.broker.store.log.segment import Segment, SegmentChain
from skylark.broker.store.queue.bounds_search import BoundsSearch
from skylark.broker.store.retention import CleanDecision, Disk, RetentionRules, decide
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.disk.files import FileSystem


class Removal:
    """The steps that clean one store. A step whose docstring says that it blocks runs in any thread, one at a time."""

    def __init__(self, fs: FileSystem, directory: str, store: MessageStore) -> None:
        self._fs = fs
        self._directory = directory
        self._store = store
        self._index_files: list[IndexFile] = []

    def decide(
        self, rules: RetentionRules, now_ms: int, hour: int, *, asked: bool, before: float = math.inf
    ) -> CleanDecision:
        """Decide what to do now. Blocks: asks for the disk usage, and reads the heads of files.

        ``hour``: the hour of the day. ``asked``: an administrator wants expired files removed at any hour. ``before``:
        no file that ends after this offset may go.
        """
        segments = list(self._store.log.chain.segments)
        segment_bytes = self._store.log.chain.segment_bytes
        beyond = len(segments) * segment_bytes - rules.local_bytes if rules.local_bytes else 0
        usage = self._fs.disk_usage(self._directory)
        return decide(
            self._youngest_ms(segments, now_ms),
            sum([segment.end <= before for segment in segments[:-1]]),
            segment_bytes,
            Disk(usage.used, max(usage.used + usage.free, 1)),
            rules,
            now_ms,
            hour,
            asked=asked,
            surplus=max(-(-beyond // segment_bytes), 0),
        )

    def retire_log_file(self, before: float) -> Segment | None:
        """Let the log start after its oldest file, and return that file; None if it must stay.

        ``before``: the log's durable end when the ends of the queues were last noted, or what others still need.
        """
        chain = self._store.log.chain
        if len(chain.segments) < 2 or chain.segments[0].end > before:
            return None
        oldest = chain.segments[0]
        chain.retire_before(oldest.end)
        self._store.log.sums.remove_before(oldest.end)
        return oldest

    def remove_log_files(self) -> None:
        """Remove retired files of the log from disk. Blocks. After OSError the call can be repeated."""
        # Write the inventory first: a start must not take the removed files for lost files.
        chain = self._store.log.chain
        if chain.retired:
            self._store.inventory.note_log_start(lambda: chain.start)
            chain.remove_retired()
            self._store.sum_files.remove_before(chain.start)

    def find_starts(self, searches: Sequence[BoundsSearch], log_start: int) -> list[int]:
        """Where each queue starts now. Blocks: reads files, which the caller must keep from being removed meanwhile."""
        return [search.run(log_start) for search in searches]

    def remove_queue_files(self, chains: Sequence[SegmentChain]) -> None:
        """Remove the files that these queues have retired. Blocks; not during a checkpoint. OSError as above."""
        for chain in chains:
            chain.remove_retired()

    def retire_index_files(self) -> None:
        """Drop index files that hold only messages before the log's start; not during a checkpoint."""
        self._index_files += self._store.index.retire_before(self._store.log.start)

    def remove_index_files(self) -> int:
        """Remove retired index files from disk; returns how many. Blocks. OSError as above."""
        count = 0
        while self._index_files:
            file = self._index_files[0].file
            if self._fs.exists(file.path):
                self._fs.remove(file.path)
            file.close()
            del self._index_files[0]
            count += 1
        return count

    def _youngest_ms(self, segments: Sequence[Segment], now_ms: int) -> Iterator[int | None]:
        """When the youngest message of each file but the last was stored, by the present clock.

        The time of the next file's first message is used, which is no earlier and costs one small read. Where times go
        back, as in older stores, the latest first message so far counts.
        A store time in the future says nothing: the clock was set back. Then the modification time is used, as in
        RocketMQ, which is the time of the last flush, or of the copy if the store was copied.
        """
        steps, latest, modified = self._store.clock_steps, 0, list[int]()
        for number, segment in enumerate(segments[1:]):
            stored = stored_ms(self._fs.read_part(segment.path, 0, HEAD_BYTES))
            if stored is None:
                yield None
                continue
            latest = max(latest, stored + steps.moved_since(0, segment.base, stored))
            if latest <= now_ms:
                yield latest
            else:
                modified = modified or self._modified_ms(segments, now_ms)
                yield modified[number]

    def _modified_ms(self, segments: Sequence[Segment], now_ms: int) -> list[int]:
        """When each file was modified last: not after a later one, and not after now."""
        found = []
        for segment in reversed(segments):
            now_ms = min(now_ms, self._fs.modified_ms(segment.path))
            found.append(now_ms)
        return found[::-1]

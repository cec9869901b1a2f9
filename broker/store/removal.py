"""Taking what is no longer needed off the front of the log; queues and index follow the log's start.

In memory first, on the loop, so that nobody reads what goes; then on disk, in a thread. A file of the log goes only
when all before its end is durable and the ends of the queues are noted: else a power loss could bring a queue's
offsets back to where they were.
The log's files are the truth of where it starts: wherever a cleaning is broken off, a start makes the rest follow.
Neighbours: retention.py (which files), tasks/clean.py (when, and the threads), segment.py (how a file goes).
"""

from collections.abc import Iterator, Sequence

from broker.store.index.index_file import IndexFile
from broker.store.log.segment import Segment, SegmentChain
from broker.store.log.stored_time import HEAD_BYTES, stored_ms
from broker.store.queue.start_search import StartSearch
from broker.store.retention import Decision, Disk, RetentionRules, decide
from broker.store.store import MessageStore
from mqcommon.files import FileSystem


class Removal:
    """The steps of a cleaning of one store. Those that say so block, and run in any thread, one at a time."""

    def __init__(self, fs: FileSystem, directory: str, store: MessageStore) -> None:
        self._fs = fs
        self._directory = directory
        self._store = store
        self._index_files: list[IndexFile] = []

    def decide(self, rules: RetentionRules, now_ms: int, hour: int, *, asked: bool) -> Decision:
        """What is to be done now. Blocks: looks at the disk, and at the beginnings of files."""
        segments = list(self._store.log.chain.segments)
        usage = self._fs.disk_usage(self._directory)
        return decide(
            self._youngest_ms(segments),
            len(segments) - 1,
            self._store.log.chain.segment_bytes,
            Disk(usage.used, max(usage.used + usage.free, 1)),
            rules,
            now_ms,
            hour,
            asked=asked,
        )

    def retire_log_file(self, before: int) -> Segment | None:
        """The log starts behind its oldest file from now on; None when that must stay.

        ``before``: where the log was durable when the ends of the queues were last noted.
        """
        chain = self._store.log.chain
        if len(chain.segments) < 2 or chain.segments[0].end > before:
            return None
        oldest = chain.segments[0]
        chain.retire_before(oldest.end)
        return oldest

    def remove_log_files(self) -> None:
        """Remove retired files of the log from disk. Blocks; OSError leaves them to be tried again."""
        self._store.log.chain.remove_retired()

    def find_starts(self, searches: Sequence[StartSearch], log_start: int) -> list[int]:
        """Where each queue starts now. Blocks, reading files; the caller sees to it that none is removed meanwhile."""
        return [search.run(log_start) for search in searches]

    def remove_queue_files(self, chains: Sequence[SegmentChain]) -> None:
        """Remove what these queues have retired. Blocks; not during a checkpoint. OSError as above."""
        for chain in chains:
            chain.remove_retired()

    def retire_index_files(self) -> None:
        """The index forgets files that know only messages before the log's start; not during a checkpoint."""
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

    def _youngest_ms(self, segments: Sequence[Segment]) -> Iterator[int | None]:
        """When the youngest message of each file but the last was stored.

        That is, at the latest, when the first of the next file was: one small read. Where times go back, as in older
        stores, the latest first message so far counts.
        RocketMQ takes the file's modification time; but that is the time of the copy in a store that was copied, and
        the time of the last flush in one that was not.
        """
        latest = 0
        for segment in segments[1:]:
            stored = stored_ms(self._fs.read_part(segment.path, 0, HEAD_BYTES))
            latest = max(latest, stored or 0)
            yield None if stored is None else latest

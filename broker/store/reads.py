"""The reads of a store: messages of a queue, by key, by time and by place, and the ends of queues.

In Controller mode consumers see no message that ends after `Reads.confirmed`: reads for them are named
"visible", or are given it. The broker itself may read such messages. What it stores because of them stands after them,
and is cut with them.
"""

from collections.abc import Callable

from broker.store.filter import ALL, Filter
from broker.store.index.index import Index
from broker.store.log.commitlog import CommitLog
from broker.store.query import KeyQuery, QueryResult, first_store_time, offset_by_time, store_time
from broker.store.queue.queues import Queues
from broker.store.reader import GetResult, read_queue
from broker.store.visible import visible_end
from mqcommon.message.record import decode_record, record_physical_offset


class Reads:
    """What a store has for its readers."""

    log: CommitLog
    queues: Queues
    index: Index
    #: Up to where the log is confirmed; None without Controller mode.
    confirmed: Callable[[], int] | None

    @property
    def safe_end(self) -> int:
        """How far the log is on disk, and in Controller mode confirmed. An offset that others take before they have the
        log, or that is read at the next start, may be saved only if it stands on nothing after that.
        """
        return self.log.flushed if self.confirmed is None else min(self.log.flushed, self.confirmed())

    def get(
        self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int, wanted: Filter = ALL
    ) -> GetResult:
        """Messages of a queue; see `read_queue`."""
        return read_queue(self.log, self.queues.find(topic, queue_id), offset, max_count, max_bytes, wanted)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The offset that the next message will get."""
        queue = self.queues.find(topic, queue_id)
        return 0 if queue is None else queue.next_offset

    def visible_end(self, topic: str, queue_id: int) -> int:
        """As `max_offset`, without messages that consumers do not see yet."""
        queue = self.queues.find(topic, queue_id)
        if queue is None or self.confirmed is None:
            return 0 if queue is None else queue.next_offset
        return visible_end(self.log, queue, self.confirmed())

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The offset of the oldest message that is still stored."""
        queue = self.queues.find(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, boundary: str = "LOWER") -> int:
        """The first visible offset stored at or after a time, or (UPPER) the last one stored at or before it."""
        queue = self.queues.find(topic, queue_id)
        if queue is None:
            return 0
        end = self.visible_end(topic, queue_id)
        return offset_by_time(self.log, queue, end, timestamp_ms, upper=boundary == "UPPER")

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """When a message was stored (ms); -1 if there is none."""
        queue = self.queues.find(topic, queue_id)
        return -1 if queue is None else store_time(self.log, queue, offset)

    def first_store_time(self, topic: str, queue_id: int) -> int:
        """When the oldest message of a queue was stored (ms); -1 when there is none."""
        queue = self.queues.find(topic, queue_id)
        return -1 if queue is None else first_store_time(self.log, queue)

    def earliest_store_time(self) -> int:
        """When the oldest message of the log was stored (ms); -1 when there is none."""
        raw = self.log.record_at(self.log.start)
        return -1 if raw is None else decode_record(raw, check_crc=False).store_timestamp

    def record_at(self, physical_offset: int) -> bytes | None:
        """The stored message that starts at ``physical_offset``; None when none does."""
        raw = self.log.record_at(physical_offset)
        # The bytes of a message's body may look like a record.
        return raw if raw is not None and record_physical_offset(raw) == physical_offset else None

    def visible_record_at(self, physical_offset: int) -> bytes | None:
        """As `record_at`, without messages that consumers do not see yet."""
        raw = self.record_at(physical_offset)
        if raw is None or self.confirmed is None or physical_offset + len(raw) <= self.confirmed():
            return raw
        return None

    def start_query(
        self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int, max_bytes: int = 1 << 24,
        *, unique: bool = False,
    ) -> KeyQuery:  # fmt: skip
        """Search by key (``unique``: by unique key only), newest first, up to ``max_num`` and ``max_bytes``."""
        return KeyQuery(
            self.log, self.index, self.build_index, topic, key, max_num, begin_ms, end_ms, max_bytes,
            unique=unique, confirmed=self.confirmed,
        )  # fmt: skip

    def query(
        self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int, *, unique: bool = False
    ) -> QueryResult:
        """`start_query` with all its steps at once: not for the event loop."""
        search = self.start_query(topic, key, max_num, begin_ms, end_ms, unique=unique)
        while search.step():
            pass
        return search.result

    def build_index(self, limit: int) -> int:
        """Let the index catch up by at most ``limit`` messages; returns how many."""
        done = 0
        if self.index.is_being_cut:
            return 0
        # A step may find only the filler at the end of a file, and no message.
        while done < limit and self.index.position < self.log.end:
            done += self.index.build(self.log, limit - done)
        return done

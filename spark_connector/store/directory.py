"""A store directory as a source of queues, for reading/planning.py: its queues, and the messages of each.

The files of a queue count up to the checkpoint, before which everything is on disk and in the queues. Later messages
come from the log itself (scan.py). Queues that are damaged are made from the whole log, as by a broker's start.
"""

import logging
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np

from skylark.broker.store.checkpoint import CheckpointState, LastStop, read_abort, read_checkpoint
from skylark.broker.store.log.log_files import HEAD_BYTES, LogFile, LogFiles, stored_ms
from skylark.broker.store.log.valid_record import torn_reason
from skylark.broker.store.query import first_at_least
from skylark.broker.store.queue.ends import read_queue_ends
from skylark.broker.store.queue.entry import BLANK_SIZE, ENTRY_BYTES
from skylark.broker.store.recovery import ROCKETMQ_MARGIN_MS, why_torn
from skylark.mqcommon.errors import StoreCorrupt, UserError
from skylark.mqcommon.message.layout import BLANK_BYTES
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.message.record import Record
from skylark.mqcommon.names import LMQ_PREFIX, MASTER_ID, is_system_topic
from skylark.sdk.arrow.records import Ints
from skylark.sdk.consumer.expression import Sql
from skylark.sdk.position import OffsetSpan, Position
from skylark.sdk.routes import TopicQueues
from skylark.spark_connector.offsets import OffsetRange
from skylark.spark_connector.reading.planning import QueueDirectory
from skylark.spark_connector.store.files import (
    ENTRIES,
    KINDS,
    NOT_IN_FILES,
    QUEUES,
    AnyQueueFiles,
    BatchQueueFiles,
    QueueFiles,
    ReadOnlyFiles,
    StorePart,
)
from skylark.spark_connector.store.scan import Place, Scanned, Tail, scan

Bounds = Mapping[Place, tuple[int, int]]

logger = logging.getLogger(__name__)

_SHOWN_TOPICS = 20


class Nothing(NamedTuple):
    """An answer without messages. A directory cannot be behind, so it answers as a master."""

    data: bytes = b""
    next_offset: int = 0
    min_offset: int = 0
    max_offset: int = 0
    broker_id: int = MASTER_ID
    created_ms: int | None = None


class StoreQueue:
    """The entries of one queue: the entries of its files, then entries made from the log."""

    def __init__(self, files: AnyQueueFiles, bounds: tuple[int, int], tail: Tail | None) -> None:
        self._files = files
        self._is_batch = isinstance(files, BatchQueueFiles) or (tail is not None and tail.is_batch)
        self.low, self.high = bounds
        self.tail_start, self.tail = self.high, b""
        if tail is not None:
            # Offsets that go back: the topic was deleted and made again.
            self.low = min(self.low, tail.first) if self.low < self.high else tail.first
            self.tail_start, self.high, self.tail = tail.first, tail.end, bytes(tail.entries)

    @cached_property
    def _tail_firsts(self) -> Ints:
        """The offsets in the tail at which a batch begins."""
        return np.flatnonzero(np.frombuffer(self.tail, ENTRIES)["size"] != BLANK_SIZE) + self.tail_start

    def _first_of(self, offset: int) -> int:
        """The offset at which the batch begins that has ``offset``."""
        if offset < self.tail_start:
            return self._files.first_of(offset)
        at = int(np.searchsorted(self._tail_firsts, offset, side="right")) - 1 if self._is_batch else -1
        return int(self._tail_firsts[at]) if at >= 0 else offset

    def entry(self, offset: int) -> tuple[int, int]:
        """(physical offset, size) of the record that has a message."""
        offset = self._first_of(offset)
        if offset < self.tail_start:
            found = self._files.entries(offset, offset + 1)[0]
        else:
            found = np.frombuffer(self.tail, ENTRIES, 1, (offset - self.tail_start) * ENTRY_BYTES)[0]
        return int(found["physical"]), int(found["size"])

    def part(self, wanted: OffsetRange, log_start: int) -> StorePart:
        """What a task needs to read ``wanted``."""
        start = self._first_of(wanted.start)
        first = max(start, self.tail_start)
        at = (first - self.tail_start) * ENTRY_BYTES
        tail = self.tail[at : (wanted.end - self.tail_start) * ENTRY_BYTES] if first < wanted.end else b""
        last = min(wanted.end, self.tail_start) - 1
        last_at = self.entry(last)[0] if last >= start else NOT_IN_FILES
        return StorePart(wanted, log_start, first, tail, start, self._is_batch, self._files.folder, last_at)


class StoreDirectory(QueueDirectory):
    """The store in ``directory``, which belongs to broker ``broker_name``."""

    def __init__(self, directory: str, broker_name: str, *, fail_on_data_loss: bool) -> None:
        self._directory = directory
        self._broker_name = broker_name
        self._fail_on_data_loss = fail_on_data_loss
        self._files = files = ReadOnlyFiles()
        self._state: CheckpointState = read_checkpoint(files, f"{directory}/checkpoint")
        self._last_stop = read_abort(files, directory)
        self._log = LogFiles(files, f"{directory}/commitlog")
        self.log_start = self._log.files[0].base if self._log.files else 0
        self._opened: dict[Place, AnyQueueFiles] = {}

    # --- the methods that reading/planning.py calls

    def topics(self) -> list[str]:
        """All topics that have a queue."""
        return sorted({topic for topic, _ in self._queues if not topic.startswith(LMQ_PREFIX)})

    def topic_queues(self, topic: str) -> TopicQueues:
        if topic.startswith(LMQ_PREFIX):
            raise UserError(f"{topic} is a light queue, which only a broker can read; read the topic of its messages")
        found = sorted(queue_id for name, queue_id in self._queues if name == topic)
        if not found:
            raise UserError(self._no_topic(topic))
        # A directory belongs to one broker, whatever other brokers have of the topic.
        return TopicQueues([MessageQueue(topic, self._broker_name, queue_id) for queue_id in found], ())

    def min_offset(self, mq: MessageQueue) -> int:
        return self._queue(mq).low

    def end_position(self, mq: MessageQueue) -> Position:
        # Without the topic's stamp: `StoreQueue.part` says where the messages lie.
        return Position(self._queue(mq).high)

    def topic_offsets(self, topic: str, broker_name: str) -> dict[MessageQueue, OffsetSpan]:
        return {
            MessageQueue(topic, broker_name, queue_id): OffsetSpan(queue.low, queue.high)
            for (name, queue_id), queue in self._queues.items()
            if name == topic
        }

    def committed_offset(self, mq: MessageQueue) -> int | None:
        """Raises UserError: a directory is mostly a backup, and offsets of groups belong to the cluster."""
        raise UserError(
            "option startingOffsets: committed offsets are in a cluster, not in a store directory; give earliest, a"
            " time or offsets"
        )

    def search_offset(self, mq: MessageQueue, timestamp_ms: int) -> int:
        """The first message that was stored at or after the time; the search is the brokers'."""
        queue = self._queue(mq)

        def time_at(offset: int) -> int:
            for at in range(offset, queue.high):
                physical, size = queue.entry(at)
                if size != BLANK_SIZE:
                    return self._log.store_time_at(physical)
            return 1 << 62  # only blanks follow

        return first_at_least(time_at, queue.low, queue.high, timestamp_ms)

    def pull_bytes(
        self,
        mq: MessageQueue,
        offset: int,
        *,
        max_count: int,
        max_bytes: int,
        expression: str | Sql = "*",
        wait_ms: int,
    ) -> Nothing:
        """No messages: tasks read the files themselves, and reading/planning.py only asks which broker answers."""
        return Nothing()

    def size_of(self, mq: MessageQueue, offset: int) -> float:
        """The stored size of the message, or of the batch that has it; 0 when it is missing."""
        _, size = self._queue(mq).entry(offset)
        return 0 if size == BLANK_SIZE else size

    def part(self, wanted: OffsetRange) -> StorePart:
        """What a task needs to read ``wanted``."""
        return self._queue(wanted.queue).part(wanted, self.log_start)

    def _queue(self, mq: MessageQueue) -> StoreQueue:
        return self._queues[mq.topic, mq.queue_id]

    def _no_topic(self, topic: str) -> str:
        where = f"{self._directory} has no messages of topic {topic}"
        own = [name for name in self.topics() if not is_system_topic(name)]
        if not own:
            return f"{where}, nor of any other"
        return f"{where}; it has messages of {', '.join(own[:_SHOWN_TOPICS])}" + (
            f" and {len(own) - _SHOWN_TOPICS} more topics" if len(own) > _SHOWN_TOPICS else ""
        )

    # --- the files and the log

    @cached_property
    def _queues(self) -> Mapping[Place, StoreQueue]:
        if not self._log.files:
            return {}
        self._open_queues()
        start, bounds = self._known()
        # First the files of the queues, then the log after the checkpoint. Queues that lack messages are made again
        # from the whole log, which is slow, and is done once for all of them.
        broken = {place for place, files in self._opened.items() if files.problem}
        found = self._scan(start, broken)
        if lacking := self._lacking(bounds, found) - broken:
            broken |= lacking
            found = self._scan(start, broken)
        self._report(found)
        nothing = QueueFiles(self._files, f"{self._directory}/{QUEUES}/")
        return {
            place: StoreQueue(
                self._opened.get(place, nothing),
                (0, 0) if place in broken else bounds.get(place, (0, 0)),
                found.tails.get(place),
            )
            for place in {*bounds, *found.tails}
        }

    def _open_queues(self) -> None:
        for kind in KINDS:
            root = f"{self._directory}/{kind.folder}"
            for topic in self._files.listdir(root):
                for name in self._files.listdir(f"{root}/{topic}"):
                    if name.isdigit():
                        self._opened[topic, int(name)] = kind(self._files, f"{root}/{topic}/{name}")

    def _scan_start(self) -> int:
        """The offset from which the log is read: all earlier messages are in the queues."""
        state, start = self._state, self.log_start
        if not self._opened:
            return start
        # Skylark's store: everything before the checkpoint is on disk, in the log and in the queues.
        if state.log_offset is not None:
            return max(state.log_offset, start)
        if self._last_stop is LastStop.CLEAN:
            # RocketMQ's store: the queues tell how far the log was whole.
            return max(start, self._known_end)
        # A crashed store of RocketMQ: the newest file that was flushed as a whole, by the times of the checkpoint.
        for file in reversed(self._log.files):
            began_ms = stored_ms(file.view[:HEAD_BYTES]) or 0
            if 0 < began_ms <= state.flushed_timestamp - ROCKETMQ_MARGIN_MS:
                return file.base
        return start

    @cached_property
    def _known_end(self) -> int:
        """Where the last message of all queues ends."""
        return max((files.known_end() for files in self._opened.values()), default=0)

    def _known(self) -> tuple[int, Bounds]:
        """Where to read the log from, and the messages of each queue before that.

        The place is the start of the log if the log does not reach as far as the queues: then its end must be found.
        """
        start = self._scan_start()
        bounds = {place: files.bounds(self.log_start, start) for place, files in self._opened.items()}
        firsts = {place: self._opened[place].first_of(high - 1) for place, (low, high) in bounds.items() if low < high}
        last = [
            (int(entry["physical"]), int(entry["size"]))
            for place, first in firsts.items()
            for entry in self._opened[place].entries(first, first + 1)
        ]
        physical, size = max(last, default=(0, 0))
        state_is_ours = self._state.log_offset is not None
        if size:
            # The last entry must lead to the record that it describes. If it does not, the log is shorter than the
            # queues, or damaged: then the queues are not believed.
            record = self._log.record_at(physical)
            if record is None or record.size != size or (state_is_ours and self._is_truncated(record)):
                return self.log_start, {}
        return start, bounds

    def _lacking(self, bounds: Bounds, found: Scanned) -> set[Place]:
        """Queues that lack messages which they once had, or messages between their files and the end of the log."""
        lacking = {
            place
            for place, tail in found.tails.items()
            if place in self._opened and tail.first > bounds.get(place, (0, tail.first))[1]
        }
        ends = read_queue_ends(self._files, self._directory)
        if ends is not None:
            lacking.update(ends.unfinished)
            for topic, by_id in ends.queues.items():
                for queue_id, (low, high) in by_id.items():
                    place = topic, queue_id
                    first, end = bounds.get(place, (0, 0))
                    tail = found.tails.get(place)
                    lacks_first = ends.log_start == self.log_start and low < first < end
                    if low < high and (lacks_first or high > (tail.end if tail else end)):
                        lacking.add(place)
        return lacking

    def _scan(self, start: int, broken: set[Place]) -> Scanned:
        file = self._log.at(start)
        # After a graceful stop nothing follows the checkpoint, unless bytes say otherwise.
        is_closed = self._last_stop is LastStop.CLEAN and not self._state.crashed
        if (
            is_closed
            and not broken
            and (file is None or not any(file.view[start - file.base : start - file.base + BLANK_BYTES]))
        ):
            return Scanned(start)
        return scan(self._log, self.log_start if broken else start, start, broken, self._why_torn)

    def _is_truncated(self, record: Record) -> bool:
        file = self._log.at(record.physical_offset)
        assert file is not None  # the record was read from it
        return bool(torn_reason(file.view, record.physical_offset - file.base, record, lost_sectors=False))

    def _why_torn(self, file: LogFile, at: int, record: Record) -> str:
        if record.physical_offset < (self._state.log_offset or 0):
            # The record was on disk once. Yet a copy of the directory may end in the middle of the record.
            return torn_reason(file.view, at, record, lost_sectors=False)
        if self._last_stop is LastStop.KILLED and record.physical_offset + record.size <= self._known_end:
            return ""
        return why_torn(self._state, self._last_stop, file.view, at, record)

    def _report(self, found: Scanned) -> None:
        if found.torn:
            logger.warning("store directory %s: %s; all messages before it are read", self._directory, found.torn)
        for path, at, reason in found.holes:
            if self._fail_on_data_loss:
                raise StoreCorrupt(
                    path,
                    at,
                    f"{reason}. Set option failOnDataLoss to false to read the other messages (the damage is logged)",
                )
            logger.warning("store directory %s: %s is damaged at offset %d: %s", self._directory, path, at, reason)

"""The segments in a bucket as a source of queues, for reading/planning.py: each set is a broker.

A queue has the messages of its segments: the file that a broker still writes is not read. The newest manifest is read
again by `TierDirectory.topic_queues`, so the planning of a batch, and each discovery of a stream, sees one state.
Neighbours: reader.py (tasks), mqcommon/tier/view.py (finds messages).
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple
from urllib.parse import unquote

from skylark.mqcommon.errors import UserError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import LMQ_PREFIX, MASTER_ID, is_system_topic
from skylark.mqcommon.tier.bucket import Bucket, DamagedObject, NoSuchObject
from skylark.mqcommon.tier.layout import set_name
from skylark.mqcommon.tier.manifest import Segment
from skylark.mqcommon.tier.opening import open_bucket, sets_in
from skylark.mqcommon.tier.records import records_between
from skylark.mqcommon.tier.segment_index import QueueRow
from skylark.mqcommon.tier.view import TierView
from skylark.sdk.consumer.expression import Sql
from skylark.sdk.position import OffsetSpan, Position
from skylark.sdk.routes import TopicQueues
from skylark.spark_connector.offsets import OffsetRange
from skylark.spark_connector.options.read import ReadOptions
from skylark.spark_connector.reading.planning import QueueDirectory, ask_all
from skylark.spark_connector.reading.pulling import when_back
from skylark.spark_connector.tasks import Splitting
from skylark.spark_connector.tier.cutting import cut, rows_of, segments_of

#: Memory for indexes, of each set, on the driver.
INDEX_BYTES = 64 * 1024 * 1024
_SHOWN = 20


class TierTask(NamedTuple):
    """What one task reads: ``ranges`` of one broker, in ``segments``.

    ``births``: of each queue, as `QueueRow.birth`: rows with another birth are of an earlier topic of the name.
    """

    folder: str
    segments: tuple[Segment, ...]
    ranges: tuple[OffsetRange, ...]
    births: Mapping[MessageQueue, int]


class Messages(NamedTuple):
    """Some stored messages of a queue. A bucket is never behind, so it answers as a master."""

    data: bytes
    next_offset: int
    min_offset: int
    max_offset: int
    broker_id: int = MASTER_ID
    created_ms: int | None = None


class TierSet:
    """The segments of one broker set. ``folder``: its name in the bucket."""

    def __init__(self, bucket: Bucket, name: str) -> None:
        self.name = name
        self.folder = set_name(name)
        self.view = TierView(bucket, self.folder, INDEX_BYTES)
        self._queues: dict[str, list[int]] = {}
        self._spans: dict[MessageQueue, OffsetSpan] = {}
        # The segments, by number, whose index is missing or damaged.
        self._unreadable: set[int] = set()

    def refresh(self) -> bool:
        """Read the newest manifest; whether there is one."""
        if self.view.refresh() is None:
            return False
        queues: dict[str, list[int]] = {}
        for topic, queue_id in self.view.queues():
            # Light queues have no records of their own.
            if not topic.startswith(LMQ_PREFIX):
                queues.setdefault(topic, []).append(queue_id)
        self._queues, self._spans, self._unreadable = queues, {}, set()
        return True

    def topics(self) -> list[str]:
        """The topics with messages."""
        return sorted(self._queues)

    def whole(self, topic: str) -> list[OffsetRange]:
        """All messages of a topic, queue by queue."""
        queues = [MessageQueue(topic, self.name, queue_id) for queue_id in self._queues.get(topic, ())]
        return [OffsetRange(queue, *self.span(queue)) for queue in queues]

    def span(self, queue: MessageQueue) -> OffsetSpan:
        """The first and the next offset of a queue; an empty span if the bucket has nothing of it."""
        found = self._spans.get(queue)
        if found is None:
            newest = self._row(len(self) - 1, queue) if len(self) else None
            # Retention may have removed all: the queue goes on where it was.
            end = newest.next_offset if newest is not None else 0
            try:
                bounds = self.view.bounds(queue.topic, queue.queue_id)
            except (DamagedObject, NoSuchObject):
                # An old index cannot be read. The tasks report the messages that they do not find.
                bounds = 0, end
            found = self._spans[queue] = OffsetSpan(*(bounds or (end, end)))
        return found

    def bytes_of(self, segment: int) -> tuple[int, int]:
        """The bytes of the broker's log that a segment has: (start, end)."""
        found = self.view.segment(segment)
        return found.start, found.end

    # --- marks of cutting.py

    def __len__(self) -> int:
        return self.view.count

    def offset_at(self, segment: int, queue: MessageQueue) -> int:
        """The offset of the first message in this segment or a later one."""
        newest = self._row(len(self) - 1, queue)
        for number in range(segment, -1, -1):
            if number in self._unreadable:
                continue
            try:
                row = self._row(number, queue)
            except (DamagedObject, NoSuchObject):
                # This segment begins where the segment before it ends. The task that reads it reports the loss.
                self._unreadable.add(number)
                continue
            if row is None or newest is None or row.birth != newest.birth:
                break
            return row.first_offset if number == segment else row.next_offset
        # Without a row, or with one of an earlier topic of this name, the queue begins later.
        return 0

    def stored_since(self, segment: int, queue: MessageQueue) -> int:
        """The offset of the first message ever stored in this segment or a later one; the message may be gone."""
        newest = self._row(len(self) - 1, queue)
        if newest is None:
            return 0
        born = self.view.segment_at(newest.birth)
        if born is None or born.start <= self.view.segment(segment).start:
            return self.offset_at(segment, queue)
        row = self.view.table(born).find(queue.topic, queue.queue_id)
        return row.first_offset if row is not None else 0

    def _row(self, segment: int, queue: MessageQueue) -> QueueRow | None:
        return self.view.table(self.view.segment(segment)).find(queue.topic, queue.queue_id)

    def tasks(self, ranges: Sequence[OffsetRange], count: int, splitting: Splitting) -> list[TierTask]:
        """The tasks that read ``ranges`` of this broker."""
        return [self._task(task.ranges) for task in cut(ranges, count, splitting, self)]

    def _task(self, ranges: tuple[OffsetRange, ...]) -> TierTask:
        newest = self.view.table(self.view.segment(len(self) - 1))
        rows = {one.queue: newest.find(one.queue.topic, one.queue.queue_id) for one in ranges}
        births = {queue: row.birth for queue, row in rows.items() if row is not None}
        return TierTask(
            self.folder, tuple(self.view.segment(number) for number in segments_of(ranges, self)), ranges, births
        )


class TierDirectory(QueueDirectory):
    """The sets of ``bucket`` that the options choose; ``now`` is a clock in seconds."""

    def __init__(self, bucket: Bucket, options: ReadOptions, now: Callable[[], float] = time.monotonic) -> None:
        self._bucket = bucket
        self._options = options
        self._now = now
        self._refreshing = threading.Lock()
        self._refreshed_s: float | None = None
        self._sets: Mapping[str, TierSet] = {}

    # --- the methods that reading/planning.py and the driver of a stream call

    def topics(self) -> list[str]:
        """All topics with messages."""
        self._refresh()
        return sorted({topic for one in self._sets.values() for topic in one.topics()})

    def topic_queues(self, topic: str) -> TopicQueues:
        if topic.startswith(LMQ_PREFIX):
            raise UserError(f"{topic} is a light queue, which only a broker can read; read the topic of its messages")
        found = [one.queue for each in self.sets_of(topic) for one in each.whole(topic)]
        if not found:
            raise UserError(self._no_topic(topic))
        return TopicQueues(sorted(found), ())

    def min_offset(self, mq: MessageQueue) -> int:
        return self._span(mq).start

    def end_position(self, mq: MessageQueue) -> Position:
        # Without the topic's stamp: the bucket has none.
        return Position(self._span(mq).end)

    def topic_offsets(self, topic: str, broker_name: str) -> dict[MessageQueue, OffsetSpan]:
        return {one.queue: OffsetSpan(one.start, one.end) for one in self._set(broker_name).whole(topic)}

    def committed_offset(self, mq: MessageQueue) -> int | None:
        """Raises UserError: offsets of groups belong to the cluster."""
        raise UserError(
            "option startingOffsets: committed offsets are in a cluster, and tierPath reads a bucket; give earliest, a"
            " time or offsets"
        )

    def commit_offset(self, mq: MessageQueue, offset: int) -> None:
        """Not called: `commitOffsets` is refused with `tierPath`."""
        raise NotImplementedError

    def search_offset(self, mq: MessageQueue, timestamp_ms: int) -> int:
        found = self._set(mq.broker_name).view.offset_by_time(mq.topic, mq.queue_id, timestamp_ms)
        return self._span(mq).end if found is None else found

    def pull_bytes(
        self,
        mq: MessageQueue,
        offset: int,
        *,
        max_count: int,
        max_bytes: int,
        expression: str | Sql = "*",
        wait_ms: int,
    ) -> Messages:
        """A few messages, for a sample; tasks read otherwise. Waits for none."""
        span = self._span(mq)
        try:
            data, next_offset = self._some(mq, max(offset, span.start), max_count)
        except (DamagedObject, NoSuchObject):
            # Reading needs no sample. The task that reads these messages reports the loss.
            data, next_offset = b"", offset
        return Messages(data, next_offset, *span)

    def _some(self, mq: MessageQueue, offset: int, max_count: int) -> tuple[bytes, int]:
        """A few records from ``offset`` on, and the offset that follows them."""
        view = self._set(mq.broker_name).view
        located = view.locate(mq.topic, mq.queue_id, offset)
        if located is None:
            return b"", offset
        first = max(offset, located.row.first_offset)
        end = min(first + max_count, located.row.next_offset)
        data, next_offset = [], first
        for record, found in records_between(view.read(located, view.stretches(located, first, end)[:1]), first, end):
            data.append(found)
            next_offset = record.queue_offset + record.messages
        return b"".join(data), next_offset

    def pull_bytes_of_queues(
        self,
        offsets: Mapping[MessageQueue, int],
        *,
        max_count: int,
        max_bytes: int,
        expression: str | Sql = "*",
        wait_ms: int,
    ) -> Mapping[MessageQueue, Messages]:
        """As `pull_bytes` of each queue."""
        return {
            mq: self.pull_bytes(mq, offset, max_count=max_count, max_bytes=max_bytes, wait_ms=wait_ms)
            for mq, offset in offsets.items()
        }

    # --- planning

    def sets_of(self, topic: str) -> list[TierSet]:
        """The sets that have messages of ``topic``."""
        self._refresh()
        return [one for one in self._sets.values() if one.whole(topic)]

    def size_of(self, mq: MessageQueue, offset: int) -> float:
        """The mean stored size of the queue's messages in the segment with ``offset``; 0 when that cannot be read."""
        view = self._set(mq.broker_name).view
        try:
            located = when_back(lambda: view.locate(mq.topic, mq.queue_id, offset), self._options.broker_wait_ms)
        except (DamagedObject, NoSuchObject):
            located = None
        return 0 if located is None else located.row.size / (located.row.next_offset - located.row.first_offset)

    def tasks(self, ranges: Sequence[OffsetRange], count: int, splitting: Splitting) -> list[TierTask]:
        """The tasks that read ``ranges``: about ``count``, each of one broker. The same ones when asked again."""
        rows = rows_of(ranges)
        found: list[TierTask] = []
        if unknown := sorted({one.queue.broker_name for one in ranges} - set(self._sets)):
            raise UserError(
                f"{self._where} has nothing of {', '.join(unknown)}{_list_of(list(self._sets))}; the checkpoint has a"
                " micro-batch with messages of these brokers: give the bucket and tierSet that have them"
            )
        for name, one in self._sets.items():
            if own := [each for each in ranges if each.queue.broker_name == name]:
                share = max(round(count * rows_of(own) / rows), 1)
                least = -(-splitting.min_partitions * rows_of(own) // rows)
                wanted = replace(splitting, min_partitions=least)
                found += when_back(partial(one.tasks, own, share, wanted), self._options.broker_wait_ms)
        return found

    def _set(self, broker_name: str) -> TierSet:
        return self._sets[broker_name]

    def _span(self, mq: MessageQueue) -> OffsetSpan:
        return self._set(mq.broker_name).span(mq)

    def _refresh(self) -> None:
        """Read the newest manifests, unless that was done a moment ago."""
        interval_s = min(self._options.discovery_interval_ms / 1000, 1)
        with self._refreshing:  # planning asks for several topics at once
            if self._refreshed_s is not None and self._now() - self._refreshed_s < interval_s:
                return
            self._sets = self._found_sets()
            self._refreshed_s = self._now()

    def _found_sets(self) -> dict[str, TierSet]:
        wanted = self._options.tier_sets
        names = wanted or [unquote(folder) for folder in sets_in(self._bucket)]
        sets = [self._sets.get(name) or TierSet(self._bucket, name) for name in names]
        found = {one.name: one for one, is_there in zip(sets, ask_all(TierSet.refresh, sets), strict=True) if is_there}
        if missing := [name for name in wanted if name not in found]:
            there = [unquote(folder) for folder in sets_in(self._bucket)]
            raise UserError(f"option tierSet: {self._where} has nothing of {', '.join(missing)}{_list_of(there)}")
        if not found:
            raise UserError(f"{self._where} has no segments of any broker; give the tierPath of a broker's conf")
        return found

    @property
    def _where(self) -> str:
        return f"the bucket {self._options.tier_path}"

    def _no_topic(self, topic: str) -> str:
        own = [name for name in self.topics() if not is_system_topic(name)]
        sets = ", ".join(self._sets)
        return f"{self._where} has no messages of topic {topic} in the segments of {sets}{_list_of(own)}"


def _list_of(names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"; it has {', '.join(names[:_SHOWN])}{more}"


@contextmanager
def open_tier(options: ReadOptions) -> Iterator[TierDirectory]:
    """The bucket of the options, for planning."""
    with opened_bucket(options) as bucket:
        yield TierDirectory(bucket, options)


@contextmanager
def opened_bucket(options: ReadOptions) -> Iterator[Bucket]:
    """The bucket of the options, open in the block."""
    bucket = open_bucket(options.tier_path, timeout_s=options.pull_timeout_ms / 1000)
    try:
        yield bucket
    finally:
        bucket.close()

"""Messages whose files have left this disk, read from the bucket: see `OlderMessages`.

Each method blocks and runs in threads of the callers. The event loop only asks `known_first` and `earliest_ms`.
While the bucket cannot be reached, one call after each pause tries it; the others are refused at once, so that they do
not fill the threads. A reader that goes on from where it has stopped has the next stretches read ahead, several
downloads at the same time, by threads without an event loop between them.
Neighbours: store/older.py (the interface), stretch_cache.py, taking.py, mqcommon/tier/view.py (what is where).
"""

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import field
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

import trio

from skylark.broker.part import Part
from skylark.broker.store.filter import Filter
from skylark.broker.store.older import OlderAway, OlderDamaged, OlderFound, OlderQuery, OlderRead
from skylark.broker.store.store import MessageStore
from skylark.broker.tier.damaged_places import DamagedPlaces, Place
from skylark.broker.tier.stretch_cache import DOWNLOAD_BYTES, Download, Piece, PieceRun, StretchCache, open_ring
from skylark.broker.tier.taking import Taking
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.tier.bucket import BucketAway, BucketRefused, DamagedObject, NoSuchObject
from skylark.mqcommon.tier.manifest import Manifest
from skylark.mqcommon.tier.record_places import Ints
from skylark.mqcommon.tier.records import stored_records
from skylark.mqcommon.tier.segment_index import STRETCH_BYTES, QueueStretches
from skylark.mqcommon.tier.view import Located, TierView, class_object
from skylark.remoting.net.steps import slices

logger = logging.getLogger(__name__)

# How often the newest manifest is read, and after a failure.
REFRESH_S = 30.0
REFRESH_AGAIN_S = 5.0
# Between two refreshes the first offsets of at most ``MAX_FIRSTS`` queues are found. Each turn of the event loop looks
# at ``QUEUES_AT_ONCE`` queues for them.
QUEUES_AT_ONCE = 5_000
MAX_FIRSTS = 1_000
# A reader of few messages downloads one piece: the stretches that begin within the same PIECE_BYTES bytes of a queue.
PIECE_BYTES = 256 * 1024
# For bytes that may be damaged: each stretch is a piece of its own.
SINGLE = 1
# The most bytes that one read looks at to find what a filter wants.
SCAN_BYTES = 8 * 1024 * 1024
# A reader that goes on has first one download read ahead, then 2, then 4; all readers together this many at a time.
MOST_AHEAD = 4
AHEAD_THREADS = 4
# The most downloads that wait for these threads.
MOST_WAITING = 16
# The most readers that are remembered, to know a reader that goes on.
MAX_READERS = 10_000
# The pause after a failure of the bucket, and after further ones.
LEAST_PAUSE_MS = 1_000
MOST_PAUSE_MS = 15_000
# In place of the first offset of a queue of which the bucket has nothing: it is past all offsets.
NO_FIRST = 1 << 62
# How long a search by key may take: RocketMQ's clients give up after 15 s.
KEY_SEARCH_MS = 10_000
# Damaged objects that are remembered as logged.
MAX_LOGGED = 1_000

T = TypeVar("T")
#: Topic and queue id.
QueueName = tuple[str, int]


@lazy_dataclass(slots=True)
class ReadFigures:
    """Since the start: reads of queues from the bucket, their messages and bytes; calls that failed."""

    reads: int = 0
    messages: int = 0
    bytes: int = 0
    failures: int = 0


@lazy_dataclass(slots=True, eq=False)
class _Reader:
    """A reader of one queue, for which up to ``depth`` downloads are read ahead.

    ``begins``: where those begin that the reader has not come to. ``reached``: the offset after the last one.
    """

    depth: int = 0
    reached: int = 0
    begins: deque[int] = field(default_factory=deque)
    #: Whether a thread looks for what to read ahead.
    is_ahead: bool = False


class _Damage(NamedTuple):
    """The messages of a queue from ``first_offset`` on, before ``next_offset``, cannot be read, for ``error``."""

    place: Place
    first_offset: int
    next_offset: int
    error: Exception


class _Part(NamedTuple):
    """Bytes of stretches that follow each other. ``begins``: where in ``data`` each of them begins."""

    data: memoryview
    begins: Ints


class _NextBytes(NamedTuple):
    """Bytes of stretches that follow each other, and the offset after them, where ``damage`` may begin."""

    parts: Iterable[_Part]
    next_offset: int
    damage: _Damage | None = None


@lazy_dataclass(frozen=True, slots=True)
class _Ahead:
    """Have the next ``count`` downloads of a queue from ``offset`` on, before ``end``, read ahead for ``reader``."""

    queue: QueueName
    offset: int
    end: int
    count: int
    reader: _Reader = field(compare=False)


class _Planned(NamedTuple):
    """A download of messages from ``offset`` on, before ``next_offset``; ``left``: how many are wanted after it."""

    pieces: Sequence[Piece]
    download: Download
    offset: int
    next_offset: int
    left: int


class OlderReads(Part):
    """The reads of one broker. Sets itself as ``log.older`` of ``store``.

    ``why_refused``: why the bucket must not be read; "" if it may be read. ``cache_bytes``: of memory. ``disk_cache``:
    a file for the stretches that leave the memory, and the most bytes of the file. Nothing in the file outlives this
    process. ``hold_ms``: see `DamagedPlaces`.
    """

    def __init__(
        self,
        view: TierView,
        store: MessageStore,
        clock: Clock,
        *,
        why_refused: Callable[[], str],
        cache_bytes: int,
        disk_cache: tuple[str, int] | None = None,
        hold_ms: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.cache = StretchCache(cache_bytes, None if disk_cache is None else open_ring(*disk_cache))
        # In half of a small cache there must be room for a download ahead.
        self._download_bytes = min(DOWNLOAD_BYTES, cache_bytes // 4)
        self.figures = ReadFigures()
        self.damaged = DamagedPlaces(clock, hold_ms)
        view.on_read = self.damaged.object_was_read
        self._view = view
        self._store = store
        self._clock = clock
        self._why_refused = why_refused
        self._health = _Health(clock)
        self._lock = threading.Lock()
        # First offsets, of queues that begin later in the store. None of them is too high.
        self._firsts: dict[QueueName, int] = {}
        # Queues that have no message in the segments up to ``_absent_end``. Later segments may have some.
        self._absent: set[QueueName] = set()
        self._absent_end = 0
        self._earliest_ms = -1
        # Spans, segments and how many classes each segment has: what leaves the bucket changes first offsets.
        self._kept: Sequence[tuple[int, int]] = []
        # By queue, and by the offset at which the last read of the reader has ended.
        self._readers: OrderedDict[tuple[str, int, int], _Reader] = OrderedDict()
        self._logged: dict[str, None] = {}
        # What the threads that read ahead are to do; None while there are no such threads. With None a thread ends.
        self._to_read_ahead: SimpleQueue[_Ahead | None] | None = None
        store.log.older = self

    # --- the part

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Know the newest manifest, and read ahead, until cancelled."""
        waiting: SimpleQueue[_Ahead | None] = SimpleQueue()
        self._to_read_ahead = waiting
        threads = trio.CapacityLimiter(AHEAD_THREADS)
        task_status.started()
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(AHEAD_THREADS):
                    work = partial(trio.to_thread.run_sync, limiter=threads, abandon_on_cancel=True)
                    nursery.start_soon(work, self._work_ahead, waiting)
                while True:
                    names = await self._unknown_queues()
                    is_known = await trio.to_thread.run_sync(self._try_refresh, names, abandon_on_cancel=True)
                    await trio.sleep(REFRESH_S if is_known else REFRESH_AGAIN_S)
        finally:
            self._to_read_ahead = None
            for _ in range(AHEAD_THREADS):
                waiting.put(None)

    async def close(self) -> None:
        """Remove what the cache has on disk."""
        self.cache.close()

    async def _unknown_queues(self) -> list[QueueName]:
        """Some of the queues that have lost messages in the store, and whose first offsets are not known."""
        found: list[QueueName] = []
        for queues in slices(list(self._store.queues), QUEUES_AT_ONCE):
            for queue in queues:
                name = queue.topic, queue.queue_id
                if queue.min_offset and len(found) < MAX_FIRSTS and self.known_first(*name) is None:
                    found.append(name)
            await trio.lowlevel.checkpoint()
        return found

    def _try_refresh(self, names: Sequence[QueueName]) -> bool:
        try:
            self._call(self._refresh)
            for topic, queue_id in names:
                self._call(partial(self._find_first, topic, queue_id))
        except (OlderAway, OlderDamaged):
            return False
        return True

    def _refresh(self) -> None:
        """Read the newest manifest, and what follows from it."""
        manifest = self._view.refresh()
        if manifest is None:
            return
        # Also a manifest that the owner of the set has created in this process.
        manifest = self._view.manifest or manifest
        oldest = manifest.spans[0] if manifest.spans else manifest.segments[0] if manifest.segments else None
        self._earliest_ms = -1 if oldest is None else oldest.first_ms
        kept = _kept(manifest)
        if kept[: len(self._kept)] != self._kept:
            # Something was removed: first offsets may have changed.
            for topic, queue_id in list(self._firsts):
                # Where an index is damaged the known first offset stays: it is not too high.
                with suppress(DamagedObject, NoSuchObject):
                    self._find_first(topic, queue_id)
        self._kept = kept

    def _find_first(self, topic: str, queue_id: int) -> int | None:
        end = self._bucket_end
        try:
            bounds = self._view.bounds(topic, queue_id)
        except (DamagedObject, NoSuchObject) as error:
            place = error.object_name or str(error), (topic, queue_id)
            if not self.damaged.may_pass(place, f"the first messages of queue {queue_id} of {topic}", 0, error):
                raise
            bounds = self._view.bounds(topic, queue_id, passes_damage=True)
        with self._lock:
            if bounds is None:
                self._firsts.pop((topic, queue_id), None)
                if self._absent_end != end:
                    self._absent.clear()
                    self._absent_end = end
                self._absent.add((topic, queue_id))
                return None
            self._firsts[topic, queue_id] = bounds[0]
            return bounds[0]

    # --- from memory

    @property
    def earliest_ms(self) -> int:
        return -1 if self._why_refused() else self._earliest_ms

    def known_first(self, topic: str, queue_id: int) -> int | None:
        if self._why_refused():
            return None
        name = topic, queue_id
        first = self._firsts.get(name)
        is_absent = first is None and name in self._absent and self._absent_end == self._bucket_end
        return NO_FIRST if is_absent else first

    @property
    def _bucket_end(self) -> int:
        """Where the segments end, as far as known."""
        manifest = self._view.manifest
        return manifest.end if manifest else 0

    # --- what the store asks

    def first_offset(self, topic: str, queue_id: int, local: int) -> int:
        first = self._call(partial(self._find_first, topic, queue_id))
        return local if first is None else min(first, local)

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        end: int,
        max_count: int,
        max_bytes: int,
        wanted: Filter,
        unwraps: bool,
    ) -> OlderRead:
        hides = partial(self._view.hides, topic)
        taking = partial(Taking, topic, offset, end, max_count, max_bytes, wanted, unwraps=unwraps, hides=hides)
        result = self._call(lambda: self._read((topic, queue_id), offset, end, max_count, max_bytes, taking()))
        with self._lock:
            self.figures.reads += 1
            self.figures.messages += result.messages
            self.figures.bytes += len(result.records)
        if not result.is_gone and result.next_offset < end:
            self._note_reader((topic, queue_id), offset, result.next_offset, end)
        return result

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        try:
            return self._call(lambda: self._store_time(topic, queue_id, offset))
        except (OlderAway, OlderDamaged):
            return -1

    def offset_by_time(self, topic: str, queue_id: int, end: int, timestamp_ms: int, upper: bool) -> int:
        # The last message at or before a time is the one before the first message after that time.
        wanted_ms = timestamp_ms + 1 if upper else timestamp_ms
        found = self._call(lambda: self._view.offset_by_time(topic, queue_id, wanted_ms))
        offset = end if found is None else min(found, end)
        return max(offset - 1, self.first_offset(topic, queue_id, end)) if upper else offset

    def record_at(self, physical_offset: int) -> bytes | None:
        return self._call(lambda: self._record_at(physical_offset))

    def _record_at(self, physical_offset: int) -> bytes | None:
        segment = None
        try:
            segment = self._view.segment_at(physical_offset)
            record = self._view.record_at(physical_offset)
        except (DamagedObject, NoSuchObject) as error:
            name = (error.object_name or str(error)) if segment is None else segment.folder
            what = f"the message at offset {physical_offset} of the log"
            if not self.damaged.may_pass((name, physical_offset), what, 1, error):
                raise
            return None
        if segment is not None:
            self.damaged.was_read((segment.folder, physical_offset))
        return record

    def with_key(self, query: OlderQuery) -> OlderFound:
        end_ms = self._clock.monotonic_ms() + KEY_SEARCH_MS
        found = self._call(
            lambda: self._view.with_key(
                query.topic,
                query.key,
                query.begin_ms,
                query.end_ms,
                query.max_num,
                unique=query.unique,
                now_ms=self._clock.now_ms(),
                before=query.before,
                is_over=lambda: self._clock.monotonic_ms() >= end_ms,
            )
        )
        return OlderFound(*found)

    # --- reads of queues

    def _located(self, queue: QueueName, offset: int) -> Located | None:
        """The segment with the first message at or after ``offset``."""
        located = self._view.locate(*queue, offset)
        if located is None:
            # The newest files may have left the disk since the last look at the bucket.
            self._refresh()
            located = self._view.locate(*queue, offset)
        return located

    def _read(
        self, queue: QueueName, offset: int, end: int, max_count: int, max_bytes: int, taking: Taking
    ) -> OlderRead:
        located, is_past_damage = self._located_past_damage(queue, offset, end)
        if located is None:
            return OlderRead(end, is_gone=not is_past_damage)
        if queue not in self._firsts:
            with suppress(DamagedObject, NoSuchObject):  # for figures only
                self._find_first(*queue)
        if offset < located.row.first_offset and not is_past_damage:
            first = self._find_first(*queue)
            if first is None or offset < first:
                return OlderRead(end if first is None else min(first, end), is_gone=True)
        # Up to the next segment, and what is looked at: a filter may want none of the messages in the first stretches.
        stop, looked = min(located.row.next_offset, end), 0
        size = min(max(max_bytes, PIECE_BYTES), self._download_bytes)
        # Not many more records are taken apart than the reader wants.
        part_bytes = min(max_bytes, max_count * located.row.size // located.row.records)
        begin = offset
        while offset < stop and not taking.is_full and not taking.has_messages and looked < SCAN_BYTES:
            found = self._next_bytes(located, offset, stop, size, part_bytes)
            for part in found.parts:
                taking.add(part.data, part.begins)
                looked += len(part.data)
                if taking.is_full:
                    break
            else:
                # There may be no messages up to the next stretch, or the next segment.
                taking.next_offset = offset = max(taking.next_offset, found.next_offset)
                if (damage := found.damage) is not None and not taking.has_messages:
                    if not self._may_pass(queue, damage):
                        if offset > begin:
                            break  # the reader meets the damage when it comes again
                        raise damage.error
                    taking.next_offset = offset = max(offset, min(damage.next_offset, stop))
            size = self._download_bytes
        return taking.result

    def _located_past_damage(self, queue: QueueName, offset: int, end: int) -> tuple[Located | None, bool]:
        """(as `_located`, whether readers skip messages before it, or before ``end``, whose index is damaged)."""
        try:
            return self._located(queue, offset), False
        except (DamagedObject, NoSuchObject) as error:
            located = self._view.locate(*queue, offset, passes_damage=True)
            # The error names the index, which has rows of thousands of queues.
            place = error.object_name or str(error), (*queue, offset)
            after = end if located is None else located.row.first_offset
            if not self._may_pass(queue, _Damage(place, offset, after, error)):
                raise
            return located, True

    def _may_pass(self, queue: QueueName, damage: _Damage) -> bool:
        first, end = damage.first_offset, damage.next_offset
        what = f"{end - first} messages of queue {queue[1]} of {queue[0]}, from offset {first} to {end - 1},"
        return self.damaged.may_pass(damage.place, what, end - first, damage.error)

    def _next_bytes(self, located: Located, offset: int, stop: int, size: int, part_bytes: int) -> _NextBytes:
        """The messages from ``offset`` on, of some ``size`` bytes, up to the first damage."""
        # Apart from the queues in the index, which may be right while these bytes are not.
        in_index = f"the stretches in {located.segment.index.name}", located.row.first_row
        try:
            found = self._view.stretches_of(located)
            name = class_object(located)
        except (DamagedObject, NoSuchObject) as error:
            return _NextBytes([], offset, _Damage(in_index, offset, located.row.next_offset, error))
        self.damaged.was_read(in_index)
        numbers = _next_numbers(found, offset, stop, size)
        positions, offsets = found.positions, found.offsets
        known, piece_end = self._known_damage(located, found, numbers)
        if not known:
            try:
                sound = self._parts(located, found, numbers, part_bytes, PIECE_BYTES)
                return _NextBytes(sound, min(int(offsets[numbers.stop]), stop))
            except (DamagedObject, NoSuchObject):
                pass
        elif known[-1] < numbers.start:
            # The rest of a piece whose beginning is damaged.
            numbers = range(numbers.start, min(numbers.stop, piece_end))
        elif (first := next(number for number in known if number >= numbers.start)) > numbers.start:
            # What is before the damage is read at once, as far as it is sound.
            numbers = range(numbers.start, min(numbers.stop, first))
        parts: list[_Part] = []
        for number in numbers:
            place = name, int(positions[number])
            try:
                parts += self._parts(located, found, range(number, number + 1), part_bytes, SINGLE)
            except (DamagedObject, NoSuchObject) as error:
                first = max(int(offsets[number]), offset)
                end = max(min(int(offsets[number + 1]), stop), first + 1)
                end = located.row.next_offset if isinstance(error, NoSuchObject) else end
                return _NextBytes(parts, first, _Damage(place, first, end, error))
            self.damaged.was_read(place)
        return _NextBytes(parts, min(int(offsets[numbers.stop]), stop))

    def _known_damage(self, located: Located, found: QueueStretches, numbers: range) -> tuple[list[int], int]:
        """(stretches, in the pieces with ``numbers``, that could not be read; the stretch after the first piece)."""
        damaged = self.damaged.positions(class_object(located))
        if not damaged:
            return [], numbers.start
        pieces = _pieces(located, found, numbers, PIECE_BYTES)
        ends = [piece.position + piece.size for piece in pieces]
        first, piece_end, end = found.positions.searchsorted((pieces[0].position, ends[0], ends[-1])).tolist()
        return [number for number in range(first, end) if int(found.positions[number]) in damaged], piece_end

    def _parts(
        self, located: Located, found: QueueStretches, numbers: range, part_bytes: int, piece_bytes: int
    ) -> Iterator[_Part]:
        """The bytes of stretches, from the cache or the bucket, in parts of ``part_bytes``, at least one stretch."""
        pieces = _pieces(located, found, numbers, piece_bytes)
        runs = self.cache.get(pieces, partial(self._download, located, found))
        return _cut(found, numbers, runs, part_bytes)

    def _download(self, located: Located, found: QueueStretches, pieces: Sequence[Piece]) -> bytes:
        begin, end = pieces[0].position, pieces[-1].position + pieces[-1].size
        first, last = found.positions.searchsorted((begin, end)).tolist()
        return self._view.read(located, range(first, last))

    def _store_time(self, topic: str, queue_id: int, offset: int) -> int:
        located = self._located((topic, queue_id), offset)
        if located is None:
            return -1
        found = self._view.stretches_of(located)
        for part in self._parts(located, found, found.numbers(offset, offset + 1), STRETCH_BYTES, PIECE_BYTES):
            for record in stored_records(bytes(part.data)):
                if record.queue_offset <= offset < record.queue_offset + record.messages:
                    return -1 if self._view.hides(topic, record.physical_offset) else record.store_ms
        return -1

    # --- reading ahead

    def _note_reader(self, queue: QueueName, offset: int, next_offset: int, end: int) -> None:
        """Have what follows read ahead, if a reader has gone on."""
        with self._lock:
            known = self._readers.pop((*queue, offset), None)
            reader = self._readers[*queue, next_offset] = known or _Reader()
            if len(self._readers) > MAX_READERS:
                self._readers.popitem(last=False)
            if known is None or self._to_read_ahead is None or reader.is_ahead:
                return
            while reader.begins and reader.begins[0] <= next_offset:
                reader.begins.popleft()
            if reader.depth and len(reader.begins) >= reader.depth:
                return
            reader.is_ahead = True
            reader.depth = min(max(2 * reader.depth, 1), MOST_AHEAD)
            count = reader.depth - len(reader.begins)
        self._ask_ahead(_Ahead(queue, max(next_offset, reader.reached), end, count, reader))

    def _ask_ahead(self, ahead: _Ahead) -> None:
        """Have a thread read ahead, unless the threads have enough to do."""
        waiting = self._to_read_ahead
        if waiting is None or waiting.qsize() >= MOST_WAITING:
            ahead.reader.is_ahead = False
        else:
            waiting.put(ahead)

    def _work_ahead(self, waiting: "SimpleQueue[_Ahead | None]") -> None:
        """The work of one thread, until this part has ended."""
        while (ahead := waiting.get()) is not None and waiting is self._to_read_ahead:
            self._read_ahead(ahead)

    def _read_ahead(self, ahead: _Ahead) -> None:
        """Read the next download that the cache lacks; once it has begun, another thread reads those after it."""
        reader, has_begun = ahead.reader, False

        def begin(planned: _Planned) -> None:
            nonlocal has_begun
            if has_begun:
                return  # `_call` tries again
            has_begun = True
            self._note_ahead(reader, planned)
            if planned.left:
                self._ask_ahead(_Ahead(ahead.queue, planned.next_offset, ahead.end, planned.left, reader))
            else:
                reader.is_ahead = False

        def read() -> None:
            if (planned := self._plan(ahead)) is not None:
                self.cache.read_ahead(planned.pieces, planned.download, partial(begin, planned))

        try:
            # The reader meets the same errors when it comes there.
            with suppress(OlderAway, OlderDamaged):
                self._call(read)
        finally:
            if not has_begun:
                reader.is_ahead = False

    def _plan(self, ahead: _Ahead) -> _Planned | None:
        """The next download that the cache lacks; None if there is none near."""
        offset = ahead.offset
        for _ in range(ahead.count + MOST_AHEAD):
            located = self._view.locate(*ahead.queue, offset)
            if located is None or located.row.first_offset >= ahead.end:
                break
            found = self._view.stretches_of(located)
            begin = max(offset, located.row.first_offset)
            numbers = _next_numbers(found, begin, located.row.next_offset, self._download_bytes)
            pieces = _pieces(located, found, numbers, PIECE_BYTES)
            offset = int(found.offsets[numbers.stop])
            planned = _Planned(pieces, partial(self._download, located, found), begin, offset, ahead.count - 1)
            if not self.cache.has(pieces):
                return planned
            self._note_ahead(ahead.reader, planned)
        return None

    def _note_ahead(self, reader: _Reader, planned: _Planned) -> None:
        with self._lock:
            reader.begins.append(planned.offset)
            reader.reached = planned.next_offset

    # --- failures

    def _call(self, attempt: Callable[[], T]) -> T:
        """The result of ``attempt``, which may run twice. OlderAway, OlderDamaged."""
        if why := self._why_refused():
            raise _away(why)
        is_probe = self._health.check()
        try:
            try:
                # An answer from memory would not show that the bucket answers again.
                if is_probe or self._view.manifest is None:
                    self._refresh()
                result = attempt()
            except NoSuchObject:
                # Retention, or a removal of a deleted topic, may have replaced the object since the last look.
                self._refresh()
                result = attempt()
        except (NoSuchObject, DamagedObject, ProtocolError) as error:
            self._health.succeeded(is_probe=is_probe)
            raise self._damaged(error) from error
        except (BucketAway, BucketRefused) as error:
            with self._lock:
                self.figures.failures += 1
            raise self._health.failed(error, is_probe=is_probe) from error
        self._health.succeeded(is_probe=is_probe)
        return result

    def _damaged(self, error: Exception) -> OlderDamaged:
        text = f"old messages in the bucket cannot be read, as they are missing or damaged: {error}"
        with self._lock:
            self.figures.failures += 1
            is_new = text not in self._logged and len(self._logged) < MAX_LOGGED
            if is_new:
                self._logged[text] = None
        if is_new:
            logger.error("%s. To examine the bucket, run: mqadmin tierVerify", text)
        return OlderDamaged(text)


class _Health:
    """Whether the bucket answers. After a failure nobody asks it for a while; after further failures for longer."""

    def __init__(self, clock: Clock) -> None:
        self.problem = ""
        self._clock = clock
        self._lock = threading.Lock()
        self._pause_ms = 0
        self._until_ms = 0

    def check(self) -> bool:
        """OlderAway during a pause. After it one caller tries the bucket (True) while others are refused."""
        with self._lock:
            if not self.problem:
                return False
            now_ms = self._clock.monotonic_ms()
            if now_ms < self._until_ms:
                raise _away(self.problem)
            self._until_ms = now_ms + MOST_PAUSE_MS
            return True

    def failed(self, error: Exception, *, is_probe: bool) -> OlderAway:
        """Begin a pause, or after a probe a longer one; returns what the caller raises."""
        with self._lock:
            is_first = not self.problem
            self.problem = str(error)
            if is_first or is_probe:
                self._pause_ms = LEAST_PAUSE_MS if is_first else min(2 * self._pause_ms, MOST_PAUSE_MS)
                self._until_ms = self._clock.monotonic_ms() + self._pause_ms
        if is_first:
            what = "old messages cannot be read from the bucket, their readers wait"
            if isinstance(error, BucketRefused):
                logger.error("%s: %s. Give the broker's credentials the right to read its objects", what, error)
            else:
                logger.warning("%s: %s", what, error)
        return _away(str(error))

    def succeeded(self, *, is_probe: bool) -> None:
        """A call got what it wanted. Only a probe has certainly asked the bucket: others may have read memory."""
        if not is_probe:
            return
        with self._lock:
            was_away, self.problem = bool(self.problem), ""
        if was_away:
            logger.info("old messages can be read from the bucket again")


def _away(problem: str) -> OlderAway:
    return OlderAway(f"it cannot be read now: {problem}")


def _kept(manifest: Manifest) -> Sequence[tuple[int, int]]:
    """What retention and deletions have left, as a sequence that only grows while they leave all."""
    spans = [(span.start, span.stored.crc) for span in manifest.spans]
    deleted = [(each.physical_offset, len(each.topic)) for each in manifest.tombstones]
    return [*deleted, *spans, *[(segment.start, len(segment.classes)) for segment in manifest.segments]]


def _next_numbers(found: QueueStretches, offset: int, stop: int, size: int) -> range:
    """The stretches with the messages from ``offset`` on, before ``stop``; their pieces have some ``size`` bytes."""
    firsts = found.offsets[:-1]
    first = max(int(firsts.searchsorted(offset, "right")) - 1, 0)
    end = min(found.fitting(first, size, PIECE_BYTES).stop, int(firsts.searchsorted(stop)))
    return range(first, max(end, first + 1))


def _pieces(located: Located, found: QueueStretches, numbers: range, piece_bytes: int) -> list[Piece]:
    """The pieces that have these stretches."""
    name = class_object(located)
    return [Piece(name, position, size) for position, size in found.pieces(numbers, piece_bytes)]


def _cut(found: QueueStretches, numbers: range, runs: Sequence[PieceRun], part_bytes: int) -> Iterator[_Part]:
    """The stretches in runs of pieces that have all of them: parts of ``part_bytes``, but at least one stretch."""
    positions = found.positions
    number = numbers.start
    for position, data in runs:
        stop = min(int(positions.searchsorted(position + len(data))), numbers.stop)
        while number < stop:
            begin = int(positions[number])
            end = min(max(int(positions.searchsorted(begin + part_bytes, "right")) - 1, number + 1), stop)
            yield _Part(data[begin - position : int(positions[end]) - position], positions[number:end] - begin)
            number = end

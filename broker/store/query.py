"""Finds messages: by key through the index, by time through a queue.

Store times never go back in a log that this broker wrote. They may go back in the log of a Java broker whose clock was
set back, or of an older Skylark after a restart; see `first_at_least`. An entry of a queue may be blank (RocketMQ's
filler, or a hole that a repair left): it counts as the next message after it. A message whose record was removed counts
as older than any time, unless there is a bucket: then the messages before the queue's start are searched there.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import field
from typing import NamedTuple

from skylark.broker.store.expanded import expanded
from skylark.broker.store.filter import Filter
from skylark.broker.store.index.index import Index
from skylark.broker.store.index.index_file import IndexFile
from skylark.broker.store.log.commitlog import CommitLog
from skylark.broker.store.log.log_files import HEAD_BYTES, stored_ms
from skylark.broker.store.log.residency import AllNotResident, NotResident, ask, bytes_got
from skylark.broker.store.older import OlderMessages, OlderQuery
from skylark.broker.store.queue.consumequeue import ConsumeQueue
from skylark.broker.store.queue.entry import BLANK_SIZE
from skylark.broker.store.reader import first_offset
from skylark.mqcommon.errors import DiskFull, ProtocolError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.flags import WRAPPED
from skylark.mqcommon.message.properties import find_property
from skylark.mqcommon.message.record import Record, decode_record, record_physical_offset
from skylark.mqcommon.message.record_keys import index_keys

_UNIQUE_KEY = b"UNIQ_KEY"
# How many entries are read at once to get past blank ones.
_BLANKS = 512
# How many entries a search by time looks at in one round; four rounds are enough for 16 million messages.
_PROBES = 64
# The time of a blank entry without a later message.
_NEVER = 1 << 63
# How many messages a query first adds to a lagging index, in all and in one step.
CATCH_UP = 20_000
BUILD = 2_000
# The most index entries that a query looks at, in all (some seconds) and in one step (some milliseconds).
MAX_LOOKED = 2_000_000
ENTRIES = 2_000
# The most messages that a query reads in one step.
RECORDS = 20


@lazy_dataclass
class QueryResult:
    """Stored messages that have a key, newest first, and how far the index goes.

    ``cut``: why the search ended early, so that further messages may have the key; "" if all was searched.
    ``next_end_ms``: what is left are the messages that were stored until this time; None if the search cannot go on.
    """

    records: list[bytes] = field(default_factory=list)
    last_update_timestamp: int = 0
    last_update_physical_offset: int = 0
    cut: str = ""
    next_end_ms: int | None = None


class WantedKey(NamedTuple):
    """Messages of ``topic`` that have ``key`` as unique key or as a word of KEYS; ``unique``: only as unique key.

    They are at most ``max_num`` and ``max_bytes``, stored from ``begin_ms`` to ``end_ms``.
    """

    topic: str
    key: str
    max_num: int
    begin_ms: int
    end_ms: int
    max_bytes: int
    unique: bool


class KeyQuery:
    """A search for messages by key, in small steps. The index may lag; ``build_index`` lets it catch up first.

    The index has one chain of entries per hash slot, with the entries of other keys, too. Each step follows it for
    ENTRIES entries, MAX_LOOKED in all.
    """

    def __init__(
        self,
        log: CommitLog,
        index: Index,
        build_index: Callable[[int], int],
        wanted: WantedKey,
        confirmed: Callable[[], int] | None = None,
    ) -> None:
        """``confirmed``: messages that end after this offset of the log are not found."""
        self.result = QueryResult()
        self._log = log
        self._index = index
        self._build_index = build_index
        self._to_index = CATCH_UP
        self._topic, key, self._max_num, self._begin_ms, self._end_ms, self._max_bytes, self._unique = wanted
        self._key = key.encode()
        self._key_hash = index.key_hash(wanted.topic, key)
        self._confirmed = confirmed
        # Whether the bucket, with messages before the log's start, is still to be searched.
        self._has_older = log.older is not None
        # The index files left to search, newest last, and the entry of the last file to go on with (None: its first).
        self._files: list[IndexFile] | None = None
        self._at: int | None = None
        self._looked = 0
        self._candidates: deque[int] = deque()
        self._seen: set[int] = set()
        # Physical offsets of the records that were read: their files may have left for the bucket when it is searched.
        self._read: set[int] = set()

    def step(self) -> bool:
        """Search a little further; returns whether there is more.

        NotResident changes nothing: repeat the step when the bytes are in memory.
        """
        if self._to_index > 0:
            with suppress(DiskFull):
                # On a full disk the query goes on with what the index already holds.
                done = self._build_index(min(self._to_index, BUILD))
                self._to_index -= done or self._to_index
                return True
            self._to_index = 0
        if self._files is None:
            self._files = self._index.files_of(self._begin_ms, self._end_ms)[::-1]
            if self._index.files:
                self.result.last_update_timestamp = self._index.files[-1].end_ms
                self.result.last_update_physical_offset = self._index.files[-1].end_physical
        if len(self.result.records) >= self._max_num or self._max_bytes <= 0:
            return False
        if self._candidates:
            self._check()
        elif self._files:
            self._walk(self._files)
        elif self._has_older:
            self._search_bucket()
        return bool(self._files or self._candidates or self._has_older) and not self.result.cut

    def _search_bucket(self) -> None:
        older, result, begin = self._log.older, self.result, self._log.start
        # A unique key has one message, as a rule.
        if older is not None and begin and not (self._unique and result.records):
            times, left = (self._begin_ms, self._end_ms), self._max_num - len(result.records)
            query = OlderQuery(self._topic, self._key.decode(), *times, begin, left, unique=self._unique)
            found = ask(older.with_key, query)
            if found.cut:
                result.cut = f"the search in the bucket ended early: {found.cut}"
                result.next_end_ms = found.next_end_ms
            for raw in found.records:
                if record_physical_offset(raw) in self._read:
                    continue
                if len(result.records) < self._max_num and self._max_bytes > 0:
                    self._take(raw)
        self._has_older = False

    def _walk(self, files: list[IndexFile]) -> None:
        file = files[-1]
        if all(each is not file for each in self._index.files):
            # The cleaner removed the file: its messages are gone.
            self._at = 0
        elif self._at is None:
            self._at = file.newest(self._key_hash)
        if self._at:
            most = min(ENTRIES, MAX_LOOKED - self._looked)
            found, looked, self._at = file.walk(self._at, self._key_hash, self._begin_ms, self._end_ms, most)
            self._looked += looked
            self._candidates.extend(physical for physical in dict.fromkeys(found) if physical not in self._seen)
            self._seen.update(found)
        if not self._at:
            files.pop()
            self._at = None
        if files and self._looked >= MAX_LOOKED:
            self.result.cut = f"only the newest {MAX_LOOKED} entries of the index were searched"

    def _check(self) -> None:
        """Compare some candidates with the search: hashes collide, and the index has whole seconds only."""
        result = self.result
        for _ in range(min(RECORDS, len(self._candidates))):
            if len(result.records) >= self._max_num or self._max_bytes <= 0:
                return
            # Read the candidate before it is removed: after NotResident the step must be repeatable.
            raw = self._log.record_at(self._candidates[0])
            physical = self._candidates.popleft()
            if raw is None or (self._confirmed is not None and physical + len(raw) > self._confirmed()):
                continue
            self._read.add(physical)
            if self._take(raw):
                # An inner batch may have thousands of messages, so the step ends here.
                return

    def _take(self, raw: bytes) -> bool:
        """Add the record to the result, or those messages of it that have the key; returns whether it is a batch."""
        try:
            record = decode_record(raw, check_crc=False)
        except ProtocolError:
            return False
        if record.topic != self._topic or not self._begin_ms <= record.store_timestamp <= self._end_ms:
            return False
        is_batch = record.sys_flag & WRAPPED == WRAPPED
        for found in self._of_batch(raw, record) if is_batch else [raw] if self._has_key(record.properties) else []:
            self.result.records.append(found)
            self._max_bytes -= len(found)
        return is_batch

    def _of_batch(self, raw: bytes, batch: Record) -> list[bytes]:
        """The messages of an inner batch that have the key, newest first; the batch if only the batch has the key."""
        # `Filter` shows properties with a separator before and after them.
        wanted = Filter(matches=lambda properties: self._has_key(properties[1:-1]))
        found = [record for _, record in expanded(raw, batch.queue_offset, wanted)]
        if not found or found[0] is raw:
            return [raw] if self._has_key(batch.properties) else []
        return found[: -(self._max_num - len(self.result.records)) - 1 : -1]

    def _has_key(self, properties: bytes) -> bool:
        if self._unique:
            return find_property(properties, _UNIQUE_KEY) == self._key
        return self._key in index_keys(properties)


def store_time(log: CommitLog, queue: ConsumeQueue, offset: int, *, is_figure: bool = True) -> int:
    """When message ``offset`` of ``queue`` was stored (ms); -1 when there is no such message.

    ``is_figure``: nothing depends on the time, so it may be wrong when the log is damaged, and it is -1 for a message
    in a bucket that cannot be read now.
    """
    if not queue.min_offset <= offset < queue.next_offset:
        return _older_time(log, queue, offset) if is_figure and 0 <= offset < queue.min_offset else -1
    physical, size, _ = queue.entry(offset)
    if size == BLANK_SIZE or physical < log.start or physical + max(size, HEAD_BYTES) > log.end:
        return -1
    time_ms = stored_ms((log.glance if is_figure else log.read)(physical, HEAD_BYTES))
    return -1 if time_ms is None else time_ms


def _older_time(log: CommitLog, queue: ConsumeQueue, offset: int) -> int:
    if log.older is None or bytes_got() is None:
        return -1
    return ask(log.older.store_time, queue.topic, queue.queue_id, offset)


def first_store_time(log: CommitLog, queue: ConsumeQueue) -> int:
    """When the oldest message of ``queue`` was stored (ms); -1 when it has none."""
    first = first_offset(log, queue)
    if first < queue.min_offset:
        return _older_time(log, queue, first)
    return store_time(log, queue, _next_message(queue, queue.min_offset, queue.next_offset))


def offset_by_time(log: CommitLog, queue: ConsumeQueue, high: int, timestamp_ms: int, *, upper: bool = False) -> int:
    """The first offset stored at or after ``timestamp_ms``; with ``upper`` the last one stored at or before it.

    Returns ``high`` if all messages before ``high`` are older (with ``upper`` the queue's start if all are newer).
    """
    low = queue.min_offset
    if log.older is not None and low:
        found = _older_by_time(log, log.older, queue, high, timestamp_ms, upper=upper)
        if found is not None:
            return found

    def time_at(offset: int) -> int:
        at = _next_message(queue, offset, high)
        return store_time(log, queue, at, is_figure=False) if at < high else _NEVER

    if not upper:
        return _next_message(queue, first_at_least(time_at, low, high, timestamp_ms), high)
    # The same search from the other end, where times fall.
    back = first_at_least(lambda place: -time_at(high - 1 - place), 0, high - low, -timestamp_ms)
    return max(high - 1 - back, low)


def _older_by_time(
    log: CommitLog, older: OlderMessages, queue: ConsumeQueue, high: int, timestamp_ms: int, *, upper: bool
) -> int | None:
    """As `offset_by_time` among the messages in the bucket; None if the messages in the log have to be searched."""
    low = queue.min_offset
    first = _next_message(queue, low, high)
    first_ms = store_time(log, queue, first, is_figure=False) if first < high else _NEVER
    # Times do not go back, as a rule: the time of the first message in the log tells where to search.
    if first_ms <= timestamp_ms if upper else first_ms < timestamp_ms:
        return None
    found = ask(older.offset_by_time, queue.topic, queue.queue_id, low, timestamp_ms, upper)
    return first if found >= low and not upper else found


def first_at_least(time_at: Callable[[int], int], low: int, high: int, wanted: int) -> int:
    """The first place from ``low`` on whose time is at least ``wanted``; ``high`` if there is none before it.

    Bisection would be enough if times never went back. Here each round probes `_PROBES` places, so that it detects
    where times go back for longer than the distance between two places. There it examines the peak before, too.
    """
    while low < high:
        step = -(-(high - low) // _PROBES)
        places = [*range(low + step - 1, high - 1, step), high - 1]
        times = _times_at(time_at, places)
        first, before = low, times[0]
        for place, time in zip(places, times, strict=True):
            if time < before and (peak := _peak(time_at, first - 1, place))[1] >= wanted:
                low, high = first, peak[0]
                break
            if time >= wanted:
                low, high = first, place
                break
            first, before = place + 1, time
        else:
            return high
    return high


def _peak(time_at: Callable[[int], int], low: int, high: int) -> tuple[int, int]:
    """(place, time) of a message that an older one follows; the time at ``low`` must be later than at ``high``."""
    latest = time_at(low)
    while high - low > 1:
        middle = (low + high) // 2
        time = time_at(middle)
        if time >= latest:
            low, latest = middle, time
        else:
            high = middle
    return low, latest


def _times_at(time_at: Callable[[int], int], places: list[int]) -> list[int]:
    """The times at all ``places``; NotResident names all bytes that are on disk only, to be read in one go."""
    times: list[int] = []
    cold: list[NotResident] = []
    for place in places:
        try:
            times.append(time_at(place))
        except NotResident as missing:
            # The traceback would keep this frame in a cycle.
            cold.append(missing.with_traceback(None))
    if cold:
        raise AllNotResident(cold)
    return times


def _next_message(queue: ConsumeQueue, offset: int, end: int) -> int:
    """The first offset from ``offset`` on that is not blank; ``end`` if there is none before it."""
    if offset < end and queue.entry(offset)[1] != BLANK_SIZE:
        return offset
    while offset < end:
        for _, size, _ in queue.entries(offset, min(_BLANKS, end - offset)):
            if size != BLANK_SIZE:
                return offset
            offset += 1
    return end

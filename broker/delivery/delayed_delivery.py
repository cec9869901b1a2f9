"""Delivers messages of delay levels when they are due, through the Writer.

Only the master delivers: on a slave the log has one writer, the replica. RocketMQ's acting master delivers to another
broker only (enableRemoteEscape), which this broker does not have, so messages wait until a master is back.
A level is delivered in order and in slices, so that a backlog does not block the event loop. A message that cannot be
delivered now (a full disk) holds its level up; it is tried again. A message that can never be delivered is logged and
skipped. The offsets are saved every SAVE_S, as `LevelProgress` allows; slaves copy them (45), so a promoted slave
continues at these offsets. After a crash or a demotion the messages since the last save are delivered again.
The entry of a message has the time when it is due, by the clock at the time of storing. `MessageAges` adjusts this time
when the clock is set, so that no delay becomes shorter or longer while the process runs.
Neighbours: writing/deferred.py (into a level, and out of it), meta/delay_offsets.py (the saved offsets).
"""

import logging
from collections import deque
from functools import partial
from typing import NamedTuple

import trio

from skylark.broker.cold_reads import from_disk
from skylark.broker.delivery.background import Background, Failures
from skylark.broker.delivery.message_ages import MessageAges
from skylark.broker.meta.delay_offsets import DelayOffsets
from skylark.broker.part import Part
from skylark.broker.store.queue.consumequeue import ConsumeQueue
from skylark.broker.store.queue.delay_levels import DelayLevels
from skylark.broker.store.queue.entry import BLANK_SIZE
from skylark.broker.store.reader import GetResult, GetStatus
from skylark.broker.writing.deferred import from_level
from skylark.mqcommon.errors import OutOfDescriptors, ProtocolError, RequestRefused, StoreError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.record import decode_record
from skylark.mqcommon.names import SCHEDULE_TOPIC
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.offsets import DelayOffsetTable

logger = logging.getLogger(__name__)


# The most deliveries, each of a slice of messages, that wait for an fsync. Further ones are merged, and saved later.
MAX_ROWS = 1_024


class LevelProgress:
    """How far one level is delivered, and which offset may be saved.

    Invariant: an offset is saved only when the copies of all messages before it are on disk, and in Controller mode
    confirmed. Otherwise a power loss, or another master, could lose a copy but keep the saved offset, and the message
    would never be delivered. Conversely, a message whose copy is on disk but whose offset is not saved is delivered
    again: this is the only reason for a second delivery.
    """

    def __init__(self, offset: int) -> None:
        #: The next message to deliver.
        self.next_offset = offset
        #: The offset that may be saved.
        self.safe_offset = offset
        # (end of the log after the copies, offset of the next message)
        self._rows: deque[tuple[int, int]] = deque()

    @property
    def is_saved(self) -> bool:
        """Whether no delivery waits for an fsync."""
        return not self._rows

    def delivered(self, offset: int, log_end: int) -> None:
        """Record that the messages before ``offset`` are delivered, with their copies in the log before ``log_end``."""
        self.next_offset = offset
        if len(self._rows) >= MAX_ROWS:
            self._rows.pop()
        self._rows.append((log_end, offset))

    def flushed(self, reached: int) -> int:
        """Record that the log is on disk, and confirmed, up to ``reached``; returns the safe offset."""
        rows = self._rows
        while rows and rows[0][0] <= reached:
            self.safe_offset = rows.popleft()[1]
        return self.safe_offset


# The pause between two polls of idle levels, so the longest delay of a due message; RocketMQ's value.
POLL_S = 0.1
# The pause while no message waits, but at most half of the shortest delay: so this pause makes no message late.
IDLE_S = 0.5
SAVE_S = 1.0
# Messages delivered in one turn of the event loop: some 2 ms.
SLICE = 64
# The most bytes of messages that a slice reads, but always one message.
SLICE_BYTES = 1 << 20
MAX_REASON = 500
# The pause of a level after a failure.
PAUSE_S = 1.0


@lazy_dataclass(slots=True, eq=False)
class _Level:
    number: int
    delay_ms: int
    progress: LevelProgress
    # The saved offset as last seen.
    saved: int
    # The next message: its offset, its place in the log, and when it is due by its entry. Cached so that polling an
    # idle level is cheap.
    head: tuple[int, int, int] = (-1, 0, 0)
    not_before: float = 0.0

    @property
    def queue_id(self) -> int:
        return self.number - 1


class _Due(NamedTuple):
    """The due messages of a level. ``places``: offset and size of each message in ``found.records``, and maybe more."""

    found: GetResult
    places: list[tuple[int, int]]


class DelayedDelivery(Part):
    """Delivers the messages of all delay levels."""

    def __init__(self, background: Background, levels: DelayLevels, offsets: DelayOffsets) -> None:
        self._store = background.store
        self._writer = background.writer
        self._clock = background.clock
        self._ages = MessageAges(background.store, background.clock)
        self._is_active = background.is_active
        self._flush = background.flush
        self._turned = background.turned
        self._is_deleted = background.is_deleted
        self._note_dropped = background.note_dropped
        self._failures = Failures(logger)
        self._delays = levels
        self._offsets = offsets
        # Empty while this broker does not deliver.
        self._levels: list[_Level] = []
        self._stopping = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Deliver until cancelled."""
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._save_often)
            while True:
                self._follow_role()
                # Detect steps of the clock before due times are compared with it.
                self._store.check_clock()
                more = False
                for level in self._levels:
                    more |= await self._serve(level)
                if not more:
                    await trio.sleep(self._pause_s())

    def _pause_s(self) -> float:
        if not self._levels or self.undelivered:
            return POLL_S
        return max(POLL_S, min(IDLE_S, min(self._delays.delays_ms) / 2_000))

    async def stop(self) -> None:
        """Deliver no more; the store is flushed next."""
        self._stopping = True

    async def close(self) -> None:
        """Save how far the levels are delivered."""
        if self._levels and self._is_active():
            self._save()

    @property
    def undelivered(self) -> int:
        """Messages that wait in all levels."""
        done = {level.number: level.progress.next_offset for level in self._levels}
        saved = self._offsets.table.offset_table
        return sum(
            max(self._end(number) - done.get(number, saved.get(number, 0)), 0)
            for number in range(1, len(self._delays.delays_ms) + 1)
        )

    def forget(self) -> None:
        """Forget the levels, at a change of the role.

        Not left to `_follow_role`: before it runs, the role may change again and the log may be cut.
        """
        self._levels = []

    def _follow_role(self) -> None:
        """Load the levels when this broker becomes the master, drop them when it is demoted.

        A demoted broker saves no more offsets: its last messages may not be in the new master's log.
        """
        active = self._is_active() and not self._stopping
        if active and not self._levels:
            self._ages.begin()
            saved = self._offsets.table.offset_table
            self._levels = [
                _Level(
                    number, delay_ms, LevelProgress(min(saved.get(number, 0), self._end(number))), saved.get(number, 0)
                )
                for number, delay_ms in enumerate(self._delays.delays_ms, 1)
            ]
            self._lower_saved()
        elif not active and not self._stopping:
            self._levels = []

    def _lower_saved(self) -> None:
        """Lower saved offsets that are past the ends of this log's queues.

        A slave may have copied the offsets of its master but not the end of the master's log. As the master it stores
        other messages at these offsets, and its next start would take them for delivered messages.
        """
        if all(level.saved <= level.progress.next_offset for level in self._levels):
            return
        what = "offsets of delay levels are not saved"
        try:
            self._save()
        except StoreError as error:
            self._failures.failed(what, error)
            self._levels = []  # the next poll tries again
        else:
            self._failures.succeeded(what)

    def _end(self, number: int) -> int:
        """The end of the level's queue; a saved offset past it belongs to another store."""
        return self._store.max_offset(SCHEDULE_TOPIC, number - 1)

    # --- delivery

    async def _serve(self, level: _Level) -> bool:
        """Deliver a slice of due messages; returns whether there may be more."""
        if self._stopping or trio.current_time() < level.not_before:
            return False
        saved = self._offsets.table.offset_table.get(level.number, 0)
        if saved != level.saved:
            level.saved = saved
            if saved > level.progress.next_offset:
                # A slave that acted for this master delivered them.
                level.progress = LevelProgress(min(saved, self._end(level.number)))
        queue = self._store.queues.find(SCHEDULE_TOPIC, level.queue_id)
        if queue is None or not self._may_be_due(level, queue):
            return False
        what = f"messages of delay level {level.number} are not delivered"
        try:
            due = await from_disk(partial(self._find_due, level, queue))
            # The role may have changed while a thread read: a slave's log must not get a copy. After two role changes
            # `_levels` has new objects.
            if due is None or level not in self._levels or not self._is_active() or self._stopping:
                return False
            self._deliver_all(level, *due)
        except Exception as error:
            level.not_before = trio.current_time() + PAUSE_S
            self._failures.failed(what, error)
            return False
        self._failures.succeeded(what)
        await trio.lowlevel.checkpoint()
        return True

    def _may_be_due(self, level: _Level, queue: ConsumeQueue) -> bool:
        offset = level.progress.next_offset
        if offset >= queue.next_offset:
            return False
        known, physical, due_ms = level.head
        return known != offset or self._due_ms(level, physical, due_ms) <= self._clock.now_ms()

    def _due_ms(self, level: _Level, physical: int, due_ms: int) -> int:
        """When a message is due by the present clock, given its place in the log and the time in its entry."""
        return self._ages.stored_ms(physical, due_ms - level.delay_ms) + level.delay_ms

    def _find_due(self, level: _Level, queue: ConsumeQueue) -> _Due | None:
        """The messages of the next slice; None when nothing is due."""
        offset, now_ms = level.progress.next_offset, self._clock.now_ms()
        count = 0
        for physical, size, due_ms in self._store.entries(queue, offset, SLICE):
            if size != BLANK_SIZE and self._due_ms(level, physical, due_ms) > now_ms:
                if not count:
                    level.head = offset, physical, due_ms
                    return None
                break
            count += 1
        found = self._store.get(SCHEDULE_TOPIC, level.queue_id, offset, max(count, 1), SLICE_BYTES)
        # Read the entries only now: the read above mends damaged entries, and the records have the mended sizes.
        sizes = [size for _, size, _ in self._store.entries(queue, offset, count)] if count else []
        return _Due(found, [(number, size) for number, size in enumerate(sizes, offset) if size != BLANK_SIZE])

    def _deliver_all(self, level: _Level, found: GetResult, places: list[tuple[int, int]]) -> None:
        """Deliver the messages that were read. RequestRefused when the rest of them cannot be delivered now."""
        progress, log = level.progress, self._store.log
        if found.status is GetStatus.OFFSET_TOO_SMALL:
            logger.error(
                "messages %d to %d of delay level %d were removed from the log before they were delivered",
                progress.next_offset,
                found.next_offset - 1,
                level.number,
            )
        at = 0
        try:
            for offset, size in places[: found.count]:
                self._deliver(level, offset, found.records[at : at + size])
                at += size
                progress.delivered(offset + 1, log.end)
            progress.delivered(found.next_offset, log.end)
        finally:
            self._turned()

    def _deliver(self, level: _Level, offset: int, raw: bytes) -> None:
        try:
            record = decode_record(raw)
            message = from_level(record)
            # A topic of the same name that was made since the deletion begins empty; so does a group's retry topic.
            if self._is_deleted(message.topic, record.physical_offset):
                self._note_dropped(message.topic, record)
            else:
                self._writer.put_again(message)
        except (ValueError, ProtocolError, RequestRefused) as error:
            if isinstance(error, RequestRefused) and error.code != ResponseCode.MESSAGE_ILLEGAL:
                raise
            text = "message %d of delay level %d cannot be delivered, it is skipped: %s"
            logger.error(text, offset, level.number, str(error)[:MAX_REASON])

    # --- the offsets

    async def _save_often(self) -> None:
        what = "offsets of delay levels are not saved"
        while True:
            await trio.sleep(SAVE_S)
            if all(level.progress.is_saved for level in self._levels):
                continue
            try:
                await self._flush()
            except OutOfDescriptors as error:
                self._failures.failed(what, error)
            else:
                self._failures.succeeded(what)
                if self._is_active():
                    self._save()

    def _save(self) -> None:
        table, reached = self._offsets.table, self._store.safe_end
        changed: dict[int, int] = {}
        # Only offsets whose copies are on disk, and confirmed, are saved: see `LevelProgress`.
        for level in self._levels:
            safe = level.progress.flushed(reached)
            # If the saved offset was changed meanwhile (taken over from a slave), `_serve` must read it first.
            if safe != level.saved and level.saved == table.offset_table.get(level.number, 0):
                changed[level.number] = level.saved = safe
        if changed:
            version = table.data_version.next(self._clock.now_ms())
            self._offsets.put(DelayOffsetTable(table.offset_table | changed, version))

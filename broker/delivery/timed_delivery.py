"""Delivers timed messages when they are due, through the Writer.

Only the master delivers, as with delay levels; a slave needs nothing but the log. When this broker becomes the master,
it reads the waiting messages from the queue of rmq_sys_wheel_timer, and follows the queue from then on; `History` knows
which messages were delivered before. A slot is delivered in slices, so that a backlog does not block the event loop.
When a message cannot be delivered now (a full disk), all messages wait. A message that can never be delivered is logged
and skipped.
Neighbours: writing/deferred.py (a timed message on its way into that topic, and out of it), recall.py.
"""

import logging
from array import array
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from typing import NamedTuple

import trio

from skylark.broker.cold_reads import from_disk
from skylark.broker.delivery.background import Background, Failures
from skylark.broker.observe.meter import MINUTE_MS, SECOND_MS, SampleWindow
from skylark.broker.part import Part
from skylark.broker.store.log.commitlog import CommitLog
from skylark.broker.store.queue.consumequeue import ConsumeQueue
from skylark.broker.store.queue.entry import BLANK_SIZE
from skylark.broker.store.queue.tags import MAX_SLOT_DIGITS
from skylark.broker.store.reader import GetStatus
from skylark.broker.store.store import MessageStore
from skylark.broker.writing.deferred import DELETE, REAL_TOPIC, SLOT, UNIQ_KEY, from_timer
from skylark.broker.writing.stored_properties import Incoming
from skylark.mqcommon.errors import ProtocolError, RequestRefused
from skylark.mqcommon.message.flags import HOSTS_V6, TRANSACTION_MASK
from skylark.mqcommon.message.layout import BLANK_MAGIC, HEAD_V4, HEADS, MAGIC_V1, MAGIC_V2, MIN_RECORD, SIZE_MAGIC
from skylark.mqcommon.message.properties import find_property
from skylark.mqcommon.message.record import Record, decode_record
from skylark.mqcommon.names import TIMER_TOPIC
from skylark.remoting.protocol.codes import ResponseCode

#: The queue of checkpoints.
CHECKPOINT_QUEUE = 1
_VERSION = b"1"
_HEAD = HEAD_V4.reader("size", "magic", "sys_flag")
_PHYSICAL_OFFSET = HEAD_V4.reader("physical_offset")
_MAGICS = [magic.to_bytes(4) for magic in (MAGIC_V1, MAGIC_V2)]
_MAGIC_AT = HEAD_V4.starts["magic"]
_ORIGINS = {bits: head.reader("prepared_transaction_offset") for bits, head in HEADS.items()}
#: The most bytes in the head of a record.
HEAD_BYTES = max(head.size for head in HEADS.values())


class TimerCheckpoint(NamedTuple):
    """The progress of timed delivery, as a message in queue 1 of rmq_sys_wheel_timer: a start need not read the log.

    Of the messages before offset ``read_to`` of queue 0, messages in slots up to ``done_slot`` are done, and messages
    in later slots were not delivered before ``position`` of the log; no message before ``low`` waits. Later messages
    count as waiting until a copy is found: copies are searched for from ``position`` on. A checkpoint is in the log
    itself, after everything that it describes: whatever part of the log a crash or a change of the master cuts off, the
    last remaining checkpoint is true.
    """

    low: int = 0
    read_to: int = 0
    done_slot: int = -1
    position: int = 0

    def encode(self) -> bytes:
        return b" ".join([_VERSION, *(b"%d" % value for value in self)])

    @classmethod
    def decode(cls, body: bytes) -> "TimerCheckpoint":
        """The checkpoint in ``body``; ProtocolError when ``body`` is no checkpoint."""
        version, *values = body.split(b" ")
        if version != _VERSION or len(values) != 4:
            raise ProtocolError(f"a checkpoint of timers begins with {body[:40]!r}")
        try:
            return cls(*map(int, values))
        except ValueError as error:
            raise ProtocolError(f"a checkpoint of timers has bad numbers: {error}") from None

    @classmethod
    def of_rocketmq(cls, data: bytes) -> "TimerCheckpoint":
        """A checkpoint made of RocketMQ's file ``timercheck``. RocketMQ's copies have no marks to search for."""
        if len(data) < 32:
            raise ProtocolError(f"the file has {len(data)} bytes, at least 32 are needed")
        read_ms, read_to = (int.from_bytes(data[at : at + 8], "big", signed=True) for at in (0, 16))
        return cls(0, max(read_to, 0), max(read_ms, 0) - 1, 0)


class History:
    """Knows which messages of the queue were delivered before the start.

    The rule: a timed message is delivered if, and only if, the log has its copy. A copy identifies the message: its
    preparedTransactionOffset is the physical offset at which the message waited, plus 1, and its sysFlag has no bit of
    a transaction. Clients cannot set that field. A copy comes after its message in the log, and copy and mark are one
    record, so a crash loses both or neither: no message is delivered twice into one log, and a message whose copy was
    lost is delivered again.
    """

    def __init__(self, checkpoint: TimerCheckpoint, delivered: set[int]) -> None:
        """``delivered``: the origins of all copies from the checkpoint's position on, as copies name them."""
        self._read_to = checkpoint.read_to
        self._done = checkpoint.done_slot
        self._delivered = delivered
        #: The latest slot from which a message was delivered.
        self.done_slot = checkpoint.done_slot

    def waits(self, offset: int, slot: int, physical: int) -> bool:
        """Whether the message at ``offset`` of the queue and ``physical`` of the log still has to be delivered."""
        if physical + 1 in self._delivered:
            self.done_slot = max(self.done_slot, slot)
            return False
        return offset >= self._read_to or slot > self._done


def read_origins(data: bytes, into: "array[int]", start: int) -> int:
    """Add the origins of the records in ``data``, which begins at ``start`` of the log; returns where to go on in it.

    The result may be past the end, as only heads are read. The rest of a file after a filler is skipped by its size.
    What is damaged, and could not be mended in time, is passed by up to the next record.
    """
    at, last = 0, len(data) - HEAD_BYTES
    while at <= last:
        size, magic, sys_flag = _HEAD.unpack_from(data, at)
        if magic == BLANK_MAGIC:
            break
        if magic not in (MAGIC_V1, MAGIC_V2) or size < MIN_RECORD:
            at = _next_record(data, at + 1, start)
            continue
        # In a committed message this field has the place of the half.
        if not sys_flag & TRANSACTION_MASK:
            (origin,) = _ORIGINS[sys_flag & HOSTS_V6].unpack_from(data, at)
            if origin:
                into.append(origin)
        at += size
    if at + SIZE_MAGIC.size <= len(data):
        size, magic = SIZE_MAGIC.unpack_from(data, at)
        if magic == BLANK_MAGIC:
            at += size
    return at


def _next_record(data: bytes, at: int, start: int) -> int:
    """Where a record begins from ``at`` on that names its own place; if there is none, where one may still begin."""
    last = len(data) - HEAD_BYTES
    while at <= last:
        found = [place for magic in _MAGICS if (place := data.find(magic, at + _MAGIC_AT)) >= 0]
        at = min(found) - _MAGIC_AT if found else last + 1
        if at > last or _PHYSICAL_OFFSET.unpack_from(data, at)[0] == start + at:
            break
        at += 1
    return at


# Bytes of the log that are read at once: some ms of work.
PIECE_BYTES = 1 << 20


async def last_checkpoint(store: MessageStore) -> TimerCheckpoint | None:
    """The last checkpoint in the log; None if there is none. ProtocolError when it cannot be read."""
    end = store.max_offset(TIMER_TOPIC, CHECKPOINT_QUEUE)
    if not end:
        return None
    found = await from_disk(lambda: store.get(TIMER_TOPIC, CHECKPOINT_QUEUE, end - 1, 1, PIECE_BYTES))
    return TimerCheckpoint.decode(decode_record(found.records).body) if found.count else None


async def copies_since(log: CommitLog, start: int) -> set[int]:
    """The origins of all copies from ``start`` on, where a record begins."""
    origins: array[int] = array("q")
    at, end = max(start, log.start), log.end
    while at < end:
        segment = log.chain.at(at)
        if segment is None:
            break
        size = min(at + PIECE_BYTES, segment.end, end) - at
        data = await from_disk(partial(log.read, at, size))
        after = at + read_origins(data, origins, at)
        await trio.lowlevel.checkpoint()
        # A file may end in a few bytes, too few for a filler.
        at = min(after, segment.end) if after > at else segment.end
    return set(origins)


logger = logging.getLogger(__name__)


# How many offsets share a counter.
_RANGE_BITS = 12


class Pending:
    """Which timed messages wait: their queue offsets, by slot.

    A million of them take some 10 MB: an array for each slot, and counters by ranges of offsets. The arrays keep the
    order of the queue, so that messages of one slot are delivered as they were sent.
    ``done_slot``: the latest slot from which a message was delivered.
    """

    def __init__(self, done_slot: int = -1) -> None:
        self.done_slot = done_slot
        #: Messages that wait.
        self.count = 0
        self._offsets: dict[int, array[int]] = {}
        # How many of a slot's offsets are done.
        self._taken: dict[int, int] = {}
        self._slots: list[int] = []
        # The ranges of offsets in which messages wait, in rising order, each with the number of waiting messages.
        self._ranges: dict[int, int] = {}
        self._recalled: dict[int, set[bytes]] = {}

    def add(self, slot: int, offset: int) -> None:
        """Add the message at ``offset``, which is higher than all earlier offsets, to ``slot``."""
        offsets = self._offsets.get(slot)
        if offsets is None:
            offsets = self._open(slot)
        offsets.append(offset)
        self.count += 1
        number = offset >> _RANGE_BITS
        self._ranges[number] = self._ranges.get(number, 0) + 1

    def recall(self, slot: int, unique_key: bytes) -> None:
        """Mark messages of ``slot`` with this key as recalled: they are not delivered."""
        if slot not in self._offsets:
            self._open(slot)
        self._recalled.setdefault(slot, set()).add(unique_key)

    def _open(self, slot: int) -> "array[int]":
        heappush(self._slots, slot)
        offsets = self._offsets[slot] = array("q")
        return offsets

    def is_recalled(self, slot: int, unique_key: bytes | None) -> bool:
        keys = self._recalled.get(slot)
        return keys is not None and unique_key in keys

    @property
    def first_slot(self) -> int | None:
        """The slot that is due first."""
        return self._slots[0] if self._slots else None

    def late(self, last_slot: int) -> int:
        """How many messages of slots up to ``last_slot`` wait."""
        if not self._slots or self._slots[0] > last_slot:
            return 0
        late = [slot for slot in self._slots if slot <= last_slot]
        return sum(len(self._offsets[slot]) - self._taken.get(slot, 0) for slot in late)

    def due(self, last_slot: int, limit: int) -> tuple[int, list[int]]:
        """(slot, up to ``limit`` of its offsets) of the first slot, if it is not after ``last_slot``.

        A slot without offsets is closed here.
        """
        while self._slots and self._slots[0] <= last_slot:
            slot = self._slots[0]
            start = self._taken.get(slot, 0)
            found = self._offsets[slot][start : start + limit].tolist()
            if found:
                return slot, found
            self._close_first()
        return 0, []

    def done(self, slot: int, offset: int) -> None:
        """Remove the next message of ``slot``, at ``offset``: it was delivered, or never will be."""
        taken = self._taken[slot] = self._taken.get(slot, 0) + 1
        self.count -= 1
        self.done_slot = max(self.done_slot, slot)
        number = offset >> _RANGE_BITS
        left = self._ranges[number] - 1
        if left:
            self._ranges[number] = left
        else:
            del self._ranges[number]
        if taken == len(self._offsets[slot]) and self._slots[0] == slot:
            self._close_first()

    def _close_first(self) -> None:
        slot = heappop(self._slots)
        del self._offsets[slot]
        self._taken.pop(slot, None)
        self._recalled.pop(slot, None)
        self.done_slot = max(self.done_slot, slot)

    @property
    def is_between_slots(self) -> bool:
        """Whether all slots up to ``done_slot`` are done, so that this slot alone describes the state."""
        return not self._slots or self._slots[0] > self.done_slot

    def low(self, read_to: int) -> int:
        """An offset before which no message waits; ``read_to`` if no message waits at all."""
        first = next(iter(self._ranges), None)
        return read_to if first is None else first << _RANGE_BITS


POLL_S = 0.05
BETWEEN_SLICES_S = 0.0
# Messages delivered in one turn of the event loop: some 2 ms. If more messages came since the last turn, that many are
# delivered, up to a limit: otherwise delivery would lag as long as messages are sent that fast.
SLICE = 64
MAX_SLICE = 1_024
# A large message counts as several: one more for each multiple of this many bytes.
BYTES_OF_ONE = 16 << 10
# Entries of the queue that are read in one turn.
ENTRIES_AT_ONCE = 8_192
# A checkpoint is written when the log has grown by this much: a start reads at most about this much to find copies.
CHECKPOINT_BYTES = 16 << 20
# The pause after a failure.
PAUSE_S = 1.0
MAX_REASON = 500
# Larger tags codes are slots, smaller ones are hashes that a Java broker wrote.
_MAX_HASH = 1 << 32


class TimerRates(NamedTuple):
    """Timed messages a second, over the last 10 seconds."""

    enqueued: float
    delivered: float


def recall_names(properties: bytes) -> tuple[bytes, ...]:
    """The names by which recalls identify a message: ``topic+uniqueKey``; before RocketMQ 5.3 the key alone."""
    key = find_property(properties, UNIQ_KEY)
    return () if key is None else (b"%s+%s" % (find_property(properties, REAL_TOPIC) or b"", key), key)


class _State:
    """A master's knowledge of the waiting messages. ``history`` is valid for the entries before ``restored_to``."""

    def __init__(self, checkpoint: TimerCheckpoint, history: History, restored_to: int) -> None:
        self.pending = Pending(checkpoint.done_slot)
        self.read_to = checkpoint.low
        self.saved = checkpoint
        self.history: History | None = history
        self.restored_to = restored_to


class TimedDelivery(Part):
    """Delivers all timed messages of a broker."""

    tick_interval_ms = 1_000.0

    def __init__(
        self,
        background: Background,
        precision_ms: int,
        store_host: bytes,
        read_java_checkpoint: Callable[[], bytes | None],
        is_read_here: Callable[[str], bool],
    ) -> None:
        """``read_java_checkpoint`` returns the file ``timercheck`` of a Java broker, None if there is none.

        ``is_read_here``: whether messages for a topic are read in the timer's topic, and must not be delivered.
        """
        self._store = background.store
        self._writer = background.writer
        self._clock = background.clock
        self._is_active = background.is_active
        self._turned = background.turned
        self._is_deleted = background.is_deleted
        self._note_dropped = background.note_dropped
        self._precision_ms = precision_ms
        self._store_host = store_host
        self._read_java_checkpoint = read_java_checkpoint
        self._is_read_here = is_read_here
        # None while this broker does not deliver, and until the log has been read.
        self._state: _State | None = None
        # How often the state was forgotten.
        self._era = 0
        self._failures = Failures(logger)
        self._stopping = False
        self._delivered = self._enqueued = 0
        self._window = SampleWindow(MINUTE_MS, SECOND_MS, self._clock.now_ms(), (0, 0))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Deliver until cancelled."""
        task_status.started()
        what = "timed messages are not delivered"
        while True:
            pause_s = POLL_S
            if not self._is_active() or self._stopping:
                self.forget()
            else:
                try:
                    if await self._step():
                        pause_s = BETWEEN_SLICES_S
                    self._failures.succeeded(what)
                except Exception as error:
                    self._failures.failed(what, error)
                    pause_s = PAUSE_S
            await trio.sleep(pause_s)

    def tick(self) -> None:
        """Take a sample of the counters."""
        self._window.sample(self._clock.now_ms(), (self._enqueued, self._delivered))

    async def stop(self) -> None:
        """Deliver no more; the store is flushed next."""
        self._stopping = True

    def forget(self) -> None:
        """Forget the state at a role change; it is read again when this broker is the master."""
        self._state = None
        self._era += 1

    # --- figures for other modules

    @property
    def waiting(self) -> int:
        """How many messages wait, as far as the queue was read."""
        return 0 if self._state is None else self._state.pending.count

    @property
    def unread(self) -> int:
        """How many entries of the queue were not read yet."""
        end = self._store.max_offset(TIMER_TOPIC, 0)
        return 0 if self._state is None else max(end - self._state.read_to, 0)

    @property
    def undelivered(self) -> int:
        """How many messages wait; while that is not known, all messages of the queue count."""
        queue = self._store.queues.find(TIMER_TOPIC, 0)
        if queue is None:
            return 0
        return queue.next_offset - queue.min_offset if self._state is None else self.waiting + self.unread

    @property
    def behind_ms(self) -> int:
        """How late the next message to deliver is."""
        first = None if self._state is None else self._state.pending.first_slot
        return 0 if first is None else max(self._clock.now_ms() - first - self._precision_ms, 0)

    @property
    def late(self) -> int:
        """How many messages should have been delivered by now."""
        return 0 if self._state is None else self._state.pending.late(self._clock.now_ms() - self._precision_ms)

    @property
    def read_to(self) -> int:
        """The first entry of the queue that was not read yet; -1 while this broker does not deliver."""
        return -1 if self._state is None else self._state.read_to

    @property
    def checkpoint(self) -> TimerCheckpoint:
        """The present progress of this broker."""
        return TimerCheckpoint() if self._state is None else self._now(self._state)

    def totals(self) -> tuple[int, int]:
        """How many messages were read, and how many were delivered, since the start."""
        return self._enqueued, self._delivered

    def rates(self) -> TimerRates:
        seconds, (enqueued, delivered) = self._window.since(self._clock.now_ms(), 10 * SECOND_MS)
        return TimerRates((self._enqueued - enqueued) / seconds, (self._delivered - delivered) / seconds)

    # --- the loop

    async def _step(self) -> bool:
        """Read or deliver a slice; returns whether there is more to do at once."""
        queue = self._store.queues.find(TIMER_TOPIC, 0)
        if queue is None or not queue.next_offset:
            return False
        state = self._state
        if state is None:
            era = self._era
            state = await self._restored(queue)
            # After two changes of the role this broker is the master again, and its log may have changed.
            if self._era != era or self._stopping or not self._is_active():
                return False
            self._state = state
        # Read the queue before delivering: a recall must be known before its message is delivered. A recall is refused
        # once its slot is due, so the present entries include all recalls of the slots that are due now. Entries that
        # come during this step are read in the next step: waiting until there are none would hold up delivery for as
        # long as messages are sent without a pause.
        end, last_slot = queue.next_offset, self._clock.now_ms() - self._precision_ms
        new = max(end - state.read_to, 0)
        if state.read_to < end:
            await self._read_entries(state, queue, end)
            if state.read_to < end:
                return True
            # The role may have changed while a thread read.
            if self._state is not state or self._stopping or not self._is_active():
                return False
        if state.history is not None:
            self._restoring_ends(state)
        if await self._deliver_due(state, last_slot, min(SLICE + new, MAX_SLICE)):
            return True
        if self._is_checkpoint_due(state):
            self._save(state)
        return state.read_to < queue.next_offset

    async def _restored(self, queue: ConsumeQueue) -> _State:
        """The state as the log has it; the broker need not have written that part of the log."""
        checkpoint = await last_checkpoint(self._store)
        if checkpoint is None and (data := self._read_java_checkpoint()) is not None:
            checkpoint = TimerCheckpoint.of_rocketmq(data)
        # Without any checkpoint the whole queue is read, and the whole log is searched for copies.
        low = queue.min_offset
        if checkpoint is not None and checkpoint.low < low:
            low = max(checkpoint.low, await from_disk(lambda: self._store.min_offset(TIMER_TOPIC, 0)))
        checkpoint = checkpoint or TimerCheckpoint()
        low = max(checkpoint.low, low)
        end = queue.next_offset
        delivered: set[int] = set()
        if low < end:
            # No copy comes before its message. Reading the message mends its entry, if the entry is wrong.
            found = await from_disk(lambda: self._store.get(TIMER_TOPIC, 0, low, 1, PIECE_BYTES))
            first = decode_record(found.records).physical_offset if found.count else 0
            delivered = await copies_since(self._store.log, max(checkpoint.position, first))
        return _State(checkpoint._replace(low=low), History(checkpoint, delivered), end)

    def _restoring_ends(self, state: _State) -> None:
        history = state.history
        state.history = None
        if history is not None:
            state.pending.done_slot = max(state.pending.done_slot, history.done_slot)
            if state.pending.count:
                logger.info("%d timed messages wait in %s", state.pending.count, TIMER_TOPIC)

    async def _read_entries(self, state: _State, queue: ConsumeQueue, end: int) -> None:
        """Read the next entries of the queue, up to ``end`` at most."""
        if state.read_to < queue.min_offset:
            first = await from_disk(lambda: self._store.min_offset(TIMER_TOPIC, 0))
            state.read_to = max(state.read_to, first)
        start = state.read_to
        count = min(ENTRIES_AT_ONCE, end - start)
        if count <= 0:
            return
        entries = await from_disk(lambda: self._store.entries(queue, start, count))
        pending, history, offset = state.pending, state.history, start
        try:
            for physical, size, code in entries:
                if code > _MAX_HASH:
                    if history is None or offset >= state.restored_to or history.waits(offset, code, physical):
                        pending.add(code, offset)
                elif size != BLANK_SIZE:
                    await self._add_unusual(state, offset)
                offset += 1
        finally:
            # After an error only the rest is read again, so no entry is added twice.
            state.read_to = offset
            if history is None:
                self._enqueued += offset - start
        if not entries:
            # Of messages that only the bucket had, the first may be gone and later messages still there.
            gone = await from_disk(lambda: self._store.get(TIMER_TOPIC, 0, start, 1, PIECE_BYTES))
            after = min(max(gone.next_offset, start + 1), end) if start < queue.min_offset else end
            logger.error("timed messages %d to %d are missing in their queue", start, after - 1)
            state.read_to = after

    async def _add_unusual(self, state: _State, offset: int) -> None:
        """Add a recall, or a message of a Java broker, whose entry does not say when it is due."""
        # Read the message through the queue: the place in the entry may be wrong, and a read of the queue mends it.
        found = await from_disk(lambda: self._store.get(TIMER_TOPIC, 0, offset, 1, PIECE_BYTES))
        try:
            record = decode_record(found.records) if found.count else None
        except ProtocolError as error:
            logger.error("timed message %d cannot be read, it is skipped: %s", offset, error)
            return
        if record is None or record.queue_offset != offset:
            return
        properties, physical = record.properties, record.physical_offset
        digits = find_property(properties, SLOT) or b""
        if not digits.isdigit() or len(digits) > MAX_SLOT_DIGITS:
            logger.error("timed message %d has no time, it is skipped", offset)
            return
        slot, key = int(digits), find_property(properties, DELETE)
        history = state.history if offset < state.restored_to else None
        if key is not None:
            if history is None or history.waits(offset, slot, physical):
                state.pending.recall(slot, key)
        elif history is None or history.waits(offset, slot, physical):
            state.pending.add(slot, offset)

    # --- delivery

    async def _deliver_due(self, state: _State, last_slot: int, limit: int) -> bool:
        """Deliver messages due up to ``last_slot``, at most ``limit``; returns whether any message was due."""
        slot, offsets = state.pending.due(last_slot, min(limit, SLICE))
        if not offsets:
            return False
        try:
            while offsets and (count := await self._deliver(state, slot, offsets)):
                limit -= count
                slot, offsets = state.pending.due(last_slot, min(limit, SLICE)) if limit > 0 else (0, [])
        finally:
            self._turned()
        return True

    async def _deliver(self, state: _State, slot: int, offsets: list[int]) -> int:
        """Deliver messages of one slot, as far as they are adjacent in the queue.

        Returns how many were delivered, where a large message counts as several; 0 when this broker must not deliver.
        """
        first, count = offsets[0], 1
        # One read for all adjacent messages; the next call reads the others.
        while count < len(offsets) and offsets[count] == first + count:
            count += 1
        queue = self._store.queues.find(TIMER_TOPIC, 0)
        found, places = await from_disk(
            lambda: (
                self._store.get(TIMER_TOPIC, 0, first, count, SLICE * BYTES_OF_ONE),
                [] if queue is None else [size for _, size, _ in self._store.entries(queue, first, count)],
            )
        )
        # The role may have changed while a thread read. Then there is a new state, which would not know of messages
        # that are delivered here.
        if self._state is not state or not self._is_active() or self._stopping:
            return 0
        if found.status is not GetStatus.FOUND:
            end = min(max(found.next_offset, first + 1), first + count)
            logger.error("timed messages %d to %d were removed from the log before their time", first, end - 1)
            for offset in range(first, end):
                state.pending.done(slot, offset)
            return end - first
        at = 0
        sizes = places[: found.next_offset - first]
        for offset, size in enumerate(sizes, first):
            if size != BLANK_SIZE:
                self._deliver_one(state, slot, offset, found.records[at : at + size])
                at += size
            state.pending.done(slot, offset)
        return len(sizes) + at // BYTES_OF_ONE

    def _deliver_one(self, state: _State, slot: int, offset: int, raw: bytes) -> None:
        try:
            record: Record = decode_record(raw)
            if any(state.pending.is_recalled(slot, name) for name in recall_names(record.properties)):
                return
            message = from_timer(record)
            if self._is_read_here(message.topic):
                return
            # A topic of the same name that was made after the deletion of this message's topic begins empty.
            if self._is_deleted(message.topic, record.physical_offset):
                self._note_dropped(message.topic, record)
            else:
                self._writer.put_again(message)
                self._delivered += 1
        except (ValueError, ProtocolError, RequestRefused) as error:
            if isinstance(error, RequestRefused) and error.code != ResponseCode.MESSAGE_ILLEGAL:
                raise
            logger.error("timed message %d cannot be delivered, it is skipped: %s", offset, str(error)[:MAX_REASON])

    # --- checkpoints

    def _now(self, state: _State) -> TimerCheckpoint:
        pending = state.pending
        return TimerCheckpoint(pending.low(state.read_to), state.read_to, pending.done_slot, self._store.log.end)

    def _is_checkpoint_due(self, state: _State) -> bool:
        """Whether to write a checkpoint now.

        Not while a slot is delivered in part, nor when nothing waits and nothing has changed.
        """
        saved = state.saved
        if not state.pending.is_between_slots or self._store.log.end - saved.position < CHECKPOINT_BYTES:
            return False
        return bool(state.pending.count) or saved.read_to != state.read_to or saved.low != state.read_to

    def _save(self, state: _State) -> None:
        now = self._now(state)
        # The checkpoint goes into the log after everything that it describes, see `TimerCheckpoint`.
        self._writer.put_again(
            Incoming(TIMER_TOPIC, CHECKPOINT_QUEUE, now.encode(), b"", 0, 0, self._clock.now_ms(), self._store_host, 0)
        )
        state.saved = now

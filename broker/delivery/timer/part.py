"""Delivers timed messages when they are due, through the Writer.

Only the master delivers, as with delay levels; a slave needs nothing but the log. What waits is read from the queue of
rmq_sys_wheel_timer when this broker becomes the master, and followed from then on; history.py says what was delivered
before. A slot is delivered in slices, so that a backlog does not block the event loop. When a message cannot be
delivered now (a full disk), all wait; one that never can is logged and skipped.
Neighbours: timed.py, pending.py, history.py, restore.py, wiring/wiring.py.
"""

import logging
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

import trio

from broker.delivery.timer.history import CHECKPOINT_QUEUE, Checkpoint, History
from broker.delivery.timer.pending import Pending
from broker.delivery.timer.restore import copies_since, from_disk, last_checkpoint
from broker.delivery.timer.timed import DELETE, SLOT, from_timer, recall_names
from broker.observe.meter import MINUTE_MS, SECOND_MS, SampleWindow
from broker.part import Part
from broker.store.queue.consumequeue import ConsumeQueue
from broker.store.queue.entry import BLANK_SIZE
from broker.store.queue.tags import MAX_SLOT_DIGITS
from broker.store.reader import GetStatus
from broker.store.store import MessageStore
from broker.writing.writer import Incoming, Writer
from mqcommon.clock import Clock
from mqcommon.errors import OutOfDescriptors, ProtocolError, RequestRefused, StoreError
from mqcommon.message.properties import find_property
from mqcommon.message.record import Record, decode_record
from mqcommon.names import TIMER_TOPIC
from remoting.protocol.codes import ResponseCode

logger = logging.getLogger(__name__)

POLL_S = 0.05
BETWEEN_SLICES_S = 0.0
# Messages delivered in one turn of the event loop: some 2 ms.
SLICE = 64
SLICE_BYTES = 1 << 20
# Entries of the queue that are read in one turn.
ENTRIES_AT_ONCE = 8_192
# A checkpoint is written when the log has grown by this much: a start reads as much to find the copies in it.
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


class _State:
    """What a master knows of the messages that wait. ``history`` holds for the entries before ``restored_to``."""

    def __init__(self, checkpoint: Checkpoint, history: History, restored_to: int) -> None:
        self.pending = Pending(checkpoint.done_slot)
        self.read_to = checkpoint.low
        self.saved = checkpoint
        self.history: History | None = history
        self.restored_to = restored_to


class TimedDelivery(Part):
    """See the module."""

    tick_interval_ms = 1_000.0

    def __init__(
        self,
        store: MessageStore,
        writer: Writer,
        precision_ms: int,
        clock: Clock,
        is_active: Callable[[], bool],
        turned: Callable[[], None],
        read_java_checkpoint: Callable[[], bytes | None],
        store_host: bytes,
        is_read_here: Callable[[str], bool],
    ) -> None:
        """``is_active``: whether this broker is the master and online. ``turned`` is called after each slice.

        ``read_java_checkpoint``: the file ``timercheck`` of a Java broker, None if there is none.
        ``is_read_here``: whether messages for this topic are read where they wait, and not to be delivered.
        """
        self._store = store
        self._writer = writer
        self._precision_ms = precision_ms
        self._clock = clock
        self._is_active = is_active
        self._turned = turned
        self._read_java_checkpoint = read_java_checkpoint
        self._store_host = store_host
        self._is_read_here = is_read_here
        # None while this broker is not to deliver, and until the log has been read.
        self._state: _State | None = None
        self._stopping = self._failing = False
        self._delivered = self._enqueued = 0
        self._window = SampleWindow(MINUTE_MS, SECOND_MS, clock.now_ms(), (0, 0))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Deliver until cancelled."""
        task_status.started()
        while True:
            pause_s = POLL_S
            if not self._is_active() or self._stopping:
                self.forget()
            else:
                try:
                    if await self._step():
                        pause_s = BETWEEN_SLICES_S
                    self._failing = False
                except Exception as error:
                    self._failed(error)
                    pause_s = PAUSE_S
            await trio.sleep(pause_s)

    def tick(self) -> None:
        """Take a sample of the counters."""
        self._window.sample(self._clock.now_ms(), (self._enqueued, self._delivered))

    async def stop(self) -> None:
        """Deliver no more; the store is flushed next."""
        self._stopping = True

    def forget(self) -> None:
        """The role changes: what waits is read again when this broker is the master."""
        self._state = None

    # --- what others ask

    @property
    def waiting(self) -> int:
        """Messages that wait, as far as the queue was read."""
        return 0 if self._state is None else self._state.pending.count

    @property
    def unread(self) -> int:
        """Entries of the queue that were not read yet."""
        end = self._store.max_offset(TIMER_TOPIC, 0)
        return 0 if self._state is None else max(end - self._state.read_to, 0)

    @property
    def behind_ms(self) -> int:
        """How late the message is that should be delivered next."""
        first = None if self._state is None else self._state.pending.first_slot
        return 0 if first is None else max(self._clock.now_ms() - first - self._precision_ms, 0)

    @property
    def late(self) -> int:
        """Messages that should have been delivered."""
        return 0 if self._state is None else self._state.pending.late(self._clock.now_ms() - self._precision_ms)

    @property
    def read_to(self) -> int:
        """The first entry of the queue that was not read yet; -1 while this broker does not deliver."""
        return -1 if self._state is None else self._state.read_to

    @property
    def checkpoint(self) -> Checkpoint:
        """How far this broker is."""
        return Checkpoint() if self._state is None else self._now(self._state)

    def totals(self) -> tuple[int, int]:
        """Messages read and delivered since the start."""
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
            state = await self._restored(queue)
            if self._stopping or not self._is_active():
                return False
            self._state = state
        if state.read_to < queue.next_offset:
            await self._follow(state, queue)
            return True
        if state.history is not None:
            self._restoring_ends(state)
        slot, offsets = state.pending.due(self._clock.now_ms() - self._precision_ms, SLICE)
        if offsets:
            await self._deliver(state, slot, offsets)
        elif self._is_checkpoint_due(state):
            self._save(state)
        return bool(offsets)

    async def _restored(self, queue: ConsumeQueue) -> _State:
        """What the log says. A broker that was not the master before has written nothing of it."""
        checkpoint = await last_checkpoint(self._store)
        if checkpoint is None and (data := self._read_java_checkpoint()) is not None:
            checkpoint = Checkpoint.of_rocketmq(data)
        checkpoint = checkpoint or Checkpoint()
        low = max(checkpoint.low, queue.min_offset)
        end = queue.next_offset
        delivered: set[int] = set()
        if low < end:
            # No copy comes before its message.
            first = (await from_disk(lambda: queue.entry(low)))[0]
            delivered = await copies_since(self._store.log, max(checkpoint.position, first))
        return _State(checkpoint._replace(low=low), History(checkpoint, delivered), end)

    def _restoring_ends(self, state: _State) -> None:
        history = state.history
        state.history = None
        if history is not None:
            state.pending.done_slot = max(state.pending.done_slot, history.done_slot)
            if state.pending.count:
                logger.info("%d timed messages wait in %s", state.pending.count, TIMER_TOPIC)

    async def _follow(self, state: _State, queue: ConsumeQueue) -> None:
        """Read the next entries of the queue."""
        start = state.read_to = max(state.read_to, queue.min_offset)
        count = min(ENTRIES_AT_ONCE, queue.next_offset - start)
        if not count:
            return
        entries = await from_disk(lambda: list(islice(queue.entries(start, count), count)))
        pending, history, offset = state.pending, state.history, start
        try:
            for physical, size, code in entries:
                if code > _MAX_HASH:
                    if history is None or offset >= state.restored_to or history.waits(offset, code, physical):
                        pending.add(code, offset)
                elif size != BLANK_SIZE:
                    await self._add_unusual(state, offset, physical)
                offset += 1
        finally:
            # After an error the rest is read again, and nothing is added twice.
            state.read_to = offset
            if history is None:
                self._enqueued += offset - start
        if not entries:
            logger.error("timed messages %d to %d are missing in their queue", start, queue.next_offset - 1)
            state.read_to = queue.next_offset

    async def _add_unusual(self, state: _State, offset: int, physical: int) -> None:
        """A recall, or a message of a Java broker, whose entry does not say when it is due."""
        try:
            raw = await from_disk(lambda: self._store.log.record_at(physical))
            if raw is None:
                return
            properties = decode_record(raw).properties
        except ProtocolError as error:
            logger.error("timed message %d cannot be read, it is skipped: %s", offset, error)
            return
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

    async def _deliver(self, state: _State, slot: int, offsets: list[int]) -> None:
        """Deliver messages of one slot, as far as they lie side by side in the queue."""
        first, count = offsets[0], 1
        while count < len(offsets) and offsets[count] == first + count:
            count += 1
        queue = self._store.queues.find(TIMER_TOPIC, 0)
        found, places = await from_disk(
            lambda: (
                self._store.get(TIMER_TOPIC, 0, first, count, SLICE_BYTES),
                [] if queue is None else [size for _, size, _ in islice(queue.entries(first, count), count)],
            )
        )
        if self._state is not state or not self._is_active() or self._stopping:
            return
        if found.status is not GetStatus.FOUND:
            end = min(max(found.next_offset, first + 1), first + count)
            logger.error("timed messages %d to %d were removed from the log before their time", first, end - 1)
            for offset in range(first, end):
                state.pending.done(slot, offset)
            return
        at = 0
        try:
            for offset, size in zip(range(first, found.next_offset), places, strict=False):
                if size != BLANK_SIZE:
                    self._deliver_one(state, slot, offset, found.records[at : at + size])
                    at += size
                state.pending.done(slot, offset)
        finally:
            self._turned()

    def _deliver_one(self, state: _State, slot: int, offset: int, raw: bytes) -> None:
        try:
            record: Record = decode_record(raw)
            if any(state.pending.is_recalled(slot, name) for name in recall_names(record.properties)):
                return
            message = from_timer(record)
            if not self._is_read_here(message.topic):
                self._writer.put_again(message)
                self._delivered += 1
        except (ValueError, ProtocolError, RequestRefused) as error:
            if isinstance(error, RequestRefused) and error.code != ResponseCode.MESSAGE_ILLEGAL:
                raise
            logger.error("timed message %d cannot be delivered, it is skipped: %s", offset, str(error)[:MAX_REASON])

    def _failed(self, error: Exception) -> None:
        if self._failing:
            return
        self._failing = True
        is_bug = not isinstance(error, RequestRefused | OutOfDescriptors | StoreError | OSError | ProtocolError)
        text = "timed messages are not delivered, still trying: %s"
        logger.error(text, error, exc_info=error if is_bug else None)

    # --- checkpoints

    def _now(self, state: _State) -> Checkpoint:
        pending = state.pending
        return Checkpoint(pending.low(state.read_to), state.read_to, pending.done_slot, self._store.log.end)

    def _is_checkpoint_due(self, state: _State) -> bool:
        """Not within a slot, and not when nothing waits and nothing has changed since the last one."""
        saved = state.saved
        if not state.pending.is_between_slots or self._store.log.end - saved.position < CHECKPOINT_BYTES:
            return False
        return bool(state.pending.count) or saved.read_to != state.read_to or saved.low != state.read_to

    def _save(self, state: _State) -> None:
        now = self._now(state)
        self._writer.put_again(
            Incoming(TIMER_TOPIC, CHECKPOINT_QUEUE, now.encode(), b"", 0, 0, self._clock.now_ms(), self._store_host, 0)
        )
        state.saved = now

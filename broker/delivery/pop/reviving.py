"""Redelivers popped messages when their invisible time is over, and keeps the revive log short.

A copy is stored before the acknowledgement of its message: a crash in between makes a second copy, and loses nothing.
Once a second, offsets that others have set are written to the revive log (positions.py), the log is flushed, positions
before its safe end are committed, and the start of the revive log is saved.
A check point that stays open while the log grows is written again near its end, so that a start reads a bounded part.
Neighbours: log.py, copies.py, inflight.py (`Horizon`), java_takeover.py; wiring/wiring.py calls `role_changed` and
`topic_deleted`.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import islice

import trio

from skylark.broker.cold_reads import from_disk
from skylark.broker.delivery.background import Background, Failures
from skylark.broker.delivery.pop.inflight import Horizon, PopLease
from skylark.broker.delivery.pop.java_takeover import JavaTakeover
from skylark.broker.delivery.pop.log import MAX_BEHIND, QUEUE_ID
from skylark.broker.delivery.pop.records import Ack, Key, Queue
from skylark.broker.delivery.pop.state import PopState
from skylark.broker.meta.consumer_offsets import ConsumerOffsets
from skylark.broker.observe.stats import PopCounts
from skylark.broker.part import Part
from skylark.broker.store.reader import GetStatus
from skylark.mqcommon.errors import ProtocolError, RequestRefused
from skylark.mqcommon.message.record import Record, decode_record
from skylark.mqcommon.names import REVIVE_GROUP
from skylark.mqcommon.signal import Signal
from skylark.remoting.protocol.codes import ResponseCode

logger = logging.getLogger(__name__)

POLL_S = 0.1
# The pause while no popped message is hidden: the first message popped after that may be hidden for as long as this.
IDLE_S = 0.5
SAVE_S = 1.0
# In one of this many rounds the start of the revive log is saved, too, which needs an fsync of the metadata.
HORIZON_ROUNDS = 5
# The pause after a failure: of one check point, or of all work.
PAUSE_MS, PAUSE_S = 1_000, 1.0
_NOT_WRITTEN = "offsets that others have set for pop consumers are not written"
# Refusals that concern one topic: it is not writable, or cannot be made. Copies for other topics are stored.
_OF_ONE_TOPIC = (ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR)
# Check points that are written again at a time, see `MAX_BEHIND`.
RENEWED_AT_ONCE = 500
# Check points whose messages come back in one turn of the event loop: each has up to 32.
SLICE = 4
# Leases that are examined in one turn of the loop: a millisecond.
SCANNED = 10_000


class Reviving(Part):
    """Redelivers popped messages, and saves the state of pops."""

    def __init__(
        self,
        state: PopState,
        background: Background,
        offsets: ConsumerOffsets,
        safe_end: Callable[[], int],
        persist: Callable[[], Awaitable[None]],
        counts: PopCounts,
    ) -> None:
        """``safe_end``: up to where the log is on disk and on slaves. ``persist`` returns when metadata is on disk."""
        self._log = log = state.log
        self._positions = state.positions
        self._copies = state.copies
        self._held = state.held
        self._store = store = background.store
        self._clock = clock = background.clock
        self._is_master = background.is_active
        self._flush = background.flush
        self._turned = background.turned
        self._is_deleted = background.is_deleted
        self._offsets = offsets
        self._safe_end = safe_end
        self._persist = persist
        self._counts = counts
        self._takeover = JavaTakeover(log, store, offsets, clock)
        self._role_changed = Signal()
        self._role_scope = trio.CancelScope()
        self._failures = Failures(logger)
        self._stopping = False
        # The count of offset changes up to which foreign offsets were written to the revive log.
        self._written_changes = -1
        # When the lease that was postponed last is tried again.
        self._retry_ms = 0
        # How many steps of the clock were applied to the leases.
        self._steps = 0

    def role_changed(self) -> None:
        """Drop the state of pops; if this broker is the master now, the state is rebuilt from the revive log."""
        self._log.clear()
        self._positions.clear()
        self._held.release()
        self._role_scope.cancel()
        self._role_changed.set()

    def topic_deleted(self, topic: str) -> None:
        """Forget a topic whose deletion begins: no message of it comes back, and groups have no position in it."""
        self._log.inflight.drop_topic(topic)
        self._positions.drop_topic(topic)

    async def end_group(self, group: str) -> None:
        """Acknowledge all messages of a group that is deleted with its offsets, so that none comes back.

        The acknowledgements are written, so a start and the next master know them, too. RequestRefused while no record
        can be written.
        """
        self._log.check_ready()
        inflight = self._log.inflight
        leases, keys = list(inflight.oldest()), []
        for start in range(0, len(leases), SCANNED):
            found = (lease.checkpoint.key for lease in leases[start : start + SCANNED])
            keys += [key for key in found if key.queue.group == group]
            await trio.lowlevel.checkpoint()
        for number, key in enumerate(keys, 1):
            if (lease := inflight.of(key)) is not None:
                self._log.write_own(Ack(key, lease.left))
            if number % SLICE == 0:
                self._turned()
                await trio.lowlevel.checkpoint()
                self._log.check_ready()
        self._turned()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Read the revive log, then revive until cancelled. Starts again after each change of the role."""
        started = False
        while True:
            self._role_changed.clear()
            with trio.CancelScope() as self._role_scope:
                if self._stopping:
                    await trio.sleep_forever()
                if self._is_master():
                    await self._try("the revive log is not read", self._read_log)
                if not started:
                    started = True
                    task_status.started()
                if self._log.is_ready:
                    # Both tasks end with the role: `role_changed` cancels them, and the next round begins with a new
                    # state.
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._revive_often)
                        nursery.start_soon(self._save_often)
                elif self._is_master():
                    await trio.sleep(PAUSE_S)
                else:
                    await self._role_changed.wait()

    async def _read_log(self) -> None:
        if self._log.lower_start():
            # The lowered start is on disk before anything is popped: after a kill the old start must not come back.
            await self._persist()
        await self._takeover.take_over(await self._log.read(self._is_deleted))
        self._positions.begin()
        self._written_changes = -1
        self._store.check_clock()
        self._steps = self._store.clock_steps.count
        self._log.inflight.take_over(self._clock.now_ms())
        self._log.is_ready = True

    async def stop(self) -> None:
        """Stop reviving; the broker flushes the store after that."""
        self._stopping = True
        self._role_scope.cancel()
        if self._log.is_ready and self._is_master():
            await self._try(_NOT_WRITTEN, self._write_foreign_offsets)

    @property
    def open_checkpoints(self) -> int:
        """How many check points are open: not all of their messages are acknowledged or delivered again."""
        return len(self._log.inflight)

    @property
    def undelivered(self) -> int:
        """As `open_checkpoints`; while the revive log is not read, the number of its records."""
        if self._log.is_ready:
            return len(self._log.inflight)
        topic = self._log.topic
        return self._store.max_offset(topic, QUEUE_ID) - self._store.shown_min_offset(topic, QUEUE_ID)

    def open_in(self, topic: str, first: int) -> int:
        """How many check points are open of the queues of ``topic`` from number ``first`` on; as `undelivered`."""
        if not self._log.is_ready:
            return self.undelivered
        keys = [lease.checkpoint.key.queue for lease in self._log.inflight.oldest()]
        return sum(1 for _, name, queue_id in keys if name == topic and queue_id >= first)

    def popped_to(self, topic: str) -> Iterator[tuple[int, int]]:
        """For each group that pops ``topic``: a queue, and the offset up to which the group has popped it."""
        for queue, position in self._log.inflight.positions.items():
            if queue.topic == topic:
                yield queue.queue_id, position

    @property
    def late_ms(self) -> int:
        """How late the next messages to come back are."""
        due_ms = self._log.inflight.next_due_ms
        return 0 if due_ms is None else max(self._clock.now_ms() - due_ms, 0)

    # --- messages that come back

    async def _revive_often(self) -> None:
        while True:
            await trio.sleep(POLL_S if len(self._log.inflight) else IDLE_S)
            await self._try("popped messages do not come back", self._revive_due)

    async def _revive_due(self) -> None:
        self._follow_clock()
        done, failure = 0, None
        while (lease := self._log.inflight.due(self._clock.now_ms())) is not None:
            try:
                await self._revive(lease)
            except Exception as error:
                self._put_off(lease)
                if isinstance(error, RequestRefused) and error.code not in _OF_ONE_TOPIC:
                    raise
                # Go on with other leases: they may be of other groups, and their messages in other files.
                failure = error
            except BaseException:
                self._put_off(lease)
                raise
            done += 1
            if done % SLICE == 0:
                self._turned()
                await trio.lowlevel.checkpoint()
        if done:
            self._turned()
        if failure is not None:
            raise failure

    def _follow_clock(self) -> None:
        self._store.check_clock()
        for step in self._store.clock_steps.since(self._steps):
            self._log.inflight.clock_moved(step)
            self._retry_ms = 0
        self._steps = self._store.clock_steps.count

    def _put_off(self, lease: PopLease) -> None:
        """Try a lease again after the pause; at most one lease per millisecond, so that many do not block the loop."""
        self._retry_ms = max(self._retry_ms + 1, self._clock.now_ms() + PAUSE_MS)
        self._log.inflight.put_off(lease, self._retry_ms)

    async def _revive(self, lease: PopLease) -> None:
        key, now_ms = lease.checkpoint.key, self._clock.now_ms()
        if lease.due_ms > now_ms:
            self._log.inflight.put_off(lease, lease.due_ms)
            return
        if lease.checkpoint.is_ordered:
            # Messages in order stay in their queue, which may be popped again.
            group, topic, _ = key.queue
            self._held.wake((topic, group))
            return
        records = await from_disk(partial(self._read, lease))
        # While the disk was read, some messages may have been acknowledged, or their topic deleted.
        left = self._log.inflight.hidden(key, lease.left)
        if any([self._copies.make_topic(records[offset], key.queue) for offset in left if offset in records]):
            # The topic must be on disk first: a power loss may keep the log and lose the topic, and then nobody would
            # read the copies.
            await self._persist()
        done: list[int] = []
        refusals: list[RequestRefused] = []
        try:
            # Messages may have been acknowledged while the topic was made, too.
            for offset in self._log.inflight.hidden(key, lease.left):
                record = records.get(offset)
                if record is None or self._copy(record, key, refusals):
                    done.append(offset)
        finally:
            if done:
                # If another copy fails, messages that were copied must not be copied again.
                self._log.write_own(Ack(key, done))
        if refusals:
            raise refusals[0]

    def _copy(self, record: Record, key: Key, refusals: list[RequestRefused]) -> bool:
        """Store the copy of a message; returns whether it is stored. Dead letters and others go to different topics."""
        try:
            self._copies.redeliver(record, key.queue, key.pop_ms)
        except RequestRefused as error:
            if error.code not in _OF_ONE_TOPIC:
                raise
            refusals.append(error)
            return False
        self._counts.revived[key.queue.group, key.queue.topic] += 1
        return True

    def _read(self, lease: PopLease) -> dict[int, Record]:
        _, topic, queue_id = lease.checkpoint.key.queue
        found: dict[int, Record] = {}
        gone: dict[int, str] = {}
        for offset in lease.left:
            result = self._store.get(topic, queue_id, offset, 1, 1)
            try:
                if result.status is not GetStatus.FOUND:
                    gone[offset] = "it was removed from the log"
                elif result.next_offset > offset + 1:
                    # In its place a later message was read, which has a check point of its own.
                    gone[offset] = "it is damaged in the bucket"
                else:
                    found[offset] = decode_record(result.records)
            except ProtocolError as error:
                gone[offset] = str(error)
        if gone:
            first = next(iter(gone))
            logger.error(
                "%d popped messages of %s queue %d do not come back, the first is %d: %s",
                len(gone),
                topic,
                queue_id,
                first,
                gone[first],
            )
        return found

    # --- saving

    async def _save_often(self) -> None:
        horizon: Horizon | None = None
        rounds = 0
        while True:
            await trio.sleep(SAVE_S)
            rounds += 1
            self._renew()
            await self._try(_NOT_WRITTEN, self._write_foreign_offsets)
            if horizon is None and rounds % HORIZON_ROUNDS == 0:
                horizon = Horizon(self._log.inflight.needed_from(self._log.end), self._store.log.end)
            await self._try("offsets of pop consumers are not saved", self._flush_log)
            # The order matters: positions that the flush has made safe are committed, and only then may the start of
            # the log move past their check points.
            reached = self._safe_end()
            self._positions.commit(self._log.commits.safe(reached))
            self._takeover.save(reached)
            if rounds % HORIZON_ROUNDS == 0:
                self._takeover.skip_own_records()
            if horizon is not None and horizon.may_be_saved(reached):
                await self._try("the start of the revive log is not saved", partial(self._save, horizon.offset))
                horizon = None

    async def _write_foreign_offsets(self) -> None:
        """Write to the revive log which offsets others have set."""
        changes = self._offsets.changes
        if changes == self._written_changes:
            return
        found: list[Queue] = []
        for queues in self._positions.set_by_others():
            found += queues
            await trio.lowlevel.checkpoint()
        if found:
            # On disk first: once the log says that these offsets count, an older one must not come back.
            await self._persist()
        for queue in found:
            self._positions.release(queue)
        self._written_changes = changes

    async def _flush_log(self) -> None:
        if self._safe_end() < self._store.log.end:
            await self._flush()

    async def _save(self, offset: int) -> None:
        # The commits before this offset must be on disk first, see `Horizon`.
        if offset > self._offsets.query(REVIVE_GROUP, self._log.topic, QUEUE_ID):
            await self._persist()
            self._offsets.commit(REVIVE_GROUP, self._log.topic, QUEUE_ID, offset)

    def _renew(self) -> None:
        """Write check points again that are far behind the end of the log."""
        oldest_wanted = self._log.end - MAX_BEHIND
        for lease in list(islice(self._log.inflight.oldest(), RENEWED_AT_ONCE)):
            if lease.log_offset >= oldest_wanted:
                return
            try:
                self._log.write(lease.renewed())
            except RequestRefused:
                return  # nothing can be stored now

    async def _try(self, what: str, action: Callable[[], Awaitable[None]]) -> None:
        """Run ``action`` and log its failure; the caller tries again later."""
        try:
            await action()
        except Exception as error:
            self._failures.failed(what, error)
        else:
            self._failures.succeeded(what)

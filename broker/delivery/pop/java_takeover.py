"""Takes over the pops of a Java broker whose store this broker has opened.

The import of RocketMQ's metadata marks that there may be such pops: it sets the offset of CID_RMQ_SYS_REVIVE_GROUP for
rmq_sys_wheel_timer, which no Java broker has. When this broker becomes the master, it reads that topic from this offset
on, and the revive queues from their offsets on. It writes the open check points to the revive log as its own. When
these are safe, the offsets are advanced. After a crash before that, everything is read again: check points that the
revive log already has are left out.
RocketMQ's records in queue 0 of the revive topic need no takeover: reading the revive log reads them, too.
Neighbours: java.py (the records), log.py, reviving.py (calls all this); wiring/wiring.py (timed delivery leaves the
records alone then).
"""

import logging
from functools import partial

from skylark.broker.cold_reads import from_disk
from skylark.broker.delivery.pop.java import EARLIER_MS, JavaPops, is_from_java, messages_of
from skylark.broker.delivery.pop.log import QUEUE_ID, ReviveLog, each_record
from skylark.broker.delivery.pop.records import CHECKPOINT, Ack, decode
from skylark.broker.meta.consumer_offsets import ConsumerOffsets
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message.properties import find_property
from skylark.mqcommon.message.record import Record
from skylark.mqcommon.names import REVIVE_GROUP, TIMER_TOPIC

logger = logging.getLogger(__name__)

# A check point may come into its revive queue before its own time: RocketMQ rounds times down to multiples.
_MARGIN_MS = 10_000


class JavaTakeover:
    """Takes over the pops of a Java broker, once."""

    def __init__(self, log: ReviveLog, store: MessageStore, offsets: ConsumerOffsets, clock: Clock) -> None:
        self._log = log
        self._store = store
        self._offsets = offsets
        self._clock = clock
        # The offsets to commit when the log is safe up to `_safe_at`.
        self._read_to: dict[tuple[str, int], int] = {}
        self._safe_at = 0

    @property
    def _had_java_broker(self) -> bool:
        return self._offsets.query(REVIVE_GROUP, TIMER_TOPIC, 0) >= 0

    async def take_over(self, java: JavaPops) -> None:
        """Adopt the pops of a Java broker. ``java``: the records of queue 0 of the revive topic."""
        self._read_to = {}
        if not self._had_java_broker:
            return
        topic = self._log.topic
        queues = {queue.queue_id: queue for queue in self._store.queues if queue.topic == topic}
        # Remember the end of each queue before it is read. No relevant record comes later: no Java broker runs now.
        read_to: dict[tuple[str, int], int] = {}
        for queue_id in sorted(queues.keys() - {QUEUE_ID}):
            start = max(self._offsets.query(REVIVE_GROUP, topic, queue_id), 0)
            end = read_to[topic, queue_id] = self._store.max_offset(topic, queue_id)
            await each_record(self._store, topic, queue_id, start, end, lambda record: self._add(java, record))
        start = self._offsets.query(REVIVE_GROUP, TIMER_TOPIC, 0)
        end = read_to[TIMER_TOPIC, 0] = self._store.max_offset(TIMER_TOPIC, 0)
        real = topic.encode()

        def waiting(record: Record) -> None:
            if find_property(record.properties, b"REAL_TOPIC") == real:
                self._add(java, record)

        await each_record(self._store, TIMER_TOPIC, 0, start, end, waiting)
        await self._leave_out_done(java, list(queues))
        self._write(java)
        # Once the log is safe up to here (`save`), a start need not read these records again.
        self._read_to, self._safe_at = read_to, self._store.log.end

    def save(self, reached: int) -> None:
        """Commit the offsets if the log, with the adopted check points, is safe up to ``reached``."""
        if self._read_to and reached >= self._safe_at:
            for (topic, queue_id), offset in self._read_to.items():
                self._offsets.commit(REVIVE_GROUP, topic, queue_id, offset)
            self._read_to = {}

    def skip_own_records(self) -> None:
        """Skip later timed messages: this broker has written them since the takeover, and none is a Java pop."""
        if self._had_java_broker and not self._read_to:
            self._offsets.commit(REVIVE_GROUP, TIMER_TOPIC, 0, self._store.max_offset(TIMER_TOPIC, 0))

    def _add(self, java: JavaPops, record: Record) -> None:
        try:
            java.add(find_property(record.properties, b"TAGS") or b"", record.body)
        except ProtocolError as error:
            logger.error(
                "record %d of %s queue %d is skipped: %s", record.queue_offset, record.topic, record.queue_id, error
            )

    async def _leave_out_done(self, java: JavaPops, queue_ids: list[int]) -> None:
        """Leave out due check points that the Java broker may have moved to their revive queue and ended itself."""
        due_ms = min([each.due_ms - EARLIER_MS for each in java.open()], default=self._clock.now_ms())
        topic = self._log.topic

        def done(record: Record) -> None:
            if find_property(record.properties, b"TAGS") == CHECKPOINT and is_from_java(record.properties):
                try:
                    java.known.add(decode(CHECKPOINT, record.body).key)
                except ProtocolError:
                    return  # a check point that cannot be read is not open either

        for queue_id in queue_ids:
            end = self._offsets.query(REVIVE_GROUP, topic, queue_id)
            if end > 0 and due_ms < self._clock.now_ms():
                start = await from_disk(partial(self._store.offset_by_time, topic, queue_id, due_ms - _MARGIN_MS))
                await each_record(self._store, topic, queue_id, start, end, done)

    def _write(self, java: JavaPops) -> None:
        found = java.open()
        for checkpoint in found:
            self._log.write(checkpoint)
        for key, offsets in java.acks.items():
            # Apply acknowledgements of check points in queue 0. A check point written here already has its own.
            if hidden := self._log.inflight.hidden(key, list(offsets)):
                self._log.write(Ack(key, hidden))
        if found:
            logger.info(
                "%d popped messages are taken over from RocketMQ's broker, by %d check points; those that are"
                " not acknowledged in time come back",
                messages_of(found),
                len(found),
            )
        if java.others:
            logger.warning(
                "%d check points of broker %s are not taken over, as this broker is %s: their messages do"
                " not come back here",
                java.others,
                java.other_name,
                self._log.broker_name,
            )

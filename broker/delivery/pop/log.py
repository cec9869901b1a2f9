"""The revive log: queue 0 of rmq_sys_REVIVE_LOG_<cluster>. Each record written here is applied to `Inflight` at once.

Records go through the Writer, so only the master writes records. At a start, and when this broker becomes the master,
the log is read from the saved offset on; requests are refused until it has been read.
Neighbours: records.py, inflight.py, reviving.py (saves the offset, and runs `read`).
"""

import logging
from collections.abc import Callable
from functools import partial

import trio

from skylark.broker.cold_reads import from_disk
from skylark.broker.delivery.pop.inflight import Inflight, PendingCommits
from skylark.broker.delivery.pop.java import JavaPops, is_from_java
from skylark.broker.delivery.pop.records import BATCH_ACK, CHECKPOINT, RELEASED, Ack, PopCheckpoint, decode, encode
from skylark.broker.meta.consumer_offsets import ConsumerOffsets
from skylark.broker.observe.stats import PopCounts
from skylark.broker.options import BrokerOptions
from skylark.broker.store.reader import GetStatus
from skylark.broker.store.store import MessageStore, PutResult
from skylark.broker.writing.stored_properties import Incoming
from skylark.broker.writing.writer import Writer
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import ProtocolError, RequestRefused
from skylark.mqcommon.message.columns import record_starts
from skylark.mqcommon.message.properties import find_property
from skylark.mqcommon.message.record import Record, decode_record
from skylark.mqcommon.names import REVIVE_GROUP, REVIVE_TOPIC_PREFIX
from skylark.remoting.protocol.codes import ResponseCode

logger = logging.getLogger(__name__)

QUEUE_ID = 0
# Records read in one turn of the event loop: some 4 ms.
SLICE = 200
SLICE_BYTES = 1 << 20
#: An open check point is written again, nearer to the end, when this many records came after it.
MAX_BEHIND = 100_000
#: The most leases of a broker: about 1 KiB each. More pops are refused until some end.
MAX_LEASES = 200_000
# Nobody looks for a record by a key: without a unique key it takes no room in the index.
_PROPERTIES = {PopCheckpoint: b"TAGS\x01%s\x02" % CHECKPOINT, Ack: b"TAGS\x01%s\x02" % BATCH_ACK}


class ReviveLog:
    """Writes and reads the revive log of a broker."""

    def __init__(
        self,
        store: MessageStore,
        writer: Writer,
        offsets: ConsumerOffsets,
        clock: Clock,
        options: BrokerOptions,
        host: bytes,
        counts: PopCounts,
    ) -> None:
        self.topic = f"{REVIVE_TOPIC_PREFIX}{options.broker_cluster_name}"
        self.broker_name = options.broker_name
        self._store = store
        self._writer = writer
        self._offsets = offsets
        self._clock = clock
        self._host = host
        self._counts = counts
        self.clear()

    def clear(self) -> None:
        """Forget all state: this broker is not the master any more, or is about to read its log."""
        self.inflight = Inflight()
        self.commits = PendingCommits()
        self.is_ready = False

    def check_ready(self) -> None:
        """RequestRefused while this broker may not pop, or has not read its revive log yet."""
        self._writer.admission.check_own()
        if not self.is_ready:
            text = "[REJECTREQUEST]the broker is still reading which messages are popped; try again"
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, text)

    @property
    def is_full(self) -> bool:
        """Whether no more messages can be popped now."""
        return len(self.inflight) >= MAX_LEASES

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self._store.max_offset(self.topic, QUEUE_ID)

    def write(self, record: PopCheckpoint | Ack) -> PutResult:
        """Store the record and apply it. RequestRefused when it cannot be stored; the state is then unchanged."""
        put = self._writer.put(
            self.topic,
            QUEUE_ID,
            encode(record, self.broker_name),
            _PROPERTIES[type(record)],
            0,
            0,
            self._clock.now_ms(),
            self._host,
            is_complete=True,
        )
        return self._written(record, put)

    def write_own(self, record: PopCheckpoint | Ack) -> None:
        """As `write`, for a record that no client has asked for: it is stored even while too few slaves are in sync.

        Copies of messages are stored then, too. If their acknowledgements were refused, the messages would be copied
        again and again.
        """
        message = Incoming(
            self.topic,
            QUEUE_ID,
            encode(record, self.broker_name),
            _PROPERTIES[type(record)],
            0,
            0,
            self._clock.now_ms(),
            self._host,
            0,
        )
        self._written(record, self._writer.put_again(message, is_complete=True))

    def _written(self, record: PopCheckpoint | Ack, put: PutResult) -> PutResult:
        # The record is applied after it was stored: if storing fails, state and log still agree.
        self._apply_record(record, put.queue_offset, put.end)
        if isinstance(record, PopCheckpoint):
            self._counts.checkpoints += 1
        else:
            self._counts.acks += 1
        return put

    def _apply_record(self, record: PopCheckpoint | Ack, offset: int, log_end: int) -> None:
        self.inflight.apply(record, offset)
        if isinstance(record, PopCheckpoint) and record.position not in (None, RELEASED):
            self.commits.moved(record.key.queue, record.position, log_end)

    @property
    def _start(self) -> int:
        return max(self._offsets.query(REVIVE_GROUP, self.topic, QUEUE_ID), 0)

    def lower_start(self) -> bool:
        """Set the saved start back if it is past the end, and return whether it was: call it before `read`.

        The start is past the end when this broker was a slave that had its master's offsets, but not yet its log. If it
        were left there, the next `read` would miss the pops from now on. Check points that ended in the missing part of
        the log are open here. Open check points are near the end of the log, see `MAX_BEHIND`.
        """
        start, end = self._start, self.end
        if start <= end:
            return False
        logger.warning(
            "the revive log ends at %d, before its saved start %d: what was popped last may come again", end, start
        )
        self._offsets.commit(REVIVE_GROUP, self.topic, QUEUE_ID, max(end - 2 * MAX_BEHIND, 0))
        return True

    async def read(self, is_deleted: Callable[[str, int], bool]) -> JavaPops:
        """Read the records from the saved start on. Cancel the call when the role changes.

        ``is_deleted``: whether a record at this offset of the commit log is about a topic that was deleted since.
        Returns the records that a Java broker has written. The caller takes them over, and then sets `is_ready`.
        """
        start, end = self._start, self.end
        java = JavaPops(self.broker_name)

        def apply(record: Record) -> None:
            self._apply(record, java, is_deleted)

        await each_record(self._store, self.topic, QUEUE_ID, start, end, apply)
        if end > start:
            logger.info("%d records of the revive log read: %d check points are open", end - start, len(self.inflight))
        return java

    def _apply(self, stored: Record, java: JavaPops, is_deleted: Callable[[str, int], bool]) -> None:
        tag = find_property(stored.properties, b"TAGS") or b""
        try:
            if is_from_java(stored.properties) and not java.is_own(tag, stored.body):
                return
            record = decode(tag, stored.body)
        except ProtocolError as error:
            logger.error("record %d of %s is skipped: %s", stored.queue_offset, self.topic, error)
            return
        # A topic of the same name that was made since the deletion has other messages at these offsets.
        if is_deleted(record.key.queue.topic, stored.physical_offset):
            return
        self._apply_record(record, stored.queue_offset, stored.physical_offset + stored.size)
        if isinstance(record, PopCheckpoint):
            java.known.add(record.key)


async def each_record(
    store: MessageStore, topic: str, queue_id: int, start: int, end: int, visit: Callable[[Record], None]
) -> None:
    """Call ``visit`` with the stored records of the queue from ``start`` on, before ``end``."""
    offset = start
    while offset < end:
        count = min(SLICE, end - offset)
        found = await from_disk(partial(store.get, topic, queue_id, offset, count, SLICE_BYTES))
        if found.status is GetStatus.FOUND:
            for at in record_starts(found.records):
                visit(decode_record(found.records, at))
        elif found.next_offset <= offset:
            break
        offset = found.next_offset
        await trio.lowlevel.checkpoint()

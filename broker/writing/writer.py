"""The only way to put a message into the store: checks, the broker's own properties, deferral, then the store.

A message is stored when `Writer.put` returns, but not yet safe: durability.py decides when the producer is answered.
"""

import struct
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from skylark.broker.observe.stats import BrokerStats
from skylark.broker.store.queue.batch_records import Batch, RowBatch
from skylark.broker.store.store import BatchPutResult, MessageStore, PutResult
from skylark.broker.writing.admission import Admission
from skylark.broker.writing.deferred import AlikeRows, Deferral, PlacedRow, check_room
from skylark.broker.writing.durability import Durability
from skylark.broker.writing.light import LightQueues
from skylark.broker.writing.refusals import bad_fields, illegal, no_space
from skylark.broker.writing.stored_properties import Incoming, Row, StoredProperties
from skylark.mqcommon.errors import DiskFull, RequestRefused
from skylark.mqcommon.message.flags import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_MASK, WRAPPED
from skylark.mqcommon.message.properties import PRIORITY, replace_properties
from skylark.mqcommon.names import TRANS_HALF_TOPIC

_PRIORITY = PRIORITY.encode()
# A mask that removes the bits of sysFlag that the broker sets itself.
_NOT_OURS = ~(BORN_HOST_V6 | STORE_HOST_V6 | WRAPPED)


class BatchFields(NamedTuple):
    """The fields that the messages of a batch share."""

    topic: str
    queue_id: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    reconsume_times: int


class PlacedRows(NamedTuple):
    """The places of a batch's messages, which may be in different queues."""

    physical_offsets: list[int]
    queue_offsets: list[int]
    #: A time in the slot of each timed message, as its recall handle has it; 0 for other messages.
    slots_ms: list[int]
    #: The put is durable when the log is flushed or replicated up to here.
    end: int


class Writer:
    """Checks messages and puts them into the store. No method waits."""

    def __init__(
        self,
        store: MessageStore,
        admission: Admission,
        durability: Durability,
        stats: BrokerStats,
        properties: StoredProperties,
        deferral: Deferral,
        *,
        store_host_is_v6: bool,
        max_message_bytes: int,
        light: LightQueues | None = None,
        queue_for: Callable[[str, int], int] = lambda topic, queue_id: queue_id,
    ) -> None:
        """``queue_for`` returns the queue for a message that was deferred for a topic and queue."""
        self._store = store
        self._light = light
        self._put = store.put if light is None else light.put
        self._put_accepted = store.put if light is None else light.put_accepted
        self.admission = admission
        self.durability = durability
        self._stats = stats
        self.times = stats.put_times
        self._stamped = properties.of
        self._completed = properties.completed
        self._stamped_rows = properties.of_rows
        self._suffix = properties.suffix
        self._v6_flag = STORE_HOST_V6 if store_host_is_v6 else 0
        self._max_message_bytes = max_message_bytes
        #: Where deferred messages wait.
        self.deferral = deferral
        self._queue_for = queue_for

    # --- one message

    def put(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: bytes,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int = 0,
        *,
        is_complete: bool = False,
    ) -> PutResult:
        """Store one message; RequestRefused when it is refused.

        ``born_host``: the encoded address of the producer. This method sets the bits of ``sys_flag`` about hosts.
        ``is_complete``: the message is the broker's own, and gets no other properties than these.
        """
        is_open = self.admission.is_open
        if not is_open:
            self.admit(properties)
        stamped = properties if is_complete else self._stamped(properties)
        # Not a plain message: the half of a transaction, or a message for later delivery.
        if stamped is None:
            return self._put_deferred(
                Incoming(topic, queue_id, body, properties, flag, sys_flag, born_timestamp, born_host, reconsume_times)
            )
        self.check(sys_flag, len(body))
        if self.times.turn is None:
            self.times.begin()
        if not is_open and self.admission.no_room:
            self.check_light_queues(topic, stamped)  # errors of the message itself come first
            self._refuse_for_room()
        try:
            put = self._put(
                topic,
                queue_id,
                body,
                stamped,
                flag=flag,
                sys_flag=sys_flag & _NOT_OURS | self._v6_flag | (BORN_HOST_V6 if len(born_host) > 8 else 0),
                born_timestamp=born_timestamp,
                born_host=born_host,
                reconsume_times=reconsume_times,
            )
        except DiskFull as error:
            self.times.failed += 1
            raise no_space(error) from None
        except struct.error as error:
            raise _number_too_large(error) from None
        self._stats.put(topic, 1, put.end - put.physical_offset)
        return put

    def put_again(self, message: Incoming, *, is_complete: bool = False) -> PutResult:
        """Store a message that this broker has stored before, now in another queue. RequestRefused if not possible.

        The message was admitted before, so neither its size nor the number of slaves in sync matters, and it loses its
        light queues if they are not possible now. ``is_complete``: it gets no other properties than it has.
        """
        is_open = self.admission.is_open
        if not is_open:
            self.admission.check_own()
        born_host = message.born_host
        properties = message.properties if is_complete else self._completed(message.properties)
        if not is_open:
            self.admission.check_room()
        try:
            put = self._put_accepted(
                message.topic,
                self._queue_for(message.topic, message.queue_id),
                message.body,
                properties,
                flag=message.flag,
                sys_flag=message.sys_flag & _NOT_OURS | self._v6_flag | (BORN_HOST_V6 if len(born_host) > 8 else 0),
                born_timestamp=message.born_timestamp,
                born_host=born_host,
                reconsume_times=message.reconsume_times,
                prepared_transaction_offset=message.origin,
            )
        except DiskFull as error:
            raise no_space(error) from None
        except struct.error as error:
            raise _number_too_large(error) from None
        self._stats.put(message.topic, 1, put.end - put.physical_offset)
        return put

    def defer_if_asked(self, message: Incoming) -> None:
        """Defer ``message`` for the time in its properties, after it has waited for something else until now."""
        if message.properties.find(b"DEL") >= 0 and self._stamped(message.properties) is None:
            self.deferral.defer(message)

    def admit(self, properties: bytes) -> None:
        """RequestRefused when no client's message may be stored now: not the master, or too few slaves are in sync."""
        self.admission.check_message(self._store.log.end, properties)

    def admit_safe(self) -> None:
        """RequestRefused when a message that is stored now would lack copies on slaves."""
        self.admission.check_safe(self._store.log.end)

    def check(self, sys_flag: int, body_bytes: int) -> None:
        """RequestRefused for a message that no broker with these options accepts."""
        if sys_flag & TRANSACTION_MASK:
            raise illegal("sysFlag has the bits of a transaction, but the property TRAN_MSG is not true")
        if body_bytes > self._max_message_bytes:
            raise illegal(f"the body has {body_bytes} bytes, at most {self._max_message_bytes} are allowed")

    def check_light_queues(self, topic: str, properties: bytes) -> None:
        """RequestRefused when the light queues that a message of ``topic`` names are not possible."""
        if self._light is not None:
            self._light.check(topic, properties)

    def _refuse_for_room(self) -> None:
        self.times.failed += 1
        self.admission.check_room()

    def _put_deferred(self, message: Incoming) -> PutResult:
        self.check_light_queues(message.topic, message.properties)
        self.deferral.defer(message)
        self.check(message.sys_flag, len(message.body))
        message.properties = self._completed(message.properties)
        if message.topic == TRANS_HALF_TOPIC:
            check_room(message.properties)
        if self.times.turn is None:
            self.times.begin()
        put = self.put_again(message, is_complete=True)
        return put._replace(recall_handle=message.recall.encode()) if message.recall else put

    # --- batches

    def use_columns(self, np: Any) -> None:
        """Use numpy from now on, see `Index.use_columns`."""
        self._store.index.use_columns(np)

    def stamped(self, rows: list[Row]) -> list[Row]:
        """The rows as `put_batch` takes them. RequestRefused when one of them is refused."""
        if self._light is not None:
            self._light.refuse_in_batch(rows)
        return self._stamped_rows(rows)

    def put_batch(self, fields: BatchFields, batch: Batch, properties: bytes = b"") -> BatchPutResult:
        """Store the messages in one queue, all or none: rows as `stamped` returns them, or a uniform batch.

        ``properties``: the properties of the batch as a whole.
        """
        return self._put_many(fields, len(batch), properties, self._store.put_batch, batch, suffix=self._suffix)

    def place_rows(self, fields: BatchFields, rows: list[Row], properties: bytes = b"") -> PlacedRows:
        """Store each row where it would be if it had come alone: some messages are to be delivered later.

        All rows are checked before the first is stored. If the disk gets full, rows of some queues may be stored, and
        rows of other queues not.
        """
        if self._light is not None:
            self._light.refuse_in_batch(rows)
        slots_ms: list[int] = []
        # By topic and queue: the numbers of the messages there, and their rows.
        places: dict[tuple[str, int], tuple[list[int], list[Row]]] = {}
        alike = AlikeRows(partial(self._place, fields), self.deferral)
        for number, (flag, body, given) in enumerate(rows):
            self.check(fields.sys_flag, len(body))
            place, stored, slot_ms = alike.place(given)
            numbers, there = places.setdefault(place, ([], []))
            numbers.append(number)
            there.append((flag, body, stored))
            slots_ms.append(slot_ms)
        placed = PlacedRows([0] * len(rows), [0] * len(rows), slots_ms, 0)
        batches = [(*place, numbers, RowBatch(there)) for place, (numbers, there) in places.items()]
        # `put_batch` checks the first queue's rows before anything is stored.
        for topic, queue_id, _, batch in batches[1:]:
            self._store.check_batch(topic, queue_id, batch, suffix=self._suffix, born_host=fields.born_host)
        for topic, queue_id, numbers, batch in batches:
            put = self.put_batch(fields._replace(topic=topic, queue_id=queue_id), batch, properties)
            for index, number in enumerate(numbers):
                placed.physical_offsets[number] = put.physical_offsets[index]
                placed.queue_offsets[number] = put.queue_offset + index
            placed = placed._replace(end=put.end)
        return placed

    def _place(self, fields: BatchFields, given: bytes) -> PlacedRow:
        """Where a message with these properties goes, and its stored properties without `StoredProperties.suffix`."""
        cut, stored = len(self._suffix), self._stamped(given)
        if stored is not None:
            return (fields.topic, fields.queue_id), stored[:-cut], 0
        message = Incoming(
            fields.topic,
            fields.queue_id,
            b"",
            given,
            0,
            fields.sys_flag,
            fields.born_timestamp,
            fields.born_host,
            fields.reconsume_times,
        )
        if given.find(_PRIORITY) >= 0:
            message.properties = replace_properties(given, {_PRIORITY: None})  # as `with_priority` does
        self.deferral.defer(message)
        if message.topic == TRANS_HALF_TOPIC:
            raise illegal("a message in a batch is in a transaction; send such messages one by one")
        stored = self._completed(message.properties)[:-cut]
        return (message.topic, message.queue_id), stored, message.recall.slot_ms if message.recall else 0

    def keeps_batches(self, topic: str, queue_id: int) -> bool:
        """Whether batches for this queue go to `put_inner`."""
        return self._store.queues.keeps_batches(topic, queue_id)

    def put_inner(
        self, fields: BatchFields, batch: bytes, messages: int, properties: bytes = b"", tag: bytes | None = None
    ) -> BatchPutResult:
        """Store the body of a batch send, with this number of `stamped` messages, in a batch queue as one record.

        ``tag``: the tag of all its messages; None if they have no tag, or different tags.
        """
        own = {b"TAGS": tag, b"INNER_NUM": b"%d" % messages, b"INNER_BASE": None}
        stored = self._completed(replace_properties(properties, own))
        return self._put_many(fields, messages, properties, self._store.put_inner, batch, messages, stored)

    def _put_many(
        self,
        fields: BatchFields,
        messages: int,
        properties: bytes,
        put_all: Callable[..., BatchPutResult],
        *what: Any,
        **more: Any,
    ) -> BatchPutResult:
        is_open = self.admission.is_open
        if not is_open:
            self.admit(properties)
        # The properties of the batch as a whole hold for each of its messages.
        has = properties.find
        if (has(b"DEL") >= 0 or has(b"TRAN_MSG") >= 0) and self._stamped(properties) is None:
            raise illegal("a batch cannot be delayed or in a transaction; send such messages one by one")
        if self.times.turn is None:
            self.times.begin()
        if not is_open and self.admission.no_room:
            self._refuse_for_room()
        born_host = fields.born_host
        try:
            put = put_all(
                fields.topic,
                fields.queue_id,
                *what,
                **more,
                sys_flag=fields.sys_flag & _NOT_OURS | self._v6_flag | (BORN_HOST_V6 if len(born_host) > 8 else 0),
                born_timestamp=fields.born_timestamp,
                born_host=born_host,
                reconsume_times=fields.reconsume_times,
            )
        except DiskFull as error:
            self.times.failed += 1
            raise no_space(error) from None
        except struct.error as error:
            raise _number_too_large(error) from None
        self._stats.put(fields.topic, messages, put.end - put.physical_offsets[0])
        return put


def _number_too_large(error: struct.error) -> RequestRefused:
    return bad_fields(ValueError(f"a number is too large for its field: {error}"))

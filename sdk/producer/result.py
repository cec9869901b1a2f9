"""Results of sends."""

from collections.abc import Sequence
from enum import Enum
from typing import overload

from skylark.mqcommon.message.ids import RecallHandle, offset_msg_id
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.codes import ResponseCode
from skylark.sdk.producer.wire import Row, Stored, unique_key


class SendStatus(Enum):
    """The status of a stored message. For all but SEND_OK the message is sent once more, to another broker if possible.

    If no broker answers SEND_OK, SendFailed is raised, unless the producer has ``accept_weaker``.
    """

    SEND_OK = ResponseCode.SUCCESS
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE


STATUS_OF = {status.value: status for status in SendStatus}


class StoredBatch(Sequence["SendResult"]):
    """The messages that one request stored: ``rows`` are in ``queue`` from queue offset ``where.queue_offset`` on."""

    __slots__ = ("queue", "rows", "status", "tries", "where", "wire_topic")

    def __init__(
        self,
        where: Stored,
        status: SendStatus,
        queue: MessageQueue,
        rows: Sequence[Row],
        tries: int = 1,
        wire_topic: str = "",
    ) -> None:
        """``wire_topic``: the topic as the broker knows it, with the namespace."""
        self.where = where
        self.status = status
        self.queue = queue
        self.rows = rows
        self.tries = tries
        self.wire_topic = wire_topic or queue.topic

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"{len(self)} messages from offset {self.where.queue_offset} of {self.queue}"

    @overload
    def __getitem__(self, index: int) -> "SendResult": ...

    @overload
    def __getitem__(self, index: slice) -> Sequence["SendResult"]: ...

    def __getitem__(self, index: int | slice) -> "SendResult | Sequence[SendResult]":
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        return SendResult(self, range(len(self))[index], self.tries)


class SendResult:
    """Where a message is stored. ``tries`` counts from 1; when it is above 1, other brokers may have copies."""

    __slots__ = ("_batch", "_number", "tries")

    def __init__(self, batch: StoredBatch, number: int, tries: int) -> None:
        self._batch = batch
        self._number = number
        self.tries = tries

    @property
    def status(self) -> SendStatus:
        return self._batch.status

    @property
    def queue(self) -> MessageQueue:
        return self._batch.queue

    @property
    def queue_offset(self) -> int:
        where = self._batch.where
        return where.queue_offsets[self._number] if where.queue_offsets else where.queue_offset + self._number

    @property
    def msg_id(self) -> str:
        """The unique key of the message."""
        return unique_key(self._batch.rows[self._number])

    @property
    def physical_offset(self) -> int:
        """The message's offset in the broker's log."""
        return self._batch.where.physical_offsets[self._number]

    @property
    def offset_msg_id(self) -> str:
        """The id made of the broker's address and the commit log offset, for `mqadmin queryMsgById`."""
        where = self._batch.where
        return offset_msg_id(where.host, where.physical_offsets[self._number])

    @property
    def recall_handle(self) -> str:
        """The handle for `Producer.recall`, while a message waits for its time of delivery; "" for other messages."""
        batch = self._batch
        slot_ms = batch.where.slots_ms[self._number] if batch.where.slots_ms else 0
        if not slot_ms:
            return batch.where.recall_handle
        return RecallHandle(batch.wire_topic, batch.queue.broker_name, slot_ms, self.msg_id).encode()

    def __repr__(self) -> str:
        return (
            f"SendResult(status={self.status.name}, msg_id={self.msg_id!r}, queue={self.queue}, "
            f"queue_offset={self.queue_offset}, tries={self.tries})"
        )


class BulkResult(Sequence[SendResult]):
    """The results of `Producer.send_many` in the order of the messages. Each SendResult is made when it is accessed."""

    def __init__(self, parts: Sequence[Sequence[SendResult]]) -> None:
        self._parts = parts
        self._count = sum(len(part) for part in parts)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> SendResult: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[SendResult]: ...

    def __getitem__(self, index: int | slice) -> SendResult | Sequence[SendResult]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(self._count))]
        if index < 0:
            index += self._count
        for part in self._parts:
            if 0 <= index < len(part):
                return part[index]
            index -= len(part)
        raise IndexError("no such message")

"""What became of a send."""

from collections.abc import Sequence
from enum import Enum
from typing import overload

from common.message.ids import offset_msg_id
from common.message.queue import MessageQueue
from remoting.protocol.codes import ResponseCode


class SendStatus(Enum):
    """The four outcomes of a message that is stored; anything but SEND_OK raises, unless the producer accepts it."""

    SEND_OK = ResponseCode.SUCCESS
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE


class SendResult:
    """Where a message is. ``tries`` counts from 1: above that, copies of it may lie on other brokers."""

    __slots__ = ("_host", "_offset", "msg_id", "queue", "queue_offset", "status", "tries")

    def __init__(
        self,
        status: SendStatus,
        msg_id: str,
        queue: MessageQueue,
        queue_offset: int,
        host: bytes,
        physical_offset: int,
        tries: int,
    ) -> None:
        self.status = status
        self.msg_id = msg_id
        self.queue = queue
        self.queue_offset = queue_offset
        self._host = host
        self._offset = physical_offset
        self.tries = tries

    @property
    def offset_msg_id(self) -> str:
        """The id that says where the broker keeps it: what `mqadmin queryMsgById` takes."""
        return offset_msg_id(self._host, self._offset)

    def __repr__(self) -> str:
        return (
            f"SendResult(status={self.status.name}, msg_id={self.msg_id!r}, queue={self.queue}, "
            f"queue_offset={self.queue_offset}, tries={self.tries})"
        )


class BulkResult(Sequence[SendResult]):
    """The results of `Producer.send_many`, in the order of the messages; each is made when it is looked at."""

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

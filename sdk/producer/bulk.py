"""Many bodies at once: cut into batches; the results of each, made when they are looked at."""

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from common.clock import Clock
from common.message.ids import UniqueKeys
from common.message.message import Message, wire_properties
from common.message.queue import MessageQueue
from sdk.producer.result import SendResult, SendStatus
from sdk.producer.wire import Row, Stored

BATCH_COUNT = 1_000
BATCH_BYTES = 256 * 1024


class StoredBatch(Sequence[SendResult]):
    """The results of one batch, made when they are looked at."""

    def __init__(self, where: Stored, status: SendStatus, queue: MessageQueue, rows: list[Row], tries: int) -> None:
        self._where = where
        self.status = status
        self._queue = queue
        self._rows = rows
        self._tries = tries

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"{len(self)} messages from offset {self._where.queue_offset} of {self._queue}"

    @overload
    def __getitem__(self, index: int) -> SendResult: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[SendResult]: ...

    def __getitem__(self, index: int | slice) -> SendResult | Sequence[SendResult]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        where = self._where
        return SendResult(
            self.status,
            _unique_key(self._rows[index][2]),
            self._queue,
            where.queue_offset + index,
            where.host,
            where.physical_offsets[index],
            self._tries,
        )


def cut(bodies: Iterable[bytes | Message], keys: UniqueKeys, clock: Clock) -> Iterator[list[Row]]:
    """The bodies as rows of batches; what cannot be in a batch comes alone."""
    rows: list[Row] = []
    room = BATCH_BYTES
    next_key = keys.next
    now_ms = clock.now_ms()
    for body in bodies:
        if isinstance(body, Message):
            row = (body.flag, body.body, wire_properties(body, next_key(now_ms)))
        else:
            row = (0, body, b"UNIQ_KEY\x01" + next_key(now_ms).encode() + b"\x02")
        room -= len(row[1]) + len(row[2])
        if rows and (room < 0 or len(rows) == BATCH_COUNT):
            yield rows
            rows = []
            room = BATCH_BYTES - len(row[1]) - len(row[2])
            now_ms = clock.now_ms()
        rows.append(row)
    if rows:
        yield rows


def _unique_key(properties: bytes) -> str:
    # Ours is the last property.
    return properties[properties.rindex(b"UNIQ_KEY\x01") + 9 : -1].decode()

"""Many bodies at once: cut into batches; the results of each, made when they are looked at."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import overload

from common.clock import Clock
from common.message.ids import UniqueKeys
from common.message.message import Message, own_properties
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


def cut(topic: str, bodies: Iterable[bytes | Message], keys: UniqueKeys, clock: Clock) -> Iterator[list[Row]]:
    """The bodies as rows of batches, at most BATCH_COUNT and about BATCH_BYTES each."""
    rest = iter(bodies)
    while chunk := list(islice(rest, BATCH_COUNT)):
        if any([isinstance(body, Message) and body.topic != topic for body in chunk]):
            raise ValueError(f"send_many({topic!r}) got a message for another topic")
        rows = _rows(chunk, keys.many(clock.now_ms(), len(chunk)))
        size = sum([len(body) for _, body, _ in rows])
        per_batch = max(len(rows) * BATCH_BYTES // max(size, 1), 1)
        for start in range(0, len(rows), per_batch):
            yield rows[start : start + per_batch]


def _rows(chunk: list[bytes | Message], keys: list[bytes]) -> list[Row]:
    return [
        (body.flag, body.body, own_properties(body) + key) if isinstance(body, Message) else (0, body, key)
        for body, key in zip(chunk, keys, strict=True)
    ]


def _unique_key(properties: bytes) -> str:
    # Ours is the last property.
    return properties[properties.rindex(b"UNIQ_KEY\x01") + 9 : -1].decode()

"""Many bodies at once: cut into batches."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from mqcommon.clock import Clock
from mqcommon.message.ids import UniqueKeys
from mqcommon.message.message import Message, own_properties
from sdk.producer.wire import Row

BATCH_COUNT = 1_000
BATCH_BYTES = 256 * 1024


def cut(topic: str, bodies: Iterable[bytes | Message], keys: UniqueKeys, clock: Clock) -> Iterator[list[Row]]:
    """The bodies as rows of batches, at most BATCH_COUNT and about BATCH_BYTES each."""
    rest = iter(bodies)
    while chunk := list(islice(rest, BATCH_COUNT)):
        if any([isinstance(body, Message) and body.topic != topic for body in chunk]):
            raise ValueError(f"send_many({topic!r}) got a message for another topic")
        rows = make_rows(chunk, keys.many(clock.now_ms(), len(chunk)))
        size = sum([len(body) for _, body, _ in rows])
        per_batch = max(len(rows) * BATCH_BYTES // max(size, 1), 1)
        for start in range(0, len(rows), per_batch):
            yield rows[start : start + per_batch]


def make_message_rows(messages: Sequence[Message], keys: list[bytes]) -> list[Row]:
    """Rows of messages, each with its unique key as its last property."""
    return [
        (m.flag, m.body, key if m.properties is None else own_properties(m) + key)
        for m, key in zip(messages, keys, strict=True)
    ]


def make_rows(chunk: Sequence[bytes | Message], keys: list[bytes]) -> list[Row]:
    """Rows of bodies and messages, each with its unique key as its last property."""
    return [
        (body.flag, body.body, own_properties(body) + key) if isinstance(body, Message) else (0, body, key)
        for body, key in zip(chunk, keys, strict=True)
    ]

"""Checks many messages at once and cuts them into batches."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, cast, overload

from mqcommon.arguments import check_bytes, wrong_type
from mqcommon.clock import Clock
from mqcommon.errors import InvalidArgument
from mqcommon.message.ids import UniqueKeys
from mqcommon.message.light import LightMessage
from mqcommon.message.message import Message, OwnKeyMessage, WithOwnKeys, own_properties
from mqcommon.message.properties import SHARDING_KEY
from sdk.producer.wire import Row

BATCH_COUNT = 1_000
BATCH_BYTES = 256 * 1024
# Fewer messages than this are not divided among queues.
MIN_BATCH_COUNT = 250


def cut(
    topic: str, messages: Iterable[bytes | Message], queues: int, max_bytes: int, keys: UniqueKeys, clock: Clock
) -> Iterator[list[Row]]:
    """Batches of rows, with at most BATCH_COUNT messages and about BATCH_BYTES each.

    Many messages in a sequence are divided evenly among ``queues``, in batches of MIN_BATCH_COUNT at least. Messages
    are checked by `check` before the first batch with them is returned.
    """
    most = BATCH_COUNT
    if isinstance(messages, Sequence):
        most = min(max(-(-len(messages) // max(queues, 1)), MIN_BATCH_COUNT), BATCH_COUNT)
    rest = iter(messages)
    done = 0
    while chunk := list(islice(rest, most)):
        check(topic, chunk, max_bytes, done)
        done += len(chunk)
        if isinstance(messages, WithOwnKeys):
            rows = make_rows(chunk, messages.encoded_keys[done - len(chunk) : done])
        else:
            rows = make_rows(chunk, keys.many(clock.now_ms(), len(chunk)))
        size = sum([len(body) for _, body, _ in rows])
        per_batch = max(len(rows) * BATCH_BYTES // max(size, 1), 1)
        for start in range(0, len(rows), per_batch):
            yield rows[start : start + per_batch]


def check(topic: str, chunk: Sequence[bytes | Message], max_bytes: int, first: int = 0) -> None:
    """Raise TypeError or InvalidArgument, with the position of the message, for a message that cannot be sent.

    ``first`` is the position of the first message. The types of all messages are checked together, which takes a tenth
    of the time of checking each.
    """
    bodies: Sequence[Any] = chunk
    kinds = set(map(type, chunk))
    if kinds == {Message}:
        messages = cast(Sequence[Message], chunk)
        bodies = [message.body for message in messages]
        is_plain = {message.topic for message in messages} == {topic} and not any(map(_is_keyed, messages))
        kinds = set(map(type, bodies)) if is_plain else set()
    if kinds == {bytes} and max(map(len, bodies)) <= max_bytes:
        return
    for number, each in enumerate(chunk, first):
        _check_one(topic, f"messages[{number}]", each, max_bytes)


def _check_one(topic: str, name: str, each: bytes | Message, max_bytes: int) -> None:
    if not isinstance(each, Message):
        if not isinstance(each, bytes):
            raise wrong_type(name, "bytes or a Message", each)
        check_body(name, each, max_bytes)
        return
    if each.topic != topic:
        raise InvalidArgument(f"{name} must be of topic {topic!r}, not of {each.topic!r}")
    if isinstance(each, LightMessage):
        raise InvalidArgument(f"{name} is for light queues, which a batch cannot be: send it with `send`")
    if isinstance(each, OwnKeyMessage):
        raise InvalidArgument(f"{name} has a unique key of its own: give all of them keys, with WithOwnKeys")
    if _is_keyed(each):
        raise InvalidArgument(f"{name} has a sharding key, and batches go to all queues: send it with `send`")
    check_body(f"{name}.body", each.body, max_bytes)


def _is_keyed(message: Message) -> bool:
    return message.properties is not None and SHARDING_KEY in message.properties


def check_body(name: str, body: bytes, max_bytes: int) -> None:
    """Check that ``body`` is bytes, and not larger than ``max_bytes``."""
    if not isinstance(body, bytes):
        check_bytes(name, body)
    if len(body) > max_bytes:
        raise InvalidArgument(f"{name} has {len(body)} bytes, at most {max_bytes} are allowed")


class Columns(Sequence[Row]):
    """Rows that are made when they are looked at.

    A tuple for each message in flight would keep the garbage collector busy, and the encoder needs none.
    """

    __slots__ = ("_bodies", "_flags", "_properties")

    def __init__(self, flags: list[int], bodies: list[bytes], properties: list[bytes]) -> None:
        self._flags = flags
        self._bodies = bodies
        self._properties = properties

    def __len__(self) -> int:
        return len(self._bodies)

    def __iter__(self) -> Iterator[Row]:
        return zip(self._flags, self._bodies, self._properties, strict=True)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        if isinstance(index, slice):
            return Columns(self._flags[index], self._bodies[index], self._properties[index])
        return self._flags[index], self._bodies[index], self._properties[index]


def make_rows(chunk: Sequence[bytes | Message], keys: list[bytes]) -> list[Row]:
    """Rows of bodies and messages, each with its unique key as its last property."""
    return [
        (body.flag, body.body, own_properties(body) + key) if isinstance(body, Message) else (0, body, key)
        for body, key in zip(chunk, keys, strict=True)
    ]

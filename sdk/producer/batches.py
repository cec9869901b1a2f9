"""Many messages at once: `batches_of` checks them and makes batches, `send_batches` sends batches through a lane.

`ArrowSends` makes batches of Arrow tables, whose rows never become Python objects.
Neighbours: producer.py (`send_many`, `send_arrow`), sdk/arrow (checks and encodes columns).
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, islice
from typing import TYPE_CHECKING, Any, cast

import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.arguments import hint_for_bytes, wrong_type
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import InvalidArgument
from skylark.mqcommon.message.batch import OVERHEAD
from skylark.mqcommon.message.ids import UniqueKeys
from skylark.mqcommon.message.light import LightMessage
from skylark.mqcommon.message.message import Message, OwnKeyMessage, WithOwnKeys, own_properties
from skylark.mqcommon.message.properties import DELAY, PRIORITY, SHARDING_KEY
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.arrow import check_arrow
from skylark.sdk.producer.lane import MAX_BATCH_COUNT, SLOTS_PER_BROKER, Lane
from skylark.sdk.producer.packing import check_body
from skylark.sdk.producer.pending import PendingSend
from skylark.sdk.producer.result import BulkResult, StoredBatch
from skylark.sdk.producer.wire import EncodedRows, Row
from skylark.sdk.routes import TopicRoute

if TYPE_CHECKING:
    from skylark.sdk.arrow.encode import TableRows

BATCH_COUNT = 1_000
BATCH_BYTES = 256 * 1024
# Fewer messages than this are not divided among queues.
MIN_BATCH_COUNT = 250
# Parts of a table that are kept from the check until they are sent; later parts are encoded again.
KEPT_PARTS = 16
# RocketMQ's brokers would not see a delay level within a batch.
_SPECIAL = (SHARDING_KEY, PRIORITY, DELAY)

#: Makes batches of rows for a number of queues.
MakeBatches = Callable[[int], Iterator[Sequence[Row]]]
SendBatches = Callable[[str, MessageQueue | None, MakeBatches], Awaitable[BulkResult]]


def batches_of(
    topic: str, messages: Iterable[bytes | Message], queues: int, max_bytes: int, keys: UniqueKeys, clock: Clock
) -> Iterator[list[Row]]:
    """Batches of rows, with at most BATCH_COUNT messages each, and BATCH_BYTES or ``max_bytes``; see `cut`.

    Many messages in a sequence are divided evenly among ``queues``, in batches of MIN_BATCH_COUNT at least. Messages
    are checked by `check_messages` before the first batch with them is returned.
    """
    most = BATCH_COUNT
    if isinstance(messages, Sequence):
        most = min(max(-(-len(messages) // max(queues, 1)), MIN_BATCH_COUNT), BATCH_COUNT)
    rest = iter(messages)
    done = 0
    while chunk := list(islice(rest, most)):
        check_messages(topic, chunk, max_bytes, done)
        done += len(chunk)
        if isinstance(messages, WithOwnKeys):
            rows = make_rows(chunk, messages.encoded_keys[done - len(chunk) : done])
        else:
            rows = make_rows(chunk, keys.many(clock.now_ms(), len(chunk)))
        yield from cut(rows, min(BATCH_BYTES, max_bytes))


def cut(rows: list[Row], most_bytes: int) -> Iterator[list[Row]]:
    """``rows`` in parts whose batch bodies have at most ``most_bytes``; a row that is larger is alone.

    Rows may differ in size: brokers refuse a whole batch whose body is larger than one message may be.
    """
    ends = list(accumulate([OVERHEAD + len(body) + len(properties) for _, body, properties in rows]))
    start = begin = 0
    while start < len(rows):
        upto = max(bisect_right(ends, begin + most_bytes, start), start + 1)
        yield rows[start:upto]
        start, begin = upto, ends[upto - 1]


def check_messages(topic: str, chunk: Sequence[bytes | Message], max_bytes: int, first: int = 0) -> None:
    """Raise TypeError or InvalidArgument, with the position of the message, for a message that cannot be sent.

    ``first`` is the position of the first message. The types of all messages are checked together, which takes a tenth
    of the time of checking each.
    """
    bodies: Sequence[Any] = chunk
    kinds = set(map(type, chunk))
    if kinds == {Message}:
        messages = cast(Sequence[Message], chunk)
        bodies = [message.body for message in messages]
        is_plain = {message.topic for message in messages} == {topic} and not any(map(_is_special, messages))
        kinds = set(map(type, bodies)) if is_plain else set()
    if kinds == {bytes} and max(map(len, bodies)) <= max_bytes:
        return
    for number, each in enumerate(chunk, first):
        _check_one(topic, f"messages[{number}]", each, max_bytes)


def _check_one(topic: str, name: str, each: bytes | Message, max_bytes: int) -> None:
    if not isinstance(each, Message):
        if not isinstance(each, bytes):
            raise wrong_type(name, "bytes or a Message", each, hint_for_bytes(name, each))
        check_body(name, each, max_bytes)
        return
    if each.topic != topic:
        raise InvalidArgument(f"{name} must be of topic {topic!r}, not of {each.topic!r}")
    if isinstance(each, LightMessage):
        raise InvalidArgument(f"{name} is for light queues, which a batch cannot be: send it with `send`")
    if isinstance(each, OwnKeyMessage):
        raise InvalidArgument(f"{name} has a unique key of its own: give all of them keys, with WithOwnKeys")
    if _is_special(each):
        if each.sharding_key is not None:
            raise InvalidArgument(f"{name} has a sharding key, and batches go to all queues: send it with `send`")
        what = "a delay_level" if each.priority is None else "a priority"
        raise InvalidArgument(f"{name} has {what}: send it with `send` or `send_nowait`, which make batches, too")
    check_body(f"{name}.body", each.body, max_bytes)


def _is_special(message: Message) -> bool:
    return message.properties is not None and not message.properties.keys().isdisjoint(_SPECIAL)


def make_rows(chunk: Sequence[bytes | Message], keys: list[bytes]) -> list[Row]:
    """Rows of bodies and messages, each with its unique key as its last property."""
    return [
        (body.flag, body.body, own_properties(body) + key) if isinstance(body, Message) else (0, body, key)
        for body, key in zip(chunk, keys, strict=True)
    ]


async def send_batches(
    lane: Lane, batches: Iterator[Sequence[Row]], route: TopicRoute | None, timeout_s: float
) -> BulkResult:
    """Send ``batches``, which are made while others are in flight. Raises the first error of a send or of ``batches``.

    Each broker gets one batch more than it takes at a time, so that it never waits for a batch.
    """
    numbered = enumerate(batches)
    results: dict[int, StoredBatch] = {}
    failures: list[Exception] = []

    @enable_ki_protection
    async def work(scope: trio.CancelScope) -> None:
        # Each task takes the next batch as soon as it has a result. The tasks share ``numbered``, and advance it
        # without an await, so each batch is taken once.
        try:
            for number, rows in numbered:
                send = PendingSend(None, rows, timeout_s, trio.lowlevel.current_task())
                lane.add(send)
                results[number] = await trio.lowlevel.wait_task_rescheduled(send.abort)
                if isinstance(rows, EncodedRows):
                    rows.drop_bodies()
        except Exception as error:
            failures.append(error)
            scope.cancel()

    async with trio.open_nursery() as nursery:
        for _ in range((SLOTS_PER_BROKER + 1) * max(len(route.writable_at) if route else 1, 1)):
            nursery.start_soon(work, nursery.cancel_scope)
    if failures:
        raise failures[0]
    return BulkResult([results[number] for number in sorted(results)])


class ArrowSends:
    """The tables of one producer; ``key_block`` makes unique keys, see `UniqueKeys.block`."""

    def __init__(
        self, send_batches: SendBatches, key_block: Callable[[int], tuple[bytes, int]], max_message_bytes: int
    ) -> None:
        self._send_batches = send_batches
        self._key_block = key_block
        self._max_message_bytes = max_message_bytes

    async def send(
        self, topic: str, data: object, columns: Mapping[str, str | None], queue: MessageQueue | None
    ) -> BulkResult:
        """See `Producer.send_arrow`."""
        check_arrow("send_arrow")
        from skylark.sdk.arrow.encode import TableColumns

        given = TableColumns(data, columns, self._max_message_bytes)
        kept: deque[TableRows] = deque()
        kept_rows = 0
        # All rows are checked before any is sent. The first parts are kept; keeping all parts would double the memory
        # of a large table, so later parts are encoded again.
        for part in given.parts():
            if len(kept) < KEPT_PARTS:
                kept.append(part)
                kept_rows += len(part.bodies)
            await trio.lowlevel.checkpoint()
        parts = chain(drained(kept), given.parts(kept_rows))
        return await self._send_batches(topic, queue, lambda queues: self._batches(parts, given.rows, queues))

    def _batches(self, parts: "Iterator[TableRows]", rows: int, queues: int) -> Iterator[EncodedRows]:
        """Batches for lanes. Many messages are divided evenly among ``queues``, as in `batches_of`."""
        from skylark.sdk.arrow.encode import encode

        most = min(max(-(-rows // max(queues, 1)), MIN_BATCH_COUNT), MAX_BATCH_COUNT)
        most_bytes = min(BATCH_BYTES, self._max_message_bytes)
        for part in parts:
            head, number = self._key_block(len(part.bodies))
            data, ends = encode(part, head, number)
            done = begin = 0
            while done < len(ends):
                fitting = int(ends.searchsorted(begin + most_bytes, side="right"))
                upto = max(min(fitting, done + most), done + 1)
                end = int(ends[upto - 1])
                yield EncodedRows(bytes(data[begin:end]), upto - done, head, number + done)
                done, begin = upto, end


def drained(parts: "deque[TableRows]") -> "Iterator[TableRows]":
    """The parts, each dropped from ``parts`` when it is returned."""
    while parts:
        yield parts.popleft()

"""Messages as Arrow record batches, without an object for each message.

`ArrowReader` reads queues for `PullConsumer.arrow`. The handlers of a `PushConsumer` that take a record batch are batch
handlers, whose messages are decoded together. Neighbours: sdk/arrow/decode.py (record batches of stored records),
stream.py, reader.py.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from skylark.mqcommon.arguments import LONG_MAX
from skylark.mqcommon.errors import InvalidArgument, ProtocolError
from skylark.mqcommon.message.columns import DamagedRecord
from skylark.mqcommon.message.flags import COMPRESSED
from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import is_light
from skylark.sdk.arrow import RecordBatch, check_arrow
from skylark.sdk.client import ClientHandle
from skylark.sdk.consumer.expression import Sql
from skylark.sdk.consumer.outcome import BatchHandler, Result
from skylark.sdk.consumer.reader import PullStatus, Reader, as_in_light_queue
from skylark.sdk.consumer.stream import QueueStream
from skylark.sdk.consumer.trail import Trail
from skylark.sdk.consumer.workers import ForeignHandlers
from skylark.sdk.namespaces import Names
from skylark.sdk.position import Position
from skylark.sdk.runtime import off_loop

if TYPE_CHECKING:
    from pyarrow import Schema

    from skylark.sdk.arrow.records import Records


class ArrowBatches(QueueStream[RecordBatch]):
    """``async for batch in stream``: record batches, one for each pull. `MessageStream` documents what ends it."""


class Decoded(NamedTuple):
    """The wanted messages of a pull. ``next_offset``: where the rest begins, if the pull had too many bytes."""

    messages: RecordBatch
    next_offset: int | None


class ArrowPull(NamedTuple):
    """Like `PullResult`, with a record batch."""

    status: PullStatus
    messages: RecordBatch
    next_offset: int
    is_made_again: bool = False


class Wanted(NamedTuple):
    """What a stream of record batches reads. Its queue has the names of servers."""

    mq: MessageQueue
    end: int | None
    schema: "Schema"
    expression: str | Sql
    max_count: int
    max_bytes: int
    wait_ms: int


class ArrowReader:
    """The record batches of one consumer; ``listen_to`` tells brokers of a topic."""

    def __init__(self, client: ClientHandle, reader: Reader, listen_to: Callable[[str, str | Sql], None]) -> None:
        self._client = client
        self._reader = reader
        self._listen_to = listen_to

    def stream(self, wanted: Wanted, start: Position, on_taken: Callable[[int | None], object]) -> ArrowBatches:
        """See `PullConsumer.arrow`."""
        self._reader.tags_of(wanted.expression)  # raises if the expression is invalid
        client = self._client
        return ArrowBatches(
            partial(self._pull, wanted), client.nursery, start, wanted.end, client.instance.backoff, on_taken=on_taken
        )

    async def _pull(self, wanted: Wanted, trail: Trail, offset: int) -> ArrowPull:
        mq, expression, names = wanted.mq, wanted.expression, self._client.names
        self._listen_to(mq.topic, expression)
        pulled = await self._reader.pull_bytes(
            mq,
            offset,
            max_count=wanted.max_count,
            max_bytes=wanted.max_bytes,
            expression=expression,
            wait_ms=wanted.wait_ms,
            trail=trail,
        )
        data = as_in_light_queue(pulled.data, mq.topic) if is_light(mq.topic) else pulled.data
        try:
            from skylark.sdk.arrow.records import Records

            records = Records(data)
            work = partial(_decoded, records, wanted, offset, self._reader.tags_of(expression), names)
            # Decompressing bodies would hold up the event loop.
            found = await off_loop(work) if (records.sys_flags & COMPRESSED).any() else work()
        except DamagedRecord as error:
            raise ProtocolError(f"{mq}: what a pull at offset {offset} returned cannot be decoded: {error}") from error
        next_offset = pulled.next_offset if found.next_offset is None else found.next_offset
        return ArrowPull(pulled.status, found.messages, next_offset, pulled.is_made_again)


def _decoded(records: "Records", wanted: Wanted, offset: int, tags: frozenset[str], names: Names) -> Decoded:
    """The messages from ``offset`` on that are wanted."""
    from skylark.sdk.arrow.decode import TooMuchContent, check_order, decode, has_tag
    from skylark.sdk.arrow.records import numbers

    records, next_offset = _without_batches(records)
    offsets = check_order(records)
    end = LONG_MAX if wanted.end is None else wanted.end
    low, high = offsets.searchsorted([offset, end]).tolist()
    # A record batch may not hold more than 2 GiB: halve the range until it fits. A single message always fits.
    while True:
        some = records.part(low, high)
        try:
            batch = decode(some, wanted.mq.broker_name, wanted.schema)
            break
        except TooMuchContent:
            # The messages from ``high`` on are pulled again.
            high = (low + high) // 2
            next_offset = int(offsets[high])
    if tags and not (passed := has_tag(some, tags)).all():
        batch = batch.take(numbers(passed.nonzero()[0]))
    return Decoded(with_plain_topics(batch, names), next_offset)


def _without_batches(records: "Records") -> tuple["Records", int | None]:
    """Replace inner batches by their messages. Also returns where the rest begins, if the batches hold too much."""
    from skylark.sdk.arrow.decode import TooMuchContent, holds_batches, unwrapped

    next_offset: int | None = None
    while holds_batches(records):
        try:
            return unwrapped(records)[0], next_offset
        except TooMuchContent:
            half = len(records) // 2
            next_offset = int(records.column("queue_offset")[half])
            records = records.part(0, half)
    return records, next_offset


def with_plain_topics(batch: RecordBatch, names: Names) -> RecordBatch:
    """``batch`` with topics as users know them."""
    place = batch.schema.get_field_index("topic")
    if not names.namespace or place < 0:
        return batch
    import pyarrow as pa

    coded = batch.column(place).dictionary_encode()
    plain = pa.array([names.plain(topic) for topic in coded.dictionary.to_pylist()], pa.string())
    columns = [*batch.columns[:place], plain.take(coded.indices), *batch.columns[place + 1 :]]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


ArrowHandler = Callable[[RecordBatch], Result | Awaitable[Result]]


def batch_handler_of(
    batch_handler: BatchHandler | None, arrow_handler: ArrowHandler | None, columns: Sequence[str] | None
) -> BatchHandler | None:
    """The given handler, as a batch handler. Raises InvalidArgument when both handlers are given."""
    if arrow_handler is None:
        if columns is not None:
            raise InvalidArgument("arrow_columns are for an arrow_handler, which is not given")
        return batch_handler
    if batch_handler is not None:
        raise InvalidArgument("give a batch_handler or an arrow_handler, not both")
    check_arrow("arrow_handler")
    from skylark.sdk.arrow.schema import schema_of

    schema = schema_of(columns)
    if not isinstance(arrow_handler, ForeignHandlers):
        return _ForMessages(arrow_handler, schema)
    # A client that is made again, as in the child of a fork, passes the handler that was wrapped before.
    if not isinstance(arrow_handler.plain, _ForMessages):
        arrow_handler.plain = arrow_handler.handler = _ForMessages(arrow_handler.plain, schema)
    return arrow_handler


class _ForMessages:
    """Wraps a handler of record batches as a handler of lists of messages."""

    def __init__(self, handler: Callable[[Any], Any], schema: "Schema") -> None:
        #: The handler itself, whose name users know.
        self.plain = handler
        self._schema = schema

    def __call__(self, messages: list[MessageExt]) -> Any:
        from skylark.sdk.arrow.decode import TooMuchContent, record_batch

        try:
            batch = record_batch(messages, self._schema)
        except TooMuchContent:
            raise InvalidArgument(
                f"the bodies of {len(messages)} messages are too large for one record batch: use a smaller batch_size"
            ) from None
        return self.plain(batch)

"""`ArrowSending`: the method of `Producer` that sends Arrow tables; their rows never become Python objects.

Neighbours: sdk/arrow (checks and encodes columns), batches.py (sends what is encoded).
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import trio

from mqcommon.message.queue import MessageQueue
from sdk.arrow import ArrowData, check_arrow
from sdk.checked import TopicName, check_queue, checked_methods
from sdk.producer.bulk import BATCH_BYTES, MIN_BATCH_COUNT
from sdk.producer.lane import MAX_BATCH_COUNT
from sdk.producer.result import BulkResult
from sdk.producer.wire import EncodedRows, Row

if TYPE_CHECKING:
    from sdk.arrow.table_columns import TableRows

# Parts of a table that are kept from the check until they are sent; those after them are made again.
KEPT_PARTS = 16

#: Makes batches of rows for a number of queues.
Cut = Callable[[int], Iterator[Sequence[Row]]]
SendBatches = Callable[[str, MessageQueue | None, Cut], Awaitable[BulkResult]]


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
        """See `ArrowSending.send_arrow`."""
        check_arrow("send_arrow")
        from sdk.arrow.table_columns import TableColumns

        given = TableColumns(data, columns, self._max_message_bytes)
        kept: deque[TableRows] = deque()
        kept_rows = 0
        for part in given.parts():
            if len(kept) < KEPT_PARTS:
                kept.append(part)
                kept_rows += len(part.bodies)
            await trio.lowlevel.checkpoint()
        parts = chain(drained(kept), given.parts(kept_rows))
        return await self._send_batches(topic, queue, lambda queues: self._cut(parts, given.rows, queues))

    def _cut(self, parts: "Iterator[TableRows]", rows: int, queues: int) -> Iterator[EncodedRows]:
        """Batches for lanes. Many messages are divided evenly among ``queues``, as those of `bulk.cut` are."""
        from sdk.arrow.encode import encode

        most = min(max(-(-rows // max(queues, 1)), MIN_BATCH_COUNT), MAX_BATCH_COUNT)
        for part in parts:
            head, number = self._key_block(len(part.bodies))
            data, ends = encode(part, head, number)
            done = begin = 0
            while done < len(ends):
                fitting = int(ends.searchsorted(begin + BATCH_BYTES, side="right"))
                upto = max(min(fitting, done + most), done + 1)
                end = int(ends[upto - 1])
                yield EncodedRows(bytes(data[begin:end]), upto - done, head, number + done)
                done, begin = upto, end


def drained(parts: "deque[TableRows]") -> "Iterator[TableRows]":
    """The parts, which are not kept any longer."""
    while parts:
        yield parts.popleft()


@checked_methods
class ArrowSending:
    """Part of `sdk.Producer`."""

    _tables: ArrowSends

    # --- tables

    async def send_arrow(
        self,
        topic: TopicName,
        data: ArrowData,
        *,
        body: str = "body",
        tags: str | None = None,
        keys: str | None = None,
        properties: str | None = None,
        flag: str | None = None,
        queue: MessageQueue | None = None,
    ) -> BulkResult:
        """Store a message for each row of ``data``; returns when all are acknowledged.

        ``data`` is a pyarrow RecordBatch or Table, or what can be one, as a DataFrame of polars or pandas. The other
        arguments name its columns: bytes or text; text; text or lists of text; maps of text; integers. Nulls are left
        out, and so are properties with RocketMQ's own names; a body must not be null. All rows are checked before one
        is sent: InvalidArgument names row and column. Otherwise this is `send_many`; with ``queue`` all messages go to
        that queue, in their order. It needs the extra ``arrow``.
        """
        if queue is not None:
            check_queue("queue", queue, topic)
        columns = {"body": body, "tags": tags, "keys": keys, "properties": properties, "flag": flag}
        return await self._tables.send(topic, data, columns, queue)

"""Sends many batches through a lane, some at a time: the work of `Producer.send_many` and `Producer.send_arrow`.

`ArrowSends` makes batches of Arrow tables, whose rows never become Python objects. Neighbours: bulk.py (makes batches
of messages), mqcommon/arrow (checks and encodes columns).
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import trio
from trio.lowlevel import enable_ki_protection

from mqcommon.message.queue import MessageQueue
from sdk.arrow import check_arrow
from sdk.producer.bulk import BATCH_BYTES, MIN_BATCH_COUNT
from sdk.producer.lane import MAX_BATCH_COUNT, SLOTS_PER_BROKER, Lane
from sdk.producer.pending import PendingSend
from sdk.producer.result import BulkResult, StoredBatch
from sdk.producer.wire import EncodedRows, Row
from sdk.routes import TopicRoute

if TYPE_CHECKING:
    from mqcommon.arrow.given import Part

# Parts of a table that are kept from the check until they are sent; those after them are made again.
KEPT_PARTS = 16

#: Makes batches of rows for a number of queues.
Cut = Callable[[int], Iterator[Sequence[Row]]]
SendBatches = Callable[[str, MessageQueue | None, Cut], Awaitable[BulkResult]]


async def send_batches(
    lane: Lane, batches: Iterator[Sequence[Row]], route: TopicRoute | None, timeout_s: float
) -> BulkResult:
    """Send ``batches``, which are made while others are on their way. Raises the first error, of a send or of theirs.

    There is always one more for each broker than it takes at a time.
    """
    numbered = enumerate(batches)
    results: dict[int, StoredBatch] = {}
    failures: list[Exception] = []

    @enable_ki_protection
    async def work(scope: trio.CancelScope) -> None:
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
        from mqcommon.arrow.given import Given

        given = Given(data, columns, self._max_message_bytes)
        kept: deque[Part] = deque()
        kept_rows = 0
        for part in given.parts():
            if len(kept) < KEPT_PARTS:
                kept.append(part)
                kept_rows += len(part.bodies)
            await trio.lowlevel.checkpoint()
        parts = chain(drained(kept), given.parts(kept_rows))
        return await self._send_batches(topic, queue, lambda queues: self._cut(parts, given.rows, queues))

    def _cut(self, parts: "Iterator[Part]", rows: int, queues: int) -> Iterator[EncodedRows]:
        """Batches for lanes. Many messages are divided evenly among ``queues``, as those of `bulk.cut` are."""
        from mqcommon.arrow.encode import encode

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


def drained(parts: "deque[Part]") -> "Iterator[Part]":
    """The parts, which are not kept any longer."""
    while parts:
        yield parts.popleft()

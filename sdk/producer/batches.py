"""Sends many batches through a lane, some at a time: the work of `Producer.send_many` and `Producer.send_arrow`."""

from collections.abc import Iterator, Sequence

import trio
from trio.lowlevel import enable_ki_protection

from sdk.producer.lane import SLOTS_PER_BROKER, Lane
from sdk.producer.pending import PendingSend
from sdk.producer.result import BulkResult, StoredBatch
from sdk.producer.wire import EncodedRows, Row
from sdk.routes import TopicRoute


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

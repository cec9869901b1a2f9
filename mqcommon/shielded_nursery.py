"""A nursery whose tasks outlive the cancellation of the block that opened it.

Whoever leaves a group or commits offsets at the end of an ``async with`` block still needs its connections when the
block was cancelled. A shield around the nursery would shield the block too, so the nursery is opened in a task.

A KeyboardInterrupt in one of these tasks would end all of them at once, and with them the connections. So every task
that the SDK starts is decorated with `trio.lowlevel.enable_ki_protection`: trio then raises KeyboardInterrupt in the
main task, which leaves the block as a cancellation does.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio.lowlevel import Abort, current_task, enable_ki_protection, reschedule, wait_task_rescheduled


@asynccontextmanager
@enable_ki_protection
async def shielded_nursery() -> AsyncIterator[trio.Nursery]:
    """A nursery whose tasks are cancelled when the block has ended. An error in one cancels the block.

    A cancellation or a KeyboardInterrupt that comes before the block begins is raised at the block's first checkpoint.
    """
    async with trio.open_nursery() as outer:
        opened: list[trio.Nursery] = []
        outer.start_soon(_hold, opened, current_task())
        # Not `Nursery.start`: a cancelled `start` waits for its task, which a cancellation does not end.
        await wait_task_rescheduled(lambda _: Abort.FAILED)
        try:
            yield opened[0]
        finally:
            opened[0].cancel_scope.cancel()


@enable_ki_protection
async def _hold(opened: list[trio.Nursery], opener: trio.lowlevel.Task) -> None:
    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.shield = True
        opened.append(nursery)
        reschedule(opener)
        await trio.sleep_forever()

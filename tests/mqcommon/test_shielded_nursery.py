"""Tasks that go on while a cancelled block cleans up."""

import signal

import pytest
import trio
import trio.testing
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.shielded_nursery import shielded_nursery


async def test_tasks_outlive_a_cancellation_of_the_block_until_it_has_ended() -> None:
    events: list[str] = []

    async def work() -> None:
        try:
            await trio.sleep_forever()
        finally:
            events.append("the task ends")

    with trio.CancelScope() as scope:
        async with shielded_nursery() as nursery:
            nursery.start_soon(work)
            try:
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.testing.wait_all_tasks_blocked()
                events.append("the block ends")
    assert scope.cancelled_caught
    assert events == ["the block ends", "the task ends"]


async def test_a_block_that_is_cancelled_before_it_began_ends() -> None:
    with trio.move_on_after(0) as scope:
        async with shielded_nursery():
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_an_error_in_a_task_ends_the_block() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(BaseExceptionGroup) as caught:
        async with shielded_nursery() as nursery:
            nursery.start_soon(fail)
            await trio.sleep_forever()
    assert caught.group_contains(ZeroDivisionError)


def test_an_interrupt_before_the_block_begins_ends_the_block() -> None:
    stuck: list[trio.lowlevel.Task] = []

    @enable_ki_protection
    async def main() -> None:
        trio.lowlevel.spawn_system_task(end_when_stuck, trio.lowlevel.current_task())
        # The interrupt comes at the next checkpoint.
        signal.raise_signal(signal.SIGINT)
        async with shielded_nursery():
            await trio.sleep_forever()

    async def end_when_stuck(task: trio.lowlevel.Task) -> None:
        await trio.testing.wait_all_tasks_blocked()
        for outer in task.child_nurseries:
            stuck.extend(outer.child_tasks)
        for child in stuck:
            child.child_nurseries[0].cancel_scope.cancel()

    with pytest.raises(BaseExceptionGroup) as caught:
        trio.run(main)
    assert caught.group_contains(KeyboardInterrupt)
    assert stuck == []

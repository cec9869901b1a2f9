"""Work in steps: one step a turn, however many requests are at work."""

from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import ConnectionLost
from skylark.remoting.net import steps
from skylark.remoting.net.steps import Stepper, Steps, finish, sorted_steps
from tests.support.caller import Caller


async def test_one_step_runs_in_a_turn_of_the_loop() -> None:
    stepper, turns, taken = Stepper(), 0, []

    def work(number: int) -> Steps[int]:
        for _ in range(5):
            taken.append(turns)
            yield None
        return number

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    results = []

    async def one(number: int) -> None:
        results.append(await stepper.run(work(number)))

    async with trio.open_nursery() as counting:
        counting.start_soon(count)
        async with trio.open_nursery() as nursery:
            for number in range(3 * steps.AT_ONCE):
                nursery.start_soon(one, number)
        counting.cancel_scope.cancel()
    assert sorted(results) == list(range(3 * steps.AT_ONCE))
    # a lock handed over at the end of a turn may be used in the next one
    assert max(taken.count(turn) for turn in taken) <= 2


async def test_what_blocks_runs_in_a_thread_and_its_result_comes_back() -> None:
    here = trio.lowlevel.current_trio_token()

    def in_thread() -> bool:
        try:
            return trio.lowlevel.current_trio_token() is here
        except RuntimeError:
            return False

    def work() -> Steps[tuple[Any, Any]]:
        first = yield in_thread
        second = yield None
        return first, second

    assert await Stepper().run(work()) == (False, None)


async def test_work_for_a_connection_that_closed_ends() -> None:
    channel = Caller().channel
    ended = []

    def work() -> Steps[None]:
        try:
            while True:
                channel.close("gone")
                yield None
        finally:
            ended.append(True)

    with pytest.raises(ConnectionLost):
        await Stepper().run(work(), channel)
    assert ended == [True]


@given(st.lists(st.text(max_size=3), max_size=40))
def test_sorted_in_steps(names: list[str]) -> None:
    assert finish(sorted_steps(names)) == sorted(names)


def test_sorting_many_names_takes_many_steps() -> None:
    names = [f"{n * 7919 % 50_021:05d}" for n in range(50_000)]
    walk = sorted_steps(names)
    count = 0
    while True:
        try:
            next(walk)
        except StopIteration as end:
            assert end.value == sorted(names)
            break
        count += 1
    assert count >= 2 * len(names) // steps.NAMES


async def test_what_fails_in_a_thread_fails_in_the_work() -> None:
    def fails() -> None:
        raise OSError("full")

    def work() -> Steps[str]:
        try:
            yield fails
        except OSError as error:
            yield None
            return str(error)
        return ""

    assert await Stepper().run(work()) == "full"
    assert finish(work()) == "full"

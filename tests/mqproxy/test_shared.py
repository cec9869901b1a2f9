"""One request for all who wait for its answer."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from skylark.mqcommon.errors import SkylarkError
from skylark.mqproxy.shared import Shared


async def test_a_waiter_that_is_cancelled_does_not_end_the_work_for_others(nursery: trio.Nursery) -> None:
    may_end = trio.Event()
    got: list[str] = []

    async def work() -> str:
        await may_end.wait()
        return "an answer"

    async def wait() -> None:
        got.append(await shared.result())

    shared = Shared(nursery, work)
    async with trio.open_nursery() as waiters:
        waiters.start_soon(wait)
        with trio.CancelScope() as impatient:
            impatient.cancel()
            await shared.result()
        may_end.set()
    assert got == ["an answer"] and await shared.result() == "an answer"


async def test_the_error_of_the_work_is_the_error_of_each_waiter(nursery: trio.Nursery) -> None:
    async def work() -> str:
        raise SkylarkError("no answer")

    shared = Shared(nursery, work)
    for _ in range(2):
        with pytest.raises(SkylarkError, match="no answer"):
            await shared.result()


async def test_an_error_that_was_not_expected_is_logged_when_nobody_waits_for_it(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    may_end = trio.Event()

    async def work() -> str:
        await may_end.wait()
        raise LookupError("a bug")

    shared = Shared(nursery, work)
    with trio.CancelScope() as impatient:
        impatient.cancel()
        await shared.result()
    may_end.set()
    await wait_all_tasks_blocked()
    assert "LookupError: a bug" in caplog.text


@pytest.mark.parametrize("error", [LookupError("a bug"), SkylarkError("no answer")])
async def test_an_error_that_a_waiter_gets_is_the_waiters_to_log(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    async def work() -> str:
        raise error

    with pytest.raises(type(error)):
        await Shared(nursery, work).result()
    assert not caplog.records


async def test_work_that_ends_with_its_nursery_ends_its_waiters() -> None:
    async with trio.open_nursery() as nursery:
        shared: Shared[None] = Shared(nursery, trio.sleep_forever)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    with pytest.raises(SkylarkError, match="given up"):
        await shared.result()

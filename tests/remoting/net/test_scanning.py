import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from skylark.remoting.net.limits import BufferBudget
from skylark.remoting.net.scanning import SCAN_INTERVAL_S, scan_connections


async def test_a_scan_after_a_stop_of_the_process_is_left_out_and_the_next_scan_runs(mock_clock: MockClock) -> None:
    began_s, scans_s = trio.current_time(), list[tuple[str, float]]()

    def check(connection: str, now_s: float) -> None:
        scans_s.append((connection, now_s - began_s))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(scan_connections, {"one"}, check, BufferBudget(1))
        for step_s in (SCAN_INTERVAL_S, SCAN_INTERVAL_S, 10 * SCAN_INTERVAL_S, SCAN_INTERVAL_S):
            await wait_all_tasks_blocked()
            mock_clock.jump(step_s)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert scans_s == [("one", each * SCAN_INTERVAL_S) for each in (1, 2, 13)]


class Held:
    """A connection that holds memory of ``budget``."""

    def __init__(self, budget: BufferBudget, size: int) -> None:
        self.budget, self.buffered_bytes, self.reasons = budget, size, list[str]()
        budget.used += size
        budget.holders.add(self)

    def close(self, reason: str, exceeded: str = "") -> None:
        self.reasons.append(exceeded)
        self.budget.used -= self.buffered_bytes


async def test_when_memory_is_short_a_scan_closes_the_largest_connections(mock_clock: MockClock) -> None:
    budget = BufferBudget(100)
    held = [Held(budget, size) for size in (10, 70, 0, 40)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scan_connections, set[str](), lambda connection, now_s: None, budget)
        await wait_all_tasks_blocked()
        mock_clock.jump(SCAN_INTERVAL_S)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert [each.reasons for each in held] == [[], ["buffered_bytes"], [], []], "half is free with it"


def test_all_connections_are_closed_when_that_does_not_free_enough() -> None:
    budget = BufferBudget(100)
    held = [Held(budget, size) for size in (10, 70)]
    budget.used += 200  # requests that run
    budget.relieve()
    assert [each.reasons for each in held] == [["buffered_bytes"]] * 2


async def test_a_scan_of_many_connections_lets_others_run(mock_clock: MockClock) -> None:
    checked, seen = list[int](), set[int]()
    many = range(2_500)

    async def look() -> None:
        while len(checked) < len(many):
            await trio.lowlevel.checkpoint()
            seen.add(len(checked))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(scan_connections, many, lambda number, now_s: checked.append(number), BufferBudget(1))
        await wait_all_tasks_blocked()
        mock_clock.jump(SCAN_INTERVAL_S)
        await look()
        nursery.cancel_scope.cancel()
    assert checked == list(many)
    assert seen - {0, len(many)}, "the other task ran amid the scan"

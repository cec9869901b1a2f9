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

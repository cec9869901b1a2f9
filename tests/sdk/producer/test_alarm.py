import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from sdk.producer.lane import Alarm


async def test_it_rings_at_the_earliest_time_and_can_be_set_again(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    rung: list[float] = []
    alarm, start = Alarm(nursery, lambda: rung.append(trio.current_time())), trio.current_time()
    for seconds in (5, 3, 9, 3):
        alarm.at(start + seconds)
    await trio.sleep(20)
    assert rung == [start + 3], "later times are forgotten"
    alarm.at(start + 30)
    await trio.sleep(20)
    assert rung == [start + 3, start + 30]


async def test_a_time_that_has_passed_rings_at_once(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    rung = []
    Alarm(nursery, lambda: rung.append(1)).at(trio.current_time() - 1)
    await wait_all_tasks_blocked()
    assert rung == [1]
    assert not nursery.child_tasks

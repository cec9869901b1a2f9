from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.message.queue import MessageQueue
from skylark.spark_connector.offsets import OffsetRange
from skylark.spark_connector.tasks import ReadTask, Splitting, grouped, single, task_count

QUEUES = st.builds(MessageQueue, st.sampled_from(["t", "u"]), st.sampled_from(["a", "b", "c"]), st.integers(0, 9))
RANGES = st.dictionaries(QUEUES, st.tuples(st.integers(0, 60), st.integers(1, 50))).map(
    lambda found: [OffsetRange(queue, start, start + size) for queue, (start, size) in found.items()]
)
SPLITTINGS = st.builds(Splitting, st.integers(0, 40), st.integers(0, 20), st.integers(0, 20))


def offsets_of(ranges: list[OffsetRange]) -> list[tuple[MessageQueue, int]]:
    return [(one.queue, offset) for one in ranges for offset in range(one.start, one.end)]


def of_queues(sizes: list[int], broker: str = "a") -> list[OffsetRange]:
    return [OffsetRange(MessageQueue("t", broker, at), 0, size) for at, size in enumerate(sizes)]


@given(RANGES, st.integers(1, 20), SPLITTINGS)
def test_tasks_hold_every_offset_once_and_in_order(ranges: list[OffsetRange], count: int, splitting: Splitting) -> None:
    for tasks in (grouped(ranges, count, splitting), single(ranges, splitting)):
        found = offsets_of([one for task in tasks for one in task.ranges])
        assert sorted(found) == sorted(offsets_of(ranges))
        last: dict[MessageQueue, int] = {}
        for queue, offset in found:
            assert last.get(queue, -1) < offset, "a sink that takes task after task gets each queue in order"
            last[queue] = offset


@given(RANGES, st.integers(1, 20), SPLITTINGS)
def test_limits_hold(ranges: list[OffsetRange], count: int, splitting: Splitting) -> None:
    tasks = grouped(ranges, count, splitting)
    rows = sum(task.rows for task in tasks)
    assert all(task.rows for task in tasks)
    assert len(tasks) >= min(splitting.min_partitions, rows)
    if splitting.max_rows:
        assert all(task.rows <= splitting.max_rows for task in tasks)
    else:
        assert len(tasks) <= max(count, splitting.min_partitions)
    if splitting.min_rows and not splitting.max_rows and not splitting.min_partitions:
        whole = {one.queue: one.end - one.start for one in ranges}
        parts = [one for task in tasks for one in task.ranges]
        assert all(one.end - one.start >= min(splitting.min_rows, whole[one.queue]) for one in parts)


@given(RANGES, st.integers(1, 20))
def test_no_queue_is_split_unless_that_is_wanted(ranges: list[OffsetRange], count: int) -> None:
    tasks = grouped(ranges, count, Splitting())
    assert sorted(one for task in tasks for one in task.ranges) == sorted(ranges)
    assert len(tasks) == min(count, len(ranges))
    # What the largest queue does not explain is balanced.
    loads = [task.rows for task in tasks]
    largest = max((one.end - one.start for one in ranges), default=0)
    assert not loads or max(loads) - min(loads) <= largest


@given(st.lists(st.integers(1, 300), min_size=1, max_size=20), st.integers(1, 12))
def test_split_queues_fill_all_tasks_evenly(sizes: list[int], count: int) -> None:
    tasks = grouped(of_queues(sizes), count, Splitting(min_rows=1))
    assert len(tasks) == min(count, sum(sizes))
    share = -(-sum(sizes) // count)
    assert max(task.rows for task in tasks) <= 2 * share


@given(RANGES)
def test_a_single_task_reads_from_all_brokers_in_turn(ranges: list[OffsetRange]) -> None:
    for task in grouped(ranges, 1, Splitting()):
        brokers = {one.queue.broker_name for one in ranges}
        assert {one.queue.broker_name for one in task.ranges[: len(brokers)]} == brokers


def test_tasks_begin_at_different_brokers() -> None:
    ranges = of_queues([10] * 8, "a") + of_queues([10] * 8, "b")
    tasks = grouped(ranges, 4, Splitting())
    assert {task.ranges[0].queue.broker_name for task in tasks[:2]} == {"a", "b"}


def test_the_same_ranges_and_count_give_the_same_tasks() -> None:
    ranges = of_queues([7, 1, 30, 4, 4, 9])
    assert grouped(ranges, 3, Splitting()) == grouped(list(ranges), 3, Splitting())
    assert [task.rows for task in grouped(ranges, 3, Splitting())] == [30, 13, 12]


def test_thousands_of_queues_are_few_tasks() -> None:
    tasks = grouped(of_queues([300] * 2_000), 4, Splitting())
    assert [task.rows for task in tasks] == [150_000] * 4
    assert all(before.queue < after.queue for task in tasks for before, after in pairwise(task.ranges))


def test_the_parts_of_a_large_queue_are_several_tasks() -> None:
    tasks = grouped(of_queues([900, 50, 50]), 4, Splitting(min_rows=100))
    assert sorted(task.rows for task in tasks) == [225, 225, 275, 275]
    assert grouped(of_queues([90]), 4, Splitting(min_rows=100)) == [ReadTask(tuple(of_queues([90])))]


@pytest.mark.parametrize(
    ("rows", "mean_bytes", "max_tasks", "bytes_per_task", "count"),
    [
        (0, 100.0, 4, 1_000, 1),
        (5, 100.0, 4, 1_000, 1),
        (10, 100.0, 4, 1_000, 1),
        (11, 100.0, 4, 1_000, 2),
        (10_000, 100.0, 4, 1_000, 4),
        (5, 100.0, 4, 0, 4),
    ],
)
def test_the_number_of_tasks_follows_the_bytes(
    rows: int, mean_bytes: float, max_tasks: int, bytes_per_task: int, count: int
) -> None:
    assert task_count(rows, mean_bytes, max_tasks, bytes_per_task) == count

"""Tasks along segments: each offset in one task, and each segment in few."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.message.queue import MessageQueue
from skylark.spark_connector.offsets import OffsetRange
from skylark.spark_connector.tasks import ReadTask, Splitting
from skylark.spark_connector.tier.cutting import cut, rows_of, segments_of


@dataclass(frozen=True)
class KnownMarks:
    """``edges``: of each queue the offsets at which segments begin, and the end of the last one."""

    edges: Mapping[MessageQueue, Sequence[int]]

    def __len__(self) -> int:
        return min(map(len, self.edges.values())) - 1

    def offset_at(self, segment: int, queue: MessageQueue) -> int:
        return self.edges[queue][segment]

    def segments_of(self, task: ReadTask) -> set[int]:
        return {
            at
            for one in task.ranges
            for at in range(len(self))
            if max(one.start, self.edges[one.queue][at]) < min(one.end, self.edges[one.queue][at + 1])
        }


def queue(number: int) -> MessageQueue:
    return MessageQueue("t", "a", number)


def even(queues: int, segments: int, rows: int) -> KnownMarks:
    return KnownMarks({queue(n): [rows * at for at in range(segments + 1)] for n in range(queues)})


def whole(marks: KnownMarks) -> list[OffsetRange]:
    return [OffsetRange(one, edges[0], edges[-1]) for one, edges in marks.edges.items()]


def test_a_segment_is_read_by_one_task_when_there_are_more_segments_than_tasks() -> None:
    marks = even(queues=8, segments=32, rows=100)
    tasks = cut(whole(marks), 16, Splitting(), marks)
    assert [marks.segments_of(task) for task in tasks] == [{at, at + 1} for at in range(0, 32, 2)]


def test_few_segments_are_divided_by_their_queues() -> None:
    marks = even(queues=8, segments=2, rows=100)
    tasks = cut(whole(marks), 8, Splitting(), marks)
    assert sorted(task.rows for task in tasks) == [200] * 8
    assert all(len(marks.segments_of(task)) == 1 for task in tasks)


def test_one_large_queue_is_divided_within_a_segment() -> None:
    marks = even(queues=1, segments=1, rows=1000)
    assert [task.rows for task in cut(whole(marks), 4, Splitting(min_rows=100), marks)] == [250] * 4
    assert len(cut(whole(marks), 1, Splitting(min_partitions=5), marks)) == 5


def test_nothing_has_no_task() -> None:
    marks = even(queues=2, segments=3, rows=0)
    assert cut([], 4, Splitting(), marks) == cut(whole(marks), 4, Splitting(), marks) == []


@st.composite
def plans(draw: st.DrawFn) -> tuple[KnownMarks, list[OffsetRange]]:
    segments = draw(st.integers(1, 8))
    edges = {}
    for number in range(draw(st.integers(1, 4))):
        steps = draw(st.lists(st.integers(0, 50), min_size=segments + 1, max_size=segments + 1))
        edges[queue(number)] = [sum(steps[: at + 1]) for at in range(segments + 1)]
    ranges = []
    for one, at in edges.items():
        low, high = sorted((draw(st.integers(at[0], at[-1])), draw(st.integers(at[0], at[-1]))))
        ranges += [OffsetRange(one, low, high)] if low < high else []
    return KnownMarks(edges), ranges


@given(plans(), st.integers(1, 12), st.integers(0, 10), st.integers(0, 40), st.integers(0, 20))
def test_each_offset_is_in_one_task(
    plan: tuple[KnownMarks, list[OffsetRange]], count: int, least: int, max_rows: int, min_rows: int
) -> None:
    marks, ranges = plan
    splitting = Splitting(least, max_rows, min_rows)
    tasks = cut(ranges, count, splitting, marks)
    assert tasks == cut(ranges, count, splitting, marks)
    for wanted in ranges:
        parts = [one for task in tasks for one in task.ranges if one.queue == wanted.queue]
        assert [offset for one in parts for offset in range(one.start, one.end)] == list(
            range(wanted.start, wanted.end)
        )
    assert sum(task.rows for task in tasks) == rows_of(ranges)
    assert all(task.rows > 0 for task in tasks)
    assert not max_rows or all(task.rows <= max_rows for task in tasks)
    assert len(tasks) >= min(least, rows_of(ranges))
    for task in tasks:
        assert marks.segments_of(task) <= set(segments_of(task.ranges, marks))


def test_a_task_knows_its_segments_and_no_more() -> None:
    marks = even(queues=3, segments=10, rows=100)
    for task in cut(whole(marks), 5, Splitting(), marks):
        assert marks.segments_of(task) == set(segments_of(task.ranges, marks))

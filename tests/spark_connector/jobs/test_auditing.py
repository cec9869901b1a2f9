from hypothesis import given
from hypothesis import strategies as st

from skylark.spark_connector.jobs.auditing import Stretch, audit_table, audits, joined, stretch

rows = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), min_size=1, max_size=20)


def counted(some: list[tuple[int, int]]) -> Stretch:
    found = stretch([row[0] for row in some], [row[1] for row in some])
    assert found is not None
    return found


@given(rows, rows, rows)
def test_however_a_queue_is_cut_the_sum_is_the_same(
    a: list[tuple[int, int]], b: list[tuple[int, int]], c: list[tuple[int, int]]
) -> None:
    whole = counted(a + b + c)
    assert joined(joined(counted(a), counted(b)), counted(c)) == whole
    assert joined(counted(a), joined(counted(b), counted(c))) == whole


@given(st.sets(st.integers(0, 60), min_size=1))
def test_missing_offsets_are_counted(offsets: set[int]) -> None:
    found = counted([(offset, offset) for offset in sorted(offsets)])
    assert found.missing == max(offsets) - min(offsets) + 1 - len(offsets)
    assert found.gaps == sum(1 for offset in offsets if offset != min(offsets) and offset - 1 not in offsets)
    assert found.disordered == 0


def test_times_that_decrease_and_offsets_that_repeat_are_disorder() -> None:
    assert counted([(0, 5), (1, 4), (2, 4)]).disordered == 1
    assert counted([(0, 5), (0, 5), (1, 5)]).disordered == 1


def test_nothing_is_no_stretch() -> None:
    assert stretch([], []) is None


def test_parts_of_queues_make_the_table_in_any_order() -> None:
    parts = [("b", 0, counted([(4, 4), (5, 5)])), ("a", 1, counted([(0, 0)])), ("b", 0, counted([(0, 0), (1, 1)]))]
    one, two = audits(parts, {("a", 1): 2})
    assert (one.broker, one.duplicates, one.is_clean) == ("a", 2, False)
    assert (two.stretch.messages, two.stretch.missing, two.stretch.gaps, two.is_clean) == (4, 2, 1, False)
    assert audit_table([one, two]).splitlines()[-1].split() == ["b", "0", "0", "5", "4", "2", "1", "0", "0"]

"""The ledger of who waits for a flush."""

from hypothesis import given
from hypothesis import strategies as st

from broker.writing.group_commit import GroupCommit


@given(st.lists(st.tuples(st.integers(1, 100), st.booleans()), max_size=60))
def test_every_wait_ends_once_and_only_when_its_end_is_reached(steps: list[tuple[int, bool]]) -> None:
    commits = GroupCommit()
    end = reached = 0
    waiting: dict[int, int] = {}
    done: list[int] = []
    for number, (size, flush) in enumerate(steps):
        end += size
        waiting[number] = end
        commits.wait(end, 1.0, lambda in_time, number=number: done.append(number) if in_time else None)  # type: ignore[misc]
        if flush:
            reached = end
            commits.advance(reached)
        assert done == [n for n, needed in waiting.items() if needed <= reached]
    assert len(commits) == len(steps) - len(done)


def test_a_wait_that_is_too_late_is_told_so_once() -> None:
    commits = GroupCommit()
    heard: list[bool] = []
    commits.wait(10, 5.0, heard.append)
    commits.wait(20, 6.0, heard.append)
    assert commits.expire(4.9) == 0
    assert commits.expire(5.0) == 1 and heard == [False]
    assert commits.advance(20) == 1 and heard == [False, True]
    commits.wait(15, 9.0, heard.append)
    assert heard == [False, True, True], "what is on disk already waits for nothing"

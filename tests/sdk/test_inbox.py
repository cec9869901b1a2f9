"""Items for a loop in another thread: none is lost, and what gathers costs one wake-up."""

from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.sdk.loop_thread import Inbox, call_each


@given(st.lists(st.booleans()))
def test_every_item_is_taken_once_and_in_order(puts: list[bool]) -> None:
    """True: an item is put; False: the loop runs what it was woken for."""
    soon: list[Callable[[], None]] = []
    taken: list[int] = []

    def take(items: deque[int]) -> None:
        while items:
            taken.append(items.popleft())

    inbox: Inbox[int] = Inbox(soon.append, take)
    count = 0
    for is_put in [*puts, False]:
        if is_put:
            inbox.put(count)
            count += 1
            assert len(soon) == 1
        elif soon:
            soon.pop()()
    assert taken == list(range(count)) and not soon


def test_what_is_put_while_items_are_taken_is_not_lost() -> None:
    soon: list[Callable[[], None]] = []
    done: list[str] = []
    works: Inbox[Callable[[], object]] = Inbox(soon.append, call_each)
    works.put(lambda: works.put(lambda: done.append("second")))
    while soon:
        soon.pop()()
    assert done == ["second"]


def test_a_loop_that_has_ended_is_told_each_time() -> None:
    """Otherwise the second caller would wait for an answer that never comes."""

    def wake(run: Callable[[], None]) -> None:
        raise EOFError

    inbox: Inbox[int] = Inbox(wake, deque.clear)
    for number in range(2):
        with pytest.raises(EOFError):
            inbox.put(number)

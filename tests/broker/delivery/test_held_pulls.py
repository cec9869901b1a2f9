"""Held pulls: who is woken by what, and how much work that is."""

from collections.abc import Iterator
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.delivery import held_pulls
from skylark.broker.delivery.held_pulls import HeldPull, HeldPulls, QueueName
from skylark.broker.store.filter import Filter
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig


class Queue:
    """A queue whose messages are tag codes; it counts how many entries were read."""

    topic = "T"
    is_batch = False

    def __init__(self, queue_id: int = 0) -> None:
        self.queue_id = queue_id
        self.codes: list[int] = []
        self.min_offset = 0
        self.is_awaited = True
        self.reads = 0

    @property
    def next_offset(self) -> int:
        return len(self.codes)

    def entries(self, offset: int, count: int) -> Iterator[tuple[int, int, int]]:
        for code in self.codes[offset : offset + count]:
            self.reads += 1
            yield 0, 1, code


class Pulls:
    """Held pulls, and a record of each pull that was checked or answered."""

    def __init__(self) -> None:
        self.held = HeldPulls()
        self.queues: dict[QueueName, Queue] = {}
        self.looks: list[HeldPull] = []
        self.answered: list[HeldPull] = []

    def hold(
        self, queue: Any, codes: set[int] | None = None, *, channel: Any = None, deadline: float = 1e9
    ) -> HeldPull:
        """A pull at the end of ``queue``; a queue without messages does not exist yet."""
        name = queue.topic, queue.queue_id
        self.queues[name] = queue
        wanted = Filter(None if codes is None else frozenset(codes))
        pull = self.pull(channel or object(), name, queue.next_offset, wanted, deadline)
        assert self.held.hold(pull, queue if queue.codes else None)
        return pull

    def pull(self, channel: Any, name: QueueName, offset: int, wanted: Filter, deadline: float = 1e9) -> HeldPull:
        request, group = Command(11), SubscriptionGroupConfig("g")
        return HeldPull(
            channel, request, group, name, offset, wanted, 32, 1 << 20, False, 1, self._retry, deadline=deadline
        )

    def turn(self, queue: Any, codes: list[int]) -> None:
        """Messages come in one turn of the loop, as the store tells it."""
        queue.codes += codes
        if queue.is_awaited:
            self.held.arrived([queue])

    def _retry(self, pull: HeldPull, last: bool) -> bool:
        self.looks.append(pull)
        queue = self.queues[pull.queue]
        wanted = pull.wanted.tag_codes
        found = [code for code in queue.codes[pull.offset :] if wanted is None or code in wanted]
        if found or last:
            self.answered.append(pull)
        return bool(found or last)


async def test_a_message_wakes_only_the_pulls_that_want_its_tag() -> None:
    pulls, queue = Pulls(), Queue()
    for _ in range(1000):
        pulls.hold(queue, {7, 8})
    wants_it, takes_all = pulls.hold(queue, {5}), pulls.hold(queue)
    queue.codes.append(5)
    pulls.held.arrived([queue])
    assert pulls.looks == pulls.answered == [takes_all, wants_it]
    assert len(pulls.held) == 1000


async def test_each_message_is_searched_once_however_many_pulls_wait() -> None:
    pulls, queue = Pulls(), Queue()
    for _ in range(1000):
        pulls.hold(queue, {7})
    for _ in range(50):
        queue.codes.append(1)
        pulls.held.arrived([queue])
    assert queue.reads == 50
    assert pulls.looks == []


async def test_a_match_after_many_others_is_found_where_it_is() -> None:
    pulls, queue = Pulls(), Queue()
    pull = pulls.hold(queue, {7})
    queue.codes += [1] * (3 * held_pulls.ENTRIES)
    pulls.held.arrived([queue])
    queue.codes += [*[1] * (2 * held_pulls.ENTRIES), 7]
    pulls.held.arrived([queue])
    assert pulls.answered == [pull]
    assert len(queue.codes) - pull.offset <= held_pulls.ENTRIES


async def test_a_queue_that_was_made_anew_wakes_all() -> None:
    pulls, queue = Pulls(), Queue()
    queue.codes = [1, 1, 1]
    pull = pulls.hold(queue, {7})
    queue.codes = [1]
    pulls.held.arrived([queue])
    assert pulls.looks == [pull]


async def test_the_store_tells_of_a_queue_while_somebody_may_wait_for_it() -> None:
    pulls, queue = Pulls(), Queue()
    assert queue.is_awaited, "nobody knows yet"
    pulls.turn(queue, [1])
    assert not queue.is_awaited
    pull = pulls.hold(queue)
    assert queue.is_awaited
    pulls.turn(queue, [1])
    assert pulls.answered == [pull]
    pulls.turn(queue, [1])
    assert not queue.is_awaited


async def test_a_queue_that_is_made_again_serves_those_who_waited_for_the_one_before() -> None:
    pulls, queue = Pulls(), Queue()
    queue.codes = [1, 1, 1]
    old = pulls.hold(queue)
    queue = Queue()
    new = pulls.hold(queue, {7})
    pulls.turn(queue, [7, 1, 1, 1])
    assert pulls.answered == [old, new], "also in a turn that brings it past the end of the one before"


async def test_closing_a_connection_costs_as_much_as_its_own_pulls(monkeypatch: pytest.MonkeyPatch) -> None:
    pulls, queues = Pulls(), [Queue(number) for number in range(100)]
    leaving: Any = object()
    for queue in queues:
        for _ in range(20):
            pulls.hold(queue)
    own = [pulls.hold(queue, {7}, channel=leaving) for queue in queues[:8]]
    removed: list[HeldPull] = []
    remove = pulls.held._remove
    monkeypatch.setattr(pulls.held, "_remove", lambda pull: (removed.append(pull), remove(pull)))
    pulls.held.drop(leaving)
    assert removed == own
    assert len(pulls.held) == 2000


async def test_time_that_is_over_costs_as_much_as_the_pulls_that_it_is_over_for(autojump_clock: Any) -> None:
    pulls, queue = Pulls(), Queue()
    now = trio.current_time()
    late = [pulls.hold(queue, deadline=now + 20) for _ in range(100)]
    soon = pulls.hold(queue, deadline=now + 3)
    pulls.held.expire(now + 2.9)
    assert pulls.looks == []
    pulls.held.expire(now + 3.2)
    assert pulls.looks == [soon]
    pulls.held.expire(now + 20.2)
    assert pulls.looks == [soon, *late]
    assert len(pulls.held) == 0


async def test_what_is_answered_in_one_turn_is_bounded_and_the_rest_follows(autojump_clock: Any) -> None:
    pulls, queue = Pulls(), Queue()
    many = [pulls.hold(queue, deadline=trio.current_time() + 5) for _ in range(2 * held_pulls.SLICE + 1)]
    queue.codes.append(1)
    pulls.held.arrived([queue])
    assert len(pulls.answered) == held_pulls.SLICE
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pulls.held.run)
        await trio.testing.wait_all_tasks_blocked()
        assert pulls.answered == many
        # and at their deadlines, too
        for _ in range(2 * held_pulls.SLICE + 1):
            pulls.hold(queue, deadline=trio.current_time() + 5)
        await trio.sleep(6)
        nursery.cancel_scope.cancel()
    assert len(pulls.answered) == 4 * held_pulls.SLICE + 2
    assert len(pulls.held) == 0


async def test_a_pull_that_comes_after_a_quiet_time_is_answered_at_its_deadline(autojump_clock: Any) -> None:
    pulls, queue = Pulls(), Queue()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pulls.held.run)
        for _ in range(2):
            pulls.answered.clear()
            await trio.sleep(1_000)
            pull = pulls.hold(queue, deadline=trio.current_time() + 5)
            await trio.sleep(5)
            assert pulls.answered == []
            await trio.sleep(2 * held_pulls.TICK_S)
            assert pulls.answered == [pull]
        nursery.cancel_scope.cancel()


async def test_more_tags_than_fit_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_pulls, "MAX_CODES", 10)
    pulls, queue = Pulls(), Queue()
    first = pulls.hold(queue, set(range(8)))
    pull = pulls.pull(first.channel, first.queue, 0, Filter(frozenset(range(3))))
    assert not pulls.held.hold(pull, None)
    pulls.held.drop(first.channel)
    assert pulls.held.hold(pull, None)


@given(
    held=st.lists(st.tuples(st.integers(0, 3), st.none() | st.sets(st.integers(0, 5), max_size=3)), max_size=20),
    turns=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), max_size=6),
    leaving=st.sets(st.integers(0, 3)),
)
def test_pulls_are_answered_by_the_first_message_that_they_want(
    held: list[tuple[int, set[int] | None]], turns: list[list[int]], leaving: set[int]
) -> None:
    async def run() -> None:
        pulls, queue = Pulls(), Queue()
        channels = [object() for _ in range(4)]
        waiting = [pulls.hold(queue, codes, channel=channels[number]) for number, codes in held]
        for number in leaving:
            pulls.held.drop(channels[number])
        waiting = [pull for pull in waiting if pull.is_held]
        for codes in turns:
            due = [pull for pull in waiting if (tags := pull.wanted.tag_codes) is None or tags & set(codes)]
            pulls.answered.clear()
            pulls.turn(queue, codes)
            assert set(pulls.answered) == set(due)
            waiting = [pull for pull in waiting if pull not in due]
        assert len(pulls.held) == len(waiting)

    trio.run(run)

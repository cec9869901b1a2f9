"""Steps to another number of queues: from any state, with crashes, all messages are read, and the shape is reached."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from skylark.mqcommon.errors import UserError
from skylark.sdk.admin.reshaping import SetQueues, Shape, Tail, Wait, changes, next_step, spread

SHAPES = st.builds(lambda write, more: Shape(write, write + more), st.integers(0, 6), st.integers(0, 3))
TARGETS = st.builds(lambda write, more: Shape(write, write + more), st.integers(1, 6), st.integers(0, 3))


class Model(RuleBasedStateMachine):
    """One broker, producers with routes of any age, one group, and the command, which may be run anew at any time."""

    @initialize(now=SHAPES, wanted=TARGETS)
    def begin(self, now: Shape, wanted: Shape) -> None:
        self.now, self.target = now, wanted
        self.ends: dict[int, int] = {}
        self.read: dict[int, int] = {}
        self.sent = 0
        # The route that a slow producer still has, and what the command remembers.
        self.old_route = now
        self.settled = False
        self.is_done = False

    def send_to(self, queue: int) -> None:
        # As a broker does: queues that can be read take messages of producers that do not know of the change.
        if queue < max(self.now):
            self.ends[queue] = self.ends.get(queue, 0) + 1
            self.sent += 1
            self.settled = False

    @rule(queue=st.integers(0, 9))
    def a_producer_sends(self, queue: int) -> None:
        if queue < self.now.write:
            self.send_to(queue)

    @rule(queue=st.integers(0, 9))
    def a_producer_with_an_old_route_sends(self, queue: int) -> None:
        if queue < self.old_route.write:
            self.send_to(queue)

    @rule()
    def producers_learn(self) -> None:
        self.old_route = self.now

    @rule(queue=st.integers(0, 9))
    def the_group_reads(self, queue: int) -> None:
        if queue < self.now.read:
            self.read[queue] = self.ends.get(queue, 0)

    @rule()
    def the_command_is_killed_and_run_again(self) -> None:
        self.settled = False

    @rule()
    def time_passes(self) -> None:
        # The command waits until producers with older routes must have asked again.
        self.producers_learn()
        self.settled = True

    def unread(self, first: int) -> int:
        return sum(end - self.read.get(queue, 0) for queue, end in self.ends.items() if queue >= first)

    def tail(self) -> Tail:
        ends = [queue + 1 for queue in self.ends if queue >= self.target.read and self.unread(queue)]
        return Tail(self.unread(self.target.read), self.settled, max(ends, default=0))

    @rule()
    def the_command_takes_a_step(self) -> None:
        before = (self.now, dict(self.ends), dict(self.read))
        step = next_step(self.now, self.target, self.tail())
        self.take(step)
        if before == (self.now, self.ends, self.read):
            assert step is None or isinstance(step, Wait)
            self.is_done |= step is None

    def take(self, step: object) -> None:
        if isinstance(step, SetQueues):
            assert step.shape != self.now
            assert step.shape.read >= step.shape.write
            if step.shape.write < self.now.write:
                self.settled = False
            self.now = step.shape

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "now"):
            assert sum(self.ends.values()) == self.sent

    def teardown(self) -> None:
        if not hasattr(self, "now"):
            return
        # Nobody sends any more, time passes, and the group reads whatever it can: the command ends, with all read.
        for _ in range(30):
            self.time_passes()
            for queue in range(self.now.read):
                self.the_group_reads(queue)
            step = next_step(self.now, self.target, self.tail())
            if step is None:
                break
            self.take(step)
        else:
            raise AssertionError(f"{self.now} does not become {self.target}")
        assert self.now == self.target
        assert not self.unread(self.target.read)


TestModel = Model.TestCase


@given(
    now=st.dictionaries(st.sampled_from("abcdef"), st.builds(lambda n: Shape(n, n), st.integers(1, 8)), max_size=6),
    others=st.sets(st.sampled_from("abcdef")),
    total=st.integers(1, 30),
)
def test_queues_are_spread_evenly(now: dict[str, Shape], others: set[str], total: int) -> None:
    brokers = sorted({*now, *others})
    try:
        target = spread(now, brokers, total)
    except UserError:
        assert not brokers or total < len(now)
        return
    counts = [shape.write for shape in target.values()]
    assert sum(counts) == total
    assert max(counts) - min(counts) <= 1
    assert min(counts) >= 1
    assert now.keys() <= target.keys()
    # Again from there, nothing changes: the plan is idempotent.
    assert changes(target, spread(target, brokers, total)) == {}


@pytest.mark.parametrize(
    ("now", "target", "tail", "step"),
    [
        (Shape(0, 0), Shape(4, 4), Tail(0, False), SetQueues(Shape(0, 4))),
        (Shape(0, 4), Shape(4, 4), Tail(0, False), SetQueues(Shape(4, 4))),
        (Shape(8, 8), Shape(4, 4), Tail(0, True), SetQueues(Shape(4, 8))),
        (Shape(4, 8), Shape(4, 4), Tail(9, False), Wait.FOR_PRODUCERS),
        (Shape(4, 8), Shape(4, 4), Tail(9, True), Wait.FOR_GROUPS),
        (Shape(4, 8), Shape(4, 4), Tail(0, True), SetQueues(Shape(4, 4))),
        (Shape(4, 4), Shape(4, 4), Tail(1, True, 8), SetQueues(Shape(4, 8))),
        (Shape(4, 4), Shape(4, 4), Tail(0, True, 0), None),
    ],
)
def test_steps(now: Shape, target: Shape, tail: Tail, step: object) -> None:
    assert next_step(now, target, tail) == step


def test_too_few_queues_for_the_brokers_that_have_the_topic_are_refused() -> None:
    with pytest.raises(UserError, match="2 brokers have the topic"):
        spread({"a": Shape(4, 4), "b": Shape(4, 4)}, ["a", "b"], 1)

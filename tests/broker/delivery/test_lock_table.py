"""Locks of queues: at most one owner, for 60 s, whatever is asked for in whatever order."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.delivery.queue_locks import LIFE_MS, LockTable
from mqcommon.message.queue import MessageQueue

MAX_LOCKS = 6
QUEUES = [MessageQueue("t", "b", number) for number in range(4)]
queues = st.lists(st.sampled_from(QUEUES), unique=True)
groups = st.sampled_from(["g", "h"])
owners = st.sampled_from(["one", "two", "three"])


class Locks(RuleBasedStateMachine):
    """The table beside a model that forgets nothing by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.table = LockTable(MAX_LOCKS)
        self.locks: dict[tuple[str, MessageQueue], tuple[str, int]] = {}
        self.now = 0

    @rule(group=groups, owner=owners, wanted=queues)
    def lock(self, group: str, owner: str, wanted: list[MessageQueue]) -> None:
        got = []
        for queue in wanted:
            known = self.locks.get((group, queue))
            if known is None and len(self.locks) >= MAX_LOCKS:
                continue
            if known is None or known[0] == owner or known[1] < self.now:
                self.locks[group, queue] = owner, self.now + LIFE_MS
                got.append(queue)
        assert self.table.lock(group, owner, wanted, self.now) == got

    @rule(group=groups, owner=owners, given_up=queues)
    def unlock(self, group: str, owner: str, given_up: list[MessageQueue]) -> None:
        for queue in given_up:
            if self.locks.get((group, queue), ("", 0))[0] == owner:
                del self.locks[group, queue]
        self.table.unlock(group, owner, given_up)

    @rule(ms=st.sampled_from([1, 20_000, LIFE_MS, LIFE_MS + 1]))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule()
    def drop_expired(self) -> None:
        self.locks = {place: lock for place, lock in self.locks.items() if lock[1] >= self.now}
        self.table.drop_expired(self.now)

    @invariant()
    def agrees(self) -> None:
        assert len(self.table) == len(self.locks)
        for group in ("g", "h"):
            held = [until for (its_group, _), (_, until) in self.locks.items() if its_group == group]
            assert self.table.is_ordered(group, self.now) == any(until >= self.now for until in held)


TestLocks = Locks.TestCase
TestLocks.settings = settings(stateful_step_count=30)

"""The ledger of copies against a plain model: any order of sends, reports, connections, closes and time."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from skylark.broker.writing.waits import ABSENCE_S, AckLedger, LogWaits

GAP = 50
TIMEOUT = 3.0
ADDRS = st.sampled_from(["10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1", "10.0.0.3:1"])


class LedgerModel(RuleBasedStateMachine):
    """The connected slaves are a dict, the waits a list; both are searched from end to end."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = AckLedger(GAP)
        self.now = 0.0
        self.end = 0
        self.acked: dict[str, int] = {}
        self.identities: dict[str, str] = {}
        self.rows: list[tuple[int, int, float, int]] = []  # number, needed, deadline, end
        self.number = 0
        self.heard: dict[int, list[bool]] = {}
        self.short_since: dict[int, float] = {}

    def copies(self, end: int) -> int:
        return sum(1 for acked in self.acked.values() if acked >= end)

    def settle(self) -> None:
        """What has enough copies now was heard of."""
        for row in [row for row in self.rows if self.copies(row[3]) >= row[1]]:
            self.rows.remove(row)
            assert self.heard[row[0]] == [True]

    @rule(size=st.integers(1, 40), needed=st.integers(0, 3))
    def send(self, size: int, needed: int) -> None:
        self.end += size
        self.number += 1
        heard = self.heard[self.number] = []
        self.rows.append((self.number, needed, self.now + TIMEOUT, self.end))
        self.ledger.wait(self.end, needed, self.now + TIMEOUT, heard.append)
        self.settle()

    @rule(addr=ADDRS, identity=st.sampled_from(["", "1", "2"]))
    def connect(self, addr: str, identity: str) -> None:
        for other in [a for a, i in self.identities.items() if identity and i == identity]:
            del self.identities[other]
            self.acked.pop(other, None)
        self.acked.pop(addr, None)
        self.identities[addr] = identity
        self.ledger.connected(addr, self.now, identity)

    @rule(addr=ADDRS, back=st.integers(0, 120))
    def report(self, addr: str, back: int) -> None:
        offset = max(self.end - back, 0)
        self.ledger.acked(addr, offset)
        if addr in self.identities:
            changed = self.acked.get(addr) != offset
            self.acked[addr] = offset
            if changed:
                self.settle()

    @rule(addr=ADDRS)
    def close(self, addr: str) -> None:
        self.ledger.disconnected(addr)
        self.identities.pop(addr, None)
        self.acked.pop(addr, None)

    @rule(seconds=st.floats(0, 2))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for needed in {row[1] for row in self.rows} | self.short_since.keys():
            if needed > len(self.identities) and any(row[1] == needed for row in self.rows):
                self.short_since.setdefault(needed, self.now)
            else:
                self.short_since.pop(needed, None)
        hopeless = {needed for needed, since in self.short_since.items() if self.now >= since + ABSENCE_S}
        late = [row for row in self.rows if row[2] <= self.now or row[1] in hopeless]
        assert self.ledger.expire(self.now) == len(late)
        for row in late:
            self.rows.remove(row)
            assert self.heard[row[0]] == [False]

    @invariant()
    def every_other_wait_goes_on(self) -> None:
        assert len(self.ledger) == len(self.rows)
        assert all(self.heard[row[0]] == [] for row in self.rows)

    @invariant()
    def slaves_are_those_connected(self) -> None:
        rows = {slave.addr: slave for slave in self.ledger.slaves()}
        assert {addr: slave.identity for addr, slave in rows.items()} == self.identities
        assert {addr: slave.acked for addr, slave in rows.items() if slave.acked >= 0} == self.acked
        in_sync = [addr for addr, acked in self.acked.items() if self.end - acked < GAP]
        assert self.ledger.in_sync(self.end) == len(in_sync)
        assert [slave.addr for slave in rows.values() if self.ledger.is_in_sync(slave, self.end)] == [
            addr for addr in rows if addr in in_sync
        ]
        ends = sorted(self.acked.values(), reverse=True)
        assert [self.ledger.reached(needed) for needed in (1, 2, 3, 4)] == [*ends, -1, -1, -1, -1][:4]


TestLedger = LedgerModel.TestCase


def test_a_connection_that_was_given_up_does_not_take_the_place_of_the_next() -> None:
    ledger = AckLedger(GAP)
    ledger.connected("10.0.0.1:2", 2.0, "slave 1")
    ledger.connected("10.0.0.1:1", 1.0, "slave 1")
    ledger.acked("10.0.0.1:1", 5)
    ledger.disconnected("10.0.0.1:1")
    ledger.acked("10.0.0.1:2", 10)
    assert [(slave.addr, slave.acked) for slave in ledger.slaves()] == [("10.0.0.1:2", 10)]
    assert ledger.reached(1) == 10


def test_a_slave_whose_log_begins_later_does_not_count_for_what_came_before() -> None:
    ledger = AckLedger(GAP)
    heard: list[tuple[int, bool]] = []
    ledger.connected("old", 0.0)
    ledger.acked("old", 0)
    for end in (10, 30):
        ledger.wait(end, 1, 3.0, lambda in_time, end=end: heard.append((end, in_time)))
    ledger.connected("new", 1.0, start=20)
    ledger.acked("new", 30)
    assert heard == [] and ledger.reached(1) == 0
    ledger.acked("old", 10)
    assert heard == [(10, True), (30, True)]


def test_sends_do_not_wait_for_long_for_a_slave_that_is_gone() -> None:
    ledger = AckLedger(GAP)
    heard: list[tuple[int, bool]] = []
    ledger.connected("a", 0.0)
    ledger.acked("a", 0)
    ledger.wait(10, 1, 3.0, lambda in_time: heard.append((10, in_time)))
    ledger.disconnected("a")
    assert ledger.expire(0.1) == 0 and ledger.expire(0.1 + ABSENCE_S - 0.01) == 0
    # It is back in time: they wait for it again.
    ledger.connected("b", 0.5)
    assert ledger.expire(0.1 + ABSENCE_S) == 0
    ledger.disconnected("b")
    ledger.wait(30, 1, 3.1, lambda in_time: heard.append((30, in_time)))
    assert ledger.expire(1.0) == 0 and heard == []
    assert ledger.expire(1.0 + ABSENCE_S) == 2
    assert heard == [(10, False), (30, False)] and len(ledger) == 0


def test_it_counts_when_what_came_before_is_over() -> None:
    ledger = AckLedger(GAP)
    heard: list[tuple[int, bool]] = []
    ledger.wait(10, 1, 3.0, lambda in_time: heard.append((10, in_time)))
    ledger.wait(30, 1, 4.0, lambda in_time: heard.append((30, in_time)))
    ledger.connected("new", 1.0, start=20)
    ledger.acked("new", 30)
    assert heard == [] and ledger.expire(3.0) == 1
    assert heard == [(10, False), (30, True)]


def test_it_does_not_count_for_a_wait_that_begins_after_its_report() -> None:
    # With SYNC_FLUSH a send waits for its own disk first.
    ledger = AckLedger(GAP)
    ledger.connected("new", 1.0, start=20)
    ledger.acked("new", 40)
    heard: list[bool] = []
    ledger.wait(20, 1, 5.0, heard.append)
    assert heard == []
    ledger.wait(30, 1, 5.0, heard.append)
    assert heard == [True]
    ledger.expire(5.0)
    assert heard == [True, False]


@given(st.lists(st.tuples(st.integers(1, 100), st.booleans()), max_size=60))
def test_every_wait_ends_once_and_only_when_its_end_is_reached(steps: list[tuple[int, bool]]) -> None:
    commits = LogWaits()
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
    commits = LogWaits()
    heard: list[bool] = []
    commits.wait(10, 5.0, heard.append)
    commits.wait(20, 6.0, heard.append)
    assert commits.expire(4.9) == 0
    assert commits.expire(5.0) == 1 and heard == [False]
    commits.advance(20)
    assert heard == [False, True]
    commits.wait(15, 9.0, heard.append)
    assert heard == [False, True, True], "what is on disk already waits for nothing"


def test_a_slave_that_leaves_ends_waits_and_counts_for_no_new_ones() -> None:
    ledger = AckLedger(GAP)
    heard: list[bool] = []
    slave = ledger.connected("a", 0.0)
    ledger.acked("a", 0)
    ledger.wait(10, 1, 3.0, heard.append)
    assert ledger.in_sync(10) == 1
    ledger.leaving(slave)
    assert ledger.in_sync(10) == 0
    ledger.acked("a", 10)
    assert heard == [True] and ledger.in_sync(10) == 0

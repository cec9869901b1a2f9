"""When a SYNC_MASTER answers a send, and with what, against a plain model of both disks and all slaves."""

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.options import BrokerOptions
from skylark.broker.writing.durability import Durability
from skylark.broker.writing.waits import AckLedger, LogWaits
from skylark.remoting.protocol.codes import ResponseCode
from tests.broker.writing.support import Answers

GAP = 1000
SLAVES = ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"]
OK, DISK, NONE, SLAVE = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
)


class Master:
    """The two ledgers of a SYNC_MASTER, and what its sends were answered."""

    def __init__(self, *, slaves: int = 1, sync_flush: bool = False, **options: Any) -> None:
        self.commits, self.acks = LogWaits(), AckLedger(GAP)
        flush = "SYNC_FLUSH" if sync_flush else "ASYNC_FLUSH"
        self.options = BrokerOptions(broker_role="SYNC_MASTER", flush_disk_type=flush, **options)
        self.durability = Durability(self.commits, self.acks, self.options, double_write=True)
        self.client = Answers()
        self.answers = self.client.codes
        for addr in SLAVES[:slaves]:
            self.acks.connected(addr, 0.0)
            self.acks.acked(addr, 0)

    def send(self, end: int, now: float = 0.0) -> None:
        self.client.wait(self.durability, end, now)

    def ack(self, end: int, slave: int = 0) -> None:
        self.acks.acked(SLAVES[slave], end)


def test_a_slave_too_far_behind_is_none() -> None:
    master = Master()
    master.send(GAP)
    assert master.answers == [NONE]
    master.ack(1)
    master.send(GAP)
    assert master.answers == [NONE], "it is close enough to be waited for"


@pytest.mark.parametrize(
    ("flushed", "acked", "slaves", "answer"),
    [
        (True, True, 1, OK),
        (False, True, 1, DISK),
        (True, False, 1, SLAVE),
        (False, False, 1, SLAVE),
        (True, False, 0, NONE),
        (False, False, 0, NONE),
    ],
)
@pytest.mark.parametrize("slave_first", [True, False])
def test_both_disks(flushed: bool, acked: bool, slaves: int, answer: int, slave_first: bool) -> None:
    master = Master(slaves=slaves, sync_flush=True)
    master.send(100)
    if acked and slave_first:
        master.ack(100)
    if flushed:
        assert OK not in master.answers, "not on the master's disk yet"
        master.commits.advance(100)
    else:
        master.commits.expire(5.0)
    if acked and not slave_first:
        assert master.answers == []
        master.ack(100)
    master.durability.expire(5.0)
    assert master.answers == [answer]


def test_the_number_of_copies_follows_the_slaves_when_that_is_wanted() -> None:
    options: dict[str, Any] = {"in_sync_replicas": 3, "total_replicas": 3, "enable_auto_in_sync_replicas": True}
    master = Master(slaves=1, **options)
    master.send(100)
    master.ack(100)
    assert master.answers == [OK], "one slave is there: it is enough"
    master = Master(slaves=0, **options)
    master.send(100)
    assert master.answers == [OK]
    master = Master(slaves=0, min_in_sync_replicas=2, **options)
    master.send(100)
    assert master.answers == [NONE], "down to minInSyncReplicas, no further"


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 300)),
        st.tuples(st.just("flush"), st.integers(0, 300)),
        st.tuples(st.sampled_from(["ack0", "ack1", "ack2"]), st.integers(0, 300)),
        st.tuples(st.sampled_from(["gone0", "gone1", "gone2"]), st.just(0)),
        st.tuples(st.just("time"), st.integers(1, 4)),
    ),
    max_size=60,
)


@given(STEPS, st.booleans(), st.integers(1, 4))
def test_any_order_of_events(steps: list[tuple[str, int]], sync_flush: bool, copies: int) -> None:
    """OK means: on the disk, and on enough slaves, at that moment; each send is answered once, by its deadline."""
    master = Master(slaves=3, sync_flush=sync_flush, in_sync_replicas=copies, total_replicas=4)
    now, end, flushed = 0.0, 0, 0
    acked = dict.fromkeys(SLAVES, 0)
    answers: dict[int, list[int]] = {}
    sent: dict[int, float] = {}

    def answered(number: int, code: int) -> None:
        answers[number].append(code)
        if code == OK:
            assert not sync_flush or flushed >= number
        if code in (OK, DISK):
            assert sum(1 for copy in acked.values() if copy >= number) >= copies - 1

    for what, size in steps:
        if what == "send":
            end += size
            answers[end], sent[end] = [], now
            Answers(partial(answered, end)).wait(master.durability, end, now)
        elif what == "flush" and flushed < end:
            flushed = min(flushed + size, end)
            master.commits.advance(flushed)
        elif what == "time":
            now += size
            master.commits.expire(now)
            master.durability.expire(now)
            wait_s = 5.0 if sync_flush else 3.0
            assert all(answers[number] for number, at in sent.items() if at + wait_s <= now)
        elif what.startswith("gone"):
            acked.pop(SLAVES[int(what[4:])], None)
            master.acks.disconnected(SLAVES[int(what[4:])])
        elif what.startswith("ack"):
            addr = SLAVES[int(what[3:])]
            if addr not in acked:
                master.acks.connected(addr, now)
            acked[addr] = min(acked.get(addr, 0) + size, end)
            master.acks.acked(addr, acked[addr])
        assert all(len(codes) <= 1 for codes in answers.values())
    assert len(master.durability) == sum(1 for codes in answers.values() if not codes)

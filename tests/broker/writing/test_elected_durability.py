"""When an elected master takes and acknowledges messages, against a plain model of its set, its disk and its lease."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.options import BrokerOptions
from skylark.broker.writing.admission import Admission
from skylark.broker.writing.durability import Durability
from skylark.broker.writing.elected import Elected
from skylark.broker.writing.waits import AckLedger, LogWaits
from skylark.mqcommon.errors import RequestRefused
from skylark.remoting.protocol.codes import ResponseCode
from tests.broker.writing.support import Answers

OK, DISK, NONE, SLAVE = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
)
NOT_WAITING = b"WAIT\x01false\x02"


def controlled(*, all_ack: bool = True, **options: Any) -> BrokerOptions:
    made = BrokerOptions(**options)
    object.__setattr__(made, "all_ack_in_sync_state_set", all_ack)
    return made


class Master:
    """An elected master with a lease until 10 s, and what its sends were answered."""

    def __init__(self, *, sync_flush: bool = False, **options: Any) -> None:
        self.now = 0.0
        self.elected = Elected(lambda: self.now)
        self.elected.lease_until = 10.0
        self.commits, self.acks = LogWaits(), AckLedger(1000)
        flush = "SYNC_FLUSH" if sync_flush else "ASYNC_FLUSH"
        self.durability = Durability(
            self.commits, self.acks, controlled(flush_disk_type=flush, **options), double_write=False,
            elected=self.elected,
        )  # fmt: skip
        self.client = Answers()
        self.answers = self.client.codes

    def send(self, end: int) -> None:
        self.client.wait(self.durability, end, self.now)

    def refusal(self, properties: bytes = b"") -> tuple[int, str] | None:
        try:
            Admission(self.durability).check_message(0, properties)
        except RequestRefused as refused:
            return refused.code, refused.remark
        return None


def test_the_mode_waits_whatever_the_role_in_the_conf() -> None:
    assert Master(broker_role="ASYNC_MASTER").durability.needs_slaves


def test_slow_members() -> None:
    master = Master()
    master.send(100)
    master.durability.expire(2.9)
    assert master.answers == []
    master.durability.expire(3.0)
    assert (master.answers, master.durability.timed_out) == ([SLAVE], 1)
    master.elected.confirmed(100)
    assert master.answers == [SLAVE], "a send is answered once"


def test_a_demotion_ends_the_waits() -> None:
    master = Master()
    master.send(100)
    master.durability.lead(False)
    assert (master.answers, master.durability.timed_out) == ([SLAVE], 1)


def test_what_was_on_disk_before_a_cut_does_not_count_for_what_comes_there() -> None:
    master = Master(sync_flush=True)
    master.commits.advance(300)
    master.durability.lead(False)
    master.commits.cut(50)
    master.durability.lead(True)
    master.send(100)
    master.elected.confirmed(100)
    assert master.answers == []
    master.commits.advance(100)
    assert master.answers == [OK]


@pytest.mark.parametrize("all_ack", [True, False])
def test_a_message_that_was_cut_while_it_waited_for_the_disk(all_ack: bool) -> None:
    master = Master(sync_flush=True, all_ack=all_ack, in_sync_replicas=1)
    master.elected.confirmed(50)
    master.send(100)
    master.durability.lead(False)
    assert (master.answers, len(master.durability)) == ([SLAVE], 0)
    master.commits.cut(50)
    master.durability.lead(True)
    master.elected.confirmed(200)
    master.commits.advance(200)
    assert master.answers == [SLAVE], "the log has another message there now"


def test_nothing_is_taken_or_acknowledged_after_the_lease() -> None:
    master = Master()
    master.send(100)
    assert master.refusal() is None
    master.now = 10.0
    for properties in (b"", NOT_WAITING):
        refusal = master.refusal(properties)
        assert refusal is not None
        assert refusal[0] == ResponseCode.SERVICE_NOT_AVAILABLE
        assert refusal[1].startswith("service not available now. It may be caused by one of the following reasons: ")
    master.elected.confirmed(100)
    assert (master.answers, master.durability.timed_out) == ([SLAVE], 1)


def test_an_answer_that_need_not_wait_needs_the_lease_too() -> None:
    master = Master(all_ack=False, in_sync_replicas=1)
    master.send(100)
    master.now = 10.0
    master.send(200)
    assert master.answers == [OK, SLAVE]


def test_too_small_a_set_refuses_those_who_wait() -> None:
    master = Master(min_in_sync_replicas=2)
    assert master.refusal() == (ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough")
    assert master.refusal(NOT_WAITING) is None
    master.elected.set_size = 2
    assert master.refusal() is None


def test_by_default_one_broker_of_three_is_too_small_a_set() -> None:
    master = Master()
    for replicas, set_size, is_taken in [(1, 1, True), (2, 1, True), (3, 1, False), (3, 2, True), (5, 2, True)]:
        master.elected.replicas, master.elected.set_size = replicas, set_size
        assert (master.refusal() is None) is is_taken, (replicas, set_size)


def test_without_all_acks_it_waits_for_the_copies_as_a_sync_master_does() -> None:
    master = Master(all_ack=False, in_sync_replicas=2)
    master.send(100)
    assert master.answers == [NONE]
    master.acks.connected("10.0.0.1:1", 0.0)
    master.acks.acked("10.0.0.1:1", 100)
    master.send(200)
    master.elected.confirmed(200)
    assert master.answers == [NONE]
    master.acks.acked("10.0.0.1:1", 200)
    assert master.answers == [NONE, OK]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 300)),
        st.tuples(st.just("flush"), st.integers(0, 300)),
        st.tuples(st.just("confirm"), st.integers(0, 300)),
        st.tuples(st.just("demote and cut"), st.integers(0, 300)),
        st.tuples(st.just("lease"), st.integers(0, 4)),
        st.tuples(st.just("time"), st.integers(1, 4)),
    ),
    max_size=60,
)


@dataclasses.dataclass
class Sent:
    end: int
    at: float
    codes: list[int] = dataclasses.field(default_factory=list)
    is_cut: bool = False


@given(STEPS, st.booleans())
def test_any_order_of_events(steps: list[tuple[str, int]], sync_flush: bool) -> None:
    """OK means: in the log, on the disk, confirmed and leased at that moment; each send is answered by its deadline."""
    master = Master(sync_flush=sync_flush)
    elected, end, flushed = master.elected, 0, 0
    sent: list[Sent] = []

    def send(size: int) -> None:
        nonlocal end
        end += size
        this = Sent(end, master.now)
        sent.append(this)

        def answered(code: int) -> None:
            this.codes.append(code)
            if code == OK:
                assert not this.is_cut
                assert this.end <= elected.confirm_offset
                assert master.now < elected.lease_until
                assert not sync_flush or this.end <= flushed

        Answers(answered).wait(master.durability, end, master.now)

    for what, size in steps:
        if what == "send" and master.refusal() is None:
            send(size)
        elif what == "flush" and flushed < end:
            flushed = min(flushed + size, end)
            master.commits.advance(flushed)
        elif what == "confirm":
            elected.confirmed(min(elected.confirm_offset + size, end))
        elif what == "demote and cut":
            master.durability.lead(False)
            end = max(end - size, 0)
            flushed = min(flushed, end)
            master.commits.cut(end)
            elected.cut(end)
            for each in sent:
                each.is_cut |= each.end > end
            master.durability.lead(True)
        elif what == "lease":
            elected.lease_until = master.now + size
        elif what == "time":
            master.now += size
            master.commits.expire(master.now)
            master.durability.expire(master.now)
            wait_s = 5.0 if sync_flush else 3.0
            assert all(each.codes for each in sent if each.at + wait_s <= master.now)
        assert all(len(each.codes) <= 1 for each in sent)
    assert len(master.durability) == sum(1 for each in sent if not each.codes)

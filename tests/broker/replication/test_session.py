"""Both ends' sessions: who counts as a copy, for how long, and what a slave reports."""

import pytest

from skylark.broker.replication.frames import ReportReader, encode_report
from skylark.broker.replication.hello import VERSION, Hello, LinkTerms, LogClaim
from skylark.broker.replication.link import LogBounds, MasterLink, Range, SlaveLink
from skylark.broker.replication.session import MasterSession, Peer, SlaveSession
from skylark.broker.writing.waits import AckLedger
from skylark.mqcommon.errors import ProtocolError, ReplicationRefused

FILE_BYTES = 1000
TERMS = LinkTerms("c", "b", b"secret", allow_plain=True)
ADDR = "10.0.0.1:40000"


class Ends:
    """A master with a log up to ``end``, and the ledger in which its slaves stand."""

    def __init__(self, end: int = 300, refusal: str = "") -> None:
        self.end = end
        self.refusal = refusal
        self.acks = AckLedger(1 << 20)
        self.admitted: list[bool] = []
        link = MasterLink(TERMS, lambda: LogBounds(0, self.end, FILE_BYTES), bytes(16), 0.0)
        self.master = MasterSession(link, self.acks, Peer(ADDR, 0.0, self.admit, lambda reason: None))

    def admit(self, said_hello: bool) -> None:
        assert not self.acks.slaves(), "it counts before it is let in"
        if self.refusal:
            raise ProtocolError(self.refusal)
        self.admitted.append(said_hello)

    def shake_hands(self, slave: SlaveLink) -> None:
        """Exchange bytes until the master has only the log left to send."""
        for _ in range(4):
            self.master.receive(slave.take_output(), 0.0)
            while (step := self.master.next_step(0.0)) is not None and not isinstance(step, Range):
                if isinstance(step, LogClaim):
                    assert not self.acks.slaves(), "it counts before its claim is judged"
                    self.master.judge(None, 0.0)
                else:
                    slave.receive(step, 0.0)


def slave_with_hello(end: int) -> SlaveLink:
    claim = LogClaim(b"", 0, end, FILE_BYTES, False, ())
    return SlaveLink(TERMS, 0.0, start=0, end=end, proof=(Hello(VERSION, "c", "b", 1, "s:1", bytes(16)), claim))


def test_a_plain_slave_counts_from_its_first_report_to_the_end_of_its_connection() -> None:
    ends, report = Ends(), encode_report(300)
    ends.master.receive(report[:3], 0.0)
    assert ends.master.slave is None and ends.master.next_step(0.0) is None
    ends.master.receive(report[3:], 0.0)
    assert ends.admitted == [False] and [slave.addr for slave in ends.acks.slaves()] == [ADDR]
    ends.master.receive(report, 0.0)
    assert ends.acks.reached(1) == 300
    ends.master.ended()
    assert ends.acks.slaves() == [] and ends.acks.reached(1) == -1


def test_a_slave_with_a_hello_counts_when_its_claim_is_judged() -> None:
    ends, slave = Ends(), slave_with_hello(100)
    ends.shake_hands(slave)
    assert ends.admitted == [True] and slave.ready
    assert [(one.identity, one.acked) for one in ends.acks.slaves()] == [("s:1", 100)]
    ends.master.ended()
    assert ends.acks.slaves() == []


def test_a_refused_slave_hears_why_before_the_connection_ends() -> None:
    ends = Ends(end=50)
    with pytest.raises(ReplicationRefused, match="the master only up to 50"):
        ends.shake_hands(slave_with_hello(100))
    with pytest.raises(ProtocolError, match="refused: it has the log up to 100"):
        ends.master.next_step(0.0)
    assert ends.admitted == [] and ends.acks.slaves() == []


def test_a_slave_that_is_not_admitted_does_not_count() -> None:
    ends = Ends(refusal="too many slaves")
    with pytest.raises(ProtocolError, match="too many slaves"):
        ends.master.receive(encode_report(300), 0.0)
    assert ends.master.slave is None and ends.acks.slaves() == []


def test_what_is_sent_is_counted() -> None:
    ends = Ends()
    ends.master.receive(encode_report(100), 0.0)
    for offset in (100, 250):
        found = ends.master.next_step(0.0, 150)
        assert isinstance(found, Range) and (found.offset, found.size) == (offset, min(150, 300 - offset))
        ends.master.sent(found.size)
    (slave,) = ends.acks.slaves()
    assert (slave.next_offset, slave.sent_bytes) == (300, 200)
    assert ends.master.next_step(0.0) is None


@pytest.mark.parametrize("sync_flush", [True, False])
def test_a_slave_reports_what_its_flush_type_promises(sync_flush: bool) -> None:
    link, reader = SlaveLink(TERMS, 0.0, start=0, end=100), ReportReader()
    assert reader.receive(link.take_output()) == [100]
    session = SlaveSession(link, sync_flush=sync_flush)
    session.appended(200, 1.0)
    assert reader.receive(link.take_output()) == ([] if sync_flush else [200])
    session.flushed(150, 1.0)
    assert reader.receive(link.take_output()) == ([150] if sync_flush else [])

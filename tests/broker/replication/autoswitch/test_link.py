"""The auto-switch link: recorded connections are replayed on either side, and diverged logs become the same."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.replication.autoswitch.epochs import Epoch, Epochs
from skylark.broker.replication.autoswitch.frames import (
    MasterHello,
    MasterReader,
    SlaveHello,
    encode_ack,
    encode_header,
    encode_master_hello,
    encode_slave_hello,
)
from skylark.broker.replication.autoswitch.link import MAX_EARLY_BYTES, ElectedLog, MasterEnd, SlaveEnd
from skylark.broker.replication.frames import PLAIN_CHUNK_BYTES
from skylark.broker.replication.hello import VERSION, Hello, LinkTerms, LogClaim, encode
from skylark.broker.replication.link import LogBounds, Newcomer
from skylark.mqcommon.errors import ProtocolError, ReplicationRefused
from tests.broker.replication.autoswitch.test_frames import CONNECTIONS, bytes_of

TERMS = LinkTerms()
GUARDED = LinkTerms("c", "b", b"a secret", allow_plain=False, must_prove=True)
PEER = "10.0.0.2:40000"
FILE_BYTES = 1 << 23
# The slave's log when the connection began, and its end after the cut. In ha-2-14 it had some
# more than the new master; how much was not recorded.
BEFORE = {"ha-1-06": (0, 0), "ha-1-09": (665670, 665670), "ha-1-22": (1151980, 1151980), "ha-2-14": (975536, 886840)}


@pytest.mark.parametrize("connection", CONNECTIONS)
def test_a_slave_follows_the_recorded_java_master_and_cuts_what_it_lacks(connection: str) -> None:
    end, cut_to = BEFORE[connection]
    who = SlaveHello(False, False, 1 if connection == "ha-2-14" else 2)
    epochs = Epochs([Epoch(1, 0), Epoch(2, 886840)] if connection == "ha-1-22" else [Epoch(1, 0)] if end else [])
    slave = SlaveEnd(TERMS, who, epochs, start=0, end=end, now=0.0)
    data, sent = bytes_of(connection, "s2c"), slave.take_output()
    reader = MasterReader()
    reader.receive(data)
    hello_bytes = 20 + 12 * len(reader.hello.epochs) if reader.hello else 0
    assert slave.receive(data[:hello_bytes], 0.0) == []
    assert slave.cut_at == cut_to
    slave.cut(0.0)
    log_end = cut_to
    for piece in slave.receive(data[hello_bytes:], 1.0):
        assert piece.offset == log_end
        log_end += len(piece.data)
        slave.report(log_end, 1.0)
    sent += slave.take_output()
    recorded = bytes_of(connection, "c2s")
    assert sent[:28] == recorded[:28]
    assert sent[-8:] == recorded[-8:]
    assert all(entry in (reader.hello.epochs if reader.hello else ()) for entry in epochs)


@pytest.mark.parametrize("connection", ["ha-1-09", "ha-2-14"])
def test_our_master_sends_what_the_recorded_one_sent(connection: str) -> None:
    data = bytes_of(connection, "s2c")
    reader = MasterReader()
    pieces = reader.receive(data)
    hello = reader.hello
    assert hello is not None
    log = b"".join(piece.data for piece in pieces)
    first = pieces[0].offset
    end = hello.end
    confirmed = 0
    served = ElectedLog(lambda: LogBounds(0, end, FILE_BYTES), Epochs(hello.epochs), hello.epoch, lambda: confirmed)
    master = MasterEnd(TERMS, served, b"", PEER, 0.0)
    acks = bytes_of(connection, "c2s")
    master.receive(acks[:28], 0.0)
    assert master.claimed == Newcomer(1 if connection == "ha-2-14" else 2, "", PEER) and not master.take_output()
    master.judge("", 0.0)
    sent, now = master.take_output(), 0.0
    assert master.slave == SlaveHello(False, False, 1 if connection == "ha-2-14" else 2)
    for piece in pieces:
        end = max(end, piece.offset + len(piece.data))
        confirmed = piece.confirm_offset
        now += 0.0 if piece.data else TERMS.heartbeat_s
        if not piece.data and master.next_offset < end:
            # The recorded master began with a heartbeat, though it had data.
            epoch = Epoch(piece.epoch, piece.epoch_start)
            sent += encode_header(piece.offset, 0, epoch, confirmed)
            continue
        found = master.next_range(now, PLAIN_CHUNK_BYTES)
        assert found is not None
        sent += found.header + log[found.offset - first : found.offset - first + found.size]
    assert sent == data


class Side:
    """A log with its epochs; each byte is the number of the epoch that wrote it."""

    def __init__(self, parts: list[tuple[int, int]]) -> None:
        self.data = b""
        self.epochs = Epochs()
        for epoch, size in parts:
            self.epochs.begin(epoch, len(self.data))
            self.data += bytes([epoch]) * size


def proof_of(terms: LinkTerms, broker_id: int = 2, end: int = 0, file_bytes: int = 16) -> tuple[Hello, LogClaim]:
    hello = Hello(VERSION, terms.cluster, terms.broker, broker_id, "10.0.0.2:10911", b"slave's nonce")
    return hello, LogClaim(b"", 0, end, file_bytes, False, ())


def master_end(terms: LinkTerms = TERMS, *, end: int = 100, confirmed: int = 0, file_bytes: int = 16) -> MasterEnd:
    """A master of epoch 1."""
    epochs = Epochs([Epoch(1, 0)])
    log = ElectedLog(lambda: LogBounds(0, end, file_bytes), epochs, 1, lambda: confirmed)
    return MasterEnd(terms, log, b"nonce", PEER, 0.0)


def connect(master_side: Side, slave_side: Side, epoch: int, cuts: int, terms: LinkTerms = TERMS) -> SlaveEnd:
    """Let the slave copy all, with reads of up to ``cuts`` bytes. With a secret it says hello."""
    log = ElectedLog(lambda: LogBounds(0, len(master_side.data), 16), master_side.epochs, epoch, lambda: 3)
    master = MasterEnd(terms, log, b"nonce", PEER, 0.0)
    end = len(slave_side.data)
    proof = proof_of(terms, end=end) if terms.secret else None
    slave = SlaveEnd(terms, SlaveHello(False, False, 2), slave_side.epochs, start=0, end=end, now=0.0, proof=proof)
    is_moving = True
    while is_moving:
        up, down = slave.take_output(), master.take_output()
        for at in range(0, len(up), cuts):
            master.receive(up[at : at + cuts], 0.0)
            if master.claimed is not None:
                assert master.claimed == Newcomer(2, "10.0.0.2:10911" if proof else "", PEER)
                assert master.slave is None
                master.judge("", 0.0)
        while found := master.next_range(0.0, 7):
            down += found.header + master_side.data[found.offset : found.offset + found.size]
        for at in range(0, len(down), cuts):
            for piece in slave.receive(down[at : at + cuts], 0.0):
                slave_side.data += piece.data
            slave.report(len(slave_side.data), 0.0)
        if slave.cut_at is not None:
            slave_side.data = slave_side.data[: slave.cut_at]
            slave.cut(0.0)
        is_moving = bool(up or down)
    assert master.acked == len(slave_side.data)
    return slave


sizes = st.lists(st.integers(1, 30), max_size=3)


@given(sizes, st.integers(0, 40), sizes, sizes, st.integers(1, 50), st.booleans())
def test_any_diverged_log_becomes_the_masters(
    common: list[int], copied: int, lost: list[int], new: list[int], cuts: int, has_secret: bool
) -> None:
    """The slave has a part of what is common, and if it has all of that, what nobody else got."""
    shared = [(number + 1, size) for number, size in enumerate([5, *common])]
    master = Side([*shared, *((number + 100, size) for number, size in enumerate(new))])
    slave = Side([*shared, *((number + 50, size) for number, size in enumerate(lost))])
    if copied < sum(size for _, size in shared):
        slave.data = slave.data[:copied]
        slave.epochs.cut_to(copied)
    before = slave.data
    end = connect(master, slave, 200, cuts, GUARDED if has_secret else TERMS)
    assert slave.data == master.data
    assert list(slave.epochs) == list(master.epochs)
    # It comes with the log.
    assert end.confirm_offset == (0 if before.startswith(master.data) else 3)


def test_a_whole_log_with_nothing_in_common_is_replaced() -> None:
    """All that the slave has was written by a master that nobody else copied."""
    master, slave = Side([(2, 5)]), Side([(1, 5)])
    connect(master, slave, 3, 50)
    assert slave.data == master.data


def test_logs_with_nothing_in_common_are_left_as_they_are() -> None:
    master = Side([(1, 5), (2, 5)])
    master.epochs.forget_before(5)
    with pytest.raises(ReplicationRefused, match="nothing in common"):
        connect(master, Side([(1, 5)]), 3, 50)


def test_a_confirm_offset_counts_when_the_slave_follows() -> None:
    """RocketMQ's master sends heartbeats before it knows where the slave is: until the cut it means nothing."""
    side = Side([(1, 5)])
    slave = SlaveEnd(TERMS, SlaveHello(False, False, 2), Epochs([Epoch(1, 0)]), start=0, end=9, now=0.0)
    hello = encode_master_hello(MasterHello(5, 2, tuple(side.epochs)))
    slave.receive(hello + encode_header(-1, 0, Epoch(1, 0), 8), 0.0)
    assert (slave.cut_at, slave.confirm_offset) == (5, 0)
    slave.cut(0.0)
    slave.receive(encode_header(5, 0, Epoch(1, 0), 5), 0.0)
    assert slave.confirm_offset == 5


@pytest.mark.parametrize("epoch", [3, (1 << 31) - 1])
def test_a_master_of_an_epoch_that_no_controller_named_is_not_followed(epoch: int) -> None:
    """In the file of epochs such an epoch would be later than every epoch that Controllers name."""
    known, epochs = 2, Epochs([Epoch(1, 0)])
    slave = SlaveEnd(TERMS, SlaveHello(False, False, 2), epochs, start=0, end=5, now=0.0, known_epoch=lambda: known)
    forged = encode_master_hello(MasterHello(5, epoch, (Epoch(1, 0),)))
    with pytest.raises(ProtocolError, match=f"leads in epoch {epoch}, the Controllers know 2"):
        slave.receive(forged, 0.0)
    assert list(epochs) == [Epoch(1, 0)]


def test_a_log_that_begins_after_the_common_part_is_left_as_it_is() -> None:
    master = encode_master_hello(MasterHello(90, 3, (Epoch(1, 0), Epoch(3, 40))))
    slave = SlaveEnd(TERMS, SlaveHello(False, False, 2), Epochs([Epoch(1, 0), Epoch(2, 60)]), start=50, end=80, now=0.0)
    with pytest.raises(ReplicationRefused, match="begins at 50, but is the master's only up to 40"):
        slave.receive(master, 0.0)


def test_an_empty_log_reports_nothing_before_the_first_piece() -> None:
    """The log may begin at an offset that the master does not know."""
    master = encode_master_hello(MasterHello(8, 1, (Epoch(1, 0),)))
    slave = SlaveEnd(TERMS, SlaveHello(False, False, 2), Epochs(), start=64, end=64, now=0.0)
    slave.receive(master, 0.0)
    slave.cut(0.0)
    slave.take_output()
    slave.report(64, 0.0)
    assert slave.take_output() == b""
    slave.receive(encode_header(0, 8, Epoch(1, 0), 0) + b"contents", 0.0)
    slave.report(64, 0.0)
    assert slave.take_output() == b""
    slave.report(8, 0.0)
    assert slave.take_output() == encode_ack(8)


HELLO = encode_slave_hello(SlaveHello(False, False, 2))


@pytest.mark.parametrize(("offset", "text"), [(101, "only up to 100"), (50, "was sent the log only up to 40")])
def test_a_slave_that_reports_what_it_cannot_have_is_refused(offset: int, text: str) -> None:
    master = master_end()
    master.receive(HELLO + (encode_ack(40) if offset == 50 else b""), 0.0)
    master.judge("", 0.0)
    with pytest.raises(ProtocolError, match=text):
        master.receive(encode_ack(offset), 0.0)


def test_both_ends_beat_and_notice_silence() -> None:
    side = Side([(1, 5)])
    master = master_end(end=5, confirmed=5)
    slave = SlaveEnd(TERMS, SlaveHello(False, False, 2), Epochs(side.epochs), start=0, end=5, now=0.0)
    master.receive(slave.take_output(), 1.0)
    master.judge("", 1.0)
    assert master.next_range(1.0) is None
    slave.receive(master.take_output(), 1.0)
    slave.cut(1.0)
    master.receive(slave.take_output(), 1.0)
    assert master.next_range(1.0) is None
    beat = master.next_range(master.beat_at())
    assert beat is not None and not beat.size
    assert slave.receive(beat.header, 6.0) == []
    slave.tick(slave.wake_at())
    assert slave.take_output() == encode_ack(5)
    master.check(20.9)
    with pytest.raises(ProtocolError, match="20 s"):
        master.check(21.0)
    with pytest.raises(ProtocolError, match="20 s"):
        slave.tick(26.0)


# What a peer that is no member of the set may send.
STRANGER = encode_slave_hello(SlaveHello(False, False, 99)) + encode_ack(100)


def test_a_stranger_gets_no_byte_and_counts_for_nothing_until_it_is_judged() -> None:
    master = master_end(confirmed=100)
    for at in range(len(STRANGER)):
        master.receive(STRANGER[at : at + 1], 0.0)
        assert (master.take_output(), master.next_range(100.0), master.slave, master.acked) == (b"", None, None, -1)
    assert master.claimed == Newcomer(99, "", PEER)
    with pytest.raises(ProtocolError, match="not of this set"):
        master.judge("not of this set", 0.0)
    assert (master.take_output(), master.slave, master.acked) == (b"", None, -1)


def test_a_stranger_cannot_fill_the_memory_before_it_is_judged() -> None:
    master = master_end()
    with pytest.raises(ProtocolError, match="sent more before it was accepted"):
        master.receive(STRANGER, 0.0)
        for _ in range(MAX_EARLY_BYTES):
            master.receive(encode_ack(100), 0.0)


def test_with_a_secret_a_peer_without_hello_is_refused_unless_its_host_is_listed() -> None:
    with pytest.raises(ProtocolError, match="haPlainPeerAddresses"):
        master_end(GUARDED).receive(STRANGER, 0.0)
    listed = master_end(replace(GUARDED, plain_hosts=frozenset({"10.0.0.2"})))
    listed.receive(STRANGER, 0.0)
    assert listed.claimed == Newcomer(99, "", PEER)


def shake_hands(master: MasterEnd, slave: SlaveEnd) -> None:
    """Exchange bytes until the master knows the slave's name."""
    while master.claimed is None and not master.refusal:
        master.receive(slave.take_output(), 0.0)
        slave.receive(master.take_output(), 0.0)


def slave_of(terms: LinkTerms, broker_id: int = 2, said: int = 2, file_bytes: int = 16) -> SlaveEnd:
    proof = proof_of(terms, broker_id, file_bytes=file_bytes)
    return SlaveEnd(terms, SlaveHello(False, False, said), Epochs(), start=0, end=0, now=0.0, proof=proof)


@pytest.mark.parametrize("theirs", [b"", b"another secret"])
def test_a_slave_without_the_secret_never_becomes_a_newcomer(theirs: bytes) -> None:
    master, slave = master_end(GUARDED), slave_of(replace(GUARDED, secret=theirs, must_prove=False))
    with pytest.raises(ReplicationRefused, match="another haSharedSecret"):
        shake_hands(master, slave)
    assert master.claimed is None and master.slave is None


def test_a_claim_with_a_wrong_proof_is_refused() -> None:
    master = master_end(GUARDED)
    hello, claim = proof_of(GUARDED)
    master.receive(encode(hello), 0.0)
    with pytest.raises(ProtocolError, match="does not have the haSharedSecret"):
        master.receive(encode(replace(claim, proof=b"a guess")), 0.0)
    assert master.claimed is None


def test_who_proved_to_be_one_broker_cannot_say_another_id() -> None:
    master, slave = master_end(GUARDED), slave_of(GUARDED, broker_id=2, said=3)
    shake_hands(master, slave)
    master.judge("", 0.0)
    slave.receive(master.take_output(), 0.0)
    with pytest.raises(ProtocolError, match="proved to be broker 2, and then says 3"):
        master.receive(slave.take_output(), 0.0)


def test_a_refused_slave_hears_why() -> None:
    for reason, slave in (("a reason", slave_of(GUARDED)), ("", slave_of(GUARDED, file_bytes=99))):
        master = master_end(GUARDED)
        shake_hands(master, slave)
        master.judge(reason, 0.0)
        with pytest.raises(ReplicationRefused, match=reason or "set mappedFileSizeCommitLog to the same value"):
            slave.receive(master.take_output(), 0.0)
        assert master.refusal and master.slave is None


def test_a_silent_peer_has_little_time_to_say_who_it_is() -> None:
    master = master_end(replace(TERMS, hello_s=3.0))
    master.receive(STRANGER[:10], 2.9)
    master.check(2.9)
    with pytest.raises(ProtocolError, match="did not identify itself in 3 s"):
        master.check(3.0)

"""Both ends of the HA link against each other, and against strangers."""

import math
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.replication import hello as hello_module
from skylark.broker.replication.frames import CHUNK_BYTES, PLAIN_CHUNK_BYTES, encode_report
from skylark.broker.replication.hello import Challenge, HelloReader, LinkTerms, decode, encode
from skylark.mqcommon.errors import ProtocolError, ReplicationRefused
from tests.broker.replication.links import FILE_BYTES, TERMS, Log, converse, master_link, sent_by, slave_link, take_in
from tests.broker.replication.test_frames import cuts, split

SECRET = replace(TERMS, secret=b"a secret", allow_plain=False)
#: Where the master of these tests is.
HERE = "10.0.0.1:10912"
LONG = bytes(range(256)) * 64


def text(size: int) -> bytes:
    return (LONG * (size // len(LONG) + 1))[:size]


@pytest.mark.parametrize("hello", [True, False])
@pytest.mark.parametrize("have", [0, 1, 4096, 5000])
def test_a_slave_catches_up_and_follows(hello: bool, have: int) -> None:
    master_log, slave_log = Log(text(9000)), Log(text(have))
    master, slave = master_link(master_log), slave_link(slave_log, hello=hello)
    converse(master, master_log, slave, slave_log)
    assert slave_log.end == 9000
    # A plain slave that has nothing begins with the last file, one of ours with the first.
    assert slave_log.start == (0 if hello or have else 8192)
    master_log.data += b"more"
    converse(master, master_log, slave, slave_log)
    assert slave_log.data == master_log.data[slave_log.start :]
    assert master.acked == slave_log.end == 9004


@pytest.mark.parametrize("hello", [True, False])
@pytest.mark.parametrize("size", [0, 5000])
def test_a_slave_with_nothing_to_copy_reports_at_once(hello: bool, size: int) -> None:
    log = Log(text(size))
    master, slave = master_link(log), slave_link(log, hello=hello)
    for _ in range(3):
        master.receive(slave.take_output(), 0.0)
        assert slave.receive(sent_by(master, log), 0.0) == []
    assert master.acked == size


def test_an_empty_slave_may_begin_with_the_last_file() -> None:
    master_log, slave_log = Log(text(9000)), Log()
    converse(master_link(master_log), master_log, slave_link(slave_log, last_file=True), slave_log)
    assert (slave_log.start, slave_log.end) == (8192, 9000)


def test_a_master_without_a_beginning_is_copied_from_its_first_file() -> None:
    master_log, slave_log = Log(text(5000), start=8192), Log()
    converse(master_link(master_log), master_log, slave_link(slave_log), slave_log)
    assert (slave_log.start, slave_log.data) == (8192, master_log.data)


@given(cuts, cuts, st.booleans(), st.integers(0, 9000))
def test_any_splitting_of_both_streams_gives_the_same_log(
    ups: list[int], downs: list[int], hello: bool, have: int
) -> None:
    master_log, slave_log = Log(text(9000)), Log(text(have))
    master, slave = master_link(master_log), slave_link(slave_log, hello=hello)
    for _ in range(6):
        up = slave.take_output()
        for part in split(up, ups):
            master.receive(part, 0.0)
        take_in(slave, slave_log, split(sent_by(master, master_log), downs))
    assert slave_log.data == master_log.data[slave_log.start :] and master.acked == 9000


def test_a_range_ends_with_a_file_and_is_bounded() -> None:
    log = Log(bytes(3 << 20))
    log.file_bytes = 1 << 30
    plain = master_link(log)
    plain.receive(encode_report(1), 0.0)
    found = plain.next_range(0.0)
    assert found is not None and found.size == PLAIN_CHUNK_BYTES
    small = Log(text(9000))
    link = master_link(small)
    link.receive(encode_report(4000), 0.0)
    sizes = []
    while found := link.next_range(0.0):
        sizes.append((found.offset, found.size))
    assert sizes == [(4000, 96), (4096, 4096), (8192, 808)]
    assert CHUNK_BYTES > PLAIN_CHUNK_BYTES


@pytest.mark.parametrize(
    "first",
    [b"GET / HT", struct.pack(">q", 9001), struct.pack(">q", -1), b"\x16\x03\x01\x02\x00\x01\x00\x01", b"\xff" * 8],
)
def test_bytes_that_are_no_offset_close_the_connection(first: bytes) -> None:
    master_log = Log(text(9000))
    link = master_link(master_log)
    with pytest.raises(ProtocolError):
        link.receive(first, 0.0)
    assert link.acked == -1 and not link.ready


def test_an_offset_before_the_log_closes_the_connection() -> None:
    link = master_link(Log(text(5000), start=8192))
    with pytest.raises(ProtocolError, match="are not an offset of the log from 8192 to 13192"):
        link.receive(encode_report(4096), 0.0)


def test_a_report_of_what_was_never_sent_closes_the_connection() -> None:
    link = master_link(Log(text(9000)))
    link.receive(encode_report(4096), 0.0)
    link.next_range(0.0)
    with pytest.raises(ProtocolError, match="was sent the log only up to 8192"):
        link.receive(encode_report(8193), 0.0)
    assert link.acked == 4096


def test_a_plain_peer_is_turned_away_where_a_secret_is_set() -> None:
    with pytest.raises(ProtocolError, match="haPlainPeerAddresses"):
        master_link(Log(text(10)), SECRET).receive(encode_report(0), 0.0)


GUARDED = replace(TERMS, allow_plain=False, must_prove=True)


@pytest.mark.parametrize("terms", [SECRET, replace(GUARDED, secret=b"a secret")], ids=["secret", "and access control"])
def test_brokers_that_share_a_secret_know_each_other(terms: LinkTerms) -> None:
    master_log, slave_log = Log(text(9000)), Log()
    converse(master_link(master_log, terms), master_log, slave_link(slave_log, terms), slave_log)
    assert slave_log.data == master_log.data


def test_a_master_with_access_control_and_no_secret_serves_nobody() -> None:
    master_log, slave_log = Log(text(9000)), Log()
    with pytest.raises(ReplicationRefused, match=r"the master has access control and no secret .*: set the same"):
        converse(master_link(master_log, GUARDED), master_log, slave_link(slave_log), slave_log)
    with pytest.raises(ProtocolError, match=r"it sent no hello.*same haSharedSecret.*haPlainPeerAddresses"):
        master_link(master_log, GUARDED).receive(encode_report(0), 0.0)


def test_a_slave_with_access_control_and_no_secret_follows_nobody() -> None:
    with pytest.raises(ReplicationRefused, match=r"this slave has access control and no .*: set the"):
        slave_link(Log(), GUARDED)


def test_a_plain_master_is_followed_with_access_control_only_if_its_host_is_listed() -> None:
    for terms in (GUARDED, SECRET):
        with pytest.raises(ReplicationRefused, match=r"10.0.0.1:10912 is no Skylark broker.*haPlainPeerAddresses"):
            terms.check_plain_master("10.0.0.1:10912")
        replace(terms, plain_hosts=frozenset({"10.0.0.1"})).check_plain_master("10.0.0.1:10912")
    TERMS.check_plain_master("10.0.0.1:10912")


def test_a_plain_slave_is_served_despite_a_secret_if_its_host_is_listed() -> None:
    terms = replace(SECRET, plain_hosts=frozenset({"10.0.0.1"}))
    assert terms.trusts_plain("10.0.0.1:40000") and not terms.trusts_plain("10.0.0.2:40000")


@pytest.mark.parametrize("theirs", [b"", b"another secret"])
def test_a_slave_does_not_follow_a_master_without_its_secret(theirs: bytes) -> None:
    master_log, slave_log = Log(text(9000)), Log()
    master = master_link(master_log, replace(SECRET, secret=theirs))
    with pytest.raises(ReplicationRefused, match="haSharedSecret"):
        converse(master, master_log, slave_link(slave_log, SECRET), slave_log)


@pytest.mark.parametrize(("met", "is_served"), [(HERE, True), ("10.0.0.9:10912", False), ("192.0.2.1:10912", True)])
def test_a_slave_that_has_connected_to_another_address_is_not_served(met: str, is_served: bool) -> None:
    """A stranger in between forwards the handshake, to read the log."""
    master_log, slave_log = Log(text(9000)), Log()
    terms = replace(SECRET, reached_at=lambda addr: addr == "192.0.2.1:10912")
    master, slave = master_link(master_log, terms), slave_link(slave_log, SECRET)
    master.accepted_at(HERE)
    slave.connected_to(met)
    if is_served:
        converse(master, master_log, slave, slave_log)
        assert slave_log.data == master_log.data
        return
    with pytest.raises(ProtocolError, match=r"connected to 10.0.0.9:10912, which is no .*reachedAtAddresses"):
        converse(master, master_log, slave, slave_log)
    assert not slave_log.data and not master.ready


def test_an_old_peer_speaks_the_first_version(monkeypatch: pytest.MonkeyPatch) -> None:
    for versions in ((1, 2), (2, 1)):
        master_log, slave_log = Log(text(9000)), Log()
        monkeypatch.setattr(hello_module, "VERSION", versions[0])
        master, slave = master_link(master_log, SECRET), slave_link(slave_log, SECRET, version=versions[1])
        master.accepted_at(HERE)
        slave.connected_to("10.0.0.9:10912")
        converse(master, master_log, slave, slave_log)
        assert slave_log.data == master_log.data


def test_nobody_makes_two_new_peers_speak_the_first_version() -> None:
    master, slave = master_link(Log(text(9000)), SECRET), slave_link(Log(), SECRET)
    master.receive(slave.take_output(), 0.0)
    (challenge,) = [decode(Challenge, HelloReader().receive(master.take_output()))]
    with pytest.raises(ReplicationRefused, match="haSharedSecret"):
        slave.receive(encode(replace(challenge, version=1)), 0.0)
    # Nor by another hello: the proof covers the hello that the slave has sent.
    master = master_link(Log(text(9000)), SECRET)
    slave, old = slave_link(Log(), SECRET), slave_link(Log(), SECRET, version=1)
    slave.take_output()
    master.receive(old.take_output(), 0.0)
    with pytest.raises(ReplicationRefused, match="haSharedSecret"):
        slave.receive(master.take_output(), 0.0)


def test_a_master_tells_nothing_to_a_slave_that_cannot_prove_itself() -> None:
    # What a listener has heard from a true slave does not help: the nonces are others.
    master_log = Log(text(9000))
    heard = master_link(master_log, SECRET), slave_link(Log(), SECRET)
    hello = heard[1].take_output()
    heard[0].receive(hello, 0.0)
    heard[1].receive(heard[0].take_output(), 0.0)
    claim = heard[1].take_output()
    master = master_link(master_log, SECRET)
    master._handshake._nonce = b"another nonce..."
    master.receive(hello, 0.0)
    master.take_output()
    with pytest.raises(ProtocolError, match="does not have the haSharedSecret"):
        master.receive(claim, 0.0)
    assert sent_by(master, master_log) == b""


def changed(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("master_log", "slave_log", "why"),
    [
        (Log(text(9000)), Log(text(9001)), r"up to 9001, but the master only up to 9000: 1 bytes.*resyncSlave"),
        (Log(text(20_000)), Log(changed(text(9000), 8999)), r"differs from the master's.*resyncSlave"),
        (Log(text(20_000)), Log(changed(text(9000), 5500)), r"differs from the master's.*resyncSlave"),
        (Log(text(12_000)[4096:], 4096), Log(changed(text(5000), 4999)), "differs .* somewhere in 4096 to 5000"),
        (Log(text(9000), start=8192), Log(text(4096)), "up to 4096, but the master's begins at 8192"),
    ],
    ids=["more than the master", "other bytes at the end", "other bytes", "behind deleted files", "left behind"],
)
def test_a_slave_whose_log_is_not_the_masters_is_refused_and_keeps_it(
    master_log: Log, slave_log: Log, why: str
) -> None:
    before = bytes(slave_log.data)
    with pytest.raises(ReplicationRefused, match=why):
        converse(master_link(master_log), master_log, slave_link(slave_log), slave_log)
    assert slave_log.data == before


@pytest.mark.parametrize(
    ("terms", "file_bytes", "why"),
    [
        (replace(TERMS, broker="broker-b"), FILE_BYTES, "this is broker broker-a of cluster DefaultCluster"),
        (TERMS, 2 * FILE_BYTES, "mappedFileSizeCommitLog"),
    ],
)
def test_a_slave_of_another_broker_or_with_files_of_another_size_is_told_so(
    terms: LinkTerms, file_bytes: int, why: str
) -> None:
    master_log, slave_log = Log(text(9000)), Log()
    with pytest.raises(ReplicationRefused, match=why):
        converse(master_link(master_log), master_log, slave_link(slave_log, terms, file_bytes=file_bytes), slave_log)


def test_a_gap_in_what_the_master_sends_closes_the_connection() -> None:
    slave = slave_link(Log(text(100)), hello=False)
    with pytest.raises(ProtocolError, match="the master goes on at 200, but this log ends at 100"):
        slave.receive(struct.pack(">qi", 200, 1) + b"x", 0.0)


def test_both_ends_say_something_now_and_then_and_notice_silence() -> None:
    log = Log(text(100))
    master, slave = master_link(log), slave_link(Log(text(100)), hello=False)
    master.receive(slave.take_output(), 0.0)
    assert master.next_range(4.9) is None
    beat = master.next_range(5.1)
    assert beat is not None and beat.size == 0 and beat.header == struct.pack(">qi", 100, 0)
    slave.receive(beat.header, 5.1)
    slave.tick(4.9)
    assert slave.take_output() == b""
    slave.tick(5.1)
    assert slave.take_output() == encode_report(100)
    master.check(19.9)
    with pytest.raises(ProtocolError, match="nothing was received from it for 20 s"):
        master.check(20.1)
    with pytest.raises(ProtocolError, match="nothing was received from the master for 20 s"):
        slave.tick(25.2)


@given(st.binary(max_size=120), cuts, st.booleans())
def test_random_bytes_give_one_error_at_most(data: bytes, places: list[int], magic: bool) -> None:
    stream = (b"\xffSKYLARK" if magic else b"") + data
    for link in (master_link(Log(text(100))), slave_link(Log()), slave_link(Log(), hello=False)):
        try:
            for part in split(stream, places):
                link.receive(part, 0.0)
        except (ProtocolError, ReplicationRefused):
            pass


def test_terms_have_rocketmqs_intervals() -> None:
    assert (LinkTerms().heartbeat_s, LinkTerms().timeout_s, LinkTerms().plain_chunk_bytes) == (5.0, 20.0, 32768)


def test_a_peer_must_say_who_it_is_in_time_however_it_trickles() -> None:
    log = Log(text(9000))
    link = master_link(log, replace(TERMS, hello_s=3.0))
    link.receive(b"\xffSKY", 2.9)
    assert link.times_out_at() == 3.0
    with pytest.raises(ProtocolError, match="did not identify itself in 3 s"):
        link.check(3.0)
    plain = master_link(log, replace(TERMS, hello_s=3.0))
    plain.receive(encode_report(0), 2.9)
    assert plain.times_out_at() == 22.9


def test_a_slave_that_leaves_may_go_when_it_has_what_the_log_has_now() -> None:
    master_log, slave_log = Log(text(5000)), Log()
    master, slave = master_link(master_log), slave_link(slave_log)
    converse(master, master_log, slave, slave_log)
    master_log.data += b"sends wait for the copy of this"
    assert slave.leave(0.0) and not slave.may_leave
    master.receive(slave.take_output(), 0.0)
    assert master.is_leaving and not master.idle
    end = master_log.end
    converse(master, master_log, slave, slave_log)
    assert slave.may_leave and master.acked == end and master.idle
    # It is sent nothing more: a socket that is closed with unread bytes resets the connection, and the master might not
    # read the last report.
    master_log.data += b"more"
    assert master.idle and master.next_range(1e9) is None and master.beat_at() == math.inf


def test_a_slave_tells_a_plain_master_nothing_when_it_leaves() -> None:
    slave = slave_link(Log(text(10)), hello=False)
    slave.take_output()
    assert not slave.leave(0.0) and slave.may_leave and slave.take_output() == b""

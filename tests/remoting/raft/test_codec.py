"""Messages on the wire: each comes back as it was, and other bytes are refused."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.raft.membership import Members
from skylark.mqcommon.raft.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    RaftEntry,
    RaftMessage,
    Snapshot,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from skylark.remoting.protocol.strict_cbor import dumps
from skylark.remoting.raft import codec
from skylark.remoting.raft.codec import check_snapshots, decode_messages, encode_messages

NUMBER = st.integers(0, (1 << 63) - 1)
HEAD = (st.text(), st.text(), NUMBER)
ENTRIES = st.lists(st.tuples(NUMBER, st.integers(0, 2), st.binary()), max_size=5).map(
    lambda rows: tuple(RaftEntry(7 + number, *row) for number, row in enumerate(rows))
)
MEMBERS = st.builds(Members, st.dictionaries(st.text(), st.text()), st.dictionaries(st.text(), st.text()))
MESSAGE: st.SearchStrategy[RaftMessage] = st.one_of(
    st.builds(VoteRequest, *HEAD, NUMBER, NUMBER, st.booleans(), st.booleans()),
    st.builds(VoteResponse, *HEAD, st.booleans(), st.booleans()),
    st.builds(AppendRequest, *HEAD, NUMBER, NUMBER, ENTRIES, NUMBER),
    st.builds(AppendResponse, *HEAD, NUMBER, st.booleans(), NUMBER, NUMBER),
    st.builds(Heartbeat, *HEAD, NUMBER, NUMBER),
    st.builds(HeartbeatResponse, *HEAD, NUMBER),
    st.builds(InstallSnapshot, *HEAD, st.builds(Snapshot, NUMBER, NUMBER, MEMBERS, st.binary())),
    st.builds(TimeoutNow, *HEAD),
)


@given(st.lists(MESSAGE, max_size=5))
def test_messages_come_back(messages: list[RaftMessage]) -> None:
    assert decode_messages(encode_messages(messages)) == messages


@given(st.binary())
def test_other_bytes_are_refused(data: bytes) -> None:
    try:
        messages = decode_messages(data)
    except ProtocolError:
        return
    assert isinstance(messages, list)


@pytest.mark.parametrize(
    "content",
    [
        7,
        [7],
        [[99, "a", "b", 1]],
        [[5, "a", "b", 1, -1, 2]],
        [[5, "a", "b", 1, "x", 2]],
        [[5, "a", "b", 1, 2]],
        [[5, "a", "b", "term", 1, 2]],
        [[5, 3, "b", 1, 1, 2]],
        [[3, "a", "b", 1, 0, 0, [1, 1, 0, "text"], 0]],
        [[3, "a", "b", 1, 0, 0, [1, 1, 0], 0]],
        [[2, "a", "b", 1, 1, 0]],
        [[7, "a", "b", 1, [1, 1, b"{}", b""]]],
        [[7, "a", "b", 1, [1, 1, b"[]", b""]]],
    ],
)
def test_what_is_not_a_message_is_refused(content: object) -> None:
    with pytest.raises(ProtocolError):
        decode_messages(dumps(content))


def test_snapshots_that_cannot_be_restored_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def message(data: bytes) -> InstallSnapshot:
        return InstallSnapshot("n1", "n0", 5, Snapshot(9, 5, Members({"n0": "a:1"}), data))

    monkeypatch.setattr(codec, "MAX_STATE_BYTES", 1_000)
    first = InstallSnapshot("n1", "n0", 5, Snapshot(0, 0, Members({"n0": "a:1"}), b""))
    check_snapshots([message(zlib.compress(bytes(1_000))), first])
    for data in (b"", b"torn", zlib.compress(bytes(1_001))):
        with pytest.raises(ProtocolError):
            check_snapshots([message(data)])

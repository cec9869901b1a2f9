"""Which messages of a node travel together."""

from skylark.mqcommon.raft.messages import APPLICATION, AppendRequest, Heartbeat, RaftEntry, RaftMessage
from skylark.remoting.raft.peers import FRAME_BYTES, _take_batch


def append(size: int) -> AppendRequest:
    return AppendRequest("a", "b", 1, 0, 0, (RaftEntry(1, 1, APPLICATION, b"x" * size),), 0)


def test_a_frame_has_as_much_as_fits_and_at_least_one_message() -> None:
    large, half, beat = append(FRAME_BYTES + 1), append(FRAME_BYTES // 2), Heartbeat("a", "b", 1, 0, 1)
    queue: list[RaftMessage] = [large, beat, half, half, beat]
    found = []
    while queue:
        found.append(_take_batch(queue, len))
    assert found == [[large], [beat, half], [half, beat]]

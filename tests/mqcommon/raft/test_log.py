"""The log of a node: what is committed stays."""

import pytest

from skylark.mqcommon.raft.errors import RaftError
from skylark.mqcommon.raft.log import MemoryEntries, RaftLog
from skylark.mqcommon.raft.membership import Members
from skylark.mqcommon.raft.messages import APPLICATION, RaftEntry, Snapshot

ENTRIES = [RaftEntry(index, 1, APPLICATION, b"%d" % index) for index in range(1, 6)]


@pytest.fixture
def log() -> RaftLog:
    """A log of five entries, three of which are committed."""
    found = RaftLog(Snapshot(0, 0, Members(), b""), MemoryEntries(0, 0, []))
    found.append(ENTRIES)
    found.commit_to(3)
    return found


def test_what_is_committed_is_neither_replaced_nor_removed(log: RaftLog) -> None:
    with pytest.raises(RaftError, match="entry 3 would replace a committed one"):
        log.append([RaftEntry(3, 2, APPLICATION, b"other")])
    with pytest.raises(RaftError, match="those up to 3 are committed"):
        log.forget_after(2)
    log.append([RaftEntry(4, 2, APPLICATION, b"other")])
    assert (log.last, log.term(3), log.term(4), log.term(5)) == (4, 1, 2, None)


def test_an_older_snapshot_forgets_nothing(log: RaftLog) -> None:
    newer = Snapshot(3, 1, Members(), b"newer")
    log.compact(newer, keep=0)
    log.compact(Snapshot(2, 1, Members(), b"older"), keep=0)
    assert log.snapshot == newer and (log.term(2), log.term(4)) == (None, 1)

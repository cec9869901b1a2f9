"""The messages of nodes, and the entries of their logs. Each message names its sender, its receiver and a term."""

from typing import NamedTuple

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.raft.membership import Members

# Kinds of entries, by what their data is.
APPLICATION = 0  # opaque bytes of the application
MEMBERSHIP = 1  # Members, encoded
EMPTY = 2  # nothing: a new leader begins its term with it


class RaftEntry(NamedTuple):
    index: int  # type: ignore[assignment]  # hides a method of tuples that nobody calls
    term: int
    kind: int
    data: bytes


@lazy_dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of the application after the entry at ``index``, and who the members were then."""

    index: int
    term: int
    members: Members
    data: bytes


@lazy_dataclass(frozen=True, slots=True)
class RaftMessage:
    sender: str
    to: str
    term: int


@lazy_dataclass(frozen=True, slots=True)
class VoteRequest(RaftMessage):
    """``pre``: asks whether the receiver would vote, and changes no term.

    ``forced``: the leader asked for the election.
    """

    last_index: int
    last_term: int
    pre: bool = False
    forced: bool = False


@lazy_dataclass(frozen=True, slots=True)
class VoteResponse(RaftMessage):
    """``term``: of the request when granted, else of the voter."""

    granted: bool
    pre: bool = False


@lazy_dataclass(frozen=True, slots=True)
class AppendRequest(RaftMessage):
    """Entries that follow the entry at ``prev_index``. Without entries it asks whether the receiver has that entry."""

    prev_index: int
    prev_term: int
    entries: tuple[RaftEntry, ...]
    commit: int


@lazy_dataclass(frozen=True, slots=True)
class AppendResponse(RaftMessage):
    """``index``: the receiver's disk has the leader's entries up to here.

    Refused: the receiver has no such entry at ``index``; it has ``hint_term`` at ``hint_index``, and its later entries
    cannot match.
    """

    index: int
    refused: bool = False
    hint_index: int = 0
    hint_term: int = 0


@lazy_dataclass(frozen=True, slots=True)
class Heartbeat(RaftMessage):
    """``round`` counts the leader's heartbeats; an answer shows that its sender took this leader for the leader."""

    commit: int
    round: int


@lazy_dataclass(frozen=True, slots=True)
class HeartbeatResponse(RaftMessage):
    round: int


@lazy_dataclass(frozen=True, slots=True)
class InstallSnapshot(RaftMessage):
    snapshot: Snapshot


@lazy_dataclass(frozen=True, slots=True)
class TimeoutNow(RaftMessage):
    """The leader hands over to the receiver, which must stand for election at once."""

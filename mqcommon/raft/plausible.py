"""Messages that no honest node of a group sends: their numbers would stay on disk, and lock out the others. Pure.

Terms rise by one an election, and entries come one after another. A number that is far ahead of this node's term and
index is forged or damaged. So is a message that contradicts itself: a log whose last entry has an absurd term counts as
newer than every other log, and its node would never vote for another node again. Forged messages with small numbers are
not recognised: docs/how/raft.md says how to keep strangers from the port.
Neighbours: raft.py checks each message with this module; the leader compares answers with what it has sent.
"""

from typing import Final

from skylark.mqcommon.raft.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    InstallSnapshot,
    RaftMessage,
    VoteRequest,
)

#: A node that was cut off while its group elected once a second comes back after thirty years, too.
MAX_TERM_STEP: Final = 1 << 30
LAST_TERM: Final = 1 << 62
#: A million entries a second make as many in nine years.
MAX_INDEX_STEP: Final = 1 << 48
LAST_INDEX: Final = 1 << 62


def why_absurd(message: RaftMessage, term: int, last: int) -> str:
    """What is wrong with ``message`` for a node of ``term`` whose log ends at ``last``; "" when it may be honest."""
    # A node of term 0 has just joined, and cannot know how far its group is.
    if message.term > (min(term + MAX_TERM_STEP, LAST_TERM) if term else LAST_TERM):
        return f"no election leads from term {term} to {message.term}"
    match message:
        case AppendRequest():
            if fault := _why_absurd_entries(message):
                return fault
            known, index = message.prev_term, max(message.prev_index + len(message.entries), message.commit)
        case AppendResponse():
            known, index = message.hint_term, max(message.index, message.hint_index)
        case VoteRequest():
            known, index = message.last_term, message.last_index
        case InstallSnapshot():
            known, index = message.snapshot.term, message.snapshot.index
        case Heartbeat():
            known, index = 0, message.commit
        case _:
            return ""
    if known > message.term:
        return f"an entry of term {known} cannot be known in term {message.term}"
    if index > min(last + MAX_INDEX_STEP, LAST_INDEX):
        return f"a group whose log ends at entry {last} here cannot have reached entry {index}"
    return ""


def _why_absurd_entries(request: AppendRequest) -> str:
    at = request.prev_term
    for number, entry in enumerate(request.entries, request.prev_index + 1):
        if entry.index != number:
            return f"entry {entry.index} does not follow entry {number - 1}"
        if not at <= entry.term <= request.term:
            return f"entry {number} of term {entry.term} cannot follow one of term {at} in term {request.term}"
        at = entry.term
    return ""

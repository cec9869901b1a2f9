"""Raft's messages and entries as CBOR."""

from collections.abc import Iterable
from typing import Any

from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message.compression import inflated
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
from skylark.remoting.protocol.strict_cbor import dumps, loads

# A message begins with the number of its kind; then come sender, receiver, term and the kind's own fields.
VOTE_REQUEST, VOTE_RESPONSE, APPEND_REQUEST, APPEND_RESPONSE = 1, 2, 3, 4
HEARTBEAT, HEARTBEAT_RESPONSE, INSTALL_SNAPSHOT, TIMEOUT_NOW = 5, 6, 7, 8
# A snapshot of some megabytes may claim to hold gigabytes.
MAX_STATE_BYTES = 512 << 20


def encode_messages(messages: Iterable[RaftMessage]) -> bytes:
    return dumps([_fields(message) for message in messages])


def _fields(message: RaftMessage) -> list[Any]:
    head = [message.sender, message.to, message.term]
    match message:
        case AppendRequest():
            return [
                APPEND_REQUEST,
                *head,
                message.prev_index,
                message.prev_term,
                entry_fields(message.entries),
                message.commit,
            ]
        case AppendResponse():
            return [APPEND_RESPONSE, *head, message.index, message.refused, message.hint_index, message.hint_term]
        case Heartbeat():
            return [HEARTBEAT, *head, message.commit, message.round]
        case HeartbeatResponse():
            return [HEARTBEAT_RESPONSE, *head, message.round]
        case VoteRequest():
            return [VOTE_REQUEST, *head, message.last_index, message.last_term, message.pre, message.forced]
        case VoteResponse():
            return [VOTE_RESPONSE, *head, message.granted, message.pre]
        case InstallSnapshot():
            return [INSTALL_SNAPSHOT, *head, snapshot_fields(message.snapshot)]
        case TimeoutNow():
            return [TIMEOUT_NOW, *head]
    raise TypeError(f"{type(message).__name__} is not a message of Raft")


def restored_state(snapshot: Snapshot) -> bytes:
    """The state that a snapshot holds. ProtocolError when it is damaged, or far larger than any state."""
    return inflated(snapshot.data, MAX_STATE_BYTES)


def check_snapshots(messages: Iterable[RaftMessage]) -> None:
    """ProtocolError for a peer's snapshot whose state cannot be restored: once on disk, it would stop each start."""
    for message in messages:
        # The snapshot at 0 of a new group names members only.
        if isinstance(message, InstallSnapshot) and message.snapshot.index:
            restored_state(message.snapshot)


def decode_messages(data: bytes) -> list[RaftMessage]:
    """The messages in ``data``. Raises ProtocolError when ``data`` is not what ``encode_messages`` makes."""
    try:
        return [_message(*fields) for fields in loads(data)]
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise ProtocolError(f"not messages of Raft: {error}") from None


def _message(kind: int, sender: str, to: str, term: int, *rest: Any) -> RaftMessage:
    _checked(sender, str)
    _checked(to, str)
    _checked(term, int)
    match kind:
        case 1:
            return VoteRequest(sender, to, term, *_integers(rest[:2]), *_flags(rest[2:], 2))
        case 2:
            return VoteResponse(sender, to, term, *_flags(rest, 2))
        case 3:
            prev_index, prev_term, entries, commit = rest
            _integers((prev_index, prev_term, commit))
            return AppendRequest(sender, to, term, prev_index, prev_term, entries_of(entries), commit)
        case 4:
            index, refused, *hint = rest
            return AppendResponse(sender, to, term, *_integers((index,)), *_flags((refused,), 1), *_integers(hint))
        case 5:
            return Heartbeat(sender, to, term, *_integers(rest))
        case 6:
            return HeartbeatResponse(sender, to, term, *_integers(rest))
        case 7:
            return InstallSnapshot(sender, to, term, snapshot_of(*rest))
        case 8:
            return TimeoutNow(sender, to, term)
    raise ValueError(f"kind {kind!r}")


def _integers(values: Iterable[Any]) -> list[Any]:
    return [_checked(value, int) for value in values]


def _flags(values: Iterable[Any], count: int) -> list[Any]:
    flags = [_checked(value, bool) for value in values]
    if len(flags) != count:
        raise ValueError(f"{len(flags)} flags instead of {count}")
    return flags


def _checked(value: Any, kind: type) -> Any:
    if type(value) is not kind or (type(value) is int and not 0 <= value < 1 << 63):
        raise ValueError(f"{value!r} is not a {kind.__name__} that may stand there")
    return value


def entry_fields(entries: Iterable[RaftEntry]) -> list[Any]:
    """The first index, then term, kind and data of each entry."""
    first = next(iter(entries), None)
    fields: list[Any] = [] if first is None else [first.index]
    for _, term, kind, data in entries:
        fields += (term, kind, data)
    return fields


def entries_of(fields: list[Any]) -> tuple[RaftEntry, ...]:
    if not fields:
        return ()
    index, *rest = fields
    terms, kinds, datas = rest[::3], rest[1::3], rest[2::3]
    if len(rest) % 3 or not (
        all(type(each) is int for each in (index, *terms, *kinds)) and all(type(each) is bytes for each in datas)
    ):
        raise ValueError("entries of other types")
    return tuple(map(RaftEntry, range(index, index + len(datas)), terms, kinds, datas))


def snapshot_fields(snapshot: Snapshot) -> list[Any]:
    return [snapshot.index, snapshot.term, snapshot.members.encode(), snapshot.data]


def snapshot_of(fields: list[Any]) -> Snapshot:
    index, term, members, data = fields
    return Snapshot(_checked(index, int), _checked(term, int), Members.decode(members), _checked(data, bytes))

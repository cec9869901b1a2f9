"""What can be sent of a log; CRCs of its pieces, by which master and slave compare theirs (use a thread)."""

from zlib import crc32

from broker.replication.hello import Tail, first_difference, tail_places
from broker.replication.link import Bounds
from broker.store.log.commitlog import CommitLog
from mqcommon.errors import ProtocolError


def tails_of(log: CommitLog, start: int, end: int) -> tuple[Tail, ...]:
    """The CRCs that a slave sends of its log from ``start`` to ``end``."""
    return tuple(
        Tail(offset, size, _crc(log, offset, size)) for offset, size in tail_places(start, end, log.chain.segment_bytes)
    )


def other_bytes_at(log: CommitLog, tails: tuple[Tail, ...]) -> Tail | None:
    """A piece in which the slave's log differs from the master's ``log``; None when all pieces are the same."""
    return first_difference(tails, log.start, log.end, lambda offset, size: _crc(log, offset, size))


def _crc(log: CommitLog, offset: int, size: int) -> int:
    data = b""
    try:
        while len(data) < size and (more := log.chain.read_file(offset + len(data), size - len(data))):
            data += more
    except FileNotFoundError:
        data = b""
    if len(data) < size:
        raise ProtocolError(f"the log around {offset} was deleted meanwhile")
    return crc32(data)


def bounds_of(log: CommitLog) -> Bounds:
    """What can be sent of ``log`` now."""
    return Bounds(log.start, log.end, log.chain.segment_bytes)

"""How a connection begins in a set without a Controller: with a hello where the master is a Skylark broker.

The slave's hello has CRCs of pieces of its log, which the master compares with its own log. Both read files for that,
in a thread.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import TypeVar
from zlib import crc32

import trio

from skylark.broker.replication.compared_log import MEND_S
from skylark.broker.replication.hello import (
    NONCE_BYTES,
    VERSION,
    Hello,
    LinkTerms,
    LogClaim,
    PieceCrc,
    first_difference,
    tail_places,
)
from skylark.broker.replication.link import Claim, LogBounds, MasterLink, SlaveLink
from skylark.broker.replication.replica import Replica
from skylark.broker.replication.session import (
    Dialogue,
    Examine,
    MasterSession,
    MasterTarget,
    NewMasterSide,
    Peer,
    SlaveSession,
)
from skylark.broker.store.log.commitlog import CommitLog
from skylark.broker.store.log.residency import Damaged
from skylark.broker.writing.waits import AckLedger
from skylark.mqcommon.errors import FileClosed, ProtocolError

T = TypeVar("T")


def plain_sessions(log: CommitLog, acks: AckLedger, terms: LinkTerms) -> NewMasterSide:
    """Makes the sessions of a master of ``log``."""

    def new_session(peer: Peer) -> MasterSession:
        serves_plain = terms.trusts_plain(peer.addr)
        link = MasterLink(terms, lambda: bounds_of(log), os.urandom(NONCE_BYTES), peer.since, serves_plain=serves_plain)
        return MasterSession(link, acks, peer)

    return new_session


def compare_logs(log: CommitLog) -> Examine:
    """Finds a piece in which a slave's log differs from ``log``."""

    async def examine(claim: Claim) -> PieceCrc | None:
        assert isinstance(claim, LogClaim)
        return await _when_mended(partial(other_bytes_at, log, claim.tails))

    return examine


class PlainDialogue(Dialogue):
    """``guard`` is held while the log begins at another offset; ``last_file``: copy only the master's last file.

    ``met``: see `SlaveSession`.
    """

    def __init__(
        self,
        replica: Replica,
        terms: LinkTerms,
        who: Hello,
        guard: trio.Lock,
        *,
        sync_flush: bool,
        last_file: bool,
        met: Callable[[str], None] = lambda addr: None,
    ) -> None:
        self._replica = replica
        self._terms = terms
        self._who = who
        self._guard = guard
        self._sync_flush = sync_flush
        self._last_file = last_file
        self._met = met

    async def begin(self, target: MasterTarget) -> SlaveSession:
        """The session of a new connection."""
        return SlaveSession(await self._new_link(target), sync_flush=self._sync_flush, met=self._met)

    async def _new_link(self, target: MasterTarget) -> SlaveLink:
        log = self._replica.log
        if not target.hello:
            self._terms.check_plain_master(target.ha_addr)
            if self._replica.is_empty and not self._last_file and target.begin is not None:
                # The log begins elsewhere: no checkpoint or cleaning may look at its files meanwhile.
                async with self._guard:
                    await trio.to_thread.run_sync(self._begin_plain, target.begin)
            begin = log.start if log.chain.segments else 0
            return SlaveLink(self._terms, trio.current_time(), start=log.start, end=log.raw_end, begin=begin)
        start, end = log.start, log.raw_end
        tails = await _when_mended(partial(tails_of, log, start, end))
        claim = LogClaim(b"", start, end, log.chain.segment_bytes, self._last_file, tails)
        hello = Hello(
            VERSION, self._who.cluster, self._who.broker, self._who.broker_id, self._who.addr, os.urandom(NONCE_BYTES)
        )
        return SlaveLink(self._terms, trio.current_time(), start=start, end=end, proof=(hello, claim))

    def _begin_plain(self, begin: int) -> None:
        """Prepare an empty log to copy the whole log of a RocketMQ master, and not only its last file."""
        self._replica.begin_at(begin)
        if not begin:
            # A RocketMQ master takes offset 0 as a request for its last file, so ask from offset 1. The byte before is
            # known: a log begins with the size of a record, which is below 16 MiB, so its first byte is 0.
            self._replica.append(memoryview(b"\0"))


async def _when_mended(read: Callable[[], T]) -> T:
    """The result of ``read``, which reads the log, and runs in a thread. ProtocolError while the log is damaged there.

    Otherwise damage would look like a log with other messages, which needs an administrator.
    """
    damaged: Damaged | None = None
    with trio.move_on_after(MEND_S):
        while True:
            try:
                return await trio.to_thread.run_sync(read)
            except Damaged as error:
                damaged = error.with_traceback(None)
            await damaged.wait()
    if damaged is None:
        raise ProtocolError(f"no thread was free in {MEND_S:g} s to read this broker's log")
    block = damaged.blocks[0]
    raise ProtocolError(f"bytes {block.start} to {block.end} of this broker's log are damaged, and not mended yet")


def tails_of(log: CommitLog, start: int, end: int) -> tuple[PieceCrc, ...]:
    """The CRCs that a slave sends of its log from ``start`` to ``end``."""
    return tuple(
        PieceCrc(offset, size, _crc(log, offset, size))
        for offset, size in tail_places(start, end, log.chain.segment_bytes)
    )


def other_bytes_at(log: CommitLog, tails: tuple[PieceCrc, ...]) -> PieceCrc | None:
    """A piece in which the slave's log differs from the master's ``log``; None when all pieces are the same."""
    return first_difference(tails, log.start, log.end, lambda offset, size: _crc(log, offset, size))


def _crc(log: CommitLog, offset: int, size: int) -> int:
    data = b""
    try:
        while len(data) < size and (more := log.blocks.read(offset + len(data), size - len(data))):
            data += more
    except (FileNotFoundError, FileClosed):
        data = b""
    if len(data) < size:
        raise ProtocolError(f"the log around {offset} was deleted meanwhile")
    return crc32(data)


def bounds_of(log: CommitLog) -> LogBounds:
    """What can be sent of ``log`` now."""
    return LogBounds(log.start, log.end, log.chain.segment_bytes)

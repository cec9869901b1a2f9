"""A master's log in memory and links around it, for tests."""

from collections.abc import Iterable

from skylark.broker.replication.hello import (
    VERSION,
    Hello,
    LinkTerms,
    LogClaim,
    PieceCrc,
    first_difference,
    tail_places,
)
from skylark.broker.replication.link import MasterLink, SlaveLink
from tests.sim import log as simulated

FILE_BYTES = 4096
TERMS = LinkTerms(cluster="DefaultCluster", broker="broker-a")


class Log(simulated.Log):
    """A log of any bytes."""

    file_bytes = FILE_BYTES


def master_link(log: Log, terms: LinkTerms = TERMS, now: float = 0.0) -> MasterLink:
    return MasterLink(terms, log.bounds, b"master's nonce..", now, serves_plain=terms.allow_plain)


def slave_link(
    log: Log,
    terms: LinkTerms = TERMS,
    now: float = 0.0,
    *,
    hello: bool = True,
    last_file: bool = False,
    file_bytes: int = FILE_BYTES,
    version: int = VERSION,
) -> SlaveLink:
    if not hello:
        return SlaveLink(terms, now, start=log.start, end=log.end)
    tails = tuple(PieceCrc(at, size, log.crc(at, size)) for at, size in tail_places(log.start, log.end, FILE_BYTES))
    who = Hello(version, terms.cluster, terms.broker, 1, "127.0.0.1:10911", b"slave's nonce...")
    claim = LogClaim(b"", log.start, log.end, file_bytes, last_file, tails)
    return SlaveLink(terms, now, start=log.start, end=log.end, proof=(who, claim))


def sent_by(link: MasterLink, log: Log, now: float = 0.0) -> bytes:
    """All that the master has to say now."""
    if link.claimed is not None:
        link.judge(first_difference(link.claimed.tails, log.start, log.end, log.crc), now)
    parts = [link.take_output()]
    while (piece := link.next_range(now)) is not None:
        parts += [piece.header, log.read(piece.offset, piece.size)]
    return b"".join(parts)


def take_in(link: SlaveLink, log: Log, data: Iterable[bytes], now: float = 0.0) -> None:
    """The slave appends what comes in ``data``, and reports."""
    for part in data:
        for piece in link.receive(part, now):
            log.append(piece.offset, piece.data)
        if log.data:
            link.report(log.end, now)


def converse(master: MasterLink, master_log: Log, slave: SlaveLink, slave_log: Log, now: float = 0.0) -> None:
    """Exchange bytes until neither end has any to send."""
    while True:
        up, down = slave.take_output(), b""
        if up:
            master.receive(up, now)
        down = sent_by(master, master_log, now)
        if down:
            take_in(slave, slave_log, [down], now)
        if not up and not down:
            return

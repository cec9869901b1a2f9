"""Which master wrote which part of a broker's log, as 1007 shows it."""

from dataclasses import dataclass

from remoting.protocol.bodies.body import Body, member
from remoting.protocol.bodies.kinds import INT, LONG, TEXT, body_of, list_of


@dataclass(slots=True)
class EpochEntry(Body):
    """The master of ``epoch`` wrote the bytes from ``start_offset`` to ``end_offset``."""

    epoch: int = member(INT, 0)
    start_offset: int = member(LONG, 0)
    end_offset: int = member(LONG, 0)


@dataclass(slots=True)
class EpochEntryCache(Body):
    """The answer to 1007. ``max_offset`` is the end of the log."""

    cluster_name: str = member(TEXT, "")
    broker_name: str = member(TEXT, "")
    broker_id: int = member(LONG, 0)
    epoch_list: list[EpochEntry] = member(list_of(body_of(EpochEntry)))
    max_offset: int = member(LONG, 0)

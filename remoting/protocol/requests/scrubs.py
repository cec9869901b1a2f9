"""Scrubs of a broker's store, Skylark's own: check all of it now (7162), and how far that is (7163)."""

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.body import FLAG, LONG, TEXT, Body, list_of, member
from skylark.remoting.protocol.header import Header, optional
from skylark.remoting.protocol.request import NOTHING, Request
from skylark.remoting.protocol.rights import GET_CLUSTER, UPDATE_CLUSTER
from skylark.remoting.protocol.scalars import read_long


@lazy_dataclass(slots=True)
class ScrubRequestHeader(Header):
    """7162: check the whole store now. Answered when the scrub has begun; refused while another one runs.

    ``bytes_per_second``: how fast to read; 0: as the broker likes.
    """

    bytes_per_second: int = optional(read_long, 0)


@lazy_dataclass(slots=True)
class ScrubStatus(Body):
    """The answer to 7162 and 7163: the scrub that runs, or the last one since the broker's start.

    ``enabled``: the broker scrubs by itself. ``asked_ms``: when the scrub was asked for, 0 if it began by itself.
    ``total_bytes``: the size of the log; ``checked_bytes``: the checked part of the log. ``problem_count``: how many
    problems this scrub has found; ``mended_count``: how many of the problems are mended; ``problems``: the first
    problems in words. ``suspects``: damaged blocks that could not be repaired. ``last_ended_ms``: when all of the store
    was checked last, 0: never.
    """

    enabled: bool = member(FLAG, True)
    running: bool = member(FLAG, False)
    held_up: bool = member(FLAG, False)
    asked_ms: int = member(LONG, 0)
    began_ms: int = member(LONG, 0)
    bytes_per_second: int = member(LONG, 0)
    checked_bytes: int = member(LONG, 0)
    total_bytes: int = member(LONG, 0)
    percent: int = member(LONG, 0)
    problem_count: int = member(LONG, 0)
    mended_count: int = member(LONG, 0)
    problems: list[str] = member(list_of(TEXT))
    suspects: int = member(LONG, 0)
    last_ended_ms: int = member(LONG, 0)


SCRUB = Request(7162, ScrubRequestHeader, NOTHING, NOTHING, ScrubStatus, right=UPDATE_CLUSTER)
SCRUB_STATUS = Request(7163, NOTHING, NOTHING, NOTHING, ScrubStatus, right=GET_CLUSTER)

"""Tiered storage, Skylark's own: what a broker has in its bucket (7164), and to remove deleted topics from it (7165)."""

from typing import Final

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.body import FLAG, LONG, TEXT, Body, list_of, member
from skylark.remoting.protocol.request import NOTHING, Request
from skylark.remoting.protocol.rights import GET_CLUSTER, UPDATE_CLUSTER

#: The states of a broker's tier. OFF: it has no tierPath. STARTING: nothing was read from the bucket yet.
OFF: Final = "off"
STARTING: Final = "starting"
#: It uploads: the master. READING: it reads what the master has uploaded, as a slave does.
OWNER: Final = "owner"
READING: Final = "reading"
#: The bucket does not answer; it is asked again at ``retry_ms``.
AWAY: Final = "away"
#: An administrator has to act, as ``error`` says. No message is lost; nothing is uploaded, and no local file removed.
STOPPED: Final = "stopped"


@lazy_dataclass(slots=True)
class TierStatus(Body):
    """The answer to 7164 and 7165: one broker's tier. Offsets are physical; times are in ms since 1970, 0: never.

    ``url`` and ``broker_set``: where in the bucket. ``epoch`` and ``manifest``: of the newest manifest that is known.
    ``start`` to ``end``: what the segments in the bucket hold; ``tail_end``: how far copies of the open file go.
    ``uploaded_to``: local files before that may be removed. ``behind_bytes``: closed files that are not uploaded yet.
    ``stored_bytes``: of all segments' objects. ``first_ms``: the oldest message in the bucket. ``last_upload_ms``: the
    end of the last upload by this broker. ``error``: the last failure that has not been overcome, since ``away_ms``.
    ``purge_left``: segments that still have bytes of deleted topics which 7165 removes.
    """

    state: str = member(TEXT, OFF)
    url: str = member(TEXT, "")
    broker_set: str = member(TEXT, "")
    epoch: int = member(LONG, 0)
    manifest: int = member(LONG, 0)
    start: int = member(LONG, 0)
    end: int = member(LONG, 0)
    tail_end: int = member(LONG, 0)
    uploaded_to: int = member(LONG, 0)
    behind_bytes: int = member(LONG, 0)
    segments: int = member(LONG, 0)
    stored_bytes: int = member(LONG, 0)
    first_ms: int = member(LONG, 0)
    last_upload_ms: int = member(LONG, 0)
    error: str = member(TEXT, "")
    away_ms: int = member(LONG, 0)
    retry_ms: int = member(LONG, 0)
    deleted_topics: list[str] = member(list_of(TEXT))
    purge_left: int = member(LONG, 0)


TIER_STATUS = Request(7164, NOTHING, NOTHING, NOTHING, TierStatus, right=GET_CLUSTER)
#: Rewrite the objects that have bytes of deleted topics. Answered when that has begun.
TIER_PURGE = Request(7165, NOTHING, NOTHING, NOTHING, TierStatus, right=UPDATE_CLUSTER)

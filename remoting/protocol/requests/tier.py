"""Tiered storage, Skylark's own: a broker's bucket (7164), to remove deleted topics there (7165), to own it (7166)."""

from typing import Final

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.body import LONG, TEXT, Body, member
from skylark.remoting.protocol.request import NOTHING, Request
from skylark.remoting.protocol.rights import GET_CLUSTER, UPDATE_CLUSTER

#: `TierStatus.role`. OFF: the broker has no tierPath. STARTING: the broker is about to own the set. OWNER: the broker
#: writes to the bucket. FOLLOWER: the broker is no master, and reads the bucket. STOPPED: the broker is the master, and
#: does not write to the bucket: see `TierStatus.problem`.
OFF: Final = "OFF"
STARTING: Final = "STARTING"
OWNER: Final = "OWNER"
FOLLOWER: Final = "FOLLOWER"
STOPPED: Final = "STOPPED"


@lazy_dataclass(slots=True)
class TierStatus(Body):
    """The answer to 7164, 7165 and 7166: a broker's set in the bucket.

    Offsets are physical offsets of the log; times are ms since 1970, 0: never.

    ``url`` and ``broker_set``: where in which bucket. ``uploaded_to``: files of the log before it are in the bucket,
    and may leave this disk. ``tail_to``: bytes of the log before it are in the bucket, in full files or in copies of
    the open file. ``behind_bytes``: full files that may be uploaded and are not yet. ``epoch`` and ``manifest``: of the
    newest manifest, -1 if there is none. ``segments``: files of the log in the bucket, ``start``: where the first
    begins, ``stored_bytes`` of their objects, ``oldest_ms``: when their oldest message was stored. ``metadata_ms``:
    when topics, groups and offsets were copied last. ``uploads``, ``upload_messages``, ``upload_bytes``, ``upload_ms``:
    files of the log that this broker has uploaded since its start, and the end of the last upload. ``problem``: why
    nothing is written or read now, "" without a problem; ``problem_since_ms``: when the problem began; ``retry_in_ms``:
    when the broker tries again, -1: not before an administrator has acted. ``tombstones``: deletions of topics whose
    bytes may still be in the bucket; ``purge_left``: segments that the running purge has not looked at yet.
    ``leftovers``: objects that will be removed.
    """

    role: str = member(TEXT, OFF)
    url: str = member(TEXT, "")
    broker_set: str = member(TEXT, "")
    uploaded_to: int = member(LONG, 0)
    tail_to: int = member(LONG, 0)
    behind_bytes: int = member(LONG, 0)
    epoch: int = member(LONG, -1)
    manifest: int = member(LONG, -1)
    start: int = member(LONG, 0)
    segments: int = member(LONG, 0)
    stored_bytes: int = member(LONG, 0)
    oldest_ms: int = member(LONG, 0)
    metadata_ms: int = member(LONG, 0)
    uploads: int = member(LONG, 0)
    upload_messages: int = member(LONG, 0)
    upload_bytes: int = member(LONG, 0)
    upload_ms: int = member(LONG, 0)
    problem: str = member(TEXT, "")
    problem_since_ms: int = member(LONG, 0)
    retry_in_ms: int = member(LONG, 0)
    tombstones: int = member(LONG, 0)
    purge_left: int = member(LONG, 0)
    leftovers: int = member(LONG, 0)


TIER_STATUS = Request(7164, NOTHING, NOTHING, NOTHING, TierStatus, right=GET_CLUSTER)
#: Rewrite the objects that have bytes of deleted topics. Answered when the rewriting has begun.
TIER_PURGE = Request(7165, NOTHING, NOTHING, NOTHING, TierStatus, right=UPDATE_CLUSTER)
#: Own the set, whatever term its last owner had: terms have begun anew. Answered before the broker owns the set.
TIER_TAKE_OVER = Request(7166, NOTHING, NOTHING, NOTHING, TierStatus, right=UPDATE_CLUSTER)

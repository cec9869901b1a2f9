"""The part that keeps a set's old files in a bucket: uploads, retention, and how far the log may leave this disk.

Neighbours: upload.py (the objects of one file), mqcommon/tier/manifests.py (who owns the set), tasks/clean.py.
"""

import trio

from skylark.broker.part import Part
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.tier.bucket import Bucket

#: `TierStatus.role`. OWNER: this broker writes. FOLLOWER: it reads what the owner has written. STOPPED: it was the
#: owner, or should be, and does not write, see `TierStatus.problem`.
OWNER, FOLLOWER, STOPPED = "OWNER", "FOLLOWER", "STOPPED"


@lazy_dataclass(frozen=True, slots=True)
class TierStatus:
    """What a broker says of its set in the bucket. Offsets are physical offsets of the log; times are ms since 1970.

    ``uploaded_to``: files of the log before it are in the bucket, and may leave this disk. ``tail_to``: bytes before it
    are in the bucket in some form. ``behind_bytes``: full files that may be uploaded and are not yet. ``epoch`` and
    ``manifest``: of the newest manifest, -1 without one. ``segments``: files of the log in the bucket, ``start`` where
    the first begins, ``bytes`` of their objects. ``uploads`` and ``upload_bytes``: files of the log that this broker
    has uploaded since its start. ``problem``: why nothing is written now, "" if it is; ``problem_since_ms`` and
    ``retry_in_ms`` (-1: not before an administrator has acted) belong to it.
    """

    url: str
    broker_set: str
    role: str
    uploaded_to: int
    tail_to: int
    behind_bytes: int
    epoch: int
    manifest: int
    start: int
    segments: int
    bytes: int
    tombstones: int
    leftovers: int
    metadata_ms: int
    uploads: int
    upload_bytes: int
    upload_ms: int
    problem: str
    problem_since_ms: int
    retry_in_ms: int


class Tier(Part):
    """The tier of one broker. ``bucket`` may be called from any thread."""

    def __init__(self, bucket: Bucket, broker_set: str) -> None:
        self.bucket = bucket
        self.broker_set = broker_set
        #: Files of the log that end at or before this offset are in the bucket and were read back.
        self.uploaded_to = 0

    def status(self) -> TierStatus:
        """What `mqadmin tierStatus`, metrics and the doctor show."""
        raise NotImplementedError

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Upload until cancelled."""
        task_status.started()

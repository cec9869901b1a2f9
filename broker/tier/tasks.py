"""The work on one file of the log that the broker gives to an uploader, and the errors of damaged files."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.tier.bucket import BucketError, DamagedObject
from skylark.mqcommon.tier.manifest import Segment, StoredObject


class DamagedFile(SkylarkError):
    """A file of the log is damaged, so it must not go to the bucket. ``blocks``: physical offsets, if known."""

    def __init__(self, reason: str, blocks: Sequence[int] = ()) -> None:
        super().__init__(reason, blocks)
        self.reason = reason
        self.blocks = blocks

    def __str__(self) -> str:
        return self.reason


class ChangedFile(BucketError):
    """Bytes of a file of the log changed after they were compared with their sums: the next try compares them again."""


class DamagedIndex(DamagedObject):
    """The index of the newest segment is damaged or missing. Before the next file is uploaded it is made again."""


@lazy_dataclass(frozen=True, slots=True)
class UploadTask:
    """One file of the log: ``size`` bytes from the physical offset ``start`` on.

    ``epoch``: of the owner. ``unique``: random text. ``classes``: the retention classes of topics, without class 0.
    ``before``: the index of the segment before. ``tombstones``: topic -> physical offset. ``crcs``: CRC-32 of each
    block of ``block_bytes``, -1 if the block is not sealed. ``takes_damage``: in blocks that are not sealed, upload
    bytes that are no sound message as they are.
    """

    broker_set: str
    start: int
    size: int
    epoch: int
    unique: str
    classes: Mapping[str, int]
    before: StoredObject | None
    tombstones: Mapping[str, int]
    block_bytes: int
    crcs: Sequence[int]
    takes_damage: bool = False

    def class_of(self, topic: str) -> int:
        """The retention class of ``topic``."""
        return self.classes.get(topic, 0)


class Uploader(Protocol):
    """Makes the objects of files, and reads them back."""

    async def upload(self, path: str, task: UploadTask) -> Segment:
        """Upload the file at ``path``. Raises DamagedFile and BucketError, of which DamagedIndex can be repaired."""

    async def purge(self, segment: Segment, task: UploadTask) -> Segment | None:
        """``segment`` without the records that ``task.tombstones`` cover; None if it has no such record.

        Raises BucketError.
        """

    async def repair(self, segment: Segment, path: str, task: UploadTask) -> Segment | None:
        """``segment``, whose index could not be read, with new objects; None if the index can be read after all.

        ``path``: of its file on this disk; "" if the file is gone. Raises BucketError: see repair.py.
        """

    async def rest(self) -> None:
        """There is nothing to upload for now."""


def task_to_wire(task: UploadTask) -> list[Any]:
    """The values of ``task`` for CBOR."""
    before = task.before
    return [
        task.broker_set,
        task.start,
        task.size,
        task.epoch,
        task.unique,
        dict(task.classes),
        None if before is None else [before.name, before.size, before.crc],
        dict(task.tombstones),
        task.block_bytes,
        list(task.crcs),
        task.takes_damage,
    ]


def task_from_wire(rows: Sequence[Any]) -> UploadTask:
    """The task of which `task_to_wire` made ``rows``."""
    values = list(rows)
    values[6] = None if values[6] is None else StoredObject(*values[6])
    return UploadTask(*values)

"""The records of one file of the log, sorted by retention class, topic, queue and place in the log. Needs numpy, pyarrow.

A queue's records are then side by side, so a reader of one topic reads no other's bytes. Bytes of records are unchanged.
Neighbours: segment_index.py and keys.py (get the columns), restore.py (makes the file again).
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: The retention class of a topic.
ClassOf = Callable[[str], int]
MAX_REST_BYTES = 16 * 1024 * 1024


class TooDamaged(SkylarkError):
    """More than `MAX_REST_BYTES` of a file are neither sound records nor zeros."""


@lazy_dataclass(frozen=True, slots=True)
class QueueRows:
    """The records of one queue in the object of its class: rows ``first`` to ``end`` of the `Gathered` columns.

    ``next_offset``: the queue offset after the last record. ``hidden``: the topic was deleted after these records, and
    made again in the same file; no index has them.
    """

    topic: str
    queue_id: int
    retention_class: int
    first: int
    end: int
    next_offset: int
    hidden: bool = False


@lazy_dataclass(frozen=True, slots=True)
class Gathered:
    """Columns of all sound records, one row each, in the order of the objects.

    ``physical`` (place in the log), ``sizes``, ``offsets`` (of the queue), ``stored_ms``: int64. ``positions``: where
    each begins in the object of its class. ``queues`` in the order of their rows. ``rest``: (physical offset, bytes) of
    what is neither a record nor zeros. ``crc``: CRC-32 of the whole file.
    """

    start: int
    end: int
    physical: "NDArray[np.int64]"
    sizes: "NDArray[np.int64]"
    offsets: "NDArray[np.int64]"
    stored_ms: "NDArray[np.int64]"
    positions: "NDArray[np.int64]"
    queues: tuple[QueueRows, ...]
    rest: tuple[tuple[int, bytes], ...]
    crc: int

    def pieces(self, retention_class: int) -> Iterator[memoryview]:
        """The bytes of the object of this class, in pieces of some MiB."""
        raise NotImplementedError


def gather(view: bytes | memoryview, start: int, class_of: ClassOf) -> Gathered:
    """Sort the file whose bytes ``view`` are, and whose first byte is at ``start`` of the log. TooDamaged."""
    raise NotImplementedError

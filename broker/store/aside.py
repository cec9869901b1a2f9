"""Moves the files of a closed store into a directory of their own inside it, so that the store begins again empty.

Nothing is deleted. After an interrupted move the store still starts: the log is moved near the end, since a store that
has only its log rebuilds everything else.
"""

from collections.abc import Sequence

from skylark.broker.store.checkpoint import ABORT
from skylark.broker.store.inventory import FILE_NAME as INVENTORY
from skylark.broker.store.queue.ends import FILE_NAME as QUEUE_ENDS
from skylark.broker.store.queue.ends import SINCE_NAME
from skylark.broker.store.sums.sum_files import DIRECTORY as SUMS
from skylark.broker.store.truncation.intent import FILE_NAME as INTENT
from skylark.mqcommon.disk.files import FileSystem

PARTS = (
    SUMS, "index", "consumequeue", "batchconsumequeue", QUEUE_ENDS, SINCE_NAME, "checkpoint", INTENT, INVENTORY,
    "commitlog", ABORT,
)  # fmt: skip


def move_aside(fs: FileSystem, root: str, aside: str, more: Sequence[str] = ()) -> None:
    """Move all files with messages from ``root`` to ``aside``, a new directory, and then ``more``. Blocks."""
    fs.mkdirs(aside)
    for part in (*PARTS, *more):
        if fs.exists(f"{root}/{part}"):
            fs.rename(f"{root}/{part}", f"{aside}/{part}")
            # Each move is durable before the next: after a power loss, too, the log goes last.
            fs.fsync_dir(aside)
            fs.fsync_dir(root)

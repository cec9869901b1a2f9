"""Whether a slave's log began amid its master's, so that the store lacks queues whose messages all came before.

Such a queue would begin at 0 again if the slave became the master. With tiered storage the bucket tells where it goes
on, see `learn_ends`; until then the file ``begunAt`` is in the store: the offset at which the log began, in decimal.
Neighbours: replication/replica.py (begins logs), tier/guard.py (asks the bucket).
"""

from collections.abc import Iterable

from skylark.broker.store.queue.queues import Queues
from skylark.mqcommon.disk.atomic import write_atomic
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.layout import MIN_RECORD

FILE_NAME = "begunAt"


@lazy_dataclass(frozen=True, slots=True)
class QueueEnd:
    """The bucket's messages of a queue end before ``next_offset``."""

    topic: str
    queue_id: int
    next_offset: int


class BegunAt:
    """The file in ``directory``. ``offset``: where the log began; 0 if the store knows all queues. Methods block."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._directory = directory
        self._path = f"{directory}/{FILE_NAME}"
        self.offset = 0

    def load(self) -> None:
        """Read the file. Content that is no number counts as an offset that is greater than any other."""
        if self._fs.exists(self._path):
            text = self._fs.read(self._path).strip()
            self.offset = int(text) if text.isdigit() else 1 << 62

    def note(self, offset: int) -> None:
        """Write down that the empty log begins at ``offset``."""
        if offset:
            write_atomic(self._fs, self._path, b"%d\n" % offset)
            self.offset = offset
        else:
            self.forget()

    def forget(self) -> None:
        """The store knows all queues now."""
        if self._fs.exists(self._path):
            self._fs.remove(self._path)
            self._fs.fsync_dir(self._directory)
        self.offset = 0


def learn_ends(queues: Queues, ends: Iterable[QueueEnd]) -> int:
    """Let queues that end before their ``ends`` go on there; returns how many did.

    The messages of these queues are before the start of the log. The next checkpoint writes the queues. The caller
    keeps other checkpoints away meanwhile.
    """
    count = 0
    for end in ends:
        queue = queues.get(end.topic, end.queue_id)
        if queue.is_empty and queue.next_offset < end.next_offset:
            # The entry of a message that is gone from the log: it tells each start where the queue goes on.
            queue.continue_at(end.next_offset - 1)
            queue.append(0, MIN_RECORD, 0)
            queue.start_at(end.next_offset)
            queues.touch(queue)
            count += 1
    return count

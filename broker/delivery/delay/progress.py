"""How far a delay level is delivered, and how much of that may be saved. Pure.

Invariant: an offset is saved only when the copies of all messages before it are on disk, and in Controller mode
confirmed. Else a power loss, or another master, could take a copy and leave the saved offset, and the message would
never be delivered. The other way round, a message whose copy is on disk but whose offset is not saved is delivered
again: that is the only reason for a second delivery.
"""

from collections import deque

# Deliveries that wait for an fsync, each of a slice of messages. More are merged: they are saved later.
MAX_ROWS = 1_024


class Progress:
    """The progress of one level."""

    def __init__(self, offset: int) -> None:
        #: The next message to deliver.
        self.next_offset = offset
        #: What may be saved.
        self.safe_offset = offset
        # (end of the log after the copies, offset of the next message)
        self._rows: deque[tuple[int, int]] = deque()

    @property
    def is_saved(self) -> bool:
        """Whether no delivery waits for an fsync."""
        return not self._rows

    def delivered(self, offset: int, log_end: int) -> None:
        """The messages before ``offset`` are delivered; their copies are in the log before ``log_end``."""
        self.next_offset = offset
        if len(self._rows) >= MAX_ROWS:
            self._rows.pop()
        self._rows.append((log_end, offset))

    def flushed(self, reached: int) -> int:
        """The log is on disk, and confirmed, up to ``reached``; returns the safe offset."""
        rows = self._rows
        while rows and rows[0][0] <= reached:
            self.safe_offset = rows.popleft()[1]
        return self.safe_offset

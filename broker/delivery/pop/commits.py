"""How far the offsets of groups may be committed, and from where the revive log is read at a start. Pure.

A position is committed when the log, up to the check point that moved it, is on disk and with the slaves. So a crash
that takes the end of the log leaves no committed offset after messages whose check point is lost.
The start of the revive log is saved later still, see `Horizon`.
"""

from collections import deque
from dataclasses import dataclass

from broker.delivery.pop.records import Queue


class PendingCommits:
    """Positions that wait until the log is safe."""

    def __init__(self) -> None:
        # (end of the log after the check point, queue, position)
        self._rows: deque[tuple[int, Queue, int]] = deque()

    def moved(self, queue: Queue, position: int, log_end: int) -> None:
        """The group's position is ``position`` by what is in the log before ``log_end``."""
        self._rows.append((log_end, queue, position))

    def safe(self, reached: int) -> dict[Queue, int]:
        """The positions to commit now that the log is safe up to ``reached``."""
        found: dict[Queue, int] = {}
        rows = self._rows
        while rows and rows[0][0] <= reached:
            _, queue, position = rows.popleft()
            found[queue] = position
        return found

    def forget(self, queue: Queue) -> None:
        """The group was set elsewhere: what waits for this queue must not be committed."""
        self._rows = deque(row for row in self._rows if row[1] != queue)


@dataclass(slots=True)
class Horizon:
    """The start of the revive log that may be saved.

    ``offset`` was the first that was needed when the log ended at ``log_end``. It may be saved when the log is safe up
    to there, and all positions from before are committed and on disk: else a start would lack check points that tell
    how far a group is, and pop acknowledged messages again.
    """

    offset: int
    log_end: int

    def may_be_saved(self, reached: int) -> bool:
        """Whether the positions from before have been given out by `PendingCommits.safe`, for the same ``reached``."""
        return reached >= self.log_end

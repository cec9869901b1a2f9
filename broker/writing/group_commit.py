"""Sends that wait for an fsync, as rows of one queue (no task or timer per send).

A row is (end of the message, deadline, function to call). Rows are in log order and all sends wait equally long, so
both ends and deadlines rise: `advance` and `expire` look only at the first rows. `expire` is called periodically.
"""

from collections import deque
from collections.abc import Callable

Done = Callable[[bool], None]


class GroupCommit:
    """Waits for the durable end of one log. ``done`` is called once: True when reached, False when too late."""

    def __init__(self) -> None:
        self._rows: deque[tuple[int, float, Done]] = deque()
        self.reached = 0

    def __len__(self) -> int:
        return len(self._rows)

    def wait(self, end: int, deadline: float, done: Done) -> None:
        """Call ``done`` when the log is durable up to ``end``, or at ``deadline``. Must be called in log order."""
        if end <= self.reached:
            done(True)
        else:
            self._rows.append((end, deadline, done))

    def advance(self, reached: int) -> int:
        """The log is durable up to ``reached``; returns how many waits this ended."""
        self.reached = reached
        return self._end_up_to(reached, in_time=True)

    def give_up(self, reached: int) -> int:
        """Fail the waits up to ``reached``: an fsync failed, so it stays unknown whether these messages are durable.

        Returns how many waits this ended.
        """
        return self._end_up_to(reached, in_time=False)

    def cut(self, end: int) -> None:
        """The log is cut at ``end``: fail the waits for what follows. Later messages there are not durable yet."""
        self.reached = min(self.reached, end)
        while self._rows and self._rows[-1][0] > end:
            self._rows.pop()[2](False)

    def expire(self, now: float) -> int:
        """Fail the waits whose deadline has passed; returns how many."""
        rows = self._rows
        count = 0
        while rows and rows[0][1] <= now:
            rows.popleft()[2](False)
            count += 1
        return count

    def _end_up_to(self, reached: int, *, in_time: bool) -> int:
        rows = self._rows
        count = 0
        while rows and rows[0][0] <= reached:
            rows.popleft()[2](in_time)
            count += 1
        return count

"""Who waits for what to be durable: a ledger, not a task or timer a wait.

Rows (what must be reached, by when, the answer to send) stand in the order of the log. Whoever advances the durable
end pops the rows that it has passed; a sweep answers those whose time is over.
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
        """Call ``done`` when the log is durable up to ``end`` (log order), or at ``deadline``."""
        if end <= self.reached:
            done(True)
        else:
            self._rows.append((end, deadline, done))

    def advance(self, reached: int) -> int:
        """The log is durable up to ``reached``; returns how many waits that ended."""
        self.reached = reached
        return self._end_up_to(reached, in_time=True)

    def give_up(self, reached: int) -> int:
        """What comes before ``reached`` may not be durable, and nobody will know; returns how many waits that ended."""
        return self._end_up_to(reached, in_time=False)

    def expire(self, now: float) -> int:
        """End the waits whose deadline has passed. Deadlines rise with the log, as all wait equally long."""
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

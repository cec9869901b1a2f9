"""The sends that wait until all members of the SyncStateSet have their message, as rows of one queue.

A row is (end of the message, deadline, function to call). Rows are in log order, and all have the same timeout. So ends
and deadlines rise from row to row, and it is enough to look at the first one. Times are seconds of one clock.
Neighbours: elected.py says what is confirmed; durability.py waits.
"""

from collections import deque
from collections.abc import Callable

from broker.writing.elected import Elected

Done = Callable[[bool], None]


class ConfirmWaits:
    """``done`` of a wait is called once: True when the log is confirmed up to its end, else False."""

    def __init__(self, elected: Elected) -> None:
        self._elected = elected
        self._rows: deque[tuple[int, float, Done]] = deque()
        elected.observers.append(self._confirmed)

    def __len__(self) -> int:
        return len(self._rows)

    def wait(self, end: int, deadline: float, done: Done) -> None:
        """Call ``done`` when the log is confirmed up to ``end``, or at ``deadline``. Must be called in log order."""
        if end <= self._elected.confirm_offset:
            done(True)
        else:
            self._rows.append((end, deadline, done))

    def expire(self, now: float) -> int:
        """Fail the waits whose deadline has passed; returns how many."""
        late, rows = 0, self._rows
        while rows and rows[0][1] <= now:
            late += 1
            rows.popleft()[2](False)
        return late

    def _confirmed(self, offset: int) -> None:
        rows = self._rows
        while rows and rows[0][0] <= offset:
            rows.popleft()[2](True)

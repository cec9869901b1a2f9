"""Until when an elected master may acknowledge messages without news from the Controller. Pure.

The Controller elects another master when it has heard nothing from this one for ``timeout_s``, the time that this
broker names in its heartbeats. It hears a heartbeat after that was sent, so the lease counts from the sending, and ends
earlier by a share of the time, for clocks that run at different speeds. Only an answered heartbeat extends the lease.
Whoever acknowledges asks `holds` just before: a process that was stopped and goes on finds its lease over.
Times are of a monotonic clock, in seconds.
"""

from math import inf

# The lease is shorter than the Controller's patience by this share.
MARGIN = 0.2


class Lease:
    """None is held at first, and none after `end`, until a heartbeat sent later is answered."""

    def __init__(self, timeout_s: float) -> None:
        self._held_s = timeout_s * (1 - MARGIN)
        self._until = self._ended_at = -inf

    @property
    def until(self) -> float:
        """When the lease ends unless another heartbeat is answered."""
        return self._until

    def holds(self, now: float) -> bool:
        return now < self._until

    def answered(self, sent_at: float) -> None:
        """The Controller answered the heartbeat that was sent at ``sent_at``."""
        if sent_at > self._ended_at:
            self._until = max(self._until, sent_at + self._held_s)

    def end(self, now: float) -> None:
        """The Controller no longer takes this broker for the master: answers to earlier heartbeats do not count."""
        self._until, self._ended_at = -inf, now

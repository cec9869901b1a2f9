"""`SlowFlushes`: whether the disk takes too long to make the log durable. Pure."""

# A disk that works syncs some megabytes in milliseconds, and a busy one in tenths of a second.
SLOW_S = 1.0
# A disk that does not finish an fsync within this time has a fault, or is held up by others.
STUCK_S = 10.0
# Reads of the disk that no request needs, as of a scrub, wait while a flush takes this long.
LONG_S = 0.1
# The slowest flush of the last one to two of these is shown.
SHOWN_S = 300.0


class SlowFlushes:
    """How long flushes of one log take; times are seconds of one clock."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._was_told = False
        # The slowest flush that ended in this interval and in the one before; when this interval ends.
        self._slowest_s = self._slowest_before_s = 0.0
        self._interval_ends = float("-inf")

    def begin(self, now: float) -> None:
        """A flush begins; only one runs at a time."""
        self._began = now

    def end(self, now: float) -> str:
        """The flush has ended. Returns a line for the log if `slow` has reported it, else ""."""
        took_s = self._running_s(now)
        self._began = None
        self._turn(now)
        self._slowest_s = max(self._slowest_s, took_s)
        was_told, self._was_told = self._was_told, False
        return f"the fsync of the commit log has ended after {took_s:.1f} s" if was_told else ""

    def slow(self, now: float) -> str:
        """A line for the log once a running flush is slow, once for each such flush; "" else."""
        if self._was_told or self._running_s(now) < SLOW_S:
            return ""
        self._was_told = True
        return (
            f"the disk is slow: an fsync of the commit log takes more than {SLOW_S:g} s; look for other programs that"
            " write to this disk (iostat -x), and for errors of the disk (dmesg)"
        )

    def stuck(self, now: float) -> str:
        """Why the disk counts as stuck; "" if it does not."""
        running_s = self._running_s(now)
        return f"the disk has not finished an fsync for {running_s:.0f} s" if running_s >= STUCK_S else ""

    def is_long(self, now: float) -> bool:
        """Whether a flush is running that takes longer than usual."""
        return self._running_s(now) >= LONG_S

    def slowest_s(self, now: float) -> float:
        """The slowest flush of the last `SHOWN_S` at least, also if it still runs."""
        self._turn(now)
        return max(self._slowest_s, self._slowest_before_s, self._running_s(now))

    def _running_s(self, now: float) -> float:
        return 0.0 if self._began is None else now - self._began

    def _turn(self, now: float) -> None:
        if now >= self._interval_ends:
            is_next = now < self._interval_ends + SHOWN_S
            self._slowest_before_s = self._slowest_s if is_next else 0.0
            self._slowest_s = 0.0
            self._interval_ends = now + SHOWN_S

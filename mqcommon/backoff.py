"""Pauses between retries: each may last twice as long as the one before, up to a limit.

Jitter keeps clients that failed together from retrying together. Pure: randomness is passed in as a ``random.Random``.
"""

from random import Random

# 2.0 ** 64 first pauses exceed any limit; a float would overflow with larger exponents.
_MOST_DOUBLINGS = 64
# Pauses between a run that ended and the next start.
FIRST_RESTART_PAUSE_S = 1.0
LONGEST_RESTART_PAUSE_S = 30.0
# After a run of this length the next pause is short again.
STABLE_S = 60.0


class Backoff:
    """Pauses from ``first_s`` to ``limit_s``. It has no state, so one object can serve all retries."""

    def __init__(self, first_s: float, limit_s: float, random: Random) -> None:
        self._first_s = first_s
        self._limit_s = limit_s
        self._random = random

    def pause_s(self, failures: int) -> float:
        """How long to wait after ``failures`` failures in a row: between half of the full pause and all of it."""
        full = min(self._first_s * 2.0 ** min(max(failures - 1, 0), _MOST_DOUBLINGS), self._limit_s)
        return full * self._random.uniform(0.5, 1)


class RestartPauses:
    """Pauses of at most `LONGEST_RESTART_PAUSE_S` before something that keeps ending is started again."""

    def __init__(self, random: Random) -> None:
        self._backoff = Backoff(FIRST_RESTART_PAUSE_S, LONGEST_RESTART_PAUSE_S, random)
        self._failures = 0

    def next_s(self, ran_s: float) -> float:
        """Seconds to wait after a run of ``ran_s`` seconds; short again if the run took `STABLE_S` or more."""
        self._failures = 1 if ran_s >= STABLE_S else self._failures + 1
        return self._backoff.pause_s(self._failures)

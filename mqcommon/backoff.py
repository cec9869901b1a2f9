"""Pauses between the tries of one thing: each may last twice as long as the one before, up to a limit.

Jitter keeps clients that failed together from coming back together. Pure: randomness comes in as a ``random.Random``.
"""

from random import Random

# 2.0 ** 64 first pauses are longer than any limit, and larger exponents would overflow.
_MOST_DOUBLINGS = 64


class Backoff:
    """Pauses from ``first_s`` to ``limit_s``; it has no state, so one serves for everything that is tried again."""

    def __init__(self, first_s: float, limit_s: float, random: Random) -> None:
        self._first_s = first_s
        self._limit_s = limit_s
        self._random = random

    def pause_s(self, failures: int) -> float:
        """How long to wait after that many failures in a row: between half the full pause and all of it."""
        full = min(self._first_s * 2.0 ** min(max(failures - 1, 0), _MOST_DOUBLINGS), self._limit_s)
        return full * self._random.uniform(0.5, 1)

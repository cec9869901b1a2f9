"""How often each network may do something: a token bucket for each. Pure.

A bucket holds the tokens of one second. Buckets that are full again are dropped, so their number is bounded by the
networks of the last second; when even those are too many, the oldest are dropped.
"""

MAX_BUCKETS = 10_000


class RateLimit:
    """``rate`` things a second for each key, and as many at once."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        # tokens and when they were counted, the bucket used last at the end
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, key: str, now: float) -> bool:
        """Whether ``key`` may do it once more; ``now`` is in seconds and does not go back."""
        tokens, since = self._buckets.pop(key, (self._rate, now))
        tokens = min(tokens + (now - since) * self._rate, self._rate)
        allowed = tokens >= 1
        self._buckets[key] = (tokens - 1 if allowed else tokens), now
        if len(self._buckets) > MAX_BUCKETS:
            self._drop(now)
        return allowed

    def _drop(self, now: float) -> None:
        """Drop the buckets that are full, and at least a tenth of all."""
        for number, (key, (_, since)) in enumerate(list(self._buckets.items())):
            if number >= MAX_BUCKETS // 10 and now - since < 1:
                break
            del self._buckets[key]

"""A counter that is cheap to raise and gives totals of the last minute, hour and day.

Raising a counter adds plain integers. A task samples it, and a sample is stored only if the counter has changed. So the
value at any moment is the value of the last sample before that moment. There may be a counter per topic and group, so
an idle counter is small (about 700 bytes) and costs one comparison per sampling.
"""

from skylark.remoting.protocol.requests.brokers import BrokerStatsData, BrokerStatsItem

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

Values = tuple[int, ...]


class SampleWindow:
    """Samples over ``span_ms``, at least ``step_ms`` apart, the first one at or before the start of the span."""

    __slots__ = ("_samples", "_span_ms", "_step_ms")

    def __init__(self, span_ms: int, step_ms: int, now_ms: int, values: Values) -> None:
        self._span_ms = span_ms
        self._step_ms = step_ms
        # At most one sample per step of the span, and two more. An empty deque would be larger than the whole meter.
        self._samples: list[tuple[int, Values]] = [(now_ms, values)]

    def sample(self, now_ms: int, values: Values) -> bool:
        """Store ``values`` if they are new and the last sample is old enough. Returns whether ``values`` are stored."""
        samples = self._samples
        last_ms, last = samples[-1]
        if now_ms < last_ms:
            # The clock was set back: all samples are in the future.
            samples[:] = [(now_ms, last)]
            last_ms = now_ms
        if values == last:
            return True
        if now_ms - last_ms < self._step_ms:
            return False
        samples.append((now_ms, values))
        # The last sample at or before the start of the span stays: the counter had its value then.
        start_ms = now_ms - self._span_ms
        while len(samples) > 1 and samples[1][0] <= start_ms:
            del samples[0]
        return True

    def since(self, now_ms: int, span_ms: int | None = None) -> tuple[float, Values]:
        """The values at the start of the span that ends now, and the seconds since then (at least one step)."""
        span_ms = span_ms or self._span_ms
        start_ms = now_ms - span_ms
        base_ms, base = self._samples[0]
        if now_ms < self._samples[-1][0]:  # the clock was set back since
            return self._step_ms / 1000, self._samples[-1][1]
        for at_ms, values in self._samples:
            if at_ms > start_ms:
                break
            base_ms, base = at_ms, values
        elapsed_ms = min(max(now_ms - base_ms, self._step_ms), span_ms)
        return elapsed_ms / 1000, base


class Meter:
    """Counts messages, bytes and calls: raise the attributes (``calls`` each time), and call `sample` at intervals."""

    __slots__ = ("_is_stored", "_sampled_calls", "_windows", "calls", "nums", "size")

    def __init__(self, now_ms: int) -> None:
        self.nums = 0
        self.size = 0
        self.calls = 0
        self._sampled_calls = 0
        # Whether all windows have stored the present values: then there is nothing to sample.
        self._is_stored = True
        zero = (0, 0, 0)
        self._windows = (
            SampleWindow(MINUTE_MS, 10 * SECOND_MS, now_ms, zero),
            SampleWindow(HOUR_MS, 10 * MINUTE_MS, now_ms, zero),
            SampleWindow(DAY_MS, HOUR_MS, now_ms, zero),
        )

    def sample(self, now_ms: int) -> bool:
        """Sample the counter; returns whether anything was counted since the last sample."""
        # Each count raises ``calls``, so one comparison finds out whether anything has changed.
        is_raised = self.calls != self._sampled_calls
        if is_raised or not self._is_stored:
            self._sampled_calls = self.calls
            values = (self.nums, self.size, self.calls)
            self._is_stored = all([window.sample(now_ms, values) for window in self._windows])
        return is_raised

    def view(self, now_ms: int, *, of_size: bool = False) -> BrokerStatsData:
        """Totals of the last minute, hour and day, of messages or, with ``of_size``, of bytes."""
        minute, hour, day = (self._item(window, now_ms, of_size) for window in self._windows)
        return BrokerStatsData(minute, hour, day)

    def _item(self, window: SampleWindow, now_ms: int, of_size: bool) -> BrokerStatsItem:
        seconds, (nums, size, calls) = window.since(now_ms)
        total = self.size - size if of_size else self.nums - nums
        times = self.calls - calls
        return BrokerStatsItem(total, total / seconds, total / times if times else 0.0)

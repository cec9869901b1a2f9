"""How fast groups consume: how far their offsets moved in the last minute. Pure.

A broker's own rate of a group counts pulled messages. A member may pull thousands of messages into its memory while its
handler takes ten a second, so only the offsets show what was consumed, with any client. A reset to a later
offset counts as if its messages had been consumed.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.groups import ConsumeStats, ConsumeStatsList

#: Rates are averages over this time.
WINDOW_S: Final = 60.0
#: The least time for a rate: clients commit every five seconds.
SHORTEST_S: Final = 20.0
#: Two kept samples are at least this far apart.
_SAMPLE_S: Final = 10.0


class Pace:
    """The rates of all groups at one set, from each answer of its broker. Times only go forward."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[str, MessageQueue], int] = {}
        # Group → messages consumed since the first answer.
        self._moved: dict[str, int] = {}
        self._samples: deque[tuple[float, Mapping[str, int]]] = deque()

    def rates_after(self, now_s: float, stats: ConsumeStatsList) -> dict[str, float]:
        """Add an answer. Returns the messages a second that each group consumes; empty until enough time has passed."""
        offsets: dict[tuple[str, MessageQueue], int] = {}
        moved: dict[str, int] = {}
        for group, every in _groups(stats):
            moved[group] = moved.get(group, self._moved.get(group, 0))
            for one in every:
                for queue, at in one.offset_table.items():
                    key = group, queue
                    offsets[key] = at.consumer_offset
                    # -1: nothing was committed. A first commit is the group's start, not a count of consumed messages.
                    before = self._offsets.get(key, -1)
                    if before >= 0:
                        moved[group] += max(at.consumer_offset - before, 0)
        self._offsets, self._moved = offsets, moved
        while len(self._samples) > 1 and self._samples[1][0] <= now_s - WINDOW_S:
            self._samples.popleft()
        if not self._samples or now_s >= self._samples[-1][0] + _SAMPLE_S:
            self._samples.append((now_s, moved))
        rates: dict[str, float] = {}
        # A group that began to consume within the window is measured from its beginning.
        for then_s, then in self._samples:
            if now_s < then_s + SHORTEST_S:
                break
            for group, count in moved.items():
                if group in then and group not in rates:
                    rates[group] = max(count - then[group], 0) / (now_s - then_s)
            if len(rates) == len(moved):
                break
        return rates


def _groups(stats: ConsumeStatsList) -> Iterable[tuple[str, Iterable[ConsumeStats]]]:
    return (pair for table in stats.consume_stats_list for pair in table.items())

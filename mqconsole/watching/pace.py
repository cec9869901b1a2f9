"""How fast groups consume: how far their offsets moved in the last minute. Pure.

A broker's own rate of a group counts what was pulled. A member may pull thousands of messages into its memory while its
handler takes ten a second, so only the offsets tell what was consumed, whatever client commits them. A reset to a later
offset counts as if its messages had been consumed.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.groups import ConsumeStats, ConsumeStatsList

#: Rates are of this time.
WINDOW_S: Final = 60.0
#: Clients commit every five seconds: less time than this says nothing.
SHORTEST_S: Final = 20.0
#: Two samples that are kept are at least so far apart.
_SAMPLE_S: Final = 10.0


class Pace:
    """The groups at one set. `note` each answer of its broker. Times only go forward."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[str, MessageQueue], int] = {}
        # How many messages each group has consumed since the first answer.
        self._moved: dict[str, int] = {}
        self._samples: deque[tuple[float, Mapping[str, int]]] = deque()

    def note(self, now_s: float, stats: ConsumeStatsList) -> dict[str, float]:
        """Messages a second that each group consumes; empty until enough time has been seen."""
        offsets: dict[tuple[str, MessageQueue], int] = {}
        moved: dict[str, int] = {}
        for group, every in _groups(stats):
            moved[group] = moved.get(group, self._moved.get(group, 0))
            for one in every:
                for queue, at in one.offset_table.items():
                    key = group, queue
                    offsets[key] = at.consumer_offset
                    # -1: nothing was committed. A first commit is where the group begins, not what it has consumed.
                    before = self._offsets.get(key, -1)
                    if before >= 0:
                        moved[group] += max(at.consumer_offset - before, 0)
        self._offsets, self._moved = offsets, moved
        while len(self._samples) > 1 and self._samples[1][0] <= now_s - WINDOW_S:
            self._samples.popleft()
        if not self._samples or now_s >= self._samples[-1][0] + _SAMPLE_S:
            self._samples.append((now_s, moved))
        rates: dict[str, float] = {}
        # A group that began to consume within the window is measured from then on.
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

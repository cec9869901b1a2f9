"""Events in the order of their time, and processes that freeze and die between them."""

from collections.abc import Callable
from heapq import heappop, heappush

Event = Callable[[], None]


class Scheduler:
    """Runs events; ``after_each`` looks at the world after each of them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self.after_each: Event = _nothing
        self._heap: list[tuple[float, int, Event]] = []
        self._number = 0

    def at(self, time: float, event: Event, number: int = 0) -> None:
        """Run ``event`` at this time, after events of the same time with lower numbers; 0 takes the next number."""
        heappush(self._heap, (max(time, self.now), number or self.next_number(), event))

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def run_until(self, time: float) -> None:
        heap = self._heap
        while heap and heap[0][0] <= time:
            self.now, _, event = heappop(heap)
            self.events += 1
            event()
            self.after_each()
        self.now = time


class Process:
    """Something that lives on a machine: while it is frozen nothing happens in it, and what it planned dies with it."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self.scheduler = scheduler
        self.name = name
        self.alive = False
        self.life = 0
        self.frozen_until = 0.0

    def begin(self) -> None:
        self.alive = True
        self.life += 1
        self.frozen_until = 0.0

    def end(self) -> None:
        self.alive = False

    def at(self, time: float, event: Event) -> None:
        """``event`` at that time, or when it thaws; never after its death."""
        life = self.life
        # What waits for the thaw keeps its order, however often the time of that changes.
        number = self.scheduler.next_number()

        def come() -> None:
            if not self.alive or self.life != life:
                return
            if self.frozen_until > self.scheduler.now:
                self.scheduler.at(self.frozen_until, come, number)
            else:
                event()

        self.scheduler.at(time, come, number)

    def later(self, delay: float, event: Event) -> None:
        self.at(self.scheduler.now + delay, event)


def _nothing() -> None:
    """Nobody looks."""

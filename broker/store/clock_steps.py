"""Steps of the wall clock while this process runs, and how old messages are in spite of them. Pure.

Store times in plain queues never go back, whatever the clock does, because searches by time need this. Such times do
not show how long a message has waited: after the clock was set back they stand still. Messages that wait for a
time (`BY_CLOCK`) get the clock's own time instead; so their due times are right at once, after a restart, in a rebuilt
queue and on slaves.

A message that was stored before a step has a time of the clock before the step. `ClockSteps` knows by how much the
clock was moved since, so that no delay becomes shorter or longer while the process runs. Steps before the start of the
process are unknown: a message found in the store with a time in the future counts as stored when this broker took over.
Neighbours: store.py compares the two clocks of the machine; delivery/message_ages.py; tasks/watch_clock.py logs steps.
"""

from typing import NamedTuple

from skylark.mqcommon.names import SCHEDULE_TOPIC, TRANS_HALF_TOPIC

#: Topics whose messages are stored with the clock's time: their due times, or ages, are counted from it.
BY_CLOCK = frozenset((SCHEDULE_TOPIC, TRANS_HALF_TOPIC))

# A smaller difference is no step: the two clocks are not read at the same moment.
LEAST_STEP_MS = 200
# Older steps are put together.
MAX_STEPS = 64


class ClockStep(NamedTuple):
    """The clock was moved by ``moved_ms``, negative: back. ``number`` counts the steps of this process from 1 on.

    The step was detected when the clock showed ``seen_ms`` and the log ended at ``log_end``. It happened within the
    ``within_ms`` before; at the start of that span the log ended at ``log_end_before``.
    """

    number: int
    moved_ms: int
    seen_ms: int
    within_ms: int
    log_end_before: int
    log_end: int

    def may_precede(self, at_ms: int) -> bool:
        """Whether a time that the clock showed near this step was surely shown before it."""
        return at_ms > self.seen_ms or at_ms < self.seen_ms - self.within_ms

    def precedes(self, physical: int, stored_ms: int) -> bool:
        """Whether this step came after the message at ``physical`` of the log was stored."""
        return physical < self.log_end_before or (physical < self.log_end and self.may_precede(stored_ms))


class ClockSteps:
    """The steps of the wall clock that this process has seen, and how far they moved it since a message was stored."""

    def __init__(self) -> None:
        # The last observation: wall clock, steady clock, end of the log.
        self._seen: tuple[int, int, int] | None = None
        # Replaced as a whole: a thread may read it.
        self._steps: tuple[ClockStep, ...] = ()
        #: All steps of this process so far.
        self.count = 0
        #: How often the clock went back, and by how much in all.
        self.times_back = 0
        self.back_ms = 0

    def see(self, now_ms: int, steady_ms: int, log_end: int) -> ClockStep | None:
        """Record the wall clock ``now_ms`` and the monotonic clock ``steady_ms``, and where the log ends.

        Returns the step of the wall clock since the last call, if there was one.
        """
        seen, self._seen = self._seen, (now_ms, steady_ms, log_end)
        if seen is None:
            return None
        before_ms, steady_before_ms, log_end_before = seen
        within_ms = steady_ms - steady_before_ms
        moved_ms = now_ms - before_ms - within_ms
        if abs(moved_ms) < LEAST_STEP_MS:
            return None
        self.count += 1
        if moved_ms < 0:
            self.times_back += 1
            self.back_ms -= moved_ms
        # A log that was truncated meanwhile has other messages after its new end.
        step = ClockStep(self.count, moved_ms, now_ms, within_ms, min(log_end_before, log_end), log_end)
        steps = (*self._steps, step)
        if len(steps) > MAX_STEPS:
            first, second, *later = steps
            steps = (second._replace(moved_ms=first.moved_ms + second.moved_ms), *later)
        self._steps = steps
        return step

    def since(self, number: int) -> list[ClockStep]:
        """The steps after the first ``number`` ones."""
        return [step for step in self._steps if step.number > number]

    def moved_since(self, number: int, physical: int, stored_ms: int) -> int:
        """By how much the clock was moved since a message was stored, by steps after the first ``number`` ones.

        ``physical`` is where the message is in the log, ``stored_ms`` the time that the clock showed then.
        """
        moved_ms = 0
        for step in reversed(self._steps):
            if step.number <= number or not step.precedes(physical, stored_ms):
                break
            moved_ms += step.moved_ms
        return moved_ms

"""Checks once a second whether the wall clock was set, and logs each step. The effects: store/clock_steps.py."""

import logging

from skylark.broker.part import Part
from skylark.broker.store.store import MessageStore

logger = logging.getLogger(__name__)


class WatchClock(Part):
    """The part that watches the wall clock."""

    tick_interval_ms = 1_000.0

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._logged = 0

    def tick(self) -> None:
        """Log the steps that were not logged yet; another part may have detected a step first."""
        self._store.check_clock()
        steps = self._store.clock_steps
        for step in steps.since(self._logged):
            if step.moved_ms < 0:
                logger.warning(
                    "the clock went back by %.1f s: what waits for a delay waits as long as before; new messages get"
                    " the store time of the last one until the clock has caught up, in %.1f s",
                    -step.moved_ms / 1000,
                    self._store.ahead_ms / 1000,
                )
            else:
                logger.warning(
                    "the clock went forward by %.1f s: what waits for a delay waits as long as before",
                    step.moved_ms / 1000,
                )
        self._logged = steps.count

"""Calls sync actions at intervals, for jobs that need no loop of their own: counters, expiry of clients."""

import logging
from collections.abc import Callable

import trio

logger = logging.getLogger(__name__)

Action = Callable[[], object]


class Ticks:
    """Calls actions at their intervals; actions with the same interval are called one after the other, by one task.

    A task and a timer for each action would wake an idle broker more often.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        """The calls are made in ``nursery``, until it is cancelled."""
        self._nursery = nursery
        # By interval in ms.
        self._actions: dict[float, list[Action]] = {}

    def add(self, interval_ms: float, action: Action) -> None:
        """Call ``action`` every ``interval_ms`` from now on. An error is logged, and the calls go on."""
        if interval_ms in self._actions:
            self._actions[interval_ms].append(action)
        else:
            self._actions[interval_ms] = [action]
            self._nursery.start_soon(self._call_often, interval_ms)

    async def _call_often(self, interval_ms: float) -> None:
        while True:
            await trio.sleep(interval_ms / 1000)
            for action in self._actions[interval_ms]:
                try:
                    action()
                except Exception:
                    logger.exception("%s failed; it is called again in %.0f ms", action, interval_ms)

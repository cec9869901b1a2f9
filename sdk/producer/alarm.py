"""A call at the earliest of several times, with one task while a time is set and none otherwise."""

from collections.abc import Callable
from math import inf

import trio
from trio.lowlevel import enable_ki_protection


class Alarm:
    """Calls ``ring`` once, at the earliest of the times given to `at`; the later times are dropped."""

    def __init__(self, nursery: trio.Nursery, ring: Callable[[], None]) -> None:
        self._nursery = nursery
        self._ring = ring
        self._scope: trio.CancelScope | None = None
        self._when = inf

    def at(self, when: float) -> None:
        """Call ``ring`` at ``when`` (trio's time) or earlier."""
        if when >= self._when:
            return
        self._when = when
        if self._scope is None:
            self._scope = trio.CancelScope(deadline=when)
            self._nursery.start_soon(self._wait, self._scope)
        else:
            self._scope.deadline = when

    @enable_ki_protection
    async def _wait(self, scope: trio.CancelScope) -> None:
        with scope:
            await trio.sleep_forever()
        self._scope, self._when = None, inf
        self._ring()

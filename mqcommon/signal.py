"""`Signal` wakes the task that waits for work."""

from typing import Any

import trio


class Signal:
    """A flag with one task that waits for it.

    `wait` returns when the flag is set, and clears it. When the flag is set while the task works, once or more often,
    its next `wait` returns at once. So no signal is lost, and work is not repeated.
    """

    __slots__ = ("_is_set", "_waiter")

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: trio.lowlevel.Task | None = None

    def set(self) -> None:
        """Wake the task that waits, or let its next `wait` return at once."""
        if not self._is_set:
            self._is_set = True
            waiter = self._waiter
            if waiter is not None:
                self._waiter = None
                trio.lowlevel.reschedule(waiter)

    def clear(self) -> None:
        """Clear the flag without waiting, because the work is about to be done anyway."""
        self._is_set = False

    def is_set(self) -> bool:
        """Whether the flag is set and the task has not continued yet."""
        return self._is_set

    async def wait(self) -> None:
        """Return when the flag is set, and clear it. Raises RuntimeError when another task waits."""
        if self._waiter is not None:
            raise RuntimeError("another task waits for this signal")
        if self._is_set:
            await trio.lowlevel.checkpoint()
        else:
            self._waiter = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        # Cleared only now: a signal that came after the task was woken belongs to the work that the task begins here.
        self._is_set = False

    def _abort(self, _: Any) -> trio.lowlevel.Abort:
        """Called when the task is cancelled while it waits."""
        self._waiter = None
        return trio.lowlevel.Abort.SUCCEEDED

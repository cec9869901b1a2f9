"""Work for a loop in another thread, in batches.

Waking a loop costs several system calls and a change of threads. So it is woken for the first item, and what is added
until it wakes goes with it. That needs no lock: `append` and `popleft` of a deque are atomic, and the loop first clears
the flag and then empties the queue, so that an item that is added later wakes it again.
"""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """``wake`` lets the loop call a function soon; ``take`` is called there and takes all items from the left."""

    __slots__ = ("_is_waking", "_items", "_take", "_wake")

    def __init__(self, wake: Callable[[Callable[[], None]], object], take: Callable[[deque[T]], object]) -> None:
        self._wake = wake
        self._take = take
        self._items: deque[T] = deque()
        self._is_waking = False

    def put(self, item: T) -> None:
        """Let the loop take the item. Any thread may call it."""
        self._items.append(item)
        if not self._is_waking:
            self._is_waking = True
            try:
                self._wake(self._run)
            except BaseException:  # the loop has ended; whoever puts the next item is told, too
                self._is_waking = False
                raise

    def _run(self) -> None:
        self._is_waking = False
        self._take(self._items)


def call_each(works: deque[Callable[[], object]]) -> None:
    """``take`` for functions to be called, which must not raise."""
    while works:
        works.popleft()()

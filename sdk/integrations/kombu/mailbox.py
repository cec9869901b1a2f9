"""Hands messages from the SDK's thread to the thread of a kombu connection, with a descriptor that signals them.

Event loops, such as the loop of Celery's worker, watch the descriptor; threads without a loop wait for it.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from skylark.mqcommon.message.message import MessageExt
from skylark.sdk.integrations.kombu.wakeup import Wakeup


class Unsettled(Protocol):
    """A message that a consumer of kombu has, or will have. All methods may be called from any thread."""

    @property
    def message(self) -> MessageExt:
        """The message as it is stored."""

    @property
    def is_again(self) -> bool:
        """Whether the message was delivered before."""

    def settle(self, *, give_back: bool) -> None:
        """Acknowledge the message, or let it be delivered again at once."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """A delivery for ``queue`` of the channel ``owner``."""

    owner: object
    queue: str
    delivery: Unsettled


class Mailbox:
    """Parcels for one kombu connection. The senders of parcels bound their number."""

    def __init__(self) -> None:
        self._wakeup = Wakeup()
        #: Readable when there is a parcel.
        self.descriptor = self._wakeup.descriptor
        # Replies and remote control come before tasks.
        self._first: deque[Parcel] = deque()
        self._others: deque[Parcel] = deque()
        self._is_closed = False

    def __len__(self) -> int:
        """How many parcels wait."""
        return len(self._first) + len(self._others)

    def put(self, parcels: Iterable[Parcel], *, is_first: bool = False) -> None:
        """Add parcels; with ``is_first`` they are taken before the others. Any thread may call it."""
        (self._first if is_first else self._others).extend(parcels)
        self.wake()

    def take(self) -> Parcel | None:
        """The next parcel, if there is one."""
        for parcels in (self._first, self._others):
            if parcels:
                try:
                    return parcels.popleft()
                except IndexError:  # another thread was faster
                    continue
        return None

    def take_those_of(self, owner: object, queue: str | None = None) -> list[Parcel]:
        """All parcels of a channel, or of one of its queues; the others stay in their order."""
        taken = []
        for parcels in (self._first, self._others):
            # Only as many parcels as there are now: others may be added meanwhile, and taken by other threads.
            for _ in range(len(parcels)):
                try:
                    parcel = parcels.popleft()
                except IndexError:
                    break
                if parcel.owner is owner and queue in (None, parcel.queue):
                    taken.append(parcel)
                else:
                    parcels.append(parcel)
        return taken

    def clear(self) -> None:
        """Make the descriptor unreadable. The caller takes parcels afterwards, and calls `tell` when it leaves some."""
        self._wakeup.clear()

    def tell(self) -> None:
        """Make the descriptor readable if there are parcels."""
        if len(self):
            self.wake()

    def wait(self, timeout_s: float | None, goes_on: Callable[[], bool]) -> Parcel | None:
        """The next parcel; None when there is none in time, or when ``goes_on`` returns False after a wake."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            # Clear first, then check for parcels: a parcel that arrives in between makes the descriptor readable again.
            # `tell` wakes other threads that wait for remaining parcels.
            self.clear()
            parcel = self.take()
            self.tell()
            if parcel is not None or not goes_on():
                return parcel
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                return None
            self._wakeup.wait(left_s)

    def wake(self) -> None:
        """Make the descriptor readable."""
        if not self._is_closed:
            self._wakeup.set()

    def close(self) -> None:
        """Signal no further parcels.

        The descriptor is closed when the mailbox is garbage-collected: otherwise a thread in `wake` might write into
        the next file with the same number.
        """
        self._is_closed = True

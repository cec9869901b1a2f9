"""Sends acknowledgements: many tasks that acknowledge one message each share requests.

A few requests to a broker are on their way at a time. What is acknowledged meanwhile gathers, and goes with the next.
"""

from collections import deque
from collections.abc import Awaitable, Callable

import trio
from trio.lowlevel import enable_ki_protection

from mqcommon.errors import SkylarkError
from sdk.consumer.popped import Lease

# Requests to one broker at a time. With one, a caller would wait for up to two round trips.
AT_ONCE = 4
# Check points in one request; the broker takes some thousands.
MAX_ENTRIES = 1_000

Bits = dict[Lease, int]
Send = Callable[[Bits], Awaitable[None]]


class _Round:
    """The acknowledgements that go with one request, and the event that their callers wait for."""

    __slots__ = ("bits", "done", "error")

    def __init__(self) -> None:
        self.bits: Bits = {}
        self.done = trio.Event()
        self.error: SkylarkError | None = SkylarkError("the client was closed")


class AckLane:
    """The acknowledgements for one broker. ``send`` repeats a request by itself where that may help."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._running = 0
        self._waiting: deque[_Round] = deque()

    async def ack(self, bits: Bits, nursery: trio.Nursery) -> None:
        """Return when these are acknowledged, raise the error when they are not."""
        if self._running < AT_ONCE:
            self._running += 1
            try:
                await self._send(bits)
            finally:
                self._ended(nursery)
            return
        if not self._waiting or len(self._waiting[-1].bits) + len(bits) > MAX_ENTRIES:
            self._waiting.append(_Round())
        current = self._waiting[-1]
        for lease, one in bits.items():
            current.bits[lease] = current.bits.get(lease, 0) | one
        await current.done.wait()
        if current.error is not None:
            raise current.error

    def _ended(self, nursery: trio.Nursery) -> None:
        self._running -= 1
        while self._waiting:
            current = self._waiting.popleft()
            if not nursery.cancel_scope.cancel_called:
                self._running += 1
                nursery.start_soon(self._run, current, nursery)
                return
            current.done.set()

    @enable_ki_protection
    async def _run(self, current: _Round, nursery: trio.Nursery) -> None:
        try:
            await self._send(current.bits)
            current.error = None
        except SkylarkError as error:
            current.error = error
        finally:
            current.done.set()
            self._ended(nursery)

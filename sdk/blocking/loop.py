"""The client of a blocking object, and, after a fork, its successor in the child.

Opening a client waits until it is open, and raises its errors in the caller. A call runs an async function in the loop
of the client's thread (`sdk/loop_thread.py`) and waits for its end; Ctrl-C in the waiting thread cancels the call.

A child of a fork has the objects but not the thread, and a lock that was held during the fork stays locked. So the
child never uses its parent's thread, connections and locks. Its first call opens a new client (for a guest: first a new
client for its host).
"""

import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

from skylark.sdk.loop_thread import OpenClient, closed, not_open
from skylark.sdk.runtime import FORKS

C = TypeVar("C")
T = TypeVar("T")


class ClientLoop(Generic[C]):
    """One client of type ``C``, and, after a fork, a new client in the child.

    ``make`` is called at once, so that its errors are raised in the caller, and again for every child. With ``host``
    the client is a guest in the host's thread: ``make`` is called again when the client is opened, since the host may
    have a new client.
    """

    def __init__(
        self, make: Callable[[], AbstractAsyncContextManager[C]], host: "ClientLoop[Any] | None" = None
    ) -> None:
        self._make = make
        self._host = host
        #: The last result of ``make``.
        self.made = make()
        self._is_fresh = host is None
        self._open: OpenClient[C] | None = None
        # A lock for each process, by its number of forks: the parent's may have been held during the fork.
        self._reopening: dict[int, threading.Lock] = {}

    def open(self) -> None:
        """Open the client; raises the errors of opening it."""
        if self._open is not None and self._open.home.is_here:
            raise RuntimeError("this client was opened before; make another")
        self._open = opening = self._next_client()
        opening.open()

    def call(self, work: Callable[[C], Awaitable[T]]) -> T:
        """Run ``work`` with the client in the loop, and return its result or raise its error."""
        return self.opened().call(work)

    def call_sync(self, work: Callable[[C], T]) -> T:
        """Run ``work``, which does not wait, with the client in the loop, and return its result or raise its error."""

        async def run(client: C) -> T:
            return work(client)

        return self.call(run)

    def opened(self) -> OpenClient[C]:
        """The client of this process. In a child process the first call opens a new client."""
        client = self._open
        if client is None:
            raise not_open()
        return client if client.home.is_here else self._reopened()

    def post(self, work: Callable[[C], object]) -> None:
        """Let the loop run ``work`` later. Does nothing in a child process, or if the client is not open."""
        if self._open is not None:
            self._open.post(work)

    def close(self) -> None:
        """Close the client and wait until it is closed. It may be called more than once."""
        if self._open is not None:
            self._open.close()

    def _reopened(self) -> OpenClient[C]:
        with self._reopening.setdefault(FORKS.count, threading.Lock()):
            # Several threads of the child may call at once: the first thread opens the client, the others find it open.
            # A client that the parent had closed, or never opened, must not open by itself.
            parents = self._open
            assert parents is not None
            if parents.home.is_here:
                return parents
            if parents.is_closing:
                raise closed()
            if not parents.was_opened:
                raise not_open()
            opening = self._next_client()
            opening.open()
            self._open = opening
            return opening

    def _next_client(self) -> OpenClient[C]:
        host = None if self._host is None else self._host.opened()
        if not self._is_fresh:
            self.made = self._make()
        self._is_fresh = False
        return OpenClient(self.made, host)

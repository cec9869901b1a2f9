"""Threads that run an event loop, and the clients that are open in them.

Opening a client waits until it is open, and raises its errors in the caller. A call runs an async function in the loop
and waits for its end; Ctrl-C in the waiting thread cancels it. A client has its own thread, which ends with it, or is a
guest in the thread of the client that it shares; guests are closed before their host. The threads are daemons: a
program that does not close its clients still ends.

A child of a fork has the objects but not the thread, and a lock that was held during the fork stays locked. So the
child never uses its parent's thread, connections and locks. Its first call opens a new client (for a guest: first a new
one for its host).
"""

import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

import trio

from mqcommon.errors import SkylarkError
from sdk.runtime import FORKS, Home

C = TypeVar("C")
T = TypeVar("T")


class OpenClient(Generic[C]):
    """One client in its own thread or in the thread of ``host``. It belongs to the process that opened it."""

    def __init__(self, client: AbstractAsyncContextManager[C], host: "OpenClient[Any] | None" = None) -> None:
        self._made = client
        self._host = host
        self._thread = threading.Thread(target=self._run, name="skylark-sdk", daemon=True)
        self._opened = threading.Event()
        self._ended = threading.Event()
        self.is_closing = False
        self._failure: BaseException | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop = trio.Event()
        self._client: C | None = None
        # The calls in progress, and the clients that are guests in this thread. Only the loop uses them.
        self._calls: dict[trio.CancelScope, None] = {}
        self._guests: dict[OpenClient[Any], None] = {}
        self._nursery: trio.Nursery | None = None
        self.home = Home()

    @property
    def was_opened(self) -> bool:
        """Whether opening the client has succeeded; it may have been closed since."""
        return self._client is not None

    def open(self) -> None:
        """Open the client; raises the errors of opening it."""
        if self._host is None:
            self._thread.start()
        else:
            self._host.call(lambda _: self._enter_host())
        try:
            self._opened.wait()
        except BaseException:
            self.is_closing = True
            raise
        if self._client is None:
            self._wait_for_end()
            assert self._failure is not None
            raise _closed() if isinstance(self._failure, trio.Cancelled) else self._failure

    def call(self, work: Callable[[C], Awaitable[T]]) -> T:
        """Run ``work`` with the client in the loop, and return its result or raise its error."""
        self.home.check()
        client, token = self._client, self._token
        if client is None or token is None:
            raise _not_open()
        scope = trio.CancelScope()

        async def run() -> T:
            if self._ended.is_set():
                raise _closed()
            self._calls[scope] = None
            try:
                with scope:
                    return await work(client)
            finally:
                del self._calls[scope]
            raise _closed()

        try:
            return trio.from_thread.run(run, trio_token=token)
        except (trio.RunFinishedError, trio.Cancelled):
            raise _closed() from self._failure
        except KeyboardInterrupt:
            self._soon(scope.cancel)
            raise

    def post(self, work: Callable[[C], object]) -> None:
        """Let the loop run ``work`` later. Does nothing in a child process."""
        client = self._client
        if self.home.is_here and client is not None:
            self._soon(lambda: work(client))

    def close(self) -> None:
        """Close the client and wait until it is closed. Does nothing in a child process."""
        self.is_closing = True
        if self.home.is_here and self._token is not None:
            self._soon(self._stop.set)
            self._wait_for_end()

    def _wait_for_end(self) -> None:
        if self._host is None:
            self._thread.join()
        else:
            self._ended.wait()

    def _soon(self, work: Callable[[], object]) -> None:
        assert self._token is not None
        try:
            self._token.run_sync_soon(work)
        except trio.RunFinishedError:
            return

    # --- in the loop

    def _run(self) -> None:
        """The thread."""
        try:
            trio.run(self._serve)
        except BaseException as error:  # `open` and `call` report it
            self._failure = error
        finally:
            self._ended.set()
            self._opened.set()

    async def _enter_host(self) -> None:
        host = self._host
        assert host is not None and host._nursery is not None
        if host._stop.is_set():
            raise _closed()
        host._nursery.start_soon(self._be_guest, host)

    async def _be_guest(self, host: "OpenClient[Any]") -> None:
        """Serve until the client is closed. Its errors are raised in its own callers; they must not end the host."""
        host._guests[self] = None
        try:
            await self._serve()
        except BaseException as error:
            self._failure = error
            if not isinstance(error, Exception):
                raise
        finally:
            del host._guests[self]
            self._ended.set()
            self._opened.set()

    async def _serve(self) -> None:
        try:
            async with self._made as client, trio.open_nursery() as self._nursery:
                self._token = trio.lowlevel.current_trio_token()
                self._client = client
                self._opened.set()
                if not self.is_closing:
                    await self._stop.wait()
                self._stop.set()
                for guest in self._guests:
                    guest._stop.set()
        finally:
            for scope in self._calls:
                scope.cancel()


class ClientLoop(Generic[C]):
    """One client of type ``C``, and after a fork a new one in the child.

    ``make`` is called at once, so that its errors are raised in the caller, and again for every child. With ``host``
    the client is a guest there: ``make`` is called again when it is opened, since the host may have a new client.
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

    def opened(self) -> OpenClient[C]:
        """The client of this process. In a child process the first call opens a new one."""
        client = self._open
        if client is None:
            raise _not_open()
        return client if client.home.is_here else self._reopened()

    def close(self) -> None:
        """Close the client and wait until it is closed. It may be called more than once."""
        if self._open is not None:
            self._open.close()

    def _reopened(self) -> OpenClient[C]:
        with self._reopening.setdefault(FORKS.count, threading.Lock()):
            parents = self._open
            assert parents is not None
            if parents.home.is_here:
                return parents
            if parents.is_closing:
                raise _closed()
            if not parents.was_opened:
                raise _not_open()
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


def _not_open() -> RuntimeError:
    return RuntimeError("open the client with 'with' first")


def _closed() -> SkylarkError:
    return SkylarkError("the client was closed")

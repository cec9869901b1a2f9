"""Threads that run an event loop around one open client.

Opening waits until the client is open, and raises in the caller what went wrong there. A call hands an async function
to the loop and waits for its end; Ctrl-C in the waiting thread cancels it. Closing closes the client and joins the
thread. The thread is a daemon: a program that forgets to close still ends.

A child of a fork has the objects but not the thread, and locks as they were in that moment. So it leaves all of its
parent's alone, and its first call opens a client of its own.
"""

import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

import trio

from mqcommon.errors import SkylarkError
from sdk.runtime import FORKS, Home

C = TypeVar("C")
T = TypeVar("T")


class LoopThread(Generic[C]):
    """A thread with one open client; it belongs to the process that started it."""

    def __init__(self, client: AbstractAsyncContextManager[C]) -> None:
        self._made = client
        self._thread = threading.Thread(target=self._run, name="skylark-sdk", daemon=True)
        self._opened = threading.Event()
        self.is_closing = False
        self._failure: BaseException | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop: trio.Event | None = None
        self._client: C | None = None
        self.home = Home()

    @property
    def was_opened(self) -> bool:
        """Whether the client is there, or was until it was closed."""
        return self._client is not None

    def open(self) -> None:
        """Start the thread and open the client; raises what opening it raised."""
        self._thread.start()
        try:
            self._opened.wait()
        except BaseException:
            self.is_closing = True
            raise
        if self._client is None:
            self._thread.join()
            assert self._failure is not None
            raise self._failure

    def call(self, work: Callable[[C], Awaitable[T]]) -> T:
        """What ``work`` returns or raises in the loop, with the client as its argument."""
        self.home.check()
        client, token = self._client, self._token
        if client is None or token is None:
            raise _not_open()
        scope = trio.CancelScope()

        async def run() -> T:
            with scope:
                return await work(client)
            raise _closed()

        try:
            return trio.from_thread.run(run, trio_token=token)
        except (trio.RunFinishedError, trio.Cancelled):
            raise _closed() from self._failure
        except KeyboardInterrupt:
            self._soon(scope.cancel)
            raise

    def tell(self, work: Callable[[C], object]) -> None:
        """Let the loop do ``work``, without waiting; nothing in a child of its process."""
        client = self._client
        if self.home.is_here and client is not None:
            self._soon(lambda: work(client))

    def close(self) -> None:
        """Close the client and wait until the thread has ended; nothing in a child of its process."""
        self.is_closing = True
        if self.home.is_here and self._stop is not None:
            self._soon(self._stop.set)
            self._thread.join()

    def _soon(self, work: Callable[[], object]) -> None:
        assert self._token is not None
        try:
            self._token.run_sync_soon(work)
        except trio.RunFinishedError:
            return

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as error:  # it ends this thread either way; `open` and `call` show it
            self._failure = error
        finally:
            self._opened.set()

    async def _serve(self) -> None:
        async with self._made as client:
            self._token, self._stop = trio.lowlevel.current_trio_token(), trio.Event()
            self._client = client
            self._opened.set()
            if not self.is_closing:
                await self._stop.wait()


class ClientLoop(Generic[C]):
    """One client of type ``C`` in a thread of its own, and after a fork another one in the child.

    ``make`` is called at once, so that its errors are the caller's. It makes another client for every child.
    """

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[C]]) -> None:
        self._make = make
        self._made: AbstractAsyncContextManager[C] | None = make()
        self._thread: LoopThread[C] | None = None
        # By the number of forks, since a lock may be held in the moment of a fork.
        self._reopening: dict[int, threading.Lock] = {}

    def open(self) -> None:
        """Start the thread and open the client; raises what opening it raised."""
        if self._thread is not None and self._thread.home.is_here:
            raise RuntimeError("this client was opened before; make another")
        self._thread = thread = LoopThread(self._next_client())
        thread.open()

    def call(self, work: Callable[[C], Awaitable[T]]) -> T:
        """What ``work`` returns or raises in the loop, with the client as its argument."""
        return self.opened().call(work)

    def opened(self) -> LoopThread[C]:
        """The thread of this process; in a child of the process that opened the client it is started here."""
        thread = self._thread
        if thread is None:
            raise _not_open()
        return thread if thread.home.is_here else self._reopened()

    def close(self) -> None:
        """Close the client and wait until the thread has ended. Closing twice does no harm."""
        if self._thread is not None:
            self._thread.close()

    def _reopened(self) -> LoopThread[C]:
        with self._reopening.setdefault(FORKS.count, threading.Lock()):
            parents = self._thread
            assert parents is not None
            if parents.home.is_here:
                return parents
            if parents.is_closing:
                raise _closed()
            if not parents.was_opened:
                raise _not_open()
            thread = LoopThread(self._next_client())
            thread.open()
            self._thread = thread
            return thread

    def _next_client(self) -> AbstractAsyncContextManager[C]:
        made, self._made = self._made, None
        return self._make() if made is None else made


def _not_open() -> RuntimeError:
    return RuntimeError("open the client with 'with' first")


def _closed() -> SkylarkError:
    return SkylarkError("the client was closed")

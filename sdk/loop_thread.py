"""Clients that are open in threads with event loops of their own: the basis of `skylark.blocking` and `skylark.aio`.

A client has its own thread, which ends with the client, or is a guest in the thread of the client that it shares;
guests are closed before their host. The threads are daemons: a program that does not close its clients still ends. Work
for the loops crosses in batches, see `Inbox`.
"""

import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.errors import SkylarkError
from skylark.sdk.runtime import Home, SendsFailed, raise_or_log

C = TypeVar("C")
T = TypeVar("T")


class OpenClient(Generic[C]):
    """One client in its own thread or in the thread of ``host``. It belongs to the process that opened it."""

    def __init__(self, client: AbstractAsyncContextManager[C], host: "OpenClient[Any] | None" = None) -> None:
        self._made = client
        self._host = host
        self._thread = threading.Thread(target=self._run, name="skylark-sdk", daemon=True)
        self._ended = threading.Event()
        self._when_opened: Callable[[], object] = _nothing
        #: Called in the thread when the client has ended.
        self.when_ended: list[Callable[[], object]] = []
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

    def begin(self, opened: Callable[[], object]) -> None:
        """Begin to open the client; ``opened`` is called in the loop when it is open or has failed."""
        self._when_opened = opened
        if self._host is None:
            self._thread.start()
        elif not self._host.soon(self._enter_host):
            raise closed()

    def open(self) -> None:
        """Open the client; raises the errors of opening it."""
        opened = threading.Event()
        self.begin(opened.set)
        try:
            # The thread opens the client in its loop. When this wait is interrupted (Ctrl-C), the client is closed as
            # soon as it is open.
            opened.wait()
        except BaseException:
            self.is_closing = True
            raise
        if self._client is None:
            self._wait_for_end()
        self.check_opened()

    def check_opened(self) -> None:
        """Raise the error of opening the client, once it is open or has failed."""
        if self._client is None:
            assert self._failure is not None
            raise closed() if isinstance(self._failure, trio.Cancelled) else self._failure

    @property
    def client(self) -> C:
        """The client, for calls that need no loop. RuntimeError unless it was opened, in this process."""
        self.home.check()
        if self._client is None:
            raise not_open()
        return self._client

    def call(self, work: Callable[[C], Awaitable[T]]) -> T:
        """Run ``work`` with the client in the loop, and return its result or raise its error."""
        token = self.token
        scope = trio.CancelScope()
        try:
            return trio.from_thread.run(self.run, work, scope, trio_token=token)
        except (trio.RunFinishedError, trio.Cancelled):
            raise closed() from self._failure
        except KeyboardInterrupt:
            self.soon(scope.cancel)
            raise

    @property
    def token(self) -> trio.lowlevel.TrioToken:
        """The loop. RuntimeError unless the client was opened, in this process."""
        self.home.check()
        if self._client is None or self._token is None:
            raise not_open()
        return self._token

    async def run(self, work: Callable[[C], Awaitable[T]], scope: trio.CancelScope) -> T:
        """In the loop: the result of ``work``. SkylarkError when the client is closed, or ``scope`` cancelled."""
        if self._ended.is_set():
            raise closed()
        assert self._client is not None
        # Registered, so that the end of the client cancels the call: otherwise the calling thread would wait forever
        # for a loop that is gone.
        self._calls[scope] = None
        try:
            with scope:
                return await work(self._client)
        finally:
            del self._calls[scope]
        raise closed()

    def post(self, work: Callable[[C], object]) -> None:
        """Let the loop run ``work`` later. Does nothing in a child process."""
        client = self._client
        if self.home.is_here and client is not None:
            self.soon(lambda: work(client))

    def close(self) -> None:
        """Close the client and wait until it is closed. Does nothing in a child process.

        Raises SendsFailed when sends are lost.
        """
        self.begin_close()
        if self.home.is_here and self._token is not None:
            self._wait_for_end()
            self.raise_lost()

    def raise_lost(self) -> None:
        """Raise, once, the errors of lost sends that the end of a producer has found."""
        if isinstance(lost := self._failure, SendsFailed):
            self._failure = None
            raise lost

    def log_lost(self) -> None:
        """Log the errors of lost sends: their caller was cancelled, and they cannot be raised."""
        if isinstance(lost := self._failure, SendsFailed):
            self._failure = None
            raise_or_log(lost, lost)

    def begin_close(self) -> None:
        """Begin to close the client."""
        self.is_closing = True
        if self.home.is_here and self._token is not None:
            self.soon(self._stop.set)

    @property
    def has_ended(self) -> bool:
        """Whether the client was closed, or has failed."""
        return self._ended.is_set()

    def _wait_for_end(self) -> None:
        self.join()
        if self._host is not None:
            self._ended.wait()

    def join(self) -> None:
        """Wait for the end of the client's own thread, which comes right after the client's end."""
        if self._host is None:
            self._thread.join()

    def soon(self, work: Callable[[], object]) -> bool:
        """Let the loop run ``work`` later; False when the loop has ended."""
        try:
            self.token.run_sync_soon(work)
        except trio.RunFinishedError:
            return False
        return True

    # --- in the loop

    def _run(self) -> None:
        """The thread."""
        try:
            trio.run(self._serve)
        except BaseException as error:  # `open` and `call` report it
            self._failure = error
        finally:
            self._end()

    def _end(self) -> None:
        self._ended.set()
        if self._client is None:
            self._when_opened()
        for tell in self.when_ended:
            tell()

    def _enter_host(self) -> None:
        host = self._host
        assert host is not None and host._nursery is not None
        if host._stop.is_set():
            self._failure = closed()
            self._end()
        else:
            host._nursery.start_soon(self._be_guest, host)

    @enable_ki_protection
    async def _be_guest(self, host: "OpenClient[Any]") -> None:
        """Serve until the client is closed. Its errors are raised in its own callers; they must not end the host."""
        host._guests[self] = None
        try:
            await self._serve()
        except BaseException as error:
            self._failure = error
            # Ctrl-C and a cancellation of the host must end the host, too; errors of one guest must not.
            if not isinstance(error, Exception):
                raise
        finally:
            del host._guests[self]
            self._end()

    async def _serve(self) -> None:
        try:
            # The nursery is for guests. It is inside the client's block, so that guests are closed before the
            # connections that they share.
            async with self._made as client, trio.open_nursery() as self._nursery:
                self._token = trio.lowlevel.current_trio_token()
                self._client = client
                self._when_opened()
                try:
                    if not self.is_closing:
                        await self._stop.wait()
                finally:
                    # From now on no client enters.
                    self._stop.set()
                for guest in self._guests:
                    guest._stop.set()
        finally:
            for scope in self._calls:
                scope.cancel()


def _nothing() -> None:
    """Does nothing: the ``opened`` of a client that no thread waits for."""


def not_open() -> RuntimeError:
    return RuntimeError("open the client with 'with' first")


def closed() -> SkylarkError:
    """The error of a call to a client that was closed."""
    error = SkylarkError("the client was closed")
    error.add_note("a client works inside of its 'async with' block (or 'with' block) only, and each object opens once")
    return error


class Inbox(Generic[T]):
    """Work for a loop in another thread, in batches.

    Waking a loop costs several system calls and a change of threads. So the first item wakes the loop, and items that
    are added until it wakes are handled in the same batch. No lock is needed: `append` and `popleft` of a deque are
    atomic, and the loop first clears the flag and then empties the queue, so that an item that is added later wakes the
    loop again. ``wake`` lets the loop call a function soon; ``take`` is called there and takes all items from the left.
    """

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
            except BaseException:  # the loop has ended; the caller that puts the next item gets the error, too
                self._is_waking = False
                raise

    def _run(self) -> None:
        self._is_waking = False
        self._take(self._items)


def call_each(works: deque[Callable[[], object]]) -> None:
    """``take`` for functions to be called, which must not raise."""
    while works:
        works.popleft()()

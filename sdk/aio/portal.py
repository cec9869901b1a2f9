"""A client in a trio thread, called from asyncio.

A call is a trio task. When the asyncio task that waits for the call is cancelled, the call is cancelled, and the
asyncio task goes on when the call has ended: so no call runs on after its caller. A second cancellation does not wait.
Work that crosses between the loops waits in an `Inbox`, whose size is bounded by the number of waiting tasks of the
application.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from threading import get_ident
from typing import Any, Generic, TypeVar

import trio

from skylark.sdk.loop_thread import Inbox, OpenClient, call_each, closed

logger = logging.getLogger(__name__)

# How often a client checks whether its asyncio loop was closed.
CHECK_S = 1.0

Work = Callable[[], object]


class Crossing:
    """Passes work between the asyncio loop that opens ``client`` and the client's trio loop. Work must not raise."""

    def __init__(self, loop: asyncio.AbstractEventLoop, client: OpenClient[Any]) -> None:
        self.loop = loop
        self._thread = get_ident()
        self._client = client
        self._for_trio = Inbox(lambda run: client.token.run_sync_soon(run), call_each)
        self._for_asyncio = Inbox(self.wake_asyncio, call_each)

    def is_here(self) -> bool:
        """Whether the caller runs in the loop that opened the client.

        `asyncio.get_running_loop` takes twice as long: it asks the system for the process id at each call.
        """
        return get_ident() == self._thread and self.loop.is_running()

    def to_trio(self, work: Work) -> None:
        """Run ``work`` in trio. Raises RunFinishedError when the trio loop has ended."""
        self._for_trio.put(work)

    def to_asyncio(self, work: Work) -> None:
        """Run ``work`` in asyncio."""
        self._for_asyncio.put(work)

    async def watch(self, client: OpenClient[Any]) -> None:
        """In trio: close ``client`` when the application has closed its asyncio loop without closing ``client``."""
        # Work for a closed asyncio loop would wait forever, and a consumer would keep its queues.
        while not client.is_closing and not client.has_ended:
            await trio.sleep(CHECK_S)
            if self.loop.is_closed() and not client.is_closing:
                logger.warning("an asyncio loop was closed before a client that it had opened: closing that, too")
                client.begin_close()

    def wake_asyncio(self, run: Callable[[], None]) -> None:
        try:
            self.loop.call_soon_threadsafe(run)
        except RuntimeError:  # the application closed its loop before the client
            self._client.begin_close()


C = TypeVar("C")
T = TypeVar("T")


class _Call(Generic[C, T]):
    """A call in progress: ``_answer`` for its caller, ``_ended`` for a caller that was cancelled."""

    __slots__ = ("_answer", "_client", "_crossing", "_ended", "_has_ended", "_scope", "_work")

    def __init__(self, client: OpenClient[C], crossing: Crossing, work: Callable[[C], Awaitable[T]]) -> None:
        self._client = client
        self._crossing = crossing
        self._work = work
        self._scope = trio.CancelScope()
        self._answer: asyncio.Future[T] = crossing.loop.create_future()
        self._ended: asyncio.Future[None] | None = None
        # Set also when the call ends after its caller was cancelled, and before the caller runs again.
        self._has_ended = False

    # --- in asyncio

    async def result(self) -> T:
        """Make the call, and return its result or raise its error."""
        try:
            self._crossing.to_trio(self._begin)
        except trio.RunFinishedError:
            raise closed() from None
        try:
            return await self._answer
        except asyncio.CancelledError:
            # The call ends before this task goes on: after `await` the call uses nothing that the caller may close
            # next. `_answer` was cancelled with the task, so the end comes through another future. That wait is not
            # shielded: a second cancellation does not wait for a call that ignores the first.
            if self._answer.cancelled() and not self._has_ended:
                self._ended = self._crossing.loop.create_future()
                self._client.soon(self._scope.cancel)
                await self._ended
            raise

    def _finish(self, result: T | None, error: BaseException | None) -> None:
        self._has_ended = True
        if self._ended is not None:
            set_future(self._ended)
        if self._answer.done():
            return
        if error is None:
            self._answer.set_result(result)  # type: ignore[arg-type]
        else:
            self._answer.set_exception(error)

    # --- in trio

    def _begin(self) -> None:
        # A system task, not a task of the client's nursery: its errors belong to its caller, and must not cancel other
        # calls. `OpenClient.run` cancels the task when the client closes.
        try:
            trio.lowlevel.spawn_system_task(self._run)
        except RuntimeError:  # the loop is ending
            self._crossing.to_asyncio(partial(self._finish, None, closed()))

    async def _run(self) -> None:
        result: T | None = None
        failed: BaseException | None = None
        try:
            result = await self._client.run(self._work, self._scope)
        except Exception as error:
            failed = error
        except BaseException:
            failed = closed()
            raise
        finally:
            self._crossing.to_asyncio(partial(self._finish, result, failed))


class Portal(Generic[C]):
    """One client of type ``C`` for the asyncio loop that opens it.

    ``make`` is called at once, so that its errors are raised in the caller. With ``host`` the client is a guest in the
    host's thread.
    """

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[C]], host: "Portal[Any] | None" = None) -> None:
        self.made = make()
        self._host = host
        self._open: OpenClient[C] | None = None
        self._crossing: Crossing | None = None

    async def open(self) -> None:
        """Open the client; raises the errors of opening it."""
        if self._open is not None:
            raise RuntimeError("this client was opened before; make another")
        loop = asyncio.get_running_loop()
        if self._host is None:
            opening = OpenClient(self.made)
            crossing = Crossing(loop, opening)
        else:
            opening = OpenClient(self.made, self._host.opened())
            crossing = self._host.crossing
        self._open, self._crossing = opening, crossing
        opened = loop.create_future()
        opening.begin(lambda: crossing.to_asyncio(partial(set_future, opened)))
        try:
            await asyncio.shield(opened)
        except asyncio.CancelledError:
            # The thread cannot be left half open: it opens, sees `is_closing`, closes, and is joined below.
            opening.is_closing = True
            await opened
            await self.close()
            raise
        if not opening.was_opened:
            opening.join()
        opening.check_opened()
        opening.soon(partial(_spawn, partial(crossing.watch, opening)))

    def post(self, work: Callable[[C], object]) -> None:
        """Let the loop run ``work`` later. Does nothing in a child process, or if the client is not open."""
        if self._open is not None:
            self._open.post(work)

    async def close(self) -> None:
        """Close the client and wait until it is closed. Does nothing in a child process, or if it is closed already.

        Raises SendsFailed when sends are lost.
        """
        client, crossing = self._open, self._crossing
        if client is None or crossing is None or not client.home.is_here or not client.was_opened:
            return
        ended = crossing.loop.create_future()
        client.when_ended.append(lambda: crossing.to_asyncio(partial(set_future, ended)))
        client.begin_close()
        if not client.has_ended:
            try:
                await asyncio.shield(ended)
            except asyncio.CancelledError:
                # Leaving a group has a deadline of its own, so this ends soon.
                await ended
                client.join()
                client.log_lost()
                raise
        client.join()
        client.raise_lost()

    def opened(self) -> OpenClient[C]:
        """The client. RuntimeError unless it is open in this process and this event loop."""
        client, crossing = self._open, self._crossing
        if client is None or crossing is None or not client.was_opened:
            raise RuntimeError("open the client with 'async with' first")
        client.home.check()
        if asyncio.get_running_loop() is not crossing.loop:
            raise RuntimeError("this client was opened in another event loop: open one in each loop that uses it")
        return client

    @property
    def crossing(self) -> Crossing:
        """The way to the client."""
        assert self._crossing is not None
        return self._crossing

    def call(self, work: Callable[[C], Awaitable[T]]) -> Coroutine[Any, Any, T]:
        """Run ``work`` with the client in trio, and return its result or raise its error."""
        return _Call(self.opened(), self.crossing, work).result()

    def call_sync(self, work: Callable[[C], T]) -> T:
        """Run ``work``, which does not wait, with the client in trio, and return its result or raise its error.

        Blocks until the other thread has run ``work``, which is soon, since nothing blocks the trio loop.
        """

        async def run(client: C) -> T:
            return work(client)

        return self.opened().call(run)


def _spawn(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run ``work``, which must not raise, in a task of its own as long as the trio loop runs."""
    with suppress(RuntimeError):  # the loop is ending
        trio.lowlevel.spawn_system_task(work)


def set_future(future: "asyncio.Future[None]") -> None:
    """Wake the waiters of ``future``, which may have been cancelled."""
    if not future.done():
        future.set_result(None)

"""A thread that runs an event loop around one open client.

Opening waits until the client is open, and raises in the caller what went wrong there. A call hands an async function
to the loop and waits for its end; Ctrl-C in the waiting thread cancels it. Closing closes the client and joins the
thread. The thread is a daemon: a program that forgets to close still ends.
"""

import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

import trio

from mqcommon.errors import SkylarkError

C = TypeVar("C")
T = TypeVar("T")


class ClientLoop(Generic[C]):
    """One client of type ``C`` in a loop of its own."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[C]]) -> None:
        self._make = make
        self._thread: threading.Thread | None = None
        self._opened = threading.Event()
        self._closing = False
        self._failure: BaseException | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop: trio.Event | None = None
        self._client: C | None = None

    def open(self) -> None:
        """Start the thread and open the client; raises what opening it raised."""
        if self._thread is not None:
            raise RuntimeError("this client was opened before; make another")
        self._thread = threading.Thread(target=self._run, name="skylark-sdk", daemon=True)
        self._thread.start()
        try:
            self._opened.wait()
        except BaseException:
            self._closing = True
            raise
        if self._client is None:
            self._thread.join()
            assert self._failure is not None
            raise self._failure

    def call(self, work: Callable[[C], Awaitable[T]]) -> T:
        """What ``work`` returns or raises in the loop, with the client as its argument."""
        client, token = self._opened_client()
        scope = trio.CancelScope()

        async def run() -> T:
            with scope:
                return await work(client)
            raise self._closed()

        try:
            return trio.from_thread.run(run, trio_token=token)
        except (trio.RunFinishedError, trio.Cancelled):
            raise self._closed() from self._failure
        except KeyboardInterrupt:
            self._soon(scope.cancel)
            raise

    def tell(self, work: Callable[[C], object]) -> None:
        """Let the loop do ``work``, without waiting."""
        client, _ = self._opened_client()
        self._soon(lambda: work(client))

    def close(self) -> None:
        """Close the client and wait until the thread has ended. Closing twice does no harm."""
        self._closing = True
        if self._thread is None or self._stop is None:
            return
        self._soon(self._stop.set)
        self._thread.join()

    def _opened_client(self) -> tuple[C, trio.lowlevel.TrioToken]:
        if self._client is None or self._token is None:
            raise RuntimeError("open the client with 'with' first")
        return self._client, self._token

    def _soon(self, work: Callable[[], object]) -> None:
        assert self._token is not None
        try:
            self._token.run_sync_soon(work)
        except trio.RunFinishedError:
            return

    def _closed(self) -> SkylarkError:
        return SkylarkError("the client was closed")

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as error:  # it ends this thread either way; `open` and `call` show it
            self._failure = error
        finally:
            self._opened.set()

    async def _serve(self) -> None:
        async with self._make() as client:
            self._token, self._stop = trio.lowlevel.current_trio_token(), trio.Event()
            self._client = client
            self._opened.set()
            if not self._closing:
                await self._stop.wait()

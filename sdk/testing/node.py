"""One NameServer or broker of a test cluster, in a thread of its own with its own event loop.

The threads make the faults independent: a frozen node is a blocked loop, and the other nodes go on. The methods block
until their effect is complete, and may be called from any thread, also inside trio and asyncio.

`kill` is as hard as it can be inside of a process. All sockets are cut at once, then the files are copied as they are,
and the next start uses the copy. So actions of the daemon during its teardown reach no peer and no disk: no message in
memory is flushed, no checkpoint is written, no NameServer is informed. A thread that is writing a file may finish
first, as if the process had died a moment later.
"""

import shutil
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol, TypeVar

import trio

from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.polling import poll_until
from skylark.remoting.net.sockets import OpenSockets
from skylark.sdk.runtime import Home

T = TypeVar("T")

# How long to wait for a node to start or stop; after that it counts as stuck.
PATIENCE_S = 20.0
# How long a kill waits for threads that are writing.
WRITERS_S = 2.0


class Daemon(Protocol):
    """The daemon that a node runs; each start makes a new one."""

    async def run(self, *, task_status: trio.TaskStatus[str]) -> None: ...

    async def stop(self) -> None: ...


class Node:
    """A NameServer or a broker: ``node.kill()``, ``node.start()``, ``node.freeze()``, ``node.thaw()``.

    ``address`` is ``ip:port`` and stays the same after a restart. ``directory`` has the files. ``peers`` of a broker
    are the NameServers: starting waits until they know the broker, stopping until they have dropped it.
    """

    def __init__(self, name: str, address: str, directory: Path, make: Callable[[], Daemon]) -> None:
        self.name = name
        self.address = address
        self.directory = directory
        self._make = make
        self._life: _Life | None = None
        self._is_discarded = False
        #: Called after a start and after an end.
        self.changed: Callable[[], None] = lambda: None

    @property
    def is_running(self) -> bool:
        """Whether the node was started and not stopped or killed since; a frozen node runs."""
        return self._life is not None

    @property
    def is_frozen(self) -> bool:
        """Whether the node is frozen."""
        return self._life is not None and not self._life.thawed.is_set()

    def start(self) -> None:
        """Start the node, with the same port and files; returns when it serves, and a broker is registered."""
        self.begin()
        self.wait_started()
        self.changed()
        self.check_kept()

    def stop(self) -> None:
        """Stop the node as SIGTERM does: it unregisters, answers pending requests, and writes all data to disk."""
        life = self._running()
        if self.is_frozen:
            raise RuntimeError(f"{self.name} is frozen and cannot stop gracefully: thaw() it first, or kill() it")
        life.post(life.stopping.set)
        self._end(life)

    def kill(self) -> None:
        """End the node as kill -9 does: connections end, nothing is flushed. A frozen node can be killed, too."""
        life = self._running()
        copy = self.directory.with_name(f"{self.directory.name}.killed")
        # The copy is taken when all sockets are cut and no thread writes, and before the daemon is cancelled: its
        # cleanup writes to the old directory, which is removed.
        life.die(lambda: shutil.copytree(self.directory, copy))
        self._join(life)
        if life.is_dead:  # otherwise the copy failed, and `_end` raises its error
            shutil.rmtree(self.directory)
            copy.rename(self.directory)
        self._end(life)

    def freeze(self) -> None:
        """Stop the event loop as SIGSTOP does: connections stay open, new ones are accepted, nothing is answered."""
        self._running().freeze()

    def thaw(self) -> None:
        """Let a frozen node go on."""
        self._running().thaw()

    # --- used by the cluster

    def begin(self) -> None:
        """Start the node without waiting."""
        self.check_kept()
        if self._life is not None:
            raise RuntimeError(f"{self.name} runs already")
        self.directory.mkdir(parents=True, exist_ok=True)
        self._life = _Life(self.name, self._make())

    def wait_started(self) -> None:
        """Wait for the start that `begin` began; raises its error."""
        life = self._running()
        if not life.ready.wait(PATIENCE_S):
            raise SkylarkError(f"{self.name} did not start within {PATIENCE_S:.0f} s")
        self.check_kept()
        if life.failure is not None:
            self._life = None
            life.join()
            raise life.failure

    def discard(self) -> None:
        """Begin to end the node for good, in any state: its files will be deleted."""
        self._is_discarded = True
        if (life := self._life) is not None:
            life.die(lambda: None)

    def check_kept(self) -> None:
        """RuntimeError once the node was discarded, as by another thread that closes the cluster."""
        if self._is_discarded:
            raise RuntimeError(f"{self.name} cannot be used any more: its cluster closes, or was closed")

    def wait_ended(self) -> None:
        """Wait for the end that `discard` began."""
        if (life := self._life) is not None:
            self._join(life)
            self._life = None

    def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run ``work`` in the node's event loop, and wait for the result."""
        if self.is_frozen:
            raise RuntimeError(f"{self.name} is frozen: thaw() it first")
        life = self._running()
        try:
            return life.call(work)
        except _Ended:
            self.check_kept()
            raise SkylarkError(f"{self.name} ended while it was asked") from None

    def _running(self) -> "_Life":
        self.check_kept()
        if self._life is None:
            raise RuntimeError(f"{self.name} does not run: start() it first")
        self._life.home.check(f"{self.name}, which")
        return self._life

    def _join(self, life: "_Life") -> None:
        if not life.join():
            raise SkylarkError(f"{self.name} did not end within {PATIENCE_S:.0f} s")

    def _end(self, life: "_Life") -> None:
        self._join(life)
        self._life = None
        self.changed()
        if life.failure is not None and not life.is_dead:
            raise life.failure


class _Ended(Exception):
    """The loop of the node ended before its answer."""


class _Life:
    """A node from a start to its end."""

    def __init__(self, name: str, daemon: Daemon) -> None:
        self.home = Home()
        self.ready = threading.Event()
        self.thawed = threading.Event()
        self.thawed.set()
        self.failure: BaseException | None = None
        #: Whether the node was killed: errors of the teardown are then not raised.
        self.is_dead = False
        self.stopping = trio.Event()
        self._daemon = daemon
        self._dying = trio.Event()
        self._last_work: Callable[[], object] | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._sockets: OpenSockets | None = None
        # Calls in progress: their waiters get an error when the loop ends.
        self._asked: set[Future[Any]] = set()
        self._thread = threading.Thread(target=self._run, name=f"skylark-{name}", daemon=True)
        self._thread.start()

    # --- from outside

    def post(self, work: Callable[[], object]) -> bool:
        """Let the loop run ``work`` soon; False when the loop has ended."""
        self.ready.wait(PATIENCE_S)
        assert self._token is not None
        try:
            self._token.run_sync_soon(work)
        except trio.RunFinishedError:
            return False
        return True

    def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of ``work``. Raises _Ended when the loop ends first."""
        result: Future[T] = Future()

        async def run() -> None:
            try:
                result.set_result(await work())
            except Exception as error:
                result.set_exception(error)
            self._asked.discard(result)

        def begin() -> None:
            assert self._nursery is not None
            self._nursery.start_soon(run)

        self._asked.add(result)
        if not self.post(begin):
            raise _Ended
        return result.result(PATIENCE_S)

    def freeze(self) -> None:
        if self.thawed.is_set():
            self.thawed.clear()
            frozen = threading.Event()

            def block() -> None:
                frozen.set()
                # This blocks the loop itself, so that nothing runs in it, as under SIGSTOP. A kill thaws the node: then
                # the sockets are cut before waiting requests are answered.
                self.thawed.wait()
                if self._last_work is not None:
                    self._cut()

            self.post(block)
            frozen.wait(PATIENCE_S)

    def thaw(self) -> None:
        self.thawed.set()

    def die(self, last_work: Callable[[], object]) -> None:
        """Cut the sockets, call ``last_work`` when no thread writes, and end."""
        self._last_work = last_work
        self.post(self._cut)
        self.thaw()

    def join(self) -> bool:
        """Wait for the end; False when it does not come."""
        self._thread.join(PATIENCE_S)
        return not self._thread.is_alive()

    # --- in the thread

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as error:  # raised where the node is started, stopped or killed
            while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
                error = error.exceptions[0]
            self.failure = error
        finally:
            if self._sockets is not None:
                self._sockets.close()
            self.ready.set()
            for asked in list(self._asked):
                asked.set_exception(_Ended())

    async def _serve(self) -> None:
        self._sockets = OpenSockets()
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self._wait_to_die, self._nursery.cancel_scope)
            await self._nursery.start(self._daemon.run)
            self.ready.set()
            await self.stopping.wait()
            await self._daemon.stop()
            self._nursery.cancel_scope.cancel()

    def _cut(self) -> None:
        assert self._sockets is not None
        self._sockets.cut()
        self._dying.set()

    async def _wait_to_die(self, everything: trio.CancelScope) -> None:
        await self._dying.wait()
        threads = trio.to_thread.current_default_thread_limiter()
        await poll_until(lambda: not threads.borrowed_tokens, WRITERS_S)
        assert self._last_work is not None
        self._last_work()
        self.is_dead = True
        everything.cancel()

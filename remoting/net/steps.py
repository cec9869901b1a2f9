"""Long work on the event loop, a step at a time.

A handler whose work grows with what is stored, or with what a peer asks for, is a generator that yields every few
milliseconds. Between two steps the loop serves everything else; one step runs in a turn of the loop, however many
requests are active. A step yields None, or a function that may block: a thread runs it, and the generator gets its
result or its exception.
Bounds: AT_ONCE requests are active, the others wait their turn; work for a closed connection ends.
Neighbours: server.py (runs slow handlers), answers.py (large answers in steps).
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import partial
from heapq import merge
from itertools import islice
from typing import Any, TypeVar

import trio

from skylark.mqcommon.errors import ConnectionLost
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import SlowHandler
from skylark.remoting.protocol.command import Command

T = TypeVar("T")

#: The work's result is what the generator returns.
Steps = Generator[Callable[[], Any] | None, Any, T]
StepHandler = Callable[[Channel, Command], Steps[Command | None]]

# How many requests are active at the same time: each may hold an answer of 16 MiB.
AT_ONCE = 8
# How many names are sorted or checked in one step: some milliseconds.
NAMES = 5_000


class Stepper:
    """Runs steps for one daemon."""

    def __init__(self) -> None:
        self._places = trio.Semaphore(AT_ONCE)
        self._turn = trio.Lock()

    async def run(self, steps: Steps[T], channel: Channel | None = None) -> T:
        """The result of ``steps``. Raises ConnectionLost when ``channel``, which asked for the result, closes first."""
        async with self._places:
            resume: Callable[[], Callable[[], Any] | None] = partial(steps.send, None)
            while True:
                # One lock for all: with eight active requests the loop is held for one step, not for eight in a row.
                async with self._turn:  # a checkpoint, too
                    if channel is not None and channel.closed_reason is not None:
                        steps.close()
                        raise ConnectionLost(channel.remote, channel.closed_reason)
                    try:
                        wanted = resume()
                    except StopIteration as end:
                        result: T = end.value
                        return result
                # Outside of the lock, so that others step while the thread works.
                got: Any = None
                try:
                    if wanted is not None:
                        got = await trio.to_thread.run_sync(wanted, abandon_on_cancel=True)
                except Exception as error:
                    resume = partial(steps.throw, error)
                else:
                    resume = partial(steps.send, got)

    def handlers(self, step_handlers: Mapping[int, StepHandler]) -> dict[int, SlowHandler]:
        """Handlers for a server."""
        return {code: self.slow(handler) for code, handler in step_handlers.items()}

    def slow(self, handler: StepHandler) -> SlowHandler:
        """``handler`` as a server takes it."""

        async def slow(channel: Channel, request: Command) -> Command | None:
            try:
                return await self.run(handler(channel, request), channel)
            except ConnectionLost:
                return None  # the connection that would get the answer has closed

        return slow


async def run_slices(steps: Iterable[None]) -> None:
    """Run steps that yield None only, with a turn of the loop after each."""
    for _ in steps:
        await trio.lowlevel.checkpoint()


async def result_of(steps: Generator[None, None, T]) -> T:
    """As `run_slices`, for steps that have a result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await trio.lowlevel.checkpoint()


def finish(steps: Steps[T]) -> T:
    """The result of ``steps`` without a loop in between: for few names, and for threads."""
    resume: Callable[[], Callable[[], Any] | None] = partial(steps.send, None)
    while True:
        try:
            wanted = resume()
        except StopIteration as end:
            result: T = end.value
            return result
        try:
            resume = partial(steps.send, None if wanted is None else wanted())
        except Exception as error:
            resume = partial(steps.throw, error)


def slices(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """``items`` in lists of ``size``, the last one shorter."""
    left = iter(items)
    while part := list(islice(left, size)):
        yield part


def sorted_steps(names: Iterable[str]) -> Steps[list[str]]:
    """``sorted(names)``; they must not change meanwhile."""
    parts: list[list[str]] = []
    for part in slices(names, NAMES):
        parts.append(sorted(part))
        yield None
    if len(parts) <= 1:
        return parts[0] if parts else []
    found: list[str] = []
    for part in slices(merge(*parts), NAMES):
        found += part
        yield None
    return found

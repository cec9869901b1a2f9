"""One face of sdk.aio and sdk.blocking, so that one test shows the behaviour of both.

A test is a coroutine of asyncio. Objects of sdk.aio are as they are; methods of blocking objects are awaited, too, and
run in threads meanwhile. Coroutines that a test gives as handlers run in the test's loop, whoever calls them.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial, wraps
from typing import Any

from skylark import aio, blocking
from skylark.sdk.aio.portal import Portal
from skylark.sdk.blocking.loop import ClientLoop

_END = object()
# What tests await: calls that do not wait have the same form in both facades.
_OF_LOOPS = ("open", "close", "call")
_OF_MESSAGES = ("ack", "nack")


def in_asyncio(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test, run by asyncio: pytest-trio would take a coroutine for its own."""

    @wraps(test)
    def run(*args: Any, **named: Any) -> None:
        asyncio.run(test(*args, **named))

    return run


class InThreads:
    """A blocking object; the methods with the names of ``waiting`` are awaited."""

    def __init__(self, inner: Any, waiting: Callable[[str], bool]) -> None:
        self._inner = inner
        self._waits = waiting

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if self._waits(name):
            return partial(asyncio.to_thread, value)
        if callable(value) and name in ("stream", "messages"):
            return lambda *args, **named: _from_threads(value(*args, **named))
        return value

    async def __aenter__(self) -> "InThreads":
        await asyncio.to_thread(self._inner.__enter__)
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await asyncio.to_thread(self._inner.__exit__, *raised)

    def __aiter__(self) -> "InThreads":
        iter(self._inner)
        return self

    async def __anext__(self) -> "InThreads":
        message = await asyncio.to_thread(next, self._inner, _END)
        if message is _END:
            raise StopAsyncIteration
        return InThreads(message, _OF_MESSAGES.__contains__)


async def _from_threads(iterator: Iterator[Any]) -> AsyncIterator[Any]:
    while (item := await asyncio.to_thread(next, iterator, _END)) is not _END:
        yield item


class Facades:
    """The classes of one facade, which is ``aio`` or ``blocking``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_aio = name == "aio"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        made = getattr(aio if self.is_aio else blocking, name)
        return made if self.is_aio else partial(self._blocking, made, getattr(aio, name))

    def _blocking(self, cls: Any, like: Any, *args: Any, **options: Any) -> InThreads:
        for key in ("handler", "batch_handler"):
            if inspect.iscoroutinefunction(options.get(key)):
                options[key] = _waiting_for(options[key])
        inner = cls(*[each._inner if isinstance(each, InThreads) else each for each in args], **options)
        return InThreads(inner, lambda name: inspect.iscoroutinefunction(getattr(like, name, None)))

    def portal(self, make: Callable[[], Any], host: Any = None) -> Any:
        """The `Portal` or `ClientLoop` through which a facade calls its client."""
        if self.is_aio:
            return Portal(make, host)
        return InThreads(ClientLoop(make, host and host._inner), _OF_LOOPS.__contains__)

    async def result_of(self, ticket: Any) -> Any:
        """Wait for the end of the send."""
        return await (ticket if self.is_aio else asyncio.to_thread(ticket.result))


def _waiting_for(handler: Callable[[Any], Coroutine[Any, Any, object]]) -> Callable[[Any], object]:
    """A handler of threads that waits for the coroutine in this loop."""
    loop = asyncio.get_running_loop()
    return lambda what: asyncio.run_coroutine_threadsafe(handler(what), loop).result()

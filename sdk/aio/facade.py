"""The base class of the asyncio classes, how they get the methods of the trio classes, and their portals.

A method is written once, in the trio class: `call_of` and `call_sync_of` make of it one with the same parameters and
docstring, for type checkers, ``inspect`` and ``help``, that runs it in the client's thread. What has other types here
(constructors, streams, handlers, tickets) is written by hand. tests/sdk/test_facades.py compares both.
"""

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast

from sdk.aio.handlers import AsyncioHandlers, LoopCallback
from sdk.aio.portal import Portal
from sdk.client import Client
from sdk.runtime import SendsFailed, raise_or_log

C = TypeVar("C")
C_co = TypeVar("C_co", covariant=True)
N = TypeVar("N")
P = ParamSpec("P")
T = TypeVar("T")


class Facade(Generic[C_co]):
    """A client of type ``C_co`` for the asyncio loop in which it is opened."""

    def __init__(self, loop: Portal[C_co], *handlers: AsyncioHandlers | LoopCallback | None) -> None:
        self._loop = loop
        self._handlers = [handler for handler in handlers if handler is not None]

    async def __aenter__(self) -> Self:
        for handler in self._handlers:
            handler.bind()
        try:
            await self._loop.open()
        except BaseException:
            await self._close_handlers()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._loop.close()
        except SendsFailed as lost:
            raise_or_log(lost, error)
        finally:
            await self._close_handlers()

    async def _close_handlers(self) -> None:
        for handler in self._handlers:
            await handler.close()


def call_of(
    method: Callable[Concatenate[C, P], Awaitable[T]],
) -> Callable[Concatenate[Facade[C], P], Coroutine[Any, Any, T]]:
    """An async method of the trio class, for its facade."""

    @wraps(method)
    async def call(self: Facade[C], /, *args: P.args, **named: P.kwargs) -> T:
        return await self._loop.call(lambda client: method(client, *args, **named))

    return call


def call_sync_of(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[Facade[C], P], T]:
    """A method of the trio class that does not wait, for its facade."""

    @wraps(method)
    def call(self: Facade[C], /, *args: P.args, **named: P.kwargs) -> T:
        return self._loop.call_sync(lambda client: method(client, *args, **named))

    return call


def loop_of(nameserver: N | Facade[Client], make: Callable[[N | Client], AbstractAsyncContextManager[C]]) -> Portal[C]:
    """A portal for the client that ``make`` returns: into the thread of the `Client` if one is given, else its own."""
    if not (isinstance(nameserver, Facade) and isinstance(nameserver._loop.made, Client)):
        own = cast(N, nameserver)
        return Portal(lambda: make(own))
    host = nameserver._loop

    def make_guest() -> AbstractAsyncContextManager[C]:
        assert isinstance(host.made, Client)
        return make(host.made)

    return Portal(make_guest, host)

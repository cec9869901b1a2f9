"""The base class of the asyncio classes, and their portals."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Generic, Self, TypeVar, cast

from sdk.aio.handlers import AsyncioHandlers, LoopCallback
from sdk.aio.portal import Portal
from sdk.runtime import SendsFailed, raise_or_log
from sdk.shared import Client

C = TypeVar("C")
N = TypeVar("N")


class Facade(Generic[C]):
    """A client of type ``C`` for the asyncio loop in which it is opened."""

    def __init__(self, loop: Portal[C], *handlers: AsyncioHandlers | LoopCallback | None) -> None:
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

"""The base class of the asyncio classes, how they get the methods of the trio classes, and `Client`.

A method is written once, in the trio class: `call_of` and `call_sync_of` derive a facade's method from it, which runs
it in the client's thread and has the same parameters and docstring for type checkers, ``inspect`` and ``help``. Methods
with other types here (constructors, streams, handlers, tickets) are written by hand. tests/sdk/facades/test_methods.py
compares both.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from functools import wraps
from types import TracebackType
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Self, TypeVar

from skylark.sdk.aio.handlers import AsyncioHandlers, LoopCallback
from skylark.sdk.aio.portal import Portal
from skylark.sdk.checked import Milliseconds
from skylark.sdk.client import Client as TrioClient
from skylark.sdk.credentials import GivenCredentials, GivenTls
from skylark.sdk.endpoint import DEFAULT_TIMEOUT_MS
from skylark.sdk.nameservers import NameServerSource
from skylark.sdk.namespaces import Namespace
from skylark.sdk.runtime import AsyncOnly, SendsFailed, check_loop, raise_or_log

C = TypeVar("C")
C_co = TypeVar("C_co", covariant=True)
P = ParamSpec("P")
T = TypeVar("T")

# Locals of constructors that are no options of the trio classes.
_NO_OPTIONS = ("self", "nameserver", "__class__")


class Facade(AsyncOnly, Generic[C_co]):
    """A client of type ``C_co`` for the asyncio loop in which it is opened.

    A facade's docstring is the docstring of its trio class ``of``, followed by its own.
    """

    _trio_class: ClassVar[Callable[..., AbstractAsyncContextManager[Any]]]

    def __init_subclass__(cls, of: type | None = None) -> None:
        if of is not None:
            cls._trio_class = of
            cls.__doc__ = f"{(of.__doc__ or '').rstrip()}\n\n    {cls.__doc__}"

    def __init__(self, nameserver: "NameServerSource | Client | None", arguments: Mapping[str, Any]) -> None:
        """``arguments`` are the locals of the constructor: all options are passed on to the trio class."""
        options = {key: value for key, value in arguments.items() if key not in _NO_OPTIONS}
        # With a `Client` this object is a guest in the client's thread, otherwise it has its own thread.
        host = nameserver._loop if isinstance(nameserver, Client) else None
        self._loop: Portal[C_co] = Portal(lambda: self._trio_class(_source_of(nameserver), **options), host)
        self._handlers = [value for value in options.values() if isinstance(value, (AsyncioHandlers, LoopCallback))]

    async def __aenter__(self) -> Self:
        check_loop("asyncio")
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


class Client(Facade[TrioClient], of=TrioClient):
    """One thread runs the trio loop of all objects that share this client."""

    def __init__(
        self,
        nameserver: NameServerSource | None = None,
        *,
        timeout_ms: Milliseconds = DEFAULT_TIMEOUT_MS,
        namespace: Namespace = "",
        credentials: GivenCredentials = None,
        tls: GivenTls = None,
    ) -> None:
        super().__init__(nameserver, locals())

    @property
    def client_id(self) -> str:
        """The id under which brokers list this client; empty before it is open."""
        return self._loop.call_sync(lambda client: client.client_id)


def _source_of(nameserver: "NameServerSource | Client | None") -> NameServerSource | TrioClient | None:
    """The trio class's argument: the trio object of the `Client`, or where the NameServers are."""
    if not isinstance(nameserver, Client):
        return nameserver
    shared = nameserver._loop.made
    assert isinstance(shared, TrioClient)
    return shared

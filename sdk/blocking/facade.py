"""The base class of the blocking classes, how they get the methods of the trio classes, and `Client`.

A method is written once, in the trio class: `call_of` and `call_sync_of` derive a facade's method from it, which runs
it in the client's thread and has the same parameters and docstring for type checkers, ``inspect`` and ``help``. Methods
with other types here (constructors, streams, handlers, tickets) are written by hand. tests/sdk/facades/test_methods.py
compares both.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import wraps
from types import TracebackType
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Self, TypeVar

from skylark.sdk.blocking.handlers import ThreadHandlers
from skylark.sdk.blocking.loop import ClientLoop
from skylark.sdk.checked import Milliseconds
from skylark.sdk.client import Client as TrioClient
from skylark.sdk.credentials import GivenCredentials, GivenTls
from skylark.sdk.endpoint import DEFAULT_TIMEOUT_MS
from skylark.sdk.nameservers import NameServerSource
from skylark.sdk.namespaces import Namespace
from skylark.sdk.runtime import SendsFailed, note_blocked_loop, raise_or_log

C = TypeVar("C")
C_co = TypeVar("C_co", covariant=True)
P = ParamSpec("P")
T = TypeVar("T")

# Locals of constructors that are no options of the trio classes.
_NO_OPTIONS = ("self", "nameserver", "__class__")


class Facade(Generic[C_co]):
    """A client of type ``C_co`` whose methods block. They may be called from any thread.

    A facade's docstring is the docstring of its trio class ``of``, followed by its own.
    """

    _trio_class: ClassVar[Callable[..., AbstractAsyncContextManager[Any]]]

    def __init_subclass__(cls, of: type | None = None) -> None:
        if of is not None:
            cls._trio_class = of
            cls.__doc__ = f"{(of.__doc__ or '').rstrip().replace('async with', 'with')}\n\n    {cls.__doc__}"

    def __init__(self, nameserver: "NameServerSource | Client | None", arguments: Mapping[str, Any]) -> None:
        """``arguments`` are the locals of the constructor: all options are passed on to the trio class."""
        options = {key: value for key, value in arguments.items() if key not in _NO_OPTIONS}
        # With a `Client` this object is a guest in the client's thread, otherwise it has its own thread.
        host = nameserver._loop if isinstance(nameserver, Client) else None
        self._loop: ClientLoop[C_co] = ClientLoop(lambda: self._trio_class(_source_of(nameserver), **options), host)
        self._handlers = [value for value in options.values() if isinstance(value, ThreadHandlers)]

    def open(self) -> Self:
        """Open the client; ``with`` calls it."""
        note_blocked_loop()
        self._loop.open()
        return self

    def close(self) -> None:
        """Leave the group, and close the connections unless they are shared; ``with`` calls it.

        A Producer closes as its docstring says about leaving the block; SendsFailed is an ExceptionGroup.
        """
        for handler in self._handlers:
            handler.check_close()
        try:
            self._loop.close()
        finally:
            for handler in self._handlers:
                handler.join()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except SendsFailed as lost:
            raise_or_log(lost, error)


def call_of(method: Callable[Concatenate[C, P], Awaitable[T]]) -> Callable[Concatenate[Facade[C], P], T]:
    """An async method of the trio class, for its facade: the calling thread waits for it."""

    @wraps(method)
    def call(self: Facade[C], /, *args: P.args, **named: P.kwargs) -> T:
        return self._loop.call(lambda client: method(client, *args, **named))

    return call


def call_sync_of(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[Facade[C], P], T]:
    """A method of the trio class that does not wait, for its facade."""

    @wraps(method)
    def call(self: Facade[C], /, *args: P.args, **named: P.kwargs) -> T:
        return self._loop.call_sync(lambda client: method(client, *args, **named))

    return call


class Client(Facade[TrioClient], of=TrioClient):
    """One thread runs the event loop of all objects that share this client."""

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

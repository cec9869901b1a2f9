"""The base class of the blocking classes, how they get the methods of the trio classes, their loops, and iterators.

A method is written once, in the trio class: `call_of` and `call_sync_of` make of it one with the same parameters and
docstring, for type checkers, ``inspect`` and ``help``, that runs it in the client's thread. What has other types here
(constructors, streams, handlers, tickets) is written by hand. tests/sdk/test_facades.py compares both.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import wraps
from types import TracebackType
from typing import Concatenate, Generic, ParamSpec, Self, TypeVar, cast

from mqcommon.message.message import MessageExt
from sdk.blocking.handlers import ThreadHandlers
from sdk.blocking.loop import ClientLoop
from sdk.client import Client
from sdk.consumer.stream import QueueStream
from sdk.loop_thread import OpenClient
from sdk.runtime import SendsFailed, raise_or_log

B = TypeVar("B")
C = TypeVar("C")
C_co = TypeVar("C_co", covariant=True)
N = TypeVar("N")
P = ParamSpec("P")
T = TypeVar("T")


class Facade(Generic[C_co]):
    """A client of type ``C_co`` whose methods block. They may be called from any thread."""

    def __init__(self, loop: ClientLoop[C_co], *handlers: ThreadHandlers | None) -> None:
        self._loop = loop
        self._handlers = [handler for handler in handlers if handler is not None]

    def open(self) -> Self:
        """Open the client; ``with`` calls it."""
        self._loop.open()
        return self

    def close(self) -> None:
        """Leave the group, and close the connections unless they are shared; ``with`` calls it.

        Of a Producer: see what it says about leaving the block; SendsFailed is an ExceptionGroup.
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


def loop_of(
    nameserver: N | Facade[Client], make: Callable[[N | Client], AbstractAsyncContextManager[C]]
) -> ClientLoop[C]:
    """A loop for the client that ``make`` returns: the loop of the shared `Client` if one is given, else its own."""
    if not (isinstance(nameserver, Facade) and isinstance(nameserver._loop.made, Client)):
        own = cast(N, nameserver)
        return ClientLoop(lambda: make(own))
    host = nameserver._loop

    def make_guest() -> AbstractAsyncContextManager[C]:
        assert isinstance(host.made, Client)
        return make(host.made)

    return ClientLoop(make_guest, host)


def batches_of(loop: ClientLoop[C], stream_of: Callable[[C], QueueStream[B]]) -> Iterator[B]:
    """Start a stream and iterate over its batches."""
    client = loop.opened()

    async def start(it: C) -> QueueStream[B]:
        return stream_of(it)

    return _batches(client, client.call(start))


def messages_of(loop: ClientLoop[C], stream_of: Callable[[C], QueueStream[list[MessageExt]]]) -> Iterator[MessageExt]:
    """Start a stream and iterate over its messages."""
    return _messages(loop.opened(), batches_of(loop, stream_of))


def _messages(client: OpenClient[C], found: Iterator[list[MessageExt]]) -> Iterator[MessageExt]:
    """The messages one by one. RuntimeError in the child of a fork, which would return the same ones as its parent."""
    for batch in found:
        for message in batch:
            if not client.home.is_here:
                client.home.check()
            yield message


def _batches(client: OpenClient[C], stream: QueueStream[B]) -> Iterator[B]:
    """The batches of ``stream``. It belongs to the loop in which it was started, also after a fork."""
    try:
        while (batch := client.call(lambda _: anext(stream, None))) is not None:
            yield batch
    finally:
        client.post(lambda _: stream.close())

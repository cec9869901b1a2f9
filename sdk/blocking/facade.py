"""The base class of the blocking classes, and iterators over streams."""

from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import Generic, Self, TypeVar

from mqcommon.message.message import MessageExt
from sdk.blocking.loop import ClientLoop, OpenClient
from sdk.consumer.stream import MessageStream

C = TypeVar("C")
T = TypeVar("T")


class Facade(Generic[C]):
    """A client of type ``C`` whose methods block. They may be called from any thread."""

    def __init__(self, loop: ClientLoop[C]) -> None:
        self._loop = loop

    def open(self) -> Self:
        """Open the client; ``with`` calls it."""
        self._loop.open()
        return self

    def close(self) -> None:
        """Leave the group, and close the connections unless they are shared; ``with`` calls it."""
        self._loop.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def plainly(work: Callable[[C], T]) -> Callable[[C], Awaitable[T]]:
    """``work``, a plain function, for a loop that awaits."""

    async def run(client: C) -> T:
        return work(client)

    return run


def batches_of(loop: ClientLoop[C], stream_of: Callable[[C], MessageStream]) -> Iterator[list[MessageExt]]:
    """Start a stream and iterate over its batches."""
    client = loop.opened()

    async def start(it: C) -> MessageStream:
        return stream_of(it)

    return _batches(client, client.call(start))


def messages_of(loop: ClientLoop[C], stream_of: Callable[[C], MessageStream]) -> Iterator[MessageExt]:
    """Start a stream and iterate over its messages."""
    return _messages(loop.opened(), batches_of(loop, stream_of))


def _messages(client: OpenClient[C], found: Iterator[list[MessageExt]]) -> Iterator[MessageExt]:
    """The messages one by one. RuntimeError in the child of a fork, which would return the same ones as its parent."""
    for batch in found:
        for message in batch:
            if not client.home.is_here:
                client.home.check()
            yield message


def _batches(client: OpenClient[C], stream: MessageStream) -> Iterator[list[MessageExt]]:
    """The batches of ``stream``. It belongs to the loop in which it was started, also after a fork."""
    try:
        while (batch := client.call(lambda _: anext(stream, None))) is not None:
            yield batch
    finally:
        client.post(lambda _: stream.close())

"""What the blocking classes have in common."""

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Generic, Self, TypeVar

from mqcommon.message.message import MessageExt
from sdk.blocking.loop import ClientLoop, OpenClient
from sdk.consumer.stream import MessageStream

C = TypeVar("C")


class Facade(Generic[C]):
    """A client of type ``C`` whose methods block. They may be called from any thread."""

    def __init__(self, loop: ClientLoop[C]) -> None:
        self._loop = loop

    def open(self) -> Self:
        """Connect; ``with`` does it."""
        self._loop.open()
        return self

    def close(self) -> None:
        """Leave the group, if there is one, and close the connections, if they are not shared; ``with`` does it."""
        self._loop.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def batches_of(loop: ClientLoop[C], stream_of: Callable[[C], MessageStream]) -> Iterator[list[MessageExt]]:
    """The batches of a stream that is started now."""
    client = loop.opened()

    async def start(it: C) -> MessageStream:
        return stream_of(it)

    return _batches(client, client.call(start))


def messages_of(loop: ClientLoop[C], stream_of: Callable[[C], MessageStream]) -> Iterator[MessageExt]:
    """The messages of a stream that is started now."""
    return _messages(loop.opened(), batches_of(loop, stream_of))


def _messages(client: OpenClient[C], found: Iterator[list[MessageExt]]) -> Iterator[MessageExt]:
    """The messages one by one; none in the child of a fork, which would hand out what its parent does."""
    for batch in found:
        for message in batch:
            if not client.home.is_here:
                client.home.check()
            yield message


def _batches(client: OpenClient[C], stream: MessageStream) -> Iterator[list[MessageExt]]:
    """What ``stream`` brings. It stays with the loop that it was started in, also after a fork."""
    try:
        while (batch := client.call(lambda _: anext(stream, None))) is not None:
            yield batch
    finally:
        client.tell(lambda _: stream.close())

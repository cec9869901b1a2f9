"""Batches and messages of one queue, for ``async for`` in asyncio."""

from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

from mqcommon.message.message import MessageExt
from sdk.aio.portal import Portal
from sdk.consumer.stream import QueueStream

B = TypeVar("B")
C = TypeVar("C")


class BatchStream(Generic[B]):
    """``async for batch in stream``: the batches of a `MessageStream`, which says what ends it, or record batches.

    ``next_offset`` follows the last batch that was returned: it is the offset to commit, and to start again from. Close
    it, or use it in ``async with``, when you leave the loop before its end.
    """

    def __init__(self, portal: Portal[C], stream: QueueStream[B]) -> None:
        self._portal = portal
        self._stream = stream
        self._closed = False
        self.next_offset = stream.next_offset

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> B:
        stream = self._stream

        async def next_batch(_: object) -> tuple[B | None, int]:
            return await anext(stream, None), stream.next_offset

        if self._closed:
            raise StopAsyncIteration
        batch, self.next_offset = await self._portal.call(next_batch)
        if batch is None:
            raise StopAsyncIteration
        return batch

    def close(self) -> None:
        """Cancel the pull in progress; iteration ends."""
        self._closed = True
        self._portal.opened().post(lambda _: self._stream.close())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def batches_of(portal: Portal[C], stream_of: Callable[[C], QueueStream[B]]) -> BatchStream[B]:
    """Start a stream."""
    return BatchStream(portal, portal.call_sync(stream_of))


async def messages_of(
    portal: Portal[C], stream_of: Callable[[C], QueueStream[list[MessageExt]]]
) -> AsyncIterator[MessageExt]:
    """The messages of a stream, one by one."""
    client = portal.opened()
    async with batches_of(portal, stream_of) as batches:
        async for batch in batches:
            for message in batch:
                if not client.home.is_here:
                    # The child of a fork must not return the messages that its parent returns.
                    client.home.check()
                yield message

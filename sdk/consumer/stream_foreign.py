"""Streams of a `PushConsumer` in other threads and loops: their messages cross many at a time."""

from collections import deque

from sdk.consumer.push import PushConsumer
from sdk.consumer.stream_message import StreamMessage
from sdk.loop_thread import Inbox, OpenClient
from sdk.runtime import survived

# Messages that cross at a time. More are in memory anyway; those that were not iterated over are never acknowledged.
TAKEN_AT_ONCE = 256


class CrossingMessages:
    """Messages that were taken from one open consumer, and acknowledgements on their way back to it.

    Messages are added in trio, so that none is lost when the caller is cancelled while they cross.
    """

    def __init__(self, client: OpenClient[PushConsumer]) -> None:
        self.client = client
        self._messages: deque[StreamMessage] = deque()
        self._acks: Inbox[StreamMessage] = Inbox(client.soon, _ack_soon)

    def pop(self) -> StreamMessage | None:
        """The next message, if there is one here that no other member of the group gets."""
        while self._messages:
            message = self._messages.popleft()
            if message.is_ours:
                message.give()
                return message
        return None

    async def fill(self, consumer: PushConsumer) -> bool:
        """In trio: wait for messages. False at the end."""
        taken = await consumer.take(TAKEN_AT_ONCE)
        self._messages.extend(taken)
        return bool(taken)

    def ack(self, message: StreamMessage) -> None:
        """Let trio acknowledge the message, without waiting: it only notes that, and cannot fail."""
        self._acks.put(message)


def _ack_soon(messages: deque[StreamMessage]) -> None:
    # Not in a task: what a caller asks after its `ack`, such as `consumer.consumed`, must find it done.
    while messages:
        with survived("acknowledging a message"):
            messages.popleft().note_consumed()

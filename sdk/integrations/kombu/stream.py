"""Messages sent to an exchange, or to a reply queue, from the moment on when a queue is bound to it.

Such queues are for programs that listen now: remote control, events, replies. They have no group and no offsets at
brokers, so brokers keep nothing of them when their process ends. All of this runs in the loop of the session, except
`Received.settle`.
"""

import logging
from collections import deque
from collections.abc import Callable

import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.client import Client
from skylark.sdk.consumer.pull import PullConsumer
from skylark.sdk.consumer.read_retry import FailureLines
from skylark.sdk.integrations.kombu.mailbox import Mailbox, Parcel, Unsettled
from skylark.sdk.integrations.kombu.names import is_expired

logger = logging.getLogger(__name__)

# PullConsumers that send no heartbeats may share a group; access control knows them by this group.
GROUP = "celery-streams"
# Above this many messages, further messages stay at the broker until some are taken.
MOST = 10_000
# How often a full stream checks whether its consumer, in another thread, has taken messages.
FULL_PAUSE_S = 0.05
POLL_COUNT = 1_000
# How often the stream looks for new queues of the topic (ms).
REFRESH_MS = 20_000


class Received:
    """One message of a stream."""

    __slots__ = ("_stream", "message")

    def __init__(self, stream: "Stream", message: MessageExt) -> None:
        self._stream = stream
        self.message = message

    is_again = False

    def settle(self, *, give_back: bool) -> None:
        """Settle the message here only: a stream's messages are not acknowledged at brokers."""
        if give_back:
            self._stream.post(lambda: self._stream.put_back(self))


class Stream:
    """The messages of one AMQP queue, from all exchanges that it is bound to."""

    def __init__(
        self, client: Client, queue: str, post: Callable[[Callable[[], object]], object], backoff: Backoff, clock: Clock
    ) -> None:
        self._client = client
        self._queue = queue
        self.post = post
        self._backoff = backoff
        self._clock = clock
        self._waiting: deque[Unsettled] = deque()
        self._taken = trio.lowlevel.ParkingLot()
        self._mailbox: Mailbox | None = None
        self._owner: object = None
        self._reading: list[trio.CancelScope] = []
        #: Exchanges and routing keys that the stream is bound to.
        self.bindings: set[tuple[str, str]] = set()

    def attach(self, mailbox: Mailbox, owner: object) -> None:
        """Hand waiting and future messages to a consumer."""
        self._mailbox, self._owner = mailbox, owner
        self._hand_over()

    def detach(self, owner: object) -> None:
        """Keep the messages until there is a consumer."""
        if self._owner is owner:
            self._mailbox = self._owner = None

    def take(self) -> Unsettled | None:
        """The next message that no consumer has taken yet.

        ``AsyncResult.state`` calls this while another connection of the program consumes the same replies, and has not
        read them yet.
        """
        # Messages in the other connection's mailbox come before new messages.
        if self._mailbox is not None:
            parcels = self._mailbox.take_those_of(self._owner, self._queue)
            self._waiting.extendleft(reversed([parcel.delivery for parcel in parcels]))
        received = self._waiting.popleft() if self._waiting else None
        self._taken.unpark_all()
        self._hand_over()
        return received

    def put_back(self, received: Unsettled) -> None:
        """Put ``received`` back as the next message."""
        self._waiting.appendleft(received)
        self._hand_over()

    def count(self) -> int:
        """How many messages wait."""
        return len(self._waiting)

    def purge(self) -> int:
        """Drop the waiting messages."""
        count = len(self._waiting)
        self._waiting.clear()
        self._taken.unpark_all()
        return count

    def close(self) -> None:
        """Read no more."""
        for scope in self._reading:
            scope.cancel()

    def _hand_over(self) -> None:
        if self._mailbox is not None and self._waiting:
            self._mailbox.put([Parcel(self._owner, self._queue, each) for each in self._waiting], is_first=True)
            self._waiting.clear()
            self._taken.unpark_all()

    # --- reading

    @enable_ki_protection
    async def read(
        self,
        topic: str,
        expression: str,
        matches: Callable[[MessageExt], bool],
        *,
        task_status: trio.TaskStatus[None],
    ) -> None:
        """Read messages of ``topic`` from now on, until `close`. Once started, no message can be missed."""
        with trio.CancelScope() as scope:
            self._reading.append(scope)
            async with PullConsumer(self._client, group=GROUP, heartbeat=False, start_timeout_ms=None) as consumer:
                # From here on no message is missed: queues that are found later are read from this time on, too.
                bound_at_ms = self._clock.now_ms()
                queues = await consumer.message_queues(topic)
                ends = {queue: await consumer.max_offset(queue) for queue in queues}
                consumer.assign(queues, expression=expression)
                for queue, end in ends.items():
                    consumer.seek(queue, end)
                task_status.started()
                failures = FailureLines()
                while True:
                    try:
                        await self._poll(consumer, matches)
                        await self._add_queues(consumer, topic, expression, bound_at_ms)
                        failures = FailureLines()
                    except SkylarkError as error:
                        (logger.warning if failures.add(error) else logger.debug)(
                            "topic %s cannot be read now, trying again: %s", topic, error
                        )
                        await trio.sleep(self._backoff.pause_s(failures.count))

    async def _poll(self, consumer: PullConsumer, matches: Callable[[MessageExt], bool]) -> None:
        with trio.move_on_after(REFRESH_MS / 1000):
            while True:
                while len(self._waiting) >= MOST:
                    await self._taken.park()
                while self._mailbox is not None and len(self._mailbox) >= MOST:  # noqa: ASYNC110
                    await trio.sleep(FULL_PAUSE_S)
                messages = await consumer.poll(timeout_ms=REFRESH_MS, max_count=POLL_COUNT)
                now_ms = self._clock.now_ms()
                self._waiting.extend(
                    Received(self, message)
                    for message in messages
                    if matches(message) and not is_expired(message.properties, now_ms)
                )
                self._hand_over()

    async def _add_queues(self, consumer: PullConsumer, topic: str, expression: str, bound_at_ms: int) -> None:
        """Add the queues of a new broker, read from the moment of the binding on."""
        known = list(consumer.assignment())
        found = await consumer.message_queues(topic)
        if new := [queue for queue in found if queue not in known]:
            starts: dict[MessageQueue, int] = {queue: await consumer.search_offset(queue, bound_at_ms) for queue in new}
            # Keep queues of brokers that are away: found again later as new, they would be read from the binding on
            # once more.
            consumer.assign([*known, *new], expression=expression)
            for queue, start in starts.items():
                consumer.seek(queue, start)

"""`Popping`: a push consumer's part for topics that its group consumes by pop, as the broker's answer to 400 says.

An administrator chooses pop with `mqadmin setConsumeMode`. The broker assigns queues to pop from; queue -1 is any queue
of a broker. Popped messages are hidden from the group's other members: a consumed message is acknowledged, the lease of
a message that waits for its handler is renewed, and a failed message is shown again after a pause. So the broker keeps
the group's offset, and no member waits for another member. A message that this member loses, since the member ends or
the broker is away, comes again when its invisible time is over. Neighbours: rebalance.py (asks which queues), popped.py
(messages and their leases, and requests).
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import TypeVar

import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.signal import Signal
from skylark.remoting.protocol.requests.pops import INIT_MAX, INIT_MIN
from skylark.sdk.consumer import popped
from skylark.sdk.consumer.context import PushContext
from skylark.sdk.consumer.expression import Sql, text_and_type
from skylark.sdk.consumer.failures import DEAD, Returns
from skylark.sdk.consumer.outcome import ConsumeFrom
from skylark.sdk.consumer.popped import ReceivedMessage, bits_by_lease
from skylark.sdk.consumer.process_queue import FlowControl, ProcessQueue, Ready, Takable
from skylark.sdk.consumer.read_retry import read_with_retry
from skylark.sdk.consumer.reader import Reader
from skylark.sdk.consumer.retry_policy import Pause
from skylark.sdk.consumer.window import Batch, Window
from skylark.sdk.endpoint import Endpoint
from skylark.sdk.position import Position
from skylark.sdk.retry import is_transient, until_answered
from skylark.sdk.runtime import survived

logger = logging.getLogger(__name__)

T = TypeVar("T")

# RocketMQ's popInvisibleTime, popBatchNums and popThresholdForQueue.
INVISIBLE_MS = 60_000
POP_COUNT = 32
QUEUE_MESSAGES = 96
# Leases are checked this often, and renewed when less than half of their time is left.
LEASE_CHECK_S = 5.0
RENEW_S = INVISIBLE_MS / 1000 / 2
RENEWALS_AT_ONCE = 16
# Messages whose acknowledgements share a request.
ACKS_AT_ONCE = 1_000
ERROR_PAUSE_S = 1.0
# RocketMQ's popDelayLevel: the pause before a message that failed for the n-th time is shown again.
PAUSES_S = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1_200, 1_800, 3_600, 7_200)


class PopBatch(Batch):
    """The messages of one pop. ``renewed`` is trio's time at which their lease began.

    ``renewed`` is set to -inf when no broker answers a renewal, so that the next renewal is due at once. ``acked`` is
    called with consumed messages. ``live`` has the batches with messages that are not settled.
    """

    __slots__ = ("_acked", "_live", "renewed")

    is_leased = True

    def __init__(
        self,
        window: Window,
        messages: Sequence[ReceivedMessage],
        acked: Callable[[Sequence[ReceivedMessage]], None],
        live: "dict[PopBatch, None]",
    ) -> None:
        super().__init__(window, messages, 0, messages[0].held_bytes)
        self._acked = acked
        self._live = live
        self.renewed = trio.current_time()
        live[self] = None

    def finish(self, start: int, end: int) -> None:
        """Acknowledge the messages from number ``start`` up to, not including, ``end``, which are consumed."""
        if fresh := [self.popped(number) for number in range(start, end) if not self.done[number]]:
            self._acked(fresh)
        self._settle(start, end)

    def let_go(self, number: int) -> None:
        """Settle this message without acknowledging it: the broker delivers it again."""
        self._settle(number, number + 1)

    def leave(self, start: int, end: int) -> None:
        """Leave these messages to any member, which may pop them when their invisible time is over.

        While this member owns the queue they count as held here.
        """
        # While this member owns the queue the messages count: a consumer that stops would pop other messages in their
        # place.
        if self.window.is_closed:
            self._settle(start, end)

    def popped(self, number: int) -> ReceivedMessage:
        """A message that is not settled."""
        message = self.messages[number]
        assert isinstance(message, ReceivedMessage)
        return message

    def _settle(self, start: int, end: int) -> None:
        super().finish(start, end)
        if not self.left:
            self._live.pop(self, None)


class Popping:
    """Pops the queues ``owned`` of one member, acknowledges messages and renews their leases."""

    def __init__(
        self,
        context: PushContext,
        reader: Reader,
        flow: FlowControl,
        ready: Ready,
        returns: Returns,
    ) -> None:
        self._client = context.client
        self._settings = settings = context.settings
        self._reader = reader
        self._flow = flow
        self._ready = ready
        self._returns = returns
        self._counters = context.counters
        self._clock = context.clock
        self._init_mode = INIT_MIN if settings.consume_from is ConsumeFrom.FIRST_OFFSET else INIT_MAX
        self._live: dict[PopBatch, None] = {}
        # Messages, by `id`, whose lease is being changed: their acknowledgement waits for the new lease.
        self._changing: set[int] = set()
        # By topic and broker: messages to acknowledge, and the event that wakes the task which acknowledges them.
        self._acks: dict[MessageQueue, deque[ReceivedMessage]] = {}
        self._to_ack: dict[MessageQueue, Signal] = {}
        # Tasks that wait until acknowledgements are sent, or a lease has changed.
        self._settled = trio.lowlevel.ParkingLot()
        self._nursery: trio.Nursery | None = None
        self.owned: dict[MessageQueue, ProcessQueue] = {}

    @enable_ki_protection
    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Own the tasks of queues and acknowledgements, and renew leases."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            while True:
                await trio.sleep(LEASE_CHECK_S)
                with survived("renewing popped messages"):
                    await self._renew_all()

    def change(self, wanted: Mapping[MessageQueue, str | Sql], is_paused: Callable[[MessageQueue], bool]) -> None:
        """Pop from exactly the queues ``wanted``."""
        for mq in [mq for mq in self.owned if mq not in wanted]:
            self._give_up(self.owned.pop(mq))
        assert self._nursery is not None
        for mq, expression in wanted.items():
            queue = self.owned.get(mq)
            if queue is not None:
                queue.expression = expression
                continue
            queue = self.owned[mq] = self._flow.own(mq, expression, Position(0))
            queue.is_paused = is_paused(mq)
            self._nursery.start_soon(self._pop, queue)

    def set_paused(self, is_paused: Callable[[MessageQueue], bool]) -> None:
        """Pause queues, or let them be popped again."""
        for queue in self.owned.values():
            queue.is_paused = is_paused(queue.mq)
            queue.wake.set()

    async def stop(self) -> None:
        """Pop no more, and acknowledge what was consumed."""
        self.change({}, lambda mq: False)
        while any(self._acks.values()):
            await self._settled.park()

    # --- messages come

    @enable_ki_protection
    async def _pop(self, queue: ProcessQueue) -> None:
        while not queue.is_given_up:
            with survived(f"popping {queue.mq}"):
                await self._pop_all(queue)
            with trio.CancelScope() as queue.scope:
                await trio.sleep(ERROR_PAUSE_S)

    async def _pop_all(self, queue: ProcessQueue) -> None:
        while (count := await self._wait(queue)) > 0:
            ask = partial(self._ask_for, queue, min(count, POP_COUNT))
            try:
                found = await read_with_retry(
                    ask,
                    self._client.instance.backoff,
                    "a consumer that pops",
                    str(queue.mq),
                    lambda _: queue.is_given_up,
                )
            except SkylarkError as error:
                logger.info("%s was given up: %s", queue.mq, error)
                return
            queue.pulled_ms = self._clock.now_ms()
            tags = self._reader.tags_of(queue.expression)
            # The broker compares only hashes of tags. Messages with other tags are acknowledged, so that they do not
            # come again.
            others = [message for message in found if tags and message.tags not in tags]
            if others:
                self._finished(others)
                found = [message for message in found if message.tags in tags]
            if found:
                batch = PopBatch(queue.window, found, self._finished, self._live)
                queue.window.put(batch)
                if not queue.window.is_closed:
                    self._flow.added(batch)
                self._counters.pulled += len(found)
                self._ready.put(batch)

    async def _wait(self, queue: ProcessQueue) -> int:
        """Wait until the queue may be popped. Returns how many messages at most; 0 when the queue was given up."""
        with trio.CancelScope() as queue.scope:
            while not queue.is_given_up:
                count = await self._flow.wait(queue)
                if queue.window.messages < QUEUE_MESSAGES:
                    return count
                await queue.wake.wait()
        return 0

    async def _ask_for(self, queue: ProcessQueue, most: int) -> list[ReceivedMessage]:
        mq = queue.mq
        expression, kind = text_and_type(queue.expression)
        return await self._client.ask_master(
            mq,
            lambda at: popped.pop(
                at,
                self._settings.group,
                mq.topic,
                queue_id=mq.queue_id,
                most=most,
                invisible_ms=INVISIBLE_MS,
                wait_ms=self._settings.wait_ms,
                now_ms=self._clock.now_ms(),
                init_mode=self._init_mode,
                expression=expression,
                kind=kind,
                namespace=self._client.names.namespace,
            ),
        )

    def _give_up(self, queue: ProcessQueue) -> None:
        """Stop popping the queue. Messages that no handler has taken come again when their invisible time is over.

        A pop that the broker holds goes on. Its messages are handled here: they are hidden from all other members.
        """
        queue.is_given_up = True
        queue.scope.cancel()
        self._ready.drop(queue.window)
        self._flow.drop(queue)
        for batch in [batch for batch in self._live if batch.window is queue.window]:
            batch.leave(batch.taken, len(batch.done))

    # --- messages are acknowledged, given back, or their leases renewed

    def _finished(self, messages: Sequence[ReceivedMessage]) -> None:
        for message in messages:
            place = _place(message)
            if place not in self._acks:
                self._acks[place], self._to_ack[place] = deque(), Signal()
                assert self._nursery is not None
                self._nursery.start_soon(self._acknowledge, place)
            self._acks[place].append(message)
            self._to_ack[place].set()

    @enable_ki_protection
    async def _acknowledge(self, place: MessageQueue) -> None:
        """Acknowledge messages of one topic and broker: all messages that have gathered go with one request."""
        waiting, signal = self._acks[place], self._to_ack[place]
        while True:
            await signal.wait()
            signal.clear()
            # Messages whose lease is being changed are left for later: the change replaces the handle that acknowledges
            # them.
            while some := [message for message in waiting if id(message) not in self._changing][:ACKS_AT_ONCE]:
                with survived("acknowledging popped messages"):
                    await self._send_acks(place, some)
                sent = set(map(id, some))
                for _ in range(len(waiting)):
                    if id(message := waiting.popleft()) not in sent:
                        waiting.append(message)
            self._settled.unpark_all()

    async def _send_acks(self, place: MessageQueue, messages: Sequence[ReceivedMessage]) -> None:
        bits = bits_by_lease(messages)
        if not bits:
            return
        try:
            await self._ask(place, lambda at: popped.acknowledge(at, bits))
        except SkylarkError as error:
            logger.warning("%d messages of %s are not acknowledged, they come again: %s", len(messages), place, error)

    async def give_back(
        self, batch: Takable, number: int, message: ReceivedMessage, pause: Pause | None, reason: str
    ) -> None:
        """Show a message that a handler failed with again after ``pause``, or make it a dead letter (None)."""
        assert isinstance(batch, PopBatch)
        # The dead letter is stored before the message is acknowledged: a crash in between leaves two copies, never
        # none.
        if pause is None or message.reconsume_times >= self._settings.max_reconsume_times:
            if await self._returns.send_back(_place(message), message, DEAD, reason):
                batch.finish(number, number + 1)
                return
            pause = Pause(0, None)
        of_level = PAUSES_S[min(pause.level or message.reconsume_times, len(PAUSES_S) - 1)] * 1000
        # A renewal of the lease is in flight. A second change would name a handle that the broker has just replaced.
        while id(message) in self._changing:
            await self._settled.park()
        await self._change_time(message, of_level if pause.ms is None else round(pause.ms))
        batch.let_go(number)

    async def _renew_all(self) -> None:
        """Renew the leases of messages that wait for a handler, or whose handler works."""
        now = trio.current_time()
        due: dict[int, tuple[PopBatch, ReceivedMessage]] = {}
        for batch in self._live:
            if now - batch.renewed >= RENEW_S:
                batch.renewed = now
                for number in range(len(batch.done)):
                    if not batch.done[number]:
                        message = batch.popped(number)
                        # The messages of an inner batch have one lease.
                        due.setdefault(id(message.whole or message), (batch, message))
        limiter = trio.CapacityLimiter(RENEWALS_AT_ONCE)
        async with trio.open_nursery() as nursery:
            for batch, message in due.values():
                nursery.start_soon(self._renew, batch, message, limiter)

    @enable_ki_protection
    async def _renew(self, batch: PopBatch, message: ReceivedMessage, limiter: trio.CapacityLimiter) -> None:
        async with limiter:
            if (
                id(message) not in self._changing
                and message not in self._acks.get(_place(message), ())
                and not await self._change_time(message, INVISIBLE_MS)
            ):
                # Renew again at the next check. After RENEW_S the lease would be over.
                batch.renewed = -inf

    async def _change_time(self, message: ReceivedMessage, invisible_ms: int) -> bool:
        """Change the message's invisible time. Returns whether a broker has answered, even with a refusal."""
        lease, offset = message.lease, message.leased_offset
        changed = {id(each) for each in (message.whole.messages if message.whole else [message])}
        self._changing |= changed
        try:
            message.renew(
                await self._ask(
                    _place(message), lambda at: popped.change_invisible_time(at, lease, offset, invisible_ms)
                )
            )
        except SkylarkError as error:
            logger.info("the invisible time of %s is as it was: %s", message.msg_id, error)
            return not is_transient(error)
        else:
            return True
        finally:
            self._changing -= changed
            self._settled.unpark_all()
            if (signal := self._to_ack.get(_place(message))) is not None:
                signal.set()

    async def _ask(self, place: MessageQueue, call: Callable[[Endpoint], Awaitable[T]]) -> T:
        """The answer of the place's master; waits for the master within the timeout."""
        client = self._client
        return await until_answered(lambda: client.ask_master(place, call), client.timeout_ms, client.instance.backoff)


def _place(message: ReceivedMessage) -> MessageQueue:
    """The topic and broker where the message is acknowledged, as a queue; names as servers know them."""
    return MessageQueue(message.lease.topic, message.lease.broker_name, 0)

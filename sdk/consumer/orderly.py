"""Orderly consumption: one task for each queue, which handles its messages one after another.

A message that fails is tried again after ``suspend_ms``; later messages of its queue wait meanwhile. After
``max_reconsume_times`` failures it becomes a dead letter, and the queue goes on. Each message of a failed batch has its
own count. The handler is called only while the lock of the queue is certain.
"""

from collections.abc import Mapping, Sequence

import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.clock import Clock
from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.consumer.damaged import is_damaged, undamaged
from skylark.sdk.consumer.decompression import drop_contents
from skylark.sdk.consumer.failures import DEAD, KEPT_S, Counters, HandlerErrors, Returns, after_last_try, count_drop
from skylark.sdk.consumer.outcome import ConsumeResult, Later, Result, failure_of
from skylark.sdk.consumer.process_queue import FlowControl, ProcessQueue
from skylark.sdk.consumer.retry_policy import Failure, Fate
from skylark.sdk.consumer.settings import PushSettings
from skylark.sdk.consumer.slow_handlers import SlowHandlers
from skylark.sdk.consumer.window import Batch
from skylark.sdk.consumer.workers import CHECKS_PER_TIMEOUT, ForeignHandlers, call_handler


class Orderly:
    """Handles the messages of all queues of one consumer, of ``concurrency`` queues at a time."""

    def __init__(
        self,
        settings: PushSettings,
        flow: FlowControl,
        returns: Returns,
        counters: Counters,
        errors: HandlerErrors,
        clock: Clock,
    ) -> None:
        self._errors = errors
        self._settings = settings
        self._flow = flow
        self._returns = returns
        self._counters = counters
        self._clock = clock
        self._limiter = trio.CapacityLimiter(settings.concurrency)
        self._most = 1 if settings.handler is not None else settings.batch_size
        # Of each running call: when it began, and its first message.
        self._calls: dict[MessageQueue, tuple[float, MessageExt]] = {}

    @enable_ki_protection
    async def watch(self) -> None:
        """Log slow handlers, and handlers that block the loop of a facade's user."""
        handlers = self._settings.handler or self._settings.batch_handler
        slow = SlowHandlers(self._settings)
        while True:
            await trio.sleep(self._settings.consume_timeout_ms / 1000 / CHECKS_PER_TIMEOUT)
            if isinstance(handlers, ForeignHandlers):
                handlers.look_at_loop()
            slow.check([(mq, *call) for mq, call in self._calls.items()], trio.current_time())

    def put(self, batch: Batch) -> None:
        """Have the messages of ``batch`` handled after the earlier ones of its queue."""
        queue = self._flow.queue_of(batch.window)
        queue.batches.append(batch)
        queue.work.set()

    @enable_ki_protection
    async def serve(self, queue: ProcessQueue) -> None:
        """Handle the messages of ``queue`` until it is given up."""
        while not queue.is_given_up:
            if not queue.batches:
                await queue.work.wait()
                continue
            # Giving the queue up takes this lock first, so that the running call ends before the queue is unlocked.
            async with queue.working:
                pause_s = await self._handle_next(queue)
            if pause_s:
                with trio.move_on_after(pause_s):
                    await self._given_up(queue)
            else:
                await trio.lowlevel.checkpoint()

    async def _given_up(self, queue: ProcessQueue) -> None:
        while not queue.is_given_up:
            await queue.work.wait()

    async def _handle_next(self, queue: ProcessQueue) -> float:
        """Handle the next messages. Returns how long to wait before the same messages are tried again; 0 to go on."""
        suspend_s = self._settings.suspend_ms / 1000
        async with self._limiter:
            # Check the lock last, after a slot to run is held: during the wait for the slot the lock may have run out,
            # and another member may handle the same messages.
            if queue.is_given_up or trio.current_time() >= queue.locked_until:
                return suspend_s
            batch = queue.batches[0]
            start = batch.taken
            end = min(start + self._most, len(batch.done))
            # Messages that are done were made dead letters, while the other messages of the batch are tried again.
            left = {number: batch.messages[number] for number in range(start, end) if not batch.done[number]}
            messages = list(left.values())
            totals, began = queue.window.totals, trio.current_time()
            self._calls[queue.mq] = began, messages[0]
            try:
                outcome = await self._call(messages, queue.mq)
            finally:
                self._calls.pop(queue.mq, None)
            totals.add_calls(1, 0, began, trio.current_time())
            drop_contents(messages)
        queue.consumed_ms = self._clock.now_ms()
        if outcome is ConsumeResult.SUSPEND:
            return suspend_s
        pause_s = 0.0
        if isinstance(outcome, Failure):
            pause_s = await self._failed(batch, left, outcome)
        else:
            self._counters.consumed += len(messages)
            totals.consumed += len(messages)
            if self._errors.is_failing:
                self._errors.succeeded()
            batch.finish(start, end)
        if batch.left:
            batch.taken = batch.first_left
        else:
            queue.batches.popleft()
        return pause_s

    async def _failed(self, batch: Batch, messages: Mapping[int, MessageExt], failure: Failure) -> float:
        """The handler has not consumed ``messages`` (by number in ``batch``). Returns the same as `_handle_next`."""
        settings, totals = self._settings, batch.window.totals
        for number in [number for number, message in messages.items() if is_damaged(message, batch.window.mq)]:
            self._counters.dropped += 1
            batch.finish(number, number + 1)
        messages = {number: message for number, message in messages.items() if not batch.done[number]}
        fate = settings.retry.fate(failure.error)
        if fate is not Fate.DROP:
            self._counters.failed += len(messages)
            totals.failed += len(messages)
        # Count the failures of each message: a message that replaced a settled message in the batch has failed less
        # often.
        again = {
            number: message
            for number, message in messages.items()
            if fate is Fate.RETRY and message.reconsume_times < settings.max_reconsume_times
        }
        pause_s = 0.0
        if again:
            pause = settings.retry.pause(next(iter(again.values())).reconsume_times)
            pause_s = (settings.suspend_ms if pause.ms is None else pause.ms) / 1000
        for message in again.values():
            message.count_failure()
        # One by one: a message that the broker has taken is settled, even if the broker refuses the next message.
        for number, message in messages.items():
            if number in again:
                continue
            if fate is Fate.DROP:
                count_drop(self._counters, message, failure.reason)
            elif not await self._returns.send_back(batch.window.mq, message, DEAD, failure.reason):
                return KEPT_S
            batch.finish(number, number + 1)
        return pause_s

    async def _call(self, messages: Sequence[MessageExt], mq: MessageQueue) -> ConsumeResult | Failure:
        timeout_ms = self._settings.consume_timeout_ms
        result: Result = None
        try:
            with trio.move_on_after(timeout_ms / 1000) as scope:
                result = await call_handler(self._settings, messages)
        except Exception as error:
            if readable := undamaged(messages, mq):
                self._errors.raised(readable, error, self._what_next(readable[0], error))
            return Failure.raised(error)
        if scope.cancelled_caught:
            if not (readable := undamaged(messages, mq)):
                return Failure("")
            what_next = f"the handler is cancelled; {self._what_next(readable[0], None)}"
            return self._errors.took_too_long(readable[0], timeout_ms, what_next)
        if result is ConsumeResult.LATER or isinstance(result, Later):
            return failure_of(result)
        return result or ConsumeResult.SUCCESS

    def _what_next(self, message: MessageExt, error: BaseException | None) -> str:
        """For the log: what happens to a message on which the handler failed."""
        settings = self._settings
        fate = settings.retry.fate(error)
        if fate is not Fate.RETRY:
            return fate.value
        if message.reconsume_times < settings.max_reconsume_times:
            pause_ms = settings.retry.pause(message.reconsume_times).ms or settings.suspend_ms
            return f"the message is tried again in {pause_ms} ms, and its queue waits for it"
        return after_last_try(settings, message)

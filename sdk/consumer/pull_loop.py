"""The pulls of a push consumer: a task for each queue, which pulls while flow control allows it, for handlers."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.message.properties import RETRY_TOPIC
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.consumer.context import PushContext
from skylark.sdk.consumer.damaged import undamaged
from skylark.sdk.consumer.process_queue import FlowControl, ProcessQueue
from skylark.sdk.consumer.read_retry import Report, pull_with_retry
from skylark.sdk.consumer.reader import PullResult, Reader
from skylark.sdk.consumer.window import Batch
from skylark.sdk.runtime import survived

# The pause after an error that nobody expected, such as an answer that cannot be decoded.
ERROR_PAUSE_S = 1.0
# After a pull with at most this many messages, handlers begin before the next pull is sent: the consumer has been
# waiting for messages, and sending the pull first would add to their latency.
FEW_MESSAGES = 8


class PullLoop:
    """Pulls the queues of one consumer; ``put`` gets each batch. ``reset`` moves queues to other offsets."""

    def __init__(
        self,
        context: PushContext,
        reader: Reader,
        flow: FlowControl,
        put: Callable[[Batch], None],
        reset: Callable[[Mapping[MessageQueue, int]], None],
    ) -> None:
        self._settings = context.settings
        self._instance = context.client.instance
        self._names = context.client.names
        self._reader = reader
        self._flow = flow
        self._counters = context.counters
        self._problems = context.problems
        self._clock = context.clock
        self._put = put
        self._reset = reset

    @enable_ki_protection
    async def pull(self, queue: ProcessQueue) -> None:
        """Pull the queue until its scope is cancelled."""
        what = f"pulling {queue.mq}"
        report = self._problems.reporter(what)
        try:
            with queue.scope:
                while True:
                    # An error that nobody expected, such as damage in an answer, must stop neither this queue nor the
                    # others.
                    with survived(what, report):
                        await self._pull_all(queue, report)
                    await trio.sleep(ERROR_PAUSE_S)
        finally:
            report(None)

    async def _pull_all(self, queue: ProcessQueue, report: Report) -> None:
        window = queue.window
        while True:
            count = await self._flow.wait(queue)
            pull = partial(self._pull, queue, count)
            backoff = self._instance.backoff
            result = await pull_with_retry(pull, window.next_offset, backoff, str(queue.mq), _goes_on, report)
            queue.pulled_ms = self._clock.now_ms()
            # The queue may have been given up, or moved to another offset, during the pull. Then the messages belong to
            # the next owner, or to the new window.
            if window.is_closed or queue.is_given_up:
                return
            if result.is_made_again:
                # The messages in memory are of the topic that had the name before. Their offsets do not exist in the
                # new queue.
                self._reset({queue.mq: result.next_offset})
                return
            if result.messages:
                self._hand_over(queue, result)
                if len(result.messages) <= FEW_MESSAGES:
                    # The handler first, then the next pull. There are two checkpoints, as trio runs the tasks of a turn
                    # in any order: after the first checkpoint the handler may not have begun yet.
                    await trio.lowlevel.checkpoint()
                    await trio.lowlevel.checkpoint()
            elif result.next_offset < window.next_offset:
                # The group was set back. Committing the messages in memory as consumed would undo that.
                self._reset({queue.mq: result.next_offset})
                return
            else:
                window.next_offset = result.next_offset

    async def _pull(self, queue: ProcessQueue, count: int, offset: int) -> PullResult:
        began = trio.current_time()
        result = await self._reader.pull(
            queue.mq,
            offset,
            max_count=count,
            max_bytes=self._settings.pull_bytes,
            expression=queue.expression,
            wait_ms=self._settings.wait_ms,
            trail=queue.trail,
        )
        if queue.mq.topic == self._settings.retry_topic or self._names.namespace:
            # Their topics are shown as others, for which they must be read.
            result = replace(result, messages=undamaged(result.messages, queue.mq))
        if result.messages:
            totals = queue.window.totals
            totals.pulls += 1
            totals.pull_s += trio.current_time() - began
            totals.pulled += len(result.messages)
        return result

    def _hand_over(self, queue: ProcessQueue, result: PullResult) -> None:
        messages = result.messages
        if queue.mq.topic == self._settings.retry_topic:
            for message in messages:
                _show_real_topic(message)
        if self._names.namespace:
            for message in messages:
                message.show_topic(self._names.plain(message.topic))
        # All messages of a pull keep its bytes in memory, so they count as one batch until the last of them is
        # consumed.
        batch = queue.window.add(messages, result.next_offset, messages[0].held_bytes)
        self._flow.added(batch)
        self._counters.pulled += len(messages)
        self._put(batch)


def _goes_on(_: Exception) -> bool:
    return False


def _show_real_topic(message: MessageExt) -> None:
    """Give a retried message the topic that it was first sent to."""
    topic = message.properties.get(RETRY_TOPIC)
    if topic:
        message.show_topic(topic)

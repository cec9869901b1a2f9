"""A consumer as brokers see it: its part of heartbeats, and its answers to requests of brokers, such as 307.

`PullMember` stands for a pull or simple consumer, `PushMember` for a push consumer.
"""

from collections.abc import Callable, Mapping
from math import isinf

import trio

from skylark.mqcommon.errors import BrokerError, RequestRefused, SkylarkError
from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.clients import (
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    PopProcessQueueInfo,
    ProcessQueueInfo,
    SubscriptionData,
)
from skylark.sdk.consumer.context import PushContext
from skylark.sdk.consumer.expression import Sql, subscription_to
from skylark.sdk.consumer.outcome import ConsumeResult
from skylark.sdk.consumer.ownership import CERTAIN_S
from skylark.sdk.consumer.process_queue import ProcessQueue
from skylark.sdk.consumer.rates import Rates
from skylark.sdk.consumer.settings import PushSettings
from skylark.sdk.consumer.workers import call_handler


class PullMember:
    """One `PullConsumer` or `SimpleConsumer` as a member of ``group``; see `skylark.sdk.membership.Consumer`."""

    def __init__(
        self,
        group: str,
        consume_from: str,
        nameserver: Callable[[], str],
        started_ms: int,
        consume_type: str = "CONSUME_ACTIVELY",
    ) -> None:
        self._group = group
        self._consume_from = consume_from
        self._nameserver = nameserver
        self._consume_type = consume_type
        self._properties = {
            "PROP_CONSUME_TYPE": consume_type,
            "PROP_CONSUMEORDERLY": "false",
            "PROP_CLIENT_VERSION": "V5_3_3",
            "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
        }
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._committed: dict[MessageQueue, int] = {}

    def listen_to(self, topic: str, expression: str | Sql) -> bool:
        """Add ``topic`` to the heartbeats; returns whether it is new. Of several expressions the first one is kept."""
        # Members of a group must agree on one expression for a topic, and a heartbeat has room for one expression. Each
        # pull carries its own expression, so the other expressions work all the same.
        if topic in self._subscriptions:
            return False
        self._subscriptions[topic] = subscription_to(topic, expression)
        return True

    def committed(self, mq: MessageQueue, offset: int) -> None:
        """Note that the caller has committed ``offset``."""
        self._committed[mq] = offset

    def heartbeat_data(self) -> ConsumerData:
        """This member's part of a heartbeat."""
        return ConsumerData(
            group_name=self._group,
            consume_type=self._consume_type,
            message_model="CLUSTERING",
            consume_from_where=self._consume_from,
            subscription_data_set=list(self._subscriptions.values()),
        )

    def running_info(self) -> ConsumerRunningInfo:
        """The status of this member. It lists no queues: the caller chooses them at each pull."""
        return ConsumerRunningInfo(
            properties={"PROP_NAMESERVER_ADDR": self._nameserver(), **self._properties},
            subscription_set=list(self._subscriptions.values()),
        )

    def heard(self, addr: str, error: BrokerError | None) -> None:
        """Does nothing: a broker that refuses heartbeats refuses the caller's requests, too."""

    def divided(self, differences: str) -> None:
        """Does nothing: the client logs the differences."""

    def members_changed(self) -> None:
        """Does nothing: a pull consumer does not share queues with other members."""

    def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Refused: only the caller of a pull consumer, and only the broker of a simple one, knows where it reads."""
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "a pull consumer chooses its own offsets; a simple has none")

    def queue_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """The offsets that the caller has committed."""
        return {mq: offset for mq, offset in self._committed.items() if mq.topic == topic}

    async def consume_directly(self, message: MessageExt) -> ConsumeMessageDirectlyResult:
        """Refused: there is no handler."""
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "this kind of consumer has no handler to give a message to")


_MIB = 1024 * 1024


class PushMember:
    """One `PushConsumer` as a member of its group; see `skylark.sdk.membership.Consumer`."""

    def __init__(
        self,
        context: PushContext,
        subscriptions: Mapping[str, str | Sql],
        owned: Mapping[MessageQueue, ProcessQueue],
        popped: Mapping[MessageQueue, ProcessQueue],
        members_changed: Callable[[], None],
        reset: Callable[[Mapping[MessageQueue, int]], None],
        rates: Rates,
    ) -> None:
        self._problems = context.problems
        self._settings = settings = context.settings
        self._clock = context.clock
        # (topic, expression) → what heartbeats carry. Its version is its creation time: brokers ignore older versions.
        self._data: dict[tuple[str, str | Sql], SubscriptionData] = {}
        self._subscriptions = subscriptions
        self._owned = owned
        self._popped = popped
        self._members_changed = members_changed
        self._reset = reset
        self._rates = rates
        self._properties = {
            "PROP_NAMESERVER_ADDR": ";".join(context.client.instance.nameserver_addrs),
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_CONSUMEORDERLY": str(settings.orderly).lower(),
            "PROP_THREADPOOL_CORE_SIZE": str(settings.concurrency),
            "PROP_CLIENT_VERSION": "V5_3_3",
            "PROP_CONSUMER_START_TIMESTAMP": str(context.clock.now_ms()),
            "consumeConcurrentlyMaxSpan": str(settings.max_queue_messages),
            "consumeMessageBatchMaxSize": str(settings.batch_size),
            "maxReconsumeTimes": str(settings.max_reconsume_times),
            "pullThresholdForQueue": str(settings.max_queue_messages),
        }

    def heartbeat_data(self) -> ConsumerData:
        """This member's part of a heartbeat."""
        return ConsumerData(
            group_name=self._settings.group,
            consume_type="CONSUME_PASSIVELY",
            message_model="BROADCASTING" if self._settings.broadcast else "CLUSTERING",
            consume_from_where=self._settings.consume_from.value,
            subscription_data_set=self._subscription_data(),
        )

    def running_info(self) -> ConsumerRunningInfo:
        """The settings and queues of this member, and its rates by topic."""
        now_ms, now = self._clock.now_ms(), trio.current_time()
        return ConsumerRunningInfo(
            properties=dict(self._properties),
            subscription_set=self._subscription_data(),
            mq_table={mq: _queue_info(queue, now_ms) for mq, queue in self._owned.items()},
            mq_pop_table={
                mq: PopProcessQueueInfo(queue.window.messages, last_pop_timestamp=queue.pulled_ms)
                for mq, queue in self._popped.items()
            },
            status_table={topic: self._rates.status(topic, now) for topic in self._subscriptions},
        )

    def heard(self, addr: str, error: BrokerError | None) -> None:
        """Report that a broker refuses heartbeats with ``error``, and so gives no messages; None: it accepts them."""
        self._problems.report(f"heartbeats to {addr}", error)

    def divided(self, differences: str) -> None:
        """Report that members have different subscriptions; ``differences`` is empty when they agree again."""
        text = f"members have different subscriptions, so some messages reach nobody: {differences}"
        self._problems.report(f"group {self._settings.group}", SkylarkError(text) if differences else None)

    def members_changed(self) -> None:
        """Divide the queues again: the group has other members now."""
        self._members_changed()

    def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Seek the queues that this member owns to the given offsets."""
        # Each member of a broadcasting group has offsets of its own, so the brokers' offsets do not matter to it.
        if self._settings.broadcast:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "a broadcasting consumer keeps its own offsets")
        self._reset({mq: offset for mq, offset in offsets.items() if mq.topic == topic})

    def queue_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """The offsets of this member's queues, as they will be committed."""
        return {mq: queue.window.offset for mq, queue in self._owned.items() if mq.topic == topic}

    async def consume_directly(self, message: MessageExt) -> ConsumeMessageDirectlyResult:
        """Give one message to the handler."""
        if self._settings.is_stream:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "a stream has no handler to give a message to")
        # The message belongs to no queue of this member: nothing is acknowledged, retried or committed for it.
        started = trio.current_time()
        answer = await consumed_directly(self._settings, message)
        answer.spent_time_mills = round((trio.current_time() - started) * 1000)
        return answer

    def _subscription_data(self) -> list[SubscriptionData]:
        known, now_ms = self._data, self._clock.now_ms()
        self._data = {
            # Unchanged subscriptions keep their version: with a new version brokers would treat them as changed.
            pair: known.get(pair) or subscription_to(*pair, sub_version=now_ms)
            for pair in self._subscriptions.items()
        }
        return list(self._data.values())


def _queue_info(queue: ProcessQueue, now_ms: int) -> ProcessQueueInfo:
    window, locked_for_s = queue.window, queue.locked_until - trio.current_time()
    return ProcessQueueInfo(
        commit_offset=window.offset if queue.committed is None else queue.committed.offset,
        cached_msg_min_offset=window.offset if window.messages else 0,
        cached_msg_max_offset=window.next_offset - 1 if window.messages else 0,
        cached_msg_count=window.messages,
        cached_msg_size_in_mib=window.size_bytes // _MIB,
        last_pull_timestamp=queue.pulled_ms,
        last_consume_timestamp=queue.consumed_ms,
        locked=locked_for_s > 0,
        # The queue stores the end of its lock; the lock was renewed CERTAIN_S before that end.
        last_lock_timestamp=0 if isinf(locked_for_s) else now_ms - round((CERTAIN_S - locked_for_s) * 1000),
    )


async def consumed_directly(settings: PushSettings, message: MessageExt) -> ConsumeMessageDirectlyResult:
    """Call the handler with ``message`` and return the result in RocketMQ's words. A failure has no other effect."""
    answer = ConsumeMessageDirectlyResult(order=settings.orderly)
    try:
        result = await call_handler(settings, [message])
    except Exception as error:
        answer.consume_result = "CR_THROW_EXCEPTION"
        answer.remark = f"{type(error).__name__}: {error}"
    else:
        is_consumed = result is None or result is ConsumeResult.SUCCESS
        answer.consume_result = "CR_SUCCESS" if is_consumed else "CR_LATER"
    return answer

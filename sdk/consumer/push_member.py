"""A push consumer as brokers see it: its part of heartbeats, and its answer to code 307 (consumer status)."""

from collections.abc import Callable, Mapping
from math import isinf

import trio

from mqcommon.clock import Clock
from mqcommon.errors import BrokerError, RequestRefused, SkylarkError
from mqcommon.message.message import MessageExt
from mqcommon.message.queue import MessageQueue
from remoting.protocol.codes import ResponseCode
from remoting.protocol.requests.clients import (
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    PopProcessQueueInfo,
    ProcessQueueInfo,
    SubscriptionData,
)
from sdk.consumer.calling import consumed_directly
from sdk.consumer.expression import Sql, subscription_to
from sdk.consumer.locks import CERTAIN_S
from sdk.consumer.owned import OwnedQueue
from sdk.consumer.problems import Problems
from sdk.consumer.rates import Rates
from sdk.consumer.settings import Settings

_MIB = 1024 * 1024


class PushMember:
    """One `PushConsumer` as a member of its group; see `sdk.membership.Consumer`."""

    def __init__(
        self,
        settings: Settings,
        nameserver: str,
        clock: Clock,
        subscriptions: Mapping[str, str | Sql],
        owned: Mapping[MessageQueue, OwnedQueue],
        popped: Mapping[MessageQueue, OwnedQueue],
        members_changed: Callable[[], None],
        reset: Callable[[Mapping[MessageQueue, int]], None],
        rates: Rates,
        problems: Problems,
    ) -> None:
        self._problems = problems
        self._settings = settings
        self._clock = clock
        # (topic, expression) → what heartbeats carry. Its version is the time when it was made: brokers ignore older.
        self._data: dict[tuple[str, str | Sql], SubscriptionData] = {}
        self._subscriptions = subscriptions
        self._owned = owned
        self._popped = popped
        self._members_changed = members_changed
        self._reset = reset
        self._rates = rates
        self._properties = {
            "PROP_NAMESERVER_ADDR": nameserver,
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_CONSUMEORDERLY": str(settings.orderly).lower(),
            "PROP_THREADPOOL_CORE_SIZE": str(settings.concurrency),
            "PROP_CLIENT_VERSION": "V5_3_3",
            "PROP_CONSUMER_START_TIMESTAMP": str(clock.now_ms()),
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
        """A broker that refuses heartbeats gives this member no messages."""
        self._problems.note(f"heartbeats to {addr}", error)

    def divided(self, differences: str) -> None:
        """The members of the group have different subscriptions, or not any more."""
        text = f"members have different subscriptions, so messages reach nobody: {differences}"
        self._problems.note(f"group {self._settings.group}", SkylarkError(text) if differences else None)

    def members_changed(self) -> None:
        """The group has other members now."""
        self._members_changed()

    def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Read those of these queues that are this member's from these offsets on."""
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
        started = trio.current_time()
        answer = await consumed_directly(self._settings, message)
        answer.spent_time_mills = round((trio.current_time() - started) * 1000)
        return answer

    def _subscription_data(self) -> list[SubscriptionData]:
        known, now_ms = self._data, self._clock.now_ms()
        self._data = {
            pair: known.get(pair) or subscription_to(*pair, sub_version=now_ms) for pair in self._subscriptions.items()
        }
        return list(self._data.values())


def _queue_info(queue: OwnedQueue, now_ms: int) -> ProcessQueueInfo:
    window, locked_for_s = queue.window, queue.locked_until - trio.current_time()
    return ProcessQueueInfo(
        commit_offset=queue.window.offset if queue.committed is None else queue.committed,
        cached_msg_min_offset=window.offset if window.messages else 0,
        cached_msg_max_offset=window.next_offset - 1 if window.messages else 0,
        cached_msg_count=window.messages,
        cached_msg_size_in_mib=window.size_bytes // _MIB,
        last_pull_timestamp=queue.pulled_ms,
        last_consume_timestamp=queue.consumed_ms,
        locked=locked_for_s > 0,
        last_lock_timestamp=0 if isinf(locked_for_s) else now_ms - round((CERTAIN_S - locked_for_s) * 1000),
    )

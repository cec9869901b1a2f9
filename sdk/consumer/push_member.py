"""A push consumer as brokers see it: its part of heartbeats, and its answer to code 307 (consumer status)."""

from collections.abc import Callable, Mapping

import trio

from mqcommon.clock import Clock
from mqcommon.errors import RequestRefused
from mqcommon.message.message import MessageExt
from mqcommon.message.queue import MessageQueue
from remoting.protocol.bodies.consume_result import ConsumeMessageDirectlyResult
from remoting.protocol.bodies.heartbeat import ConsumerData, SubscriptionData
from remoting.protocol.bodies.running_info import ConsumerRunningInfo, PopProcessQueueInfo, ProcessQueueInfo
from remoting.protocol.codes import ResponseCode
from sdk.consumer.calling import consumed_directly
from sdk.consumer.expression import Sql, subscription_to
from sdk.consumer.owned import OwnedQueue
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
    ) -> None:
        self._settings = settings
        self._clock = clock
        # (topic, expression) → what heartbeats carry. Its version is the time when it was made: brokers ignore older.
        self._data: dict[tuple[str, str | Sql], SubscriptionData] = {}
        self._subscriptions = subscriptions
        self._owned = owned
        self._popped = popped
        self._members_changed = members_changed
        self._reset = reset
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
        """The settings and queues of this member."""
        return ConsumerRunningInfo(
            properties=dict(self._properties),
            subscription_set=self._subscription_data(),
            mq_table={mq: _queue_info(queue) for mq, queue in self._owned.items()},
            mq_pop_table={
                mq: PopProcessQueueInfo(queue.window.messages, last_pop_timestamp=queue.pulled_ms)
                for mq, queue in self._popped.items()
            },
        )

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


def _queue_info(queue: OwnedQueue) -> ProcessQueueInfo:
    window = queue.window
    return ProcessQueueInfo(
        commit_offset=queue.window.offset if queue.committed is None else queue.committed,
        cached_msg_min_offset=window.offset if window.messages else 0,
        cached_msg_max_offset=window.next_offset - 1 if window.messages else 0,
        cached_msg_count=window.messages,
        cached_msg_size_in_mib=window.size_bytes // _MIB,
        last_pull_timestamp=queue.pulled_ms,
        last_consume_timestamp=queue.consumed_ms,
        locked=queue.locked_until > trio.current_time(),
    )

"""What a consumer says about itself (307)."""

from dataclasses import dataclass

from mqcommon.message.queue import MessageQueue
from remoting.protocol.bodies.body import Body, member
from remoting.protocol.bodies.heartbeat import SubscriptionData
from remoting.protocol.bodies.kinds import FLAG, INT, LONG, REAL, TEXT, body_of, list_of, map_by_queue, map_of


@dataclass(slots=True)
class ProcessQueueInfo(Body):
    """One queue that the consumer works on. ``droped`` is RocketMQ's spelling."""

    commit_offset: int = member(LONG, 0)
    cached_msg_min_offset: int = member(LONG, 0)
    cached_msg_max_offset: int = member(LONG, 0)
    cached_msg_count: int = member(INT, 0)
    cached_msg_size_in_mib: int = member(INT, 0, wire="cachedMsgSizeInMiB")
    transaction_msg_min_offset: int = member(LONG, 0)
    transaction_msg_max_offset: int = member(LONG, 0)
    transaction_msg_count: int = member(INT, 0)
    locked: bool = member(FLAG, False)
    try_unlock_times: int = member(LONG, 0)
    last_lock_timestamp: int = member(LONG, 0)
    droped: bool = member(FLAG, False)
    last_pull_timestamp: int = member(LONG, 0)
    last_consume_timestamp: int = member(LONG, 0)


@dataclass(slots=True)
class PopProcessQueueInfo(Body):
    """One queue that the consumer pops from."""

    wait_ack_count: int = member(INT, 0)
    droped: bool = member(FLAG, False)
    last_pop_timestamp: int = member(LONG, 0)


@dataclass(slots=True)
class ConsumeStatus(Body):
    """Rates of one topic."""

    pull_rt: float = member(REAL, 0.0, wire="pullRT")
    pull_tps: float = member(REAL, 0.0, wire="pullTPS")
    consume_rt: float = member(REAL, 0.0, wire="consumeRT")
    consume_ok_tps: float = member(REAL, 0.0, wire="consumeOKTPS")
    consume_failed_tps: float = member(REAL, 0.0, wire="consumeFailedTPS")
    consume_failed_msgs: int = member(LONG, 0)


@dataclass(slots=True)
class ConsumerRunningInfo(Body):
    """Settings, queues and rates of one consumer."""

    properties: dict[str, str] = member(map_of(TEXT))
    subscription_set: list[SubscriptionData] = member(list_of(body_of(SubscriptionData)))
    mq_table: dict[MessageQueue, ProcessQueueInfo] = member(map_by_queue(body_of(ProcessQueueInfo)))
    mq_pop_table: dict[MessageQueue, PopProcessQueueInfo] = member(map_by_queue(body_of(PopProcessQueueInfo)))
    status_table: dict[str, ConsumeStatus] = member(map_of(body_of(ConsumeStatus)))
    user_consumer_info: dict[str, str] = member(map_of(TEXT))
    jstack: str | None = member(TEXT, None)

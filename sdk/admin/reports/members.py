"""The clients of groups: connections, the work that members report, and how members of a group disagree."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Final

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.clients import (
    Connection,
    ConsumerRunningInfo,
    PopProcessQueueInfo,
    ProcessQueueInfo,
    SubscriptionData,
)
from skylark.sdk.admin.reports.problems import OnProblem, OnProgress, ask_each, report_unanswered
from skylark.sdk.admin.reports.report import OPTIONAL, named
from skylark.sdk.admin.reports.versions import version_name

if TYPE_CHECKING:
    from skylark.sdk.admin.client import Admin

#: A queue with messages in memory counts as stuck when its consumer has consumed none for this time; RocketMQ's.
STUCK_MS: Final = 60_000


@lazy_dataclass(frozen=True, slots=True)
class ConnectedClient:
    """A client of a group, as brokers see its connection."""

    client_id: str
    client_addr: str
    language: str
    #: RocketMQ's number, and its name, as V5_3_3.
    version: int
    version_name: str = field(metadata=named("versionDesc"))


@lazy_dataclass(frozen=True, slots=True)
class SubscribedTopic:
    """A consumer's subscription to a topic."""

    topic: str
    expression: str = field(metadata=named("subExpression"))
    #: TAG or SQL92.
    expression_type: str


@lazy_dataclass(frozen=True, slots=True)
class ConsumerConnections:
    """The connected members of a consumer group, and their subscriptions."""

    group: str = field(metadata=named("consumerGroup"))
    connections: tuple[ConnectedClient, ...] = ()
    subscriptions: tuple[SubscribedTopic, ...] = ()
    #: In RocketMQ's words, as CONSUME_PASSIVELY, CLUSTERING and CONSUME_FROM_LAST_OFFSET.
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""


@lazy_dataclass(frozen=True, slots=True)
class ProducerConnections:
    """The connected members of a producer group."""

    group: str = field(metadata=named("producerGroup"))
    connections: tuple[ConnectedClient, ...]


@lazy_dataclass(frozen=True, slots=True)
class ConnectedProducer:
    """A producer that is connected to a broker."""

    client_id: str
    language: str
    #: When its last heartbeat came.
    last_update_timestamp_ms: int = field(metadata=named("lastUpdateTimestamp"))
    remote_ip: str = field(metadata=named("remoteIP"))
    #: RocketMQ's number.
    version: int


@lazy_dataclass(frozen=True, slots=True)
class MemberQueue:
    """A queue that a member pulls from: the messages in memory, and the times of the last pull, lock and handler."""

    topic: str
    broker_name: str
    queue_id: int
    #: Pulled messages whose handler has not ended.
    cached_count: int = field(metadata=named("cachedMsgCount"))
    cached_max_offset: int = field(metadata=named("cachedMsgMaxOffset"))
    cached_min_offset: int = field(metadata=named("cachedMsgMinOffset"))
    cached_mib: int = field(metadata=named("cachedMsgSizeInMiB"))
    commit_offset: int
    #: Whether the member has given the queue up.
    is_dropped: bool = field(metadata=named("droped"))
    last_consume_timestamp_ms: int = field(metadata=named("lastConsumeTimestamp"))
    last_lock_timestamp_ms: int = field(metadata=named("lastLockTimestamp"))
    last_pull_timestamp_ms: int = field(metadata=named("lastPullTimestamp"))
    #: Whether the member has the broker's lock, which it needs to consume in order.
    is_locked: bool = field(metadata=named("locked"))
    transaction_count: int = field(metadata=named("transactionMsgCount"))
    transaction_max_offset: int = field(metadata=named("transactionMsgMaxOffset"))
    transaction_min_offset: int = field(metadata=named("transactionMsgMinOffset"))
    try_unlock_times: int


@lazy_dataclass(frozen=True, slots=True)
class PoppedQueue:
    """A queue that a member pops from."""

    topic: str
    broker_name: str
    queue_id: int
    #: Whether the member has given the queue up.
    is_dropped: bool = field(metadata=named("droped"))
    last_pop_timestamp_ms: int = field(metadata=named("lastPopTimestamp"))
    #: Popped messages whose handler has not ended.
    wait_ack_count: int


@lazy_dataclass(frozen=True, slots=True)
class MemberRates:
    """A member's rates for the messages of a topic, in the last minute."""

    topic: str
    failed_of_hour: int = field(metadata=named("consumeFailedMsgs"))
    #: Messages a second whose handler has failed, and whose handler has succeeded.
    failed_tps: float = field(metadata=named("consumeFailedTPS"))
    consumed_tps: float = field(metadata=named("consumeOKTPS"))
    #: How long a call of the handler takes; 0 when no call has ended.
    handler_ms: float = field(metadata=named("consumeRT"))
    pull_ms: float = field(metadata=named("pullRT"))
    pulled_tps: float = field(metadata=named("pullTPS"))


@lazy_dataclass(frozen=True, slots=True)
class MemberStatus:
    """What one member of a group reports about its work. `member_status` leaves the optional members out."""

    #: The number of the member, from 1.
    index: int | None = field(metadata=OPTIONAL)
    client_id: str
    #: As V5_3_3.
    version_name: str | None = field(metadata=named("versionDesc", is_optional=True))
    queue_count: int | None = field(metadata=OPTIONAL)
    #: Settings under RocketMQ's names, as PROP_CONSUME_TYPE.
    properties: Mapping[str, str]
    subscriptions: tuple[SubscribedTopic, ...]
    queues: tuple[MemberQueue, ...]
    popped_queues: tuple[PoppedQueue, ...] = field(metadata=named("popQueues"))
    rates: tuple[MemberRates, ...]
    #: Texts that the application has added.
    user_info: Mapping[str, str] = field(metadata=named("userConsumerInfo"))
    #: The stacks of the member's threads, if they were asked for.
    jstack: str | None


@lazy_dataclass(frozen=True, slots=True)
class MembersStatus:
    """The status of each member of a group that has answered, and how the members disagree."""

    group: str = field(metadata=named("consumerGroup"))
    members: tuple[MemberStatus, ...] = field(metadata=named("consumers"))
    disagreements: tuple[str, ...] = field(default=(), metadata=named("problems"))


async def consumer_connections(admin: "Admin", group: str, broker_addr: str | None = None) -> ConsumerConnections:
    """The connected members of ``group``, at one broker or at all; BrokerError 206 when no member is connected."""
    found = await admin.consumer_connection(group, broker_addr)
    return ConsumerConnections(
        group,
        _clients(found.connection_set),
        tuple(_subscribed(one) for _, one in sorted(found.subscription_table.items())),
        found.consume_type,
        found.message_model,
        found.consume_from_where,
    )


async def producer_connections(admin: "Admin", group: str, topic: str) -> ProducerConnections:
    """The connected producers of ``group`` at the brokers of ``topic``; BrokerError 1 when there is none."""
    return ProducerConnections(group, _clients((await admin.producer_connection(group, topic)).connection_set))


async def producers_of_broker(admin: "Admin", broker_addr: str) -> dict[str, tuple[ConnectedProducer, ...]]:
    """Producer group → its members that are connected to the broker."""
    found = await admin.all_producers(broker_addr)
    return {
        group: tuple(
            ConnectedProducer(one.client_id, one.language, one.last_update_timestamp, one.remote_ip, one.version)
            for one in sorted(infos, key=lambda one: (one.client_id, one.remote_ip))
        )
        for group, infos in sorted(found.data.items())
    }


async def member_status(admin: "Admin", group: str, client_id: str, *, jstack: bool = False) -> MemberStatus:
    """The status of one member of ``group``; BrokerError when the member does not answer."""
    return _status(client_id, await admin.consumer_running_info(group, client_id, jstack=jstack))


async def members_status(
    admin: "Admin",
    group: str,
    *,
    broker_addr: str | None = None,
    jstack: bool = False,
    on_problem: OnProblem,
    on_progress: OnProgress | None = None,
) -> MembersStatus:
    """The status of each member of ``group``; BrokerError 206 when no member is connected. Failures are problems."""
    found = await admin.consumer_connection(group, broker_addr)
    versions = {one.client_id: version_name(one.version) for one in found.connection_set}
    answers = await ask_each(
        sorted(versions), lambda name: admin.consumer_running_info(group, name, jstack=jstack), on_progress
    )
    report_unanswered("consumer", answers, on_problem)
    members = tuple(
        _status(name, info, number, versions[name])
        for number, (name, info) in enumerate(sorted(answers.values.items()), 1)
    )
    # In a broadcasting group each member has all queues, so two owners of a queue are no error.
    is_shared = found.message_model == "CLUSTERING"
    return MembersStatus(
        group, members, tuple(disagreements(answers.values, round(time.time() * 1000))) if is_shared else ()
    )


def disagreements(infos: Mapping[str, ConsumerRunningInfo], now_ms: int) -> Iterator[str]:
    """Problems in a group: different subscriptions, queues with several owners, stuck queues. Pure."""
    subscriptions = {
        client: sorted((one.topic, one.sub_string) for one in info.subscription_set) for client, info in infos.items()
    }
    if len({repr(one) for one in subscriptions.values()}) > 1:
        yield "WARN: Different subscription in the same group of consumer!!!"
    # The table of a member still has a queue that it is giving up, marked as dropped.
    owners: dict[MessageQueue, str] = {}
    for client, info in infos.items():
        for mq, state in info.mq_table.items():
            if state.droped:
                continue
            if mq in owners:
                yield (
                    f"Rebalance Failed: queue {mq.queue_id} of {mq.topic} on {mq.broker_name} has two"
                    f" owners, {owners[mq]} and {client}"
                )
            owners[mq] = client
    for client, info in infos.items():
        yield from _stuck_queues(client, info, now_ms)


def _stuck_queues(client: str, info: ConsumerRunningInfo, now_ms: int) -> Iterator[str]:
    """RocketMQ's ``analyzeProcessQueue``: queues of a push consumer that wait for a handler or for a lock."""
    if info.properties.get("PROP_CONSUME_TYPE") != "CONSUME_PASSIVELY":
        return
    is_orderly = info.properties.get("PROP_CONSUMEORDERLY") == "true"
    for mq, state in sorted(info.mq_table.items(), key=lambda item: item[0]):
        queue = f"MessageQueue [topic={mq.topic}, brokerName={mq.broker_name}, queueId={mq.queue_id}]"
        if is_orderly:
            if not state.locked:
                yield f"{client} {queue} can't lock for a while, {now_ms - state.last_lock_timestamp}ms"
            elif state.droped and state.try_unlock_times > 0:
                yield f"{client} {queue} unlock {state.try_unlock_times} times, still failed"
        # Messages wait, and no handler has ended for long: a handler blocks, or there are too few handlers.
        elif state.cached_msg_count > 0 and now_ms - state.last_consume_timestamp > STUCK_MS:
            waits_ms = now_ms - state.last_consume_timestamp
            yield f"{client} {queue} can't consume for a while, maybe blocked, {waits_ms}ms"


def _clients(connections: Iterable[Connection]) -> tuple[ConnectedClient, ...]:
    return tuple(
        ConnectedClient(one.client_id, one.client_addr, one.language, one.version, version_name(one.version))
        for one in sorted(connections, key=lambda one: (one.client_id, one.client_addr))
    )


def _subscribed(one: SubscriptionData) -> SubscribedTopic:
    return SubscribedTopic(one.topic, one.sub_string, one.expression_type)


def _status(
    client_id: str, info: ConsumerRunningInfo, index: int | None = None, version: str | None = None
) -> MemberStatus:
    return MemberStatus(
        index,
        client_id,
        version,
        None if index is None else len(info.mq_table),
        dict(sorted(info.properties.items())),
        tuple(_subscribed(one) for one in sorted(info.subscription_set, key=lambda one: one.topic)),
        tuple(_pulled(mq, state) for mq, state in sorted(info.mq_table.items(), key=lambda item: item[0])),
        tuple(_popped(mq, state) for mq, state in sorted(info.mq_pop_table.items(), key=lambda item: item[0])),
        tuple(
            MemberRates(
                topic,
                one.consume_failed_msgs,
                one.consume_failed_tps,
                one.consume_ok_tps,
                one.consume_rt,
                one.pull_rt,
                one.pull_tps,
            )
            for topic, one in sorted(info.status_table.items())
        ),
        dict(sorted(info.user_consumer_info.items())),
        info.jstack,
    )


def _pulled(mq: MessageQueue, state: ProcessQueueInfo) -> MemberQueue:
    return MemberQueue(
        mq.topic,
        mq.broker_name,
        mq.queue_id,
        state.cached_msg_count,
        state.cached_msg_max_offset,
        state.cached_msg_min_offset,
        state.cached_msg_size_in_mib,
        state.commit_offset,
        state.droped,
        state.last_consume_timestamp,
        state.last_lock_timestamp,
        state.last_pull_timestamp,
        state.locked,
        state.transaction_msg_count,
        state.transaction_msg_max_offset,
        state.transaction_msg_min_offset,
        state.try_unlock_times,
    )


def _popped(mq: MessageQueue, state: PopProcessQueueInfo) -> PoppedQueue:
    return PoppedQueue(
        mq.topic, mq.broker_name, mq.queue_id, state.droped, state.last_pop_timestamp, state.wait_ack_count
    )

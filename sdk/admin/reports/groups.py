"""Progress of consumer groups: one group by queue, all groups in sums, one broker by queue; settings of groups."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from skylark.mqcommon.errors import BrokerError, RouteNotFound, SkylarkError, UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import MASTER_ID, RETRY_PREFIX
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.groups import ConsumeStats, GroupMembers, SubscriptionGroupConfig
from skylark.sdk.admin.reports.all_groups import ProgressOfGroups, progress_of_groups
from skylark.sdk.admin.reports.problems import (
    OnProblem,
    OnProgress,
    ReportProblem,
    ask_each,
    report_absent_queues,
    report_unanswered,
)
from skylark.sdk.admin.reports.report import named
from skylark.sdk.admin.reports.versions import version_name
from skylark.sdk.admin.targets import all_targets

if TYPE_CHECKING:
    from skylark.sdk.admin.client import Admin


@lazy_dataclass(frozen=True, slots=True)
class QueueProgress:
    """The progress of a group in one queue."""

    topic: str
    broker_name: str
    queue_id: int
    #: One after the queue's last message.
    broker_offset: int
    consumer_offset: int
    #: The IP of the member that has the queue; None when it is not known, or was not asked for.
    client_ip: str | None = field(metadata=named("clientIP"))
    #: Messages that the group has not consumed.
    lag: int = field(metadata=named("diff"))
    #: Messages that a member has got and not consumed yet.
    in_flight: int = field(metadata=named("inflight"))
    #: When the last message that the group has consumed was stored; 0 when it is not known.
    last_timestamp_ms: int = field(metadata=named("lastTimestamp"))
    #: How long the group's next message has been waiting; None when it is not known, or was not asked for.
    lag_ms: int | None


@lazy_dataclass(frozen=True, slots=True)
class GroupProgress:
    """The progress of a group, in all its queues or in the queues of one topic."""

    group: str
    #: Whether client IPs, and lags in time, were asked for.
    has_client_ips: bool = field(metadata=named("showClientIP"))
    has_lags_ms: bool = field(metadata=named("showLagTime"))
    queues: tuple[QueueProgress, ...]
    #: Messages a second that the group has pulled.
    consume_tps: float
    #: Messages that the group has not consumed.
    lag: int = field(metadata=named("diffTotal"))
    in_flight: int = field(metadata=named("inflightTotal"))


@lazy_dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group in the list of all groups: its members and its progress."""

    group: str
    members: int = field(metadata=named("count"))
    #: The oldest version of a member, as V5_3_3; empty without members, as the next two are.
    version: str
    #: PUSH or PULL.
    consume_type: str = field(metadata=named("type"))
    message_model: str
    #: Messages a second that the group has pulled.
    consume_tps: float
    #: Messages that the group has not consumed.
    lag: int = field(metadata=named("diffTotal"))


@lazy_dataclass(frozen=True, slots=True)
class GroupConfig:
    """The settings of a group at one broker."""

    cluster: str = field(metadata=named("clusterName"))
    broker_name: str
    config: SubscriptionGroupConfig


@lazy_dataclass(frozen=True, slots=True)
class GroupConfigs:
    """The settings of a group at each broker that knows the group."""

    group: str = field(metadata=named("groupName"))
    configs: tuple[GroupConfig, ...]


@lazy_dataclass(frozen=True, slots=True)
class BrokerQueueProgress:
    """The progress of a group in one of a broker's queues."""

    topic: str
    group: str
    broker_name: str
    queue_id: int
    #: One after the queue's last message.
    broker_offset: int
    consumer_offset: int
    #: Messages that the group has not consumed.
    lag: int = field(metadata=named("diff"))
    #: When the last message that the group has consumed was stored; 0 when it is not known.
    last_timestamp_ms: int = field(metadata=named("lastTimestamp"))


@lazy_dataclass(frozen=True, slots=True)
class BrokerProgress:
    """The progress of all groups at one broker. ``lag`` is the sum over all queues, also over queues not listed."""

    queues: tuple[BrokerQueueProgress, ...]
    lag: int = field(metadata=named("diffTotal"))


async def group_progress(
    admin: "Admin",
    group: str,
    *,
    topic: str | None = None,
    cluster: str | None = None,
    client_ips: bool = False,
    lags_ms: bool = False,
    on_problem: OnProblem,
    on_progress: OnProgress | None = None,
) -> GroupProgress:
    """The progress of ``group``, in all topics or one; UserError when no broker knows the group.

    ``cluster`` chooses other brokers than the topic's route. ``client_ips`` and ``lags_ms`` ask for client IPs and lags
    in time, too. A broker that is away is a failure; a missing answer of a member is a warning.
    """
    stats = await admin.consume_stats(group, topic, cluster)
    # Brokers answer with offsets of 0 for any name. So check the name of a group that has consumed nothing.
    has_consumed = any(one.consumer_offset > 0 for one in stats.offset_table.values())
    if not has_consumed and not await admin.group_exists(group):
        raise UserError(
            f"no broker knows group {group}; check its name with mqadmin consumerProgress,"
            " or create it with mqadmin updateSubGroup"
        )
    if cluster is None:
        await report_absent_queues(admin, dict.fromkeys(queue.topic for queue in stats.offset_table), on_problem)
    ips = await _client_ips(admin, group, on_problem) if client_ips else {}
    lags = await _lags_ms(admin, group, stats, on_problem, on_progress) if lags_ms else {}
    queues = tuple(_queues(stats, ips, lags))
    return GroupProgress(
        group,
        client_ips,
        lags_ms,
        queues,
        stats.consume_tps,
        sum(one.lag for one in queues),
        sum(one.in_flight for one in queues),
    )


def _queues(
    stats: ConsumeStats, client_ips: Mapping[MessageQueue, str], lags_ms: Mapping[MessageQueue, int]
) -> Iterable[QueueProgress]:
    for queue, offsets in sorted(stats.offset_table.items(), key=lambda item: item[0]):
        yield QueueProgress(
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            offsets.broker_offset,
            offsets.consumer_offset,
            client_ips.get(queue),
            offsets.broker_offset - offsets.consumer_offset,
            offsets.pull_offset - offsets.consumer_offset,
            offsets.last_timestamp,
            lags_ms.get(queue),
        )


async def _client_ips(admin: "Admin", group: str, on_problem: OnProblem) -> dict[MessageQueue, str]:
    """Queue → the IP of the member that has the queue."""
    owners: dict[MessageQueue, str] = {}
    try:
        consumers = await admin.consumer_connection(group)
        for one in consumers.connection_set:
            info = await admin.consumer_running_info(group, one.client_id)
            # RocketMQ's client ids begin with the address of the client: 10.1.2.3@4711.
            owners |= {queue: one.client_id.split("@")[0] for queue in info.mq_table}
    except SkylarkError as error:
        on_problem(ReportProblem(f"not all client IPs are known: {error}"))
    return owners


async def _lags_ms(
    admin: "Admin", group: str, stats: ConsumeStats, on_problem: OnProblem, on_progress: OnProgress | None
) -> dict[MessageQueue, int]:
    """Queue → how long the group's next message there has been waiting."""
    # If the lags of a topic cannot be fetched, its queues have none; the offsets of all queues are known by now.
    topics = sorted({mq.topic for mq in stats.offset_table})
    answers = await ask_each(topics, lambda topic: admin.consume_time_spans(group, topic), on_progress)
    for topic, error in answers.errors.items():
        on_problem(ReportProblem(f"the lag in topic {topic} is not known: {error}"))
    spans = [span for found in answers.values.values() for span in found]
    return {span.message_queue: span.delay_time for span in spans if span.message_queue is not None}


async def group_summaries(
    admin: "Admin", *, on_problem: OnProblem, on_progress: OnProgress | None = None
) -> list[GroupSummary]:
    """All groups, sorted by name. Groups whose brokers do not answer are left out."""
    # As RocketMQ's tool: a group is listed once brokers have made its retry topic, which its first heartbeat does.
    topics = await admin.topic_list()
    groups = sorted(topic.removeprefix(RETRY_PREFIX) for topic in topics if topic.startswith(RETRY_PREFIX))

    progress = ProgressOfGroups()
    if groups:
        progress = await progress_of_groups(admin, members=True, on_problem=on_problem, on_progress=on_progress)

    async def summarize(group: str) -> GroupSummary:
        stats = progress.stats.get(group)
        if stats is None:
            # The group's settings may be deleted while its offsets remain.
            stats = await admin.consume_stats(group)
        if progress.members is not None:
            return _summary(group, stats, progress.members.get(group))
        return _summary(group, stats, await _members_of(admin, group, progress.addrs.get(group, ())))

    if not progress.is_whole:
        groups = [group for group in groups if group in progress.stats]
    answers = await ask_each(groups, summarize, on_progress)
    report_unanswered("group", answers, on_problem)
    for one in (await admin.cluster_info()).absent_brokers or ():
        on_problem(ReportProblem(f"broker {one.broker_name} is away: what groups have not read there is not counted"))
    return list(answers.values.values())


async def _members_of(admin: "Admin", group: str, addrs: Sequence[str]) -> GroupMembers | None:
    """The members of a group that brokers at ``addrs`` list; None when no consumer is connected."""
    try:
        found = await admin.consumer_connection(group, addrs[0] if len(addrs) == 1 else None)
    except (BrokerError, RouteNotFound):
        return None
    versions = {one.client_id: one.version for one in found.connection_set}
    return GroupMembers(versions, found.consume_type, found.message_model)


def _summary(group: str, stats: ConsumeStats, members: GroupMembers | None) -> GroupSummary:
    """The summary of a group. ``members`` is None when no consumer is connected."""
    lag = sum(one.broker_offset - one.consumer_offset for one in stats.offset_table.values())
    version = kind = model = ""
    if members is not None and members.versions:
        version = version_name(min(members.versions.values()))
        kind = "PULL" if members.consume_type == "CONSUME_ACTIVELY" else "PUSH"
        model = members.message_model
    count = 0 if members is None else len(members.versions)
    return GroupSummary(group, count, version, kind, model, stats.consume_tps, lag)


async def group_configs(
    admin: "Admin", group: str, *, on_problem: OnProblem, on_progress: OnProgress | None = None
) -> GroupConfigs:
    """The settings of ``group`` at each broker that knows the group; UserError when no broker does."""
    masters = {one.addr: one for one in all_targets(await admin.cluster_info()) if one.broker_id == MASTER_ID}

    async def config_at(addr: str) -> SubscriptionGroupConfig | None:
        try:
            return await admin.group_config(addr, group)
        except BrokerError as error:
            # A group need not be on all brokers.
            if error.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                return None
            raise

    answers = await ask_each(masters, config_at, on_progress)
    report_unanswered("broker", answers, on_problem)
    configs = [
        GroupConfig(masters[addr].cluster, masters[addr].broker_name, config)
        for addr, config in answers.values.items()
        if config is not None
    ]
    if not configs and not answers.errors:
        raise UserError(f"no broker knows group {group}; create it with mqadmin updateSubGroup")
    return GroupConfigs(group, tuple(configs))


async def broker_progress(
    admin: "Admin", broker_addr: str, *, min_lag: int = 0, only_ordered: bool = False
) -> BrokerProgress:
    """The progress of every group in each queue of one broker where the group's lag is at least ``min_lag``."""
    found = await admin.broker_consume_stats(broker_addr, only_ordered=only_ordered)
    queues = (
        BrokerQueueProgress(
            mq.topic,
            group,
            mq.broker_name,
            mq.queue_id,
            offsets.broker_offset,
            offsets.consumer_offset,
            offsets.broker_offset - offsets.consumer_offset,
            offsets.last_timestamp,
        )
        for table in found.consume_stats_list
        for group, parts in table.items()
        for part in parts
        for mq, offsets in sorted(part.offset_table.items(), key=lambda item: item[0])
    )
    # Leave out queues without messages.
    listed = (one for one in queues if one.lag >= min_lag and (one.last_timestamp_ms > 0 or one.lag > 0))
    return BrokerProgress(tuple(listed), found.total_diff)

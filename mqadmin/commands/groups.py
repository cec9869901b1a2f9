"""Commands about consumer groups: create, change and delete groups, and show their progress in each queue."""

from collections.abc import Iterator
from dataclasses import field
from typing import TYPE_CHECKING, Literal

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.params import (
    RetryPolicyText,
    attributes_option,
    broker_addr,
    option,
    read_list,
    route_cluster,
    where,
)
from skylark.mqadmin.render import Table, java_object, java_value, seconds_text
from skylark.mqadmin.scope import Scope, at_each, chosen_addrs
from skylark.mqadmin.session import Session, in_rounds, watch_option
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.sdk.admin.reports.report import named
from skylark.sdk.admin.scope import is_known

if TYPE_CHECKING:
    from skylark.remoting.protocol.requests.groups import GroupRetryPolicy, SubscriptionGroupConfig
    from skylark.sdk.admin.reports.changes import BrokerChange
    from skylark.sdk.admin.reports.groups import (
        BrokerProgress,
        BrokerQueueProgress,
        GroupConfigs,
        GroupProgress,
        GroupSummary,
        QueueProgress,
    )

_QUEUE = (
    ("#Topic", "topic"),
    ("#Broker Name", "broker_name"),
    ("#QID", "queue_id"),
    ("#Broker Offset", "broker_offset"),
    ("#Consumer Offset", "consumer_offset"),
)


def _last_time(row: "QueueProgress | BrokerQueueProgress") -> str:
    return seconds_text(row.last_timestamp_ms) if row.last_timestamp_ms > 0 else "N/A"


def _client(row: "QueueProgress") -> str:
    return row.client_ip or "N/A"


def progress_table(*, clients: bool, lag: bool) -> Table:
    """The table of one group; ``clients`` adds a column of client IPs, ``lag`` a last column with the lag in time."""
    of_client = (("#Client IP", _client),) if clients else ()
    columns = (*_QUEUE, *of_client, ("#Diff", "lag"), ("#Inflight", "in_flight"), ("#LastTime", _last_time))
    client = "%-20s  " if clients else ""
    row = f"%-64s  %-32s  %-4d  %-20d  %-20d  {client}%-20d %-20d %s"
    head = f"%-64s  %-32s  %-4s  %-20s  %-20s  {client}%-20s %-20s%s"
    if lag:
        return Table(
            (*columns, ("#Lag", lambda row: lag_text(row.lag_ms))), f"{row[:-2]}%-19s  %s", f"{head[:-2]}%-20s  %s"
        )
    return Table(columns, row, head)


def lag_text(lag_ms: int | None) -> str:
    """How long a message has been waiting, for people: ``850ms``, ``12.3s``, ``5m03s``, ``2h05m``, ``3d04h``."""
    if lag_ms is None:
        return "N/A"
    seconds = lag_ms // 1000
    if seconds < 1:
        return f"{lag_ms}ms"
    if seconds < 60:
        return f"{lag_ms / 1000:.1f}s"
    for limit, unit, size, smaller, small_size in (
        (3_600, "m", 60, "s", 1),
        (86_400, "h", 3_600, "m", 60),
    ):
        if seconds < limit:
            return f"{seconds // size}{unit}{seconds % size // small_size:02d}{smaller}"
    return f"{seconds // 86_400}d{seconds % 86_400 // 3_600:02d}h"


@lazy_dataclass(frozen=True, slots=True)
class PutGroup:
    """A group that was created or changed, and the result at each broker."""

    config: "SubscriptionGroupConfig" = field(metadata=named("subscriptionGroupConfig"))
    results: "list[BrokerChange]"


@lazy_dataclass(frozen=True, slots=True)
class DeletedGroup:
    """A group that was deleted, and the result at each broker."""

    group: str = field(metadata=named("groupName"))
    results: "list[BrokerChange]"


@lazy_dataclass(frozen=True, slots=True)
class PutGroups:
    """Groups that were created or changed, and the result at each broker."""

    groups: tuple[str, ...]
    results: "list[BrokerChange]"


@lazy_dataclass(frozen=True, slots=True)
class SetMode:
    """How a group consumes a topic from now on, and the result of this change at each broker."""

    topic: str
    group: str
    mode: str
    results: "list[BrokerChange]"


_POLICY_HELP = (
    'the json string of retry policy (exp: {"type":"EXPONENTIAL","exponentialRetryPolicy":'
    '{"initial":5000,"max":7200000,"multiplier":2}} {"type":"CUSTOMIZED","customizedRetryPolicy":'
    '{"next":[1000,5000,10000]}})'
)


def group_config_text(config: "SubscriptionGroupConfig") -> str:
    """RocketMQ's ``SubscriptionGroupConfig.toString``."""
    wire = config.to_wire()
    policy = wire["groupRetryPolicy"]
    retry = {"type": policy["type"]}
    for name in ("exponentialRetryPolicy", "customizedRetryPolicy"):
        members = policy.get(name)
        retry[name] = members and java_object(name[0].upper() + name[1:], members, "{}")
    members = {
        "groupName": config.group_name,
        "consumeEnable": config.consume_enable,
        "consumeFromMinEnable": config.consume_from_min_enable,
        "consumeBroadcastEnable": config.consume_broadcast_enable,
        "consumeMessageOrderly": config.consume_message_orderly,
        "retryQueueNums": config.retry_queue_nums,
        "retryMaxTimes": config.retry_max_times,
        "groupRetryPolicy": java_object("GroupRetryPolicy", retry, "{}"),
        "brokerId": config.broker_id,
        "whichBrokerWhenConsumeSlowly": config.which_broker_when_consume_slowly,
        "notifyConsumerIdsChangedEnable": config.notify_consumer_ids_changed_enable,
        "groupSysFlag": config.group_sys_flag,
        "consumeTimeoutMinute": config.consume_timeout_minute,
        "subscriptionDataSet": wire.get("subscriptionDataSet"),
        "attributes": wire.get("attributes") or {},
    }
    return java_object("SubscriptionGroupConfig", members, "{}")


@command(
    "updateSubGroup",
    *where("create subscription group to"),
    option("g", "groupName", "consumer group name", required=True),
    option("s", "consumeEnable", "consume enable", type=bool, default=True),
    option("m", "consumeFromMinEnable", "from min offset", type=bool, default=False),
    option("d", "consumeBroadcastEnable", "broadcast", type=bool, default=False),
    option("o", "consumeMessageOrderly", "consume message orderly", type=bool, default=False),
    option("q", "retryQueueNums", "retry queue nums", type=click.IntRange(min=0), default=1, show_default=True),
    option("r", "retryMaxTimes", "retry max times", type=click.IntRange(min=-1), default=16, show_default=True),
    option("p", "groupRetryPolicy", _POLICY_HELP, type=RetryPolicyText(), default=None),
    option("i", "brokerId", "consumer from which broker id", type=click.IntRange(min=0), default=0),
    option(
        "w",
        "whichBrokerWhenConsumeSlowly",
        "which broker id when consume slowly",
        type=click.IntRange(min=0),
        default=1,
    ),
    option("a", "notifyConsumerIdsChanged", "notify consumerId changed", type=bool, default=True),
    attributes_option(""),
)
async def update_sub_group(
    session: Session,
    scope: Scope,
    group_name: str,
    consume_enable: bool,
    consume_from_min_enable: bool,
    consume_broadcast_enable: bool,
    consume_message_orderly: bool,
    retry_queue_nums: int,
    retry_max_times: int,
    group_retry_policy: "GroupRetryPolicy | None",
    broker_id: int,
    which_broker_when_consume_slowly: int,
    notify_consumer_ids_changed: bool,
    attributes: dict[str, str] | None,
) -> PutGroup:
    """Create a consumer group, or change an existing group."""
    from skylark.remoting.protocol.requests.groups import GroupRetryPolicy, SubscriptionGroupConfig

    config = SubscriptionGroupConfig(
        group_name,
        consume_enable=consume_enable,
        consume_from_min_enable=consume_from_min_enable,
        consume_broadcast_enable=consume_broadcast_enable,
        consume_message_orderly=consume_message_orderly,
        retry_queue_nums=retry_queue_nums,
        retry_max_times=retry_max_times,
        group_retry_policy=group_retry_policy or GroupRetryPolicy(),
        broker_id=broker_id,
        which_broker_when_consume_slowly=which_broker_when_consume_slowly,
        notify_consumer_ids_changed_enable=notify_consumer_ids_changed,
        attributes=attributes or {},
    )
    results = await at_each(
        session,
        await chosen_addrs(session, scope),
        f"create subscription group {config.group_name}",
        lambda addr: session.admin.create_group(addr, config),
        lambda addr: f"create subscription group to {addr} success.",
    )
    if any(result.ok for result in results):
        session.say(group_config_text(config))
    return PutGroup(config, results)


@command(
    "deleteSubGroup",
    *where("delete subscription group from"),
    option("g", "groupName", "subscription group name", required=True),
    option(
        "r",
        "removeOffset",
        "also remove the group's offsets, and messages that wait to be delivered to it again",
        type=bool,
        default=False,
    ),
)
async def delete_sub_group(session: Session, scope: Scope, group_name: str, remove_offset: bool) -> DeletedGroup:
    """Delete a consumer group; with -r true also its offsets, and messages that wait to be delivered to it again.

    Without -r true a later group of the same name goes on at this group's offsets. The group's %DLQ% topic is kept:
    delete the topic with deleteTopic.
    """
    # Brokers accept a request to delete an unknown group. Look the group up before, to report a misspelt name.
    of_cluster = f" in cluster [{scope.cluster_name}]" if scope.cluster_name is not None else ""
    addrs = await chosen_addrs(session, scope)
    was_known = await is_known(addrs, lambda addr: session.admin.group_config(addr, group_name))
    results = await at_each(
        session,
        addrs,
        f"delete subscription group {group_name}",
        lambda addr: session.admin.delete_group(addr, group_name, remove_offset),
        (lambda addr: f"delete subscription group [{group_name}] from broker [{addr}]{of_cluster} success.")
        if was_known
        else None,
    )
    if not was_known:
        session.fail(UserError(f"there is no group {group_name}: check its name with mqadmin consumerProgress"))
    return DeletedGroup(group_name, results)


def _version(row: "GroupSummary") -> str:
    return row.version if row.members > 0 else "OFFLINE"


def _model(row: "GroupSummary") -> str:
    return row.message_model if row.consume_type == "PUSH" else ""


_GROUPS = Table(
    (
        ("#Group", "group"),
        ("#Count", "members"),
        ("#Version", _version),
        ("#Type", "consume_type"),
        ("#Model", _model),
        ("#TPS", lambda row: int(row.consume_tps)),
        ("#Diff Total", "lag"),
    ),
    "%-64s  %-6d  %-24s %-5s  %-14s  %-7d  %d",
)


def _progress_lines(found: "GroupProgress | list[GroupSummary]") -> Iterator[str]:
    if isinstance(found, list):
        yield from _GROUPS.lines(found)
        return
    yield from progress_table(clients=found.has_client_ips, lag=found.has_lags_ms).lines(found.queues)
    yield ""
    yield f"Consume TPS: {found.consume_tps:.2f}"
    yield f"Consume Diff Total: {found.lag}"
    yield f"Consume Inflight Total: {found.in_flight}"


@command(
    "consumerProgress",
    option("g", "groupName", "consumer group name", default=None),
    option("t", "topicName", "topic name", default=None),
    option("s", "showClientIP", "Show Client IP per Queue", type=bool, default=False),
    option(
        "l",
        "showLagTime",
        "also print how long the next message of each queue has been waiting",
        type=bool,
        is_flag=True,
    ),
    watch_option(),
    route_cluster(),
)
async def consumer_progress(
    session: Session,
    group_name: str | None,
    topic_name: str | None,
    show_client_ip: bool,
    show_lag_time: bool,
    watch: float | None,
    cluster: str | None,
) -> "GroupProgress | list[GroupSummary] | None":
    """Show how far a group has consumed each queue; without -g, show the progress of all groups.

    With -g the exit code is 1 when a broker that has queues of these topics is away: its queues are missing. With -c
    brokers that are away are not looked for.
    """
    if group_name is None and show_lag_time:
        raise click.UsageError("-l/--showLagTime needs -g/--groupName: only a group's queues have a lag in time.")

    from skylark.sdk.admin.reports.groups import group_progress, group_summaries

    async def fetch() -> "GroupProgress | list[GroupSummary]":
        if group_name is None:
            return await group_summaries(session.admin, on_problem=session.report_problem, on_progress=session.progress)
        return await group_progress(
            session.admin,
            group_name,
            topic=topic_name,
            cluster=cluster,
            client_ips=show_client_ip,
            lags_ms=show_lag_time,
            on_problem=session.report_problem,
            on_progress=session.progress,
        )

    return await in_rounds(session, watch, fetch, _progress_lines, clears=True)


_RULE = "=" * 29
_STATS = Table(
    (
        ("#Topic", "topic"),
        ("#Group", "group"),
        ("#Broker Name", "broker_name"),
        ("#QID", "queue_id"),
        ("#Broker Offset", "broker_offset"),
        ("#Consumer Offset", "consumer_offset"),
        ("#Diff", "lag"),
        ("#LastTime", _last_time),
    ),
    "%-64s  %-64s  %-32s  %-4d  %-20d  %-20d  %-20d  %s",
)


def _config_lines(found: "GroupConfigs") -> Iterator[str]:
    for one in found.configs:
        yield f"{_RULE}{one.cluster}:{one.broker_name}{_RULE}"
        for name, value in one.config.to_wire().items():
            yield f"{name:<40}=  {java_value(value)}"


@command(
    "getConsumerConfig",
    option("g", "groupName", "subscription group name", required=True),
    show=_config_lines,
)
async def get_consumer_config(session: Session, group_name: str) -> "GroupConfigs":
    """Show the settings of a consumer group at each broker that knows it."""
    from skylark.sdk.admin.reports.groups import group_configs

    return await group_configs(
        session.admin, group_name, on_problem=session.report_problem, on_progress=session.progress
    )


def _stats_lines(found: "BrokerProgress") -> Iterator[str]:
    yield from _STATS.lines(found.queues)
    yield ""
    yield f"Diff Total: {found.lag}"


@command(
    "brokerConsumeStats",
    broker_addr("Broker address", required=True),
    option("t", "timeoutMillis", "request timeout Millis, as --timeout", type=click.IntRange(min=1), default=None),
    option("l", "level", "threshold of print diff", type=click.IntRange(min=0), default=0, show_default=True),
    option("o", "order", "order topic: only these", type=bool, default=False, show_default=True),
    show=_stats_lines,
)
async def broker_consume_stats(
    session: Session, broker_addr: str, timeout_millis: int | None, level: int, order: bool
) -> "BrokerProgress":
    """Show the progress of every group in each queue of a broker where its lag is at least --level."""
    from skylark.sdk.admin.reports.groups import broker_progress

    async with session.admin_within(timeout_millis or session.settings.timeout_ms) as admin:
        return await broker_progress(admin, broker_addr, min_lag=level, only_ordered=order)


@command(
    "updateSubGroupList",
    *where("create groups to"),
    option(
        "f",
        "filename",
        "Path to a file containing a list of SubscriptionGroupConfig in json format",
        required=True,
        metavar="FILE",
    ),
)
async def update_sub_group_list(session: Session, scope: Scope, filename: str) -> PutGroups:
    """Create or change the groups in a file: [{"groupName":"g","retryMaxTimes":16}, ...]."""
    from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig

    groups = read_list(session.warn, filename, SubscriptionGroupConfig, "groupName")
    results = await at_each(
        session,
        await chosen_addrs(session, scope),
        f"groups of {filename}",
        lambda addr: session.admin.create_groups(addr, groups),
        lambda addr: f"submit batch of subscription group config to {addr} success, please check the result later.",
    )
    return PutGroups(tuple(group.group_name for group in groups), results)


@command(
    "setConsumeMode",
    *where("create subscription group to"),
    option("t", "topicName", "topic name", required=True),
    option("g", "groupName", "consumer group name", required=True),
    option("m", "mode", "consume mode. PULL/POP", type=click.Choice(["PULL", "POP"]), required=True),
    option(
        "q",
        "popShareQueueNum",
        "num of queue which share in pop mode",
        type=click.IntRange(min=-1),
        default=0,
        show_default=True,
    ),
)
async def set_consume_mode(
    session: Session,
    scope: Scope,
    topic_name: str,
    group_name: str,
    mode: Literal["PULL", "POP"],
    pop_share_queue_num: int,
) -> SetMode:
    """Set whether a group consumes a topic by pull or by pop. Its members must let the broker assign queues."""
    results = await at_each(
        session,
        await chosen_addrs(session, scope),
        f"consume mode of {group_name}",
        lambda addr: session.admin.set_consume_mode(addr, topic_name, group_name, mode, pop_share_queue_num),
        lambda addr: f"set consume mode to {addr} success.",
    )
    if any(result.ok for result in results):
        session.say(
            f"topic[{topic_name}] group[{group_name}] consume mode[{mode}] popShareQueueNum[{pop_share_queue_num}]"
        )
    return SetMode(topic_name, group_name, mode, results)


FAMILIES = {
    "Consumer groups": (
        update_sub_group,
        delete_sub_group,
        consumer_progress,
        get_consumer_config,
        broker_consume_stats,
        update_sub_group_list,
        set_consume_mode,
    ),
}

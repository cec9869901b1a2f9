"""Commands about consumer groups: create, change, delete, and show how far they and their queues are."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.commands.group_progress import GroupProgress, progress_of_groups
from skylark.mqadmin.params import (
    RetryPolicyText,
    attributes_option,
    broker_addr,
    option,
    read_list,
    route_cluster,
    where,
)
from skylark.mqadmin.render import Row, Table, java_object, java_value, seconds_text, version_name
from skylark.mqadmin.scope import Scope, at_each, chosen_addrs, is_known
from skylark.mqadmin.session import Session, in_rounds, watch_option
from skylark.mqcommon.errors import BrokerError, RouteNotFound, SkylarkError, UserError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import MASTER_ID
from skylark.sdk.admin.targets import Target, all_targets

if TYPE_CHECKING:
    from skylark.remoting.protocol.requests.groups import ConsumeStats, GroupMembers, SubscriptionGroupConfig

_QUEUE = (
    ("#Topic", "topic"),
    ("#Broker Name", "brokerName"),
    ("#QID", "queueId"),
    ("#Broker Offset", "brokerOffset"),
    ("#Consumer Offset", "consumerOffset"),
)
_REST = (("#Diff", "diff"), ("#Inflight", "inflight"), ("#LastTime", "lastTime"))


def progress_table(*, clients: bool, lag: bool) -> Table:
    """The table of one group, with the column of clients' IPs if asked, and at the end that of the lag in time."""
    columns = (*_QUEUE, ("#Client IP", "client"), *_REST) if clients else (*_QUEUE, *_REST)
    client = "%-20s  " if clients else ""
    row = f"%-64s  %-32s  %-4d  %-20d  %-20d  {client}%-20d %-20d %s"
    head = f"%-64s  %-32s  %-4s  %-20s  %-20s  {client}%-20s %-20s%s"
    if lag:
        return Table((*columns, ("#Lag", "lag")), f"{row[:-2]}%-19s  %s", f"{head[:-2]}%-20s  %s")
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


async def lags_ms(session: Session, group: str, stats: "ConsumeStats") -> dict[MessageQueue, int]:
    """Queue → how long the group's next message there has been waiting. Unknown ones are left out, with a warning."""
    # A topic that cannot be asked leaves its queues without a lag; the offsets of all queues are known by now.
    topics = sorted({mq.topic for mq in stats.offset_table})
    answers = await session.each(topics, lambda topic: session.admin.consume_time_spans(group, topic))
    for topic, error in answers.errors.items():
        session.warn(f"the lag in topic {topic} is not known: {error}")
    spans = [span for found in answers.values.values() for span in found]
    return {span.message_queue: span.delay_time for span in spans if span.message_queue is not None}


def queue_rows(
    stats: "ConsumeStats", client_ips: Mapping[MessageQueue, str], lags_ms: Mapping[MessageQueue, int]
) -> list[dict[str, Any]]:
    """One row per queue, sorted."""
    return [
        {
            "topic": queue.topic,
            "brokerName": queue.broker_name,
            "queueId": queue.queue_id,
            "brokerOffset": offsets.broker_offset,
            "consumerOffset": offsets.consumer_offset,
            "clientIP": client_ips.get(queue),
            "diff": offsets.broker_offset - offsets.consumer_offset,
            "inflight": offsets.pull_offset - offsets.consumer_offset,
            "lastTimestamp": offsets.last_timestamp,
            "lagMs": lags_ms.get(queue),
        }
        for queue, offsets in sorted(stats.offset_table.items(), key=lambda item: item[0])
    ]


async def client_ips(session: Session, group: str) -> dict[MessageQueue, str]:
    """Queue → the IP of the group's client that has it. Unknown ones are left out, with a warning."""
    owners: dict[MessageQueue, str] = {}
    try:
        consumers = await session.admin.consumer_connection(group)
        for one in consumers.connection_set:
            info = await session.admin.consumer_running_info(group, one.client_id)
            # RocketMQ's client ids begin with the address of the client: 10.1.2.3@4711.
            owners |= {queue: one.client_id.split("@")[0] for queue in info.mq_table}
    except SkylarkError as error:
        session.warn(f"not all client IPs are known: {error}")
    return owners


def group_row(group: str, stats: "ConsumeStats", members: "GroupMembers | None") -> dict[str, Any]:
    """The row of a group; ``members`` is None when no consumer is connected."""
    diff = sum(one.broker_offset - one.consumer_offset for one in stats.offset_table.values())
    version = kind = model = ""
    if members is not None and members.versions:
        version = version_name(min(members.versions.values()))
        kind = "PULL" if members.consume_type == "CONSUME_ACTIVELY" else "PUSH"
        model = members.message_model
    return {
        "group": group,
        "count": 0 if members is None else len(members.versions),
        "version": version,
        "type": kind,
        "messageModel": model,
        "consumeTps": stats.consume_tps,
        "diffTotal": diff,
    }


_RETRY = "%RETRY%"
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
async def update_sub_group(session: Session, scope: Scope, **given: Any) -> dict[str, Any]:
    """Create a consumer group, or change one."""
    from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig

    wire = {
        "groupName": given["group_name"],
        "consumeEnable": given["consume_enable"],
        "consumeFromMinEnable": given["consume_from_min_enable"],
        "consumeBroadcastEnable": given["consume_broadcast_enable"],
        "consumeMessageOrderly": given["consume_message_orderly"],
        "retryQueueNums": given["retry_queue_nums"],
        "retryMaxTimes": given["retry_max_times"],
        "groupRetryPolicy": given["group_retry_policy"] or {"type": "CUSTOMIZED"},
        "brokerId": given["broker_id"],
        "whichBrokerWhenConsumeSlowly": given["which_broker_when_consume_slowly"],
        "notifyConsumerIdsChangedEnable": given["notify_consumer_ids_changed"],
        "attributes": given["attributes"] or {},
    }
    config = SubscriptionGroupConfig.from_wire(wire)
    results = await at_each(
        session,
        await chosen_addrs(session, scope),
        f"create subscription group {config.group_name}",
        lambda addr: session.admin.create_group(addr, config),
        lambda addr: f"create subscription group to {addr} success.",
    )
    if any(result.ok for result in results):
        session.say(group_config_text(config))
    return {"subscriptionGroupConfig": config.to_wire(), "results": results}


@command(
    "deleteSubGroup",
    *where("delete subscription group from"),
    option("g", "groupName", "subscription group name", required=True),
    option("r", "removeOffset", "also remove its offsets, and what would come back to it", type=bool, default=False),
)
async def delete_sub_group(session: Session, scope: Scope, group_name: str, remove_offset: bool) -> dict[str, Any]:
    """Delete a consumer group. With -r true its offsets go, and the messages that would come back to the group;
    else a later group of the name goes on where this group was. Its %DLQ% topic is kept: delete it with deleteTopic."""
    # A broker deletes a group that it does not know without an error. To tell a misspelt name, the group is looked for
    # before.
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
    return {"groupName": group_name, "results": results}


_GROUPS = Table(
    (
        ("#Group", "group"),
        ("#Count", "count"),
        ("#Version", "versionText"),
        ("#Type", "type"),
        ("#Model", "modelText"),
        ("#TPS", "tps"),
        ("#Diff Total", "diffTotal"),
    ),
    "%-64s  %-6d  %-24s %-5s  %-14s  %-7d  %d",
)


def _progress_lines(result: Mapping[str, Any] | Sequence[Row]) -> Iterator[str]:
    if not isinstance(result, Mapping):
        yield _GROUPS.head()
        for row in result:
            online = row["count"] > 0
            model = row["messageModel"] if row["type"] == "PUSH" else ""
            text = {"versionText": row["version"] if online else "OFFLINE", "modelText": model}
            yield _GROUPS.row({**row, **text, "tps": int(row["consumeTps"])})
        return
    table = progress_table(clients=result["showClientIP"], lag=result["showLagTime"])
    yield table.head()
    for row in result["queues"]:
        last = row["lastTimestamp"]
        shown = {
            "lastTime": seconds_text(last) if last > 0 else "N/A",
            "client": row["clientIP"] or "N/A",
            "lag": lag_text(row["lagMs"]),
        }
        yield table.row({**row, **shown})
    yield ""
    yield f"Consume TPS: {result['consumeTps']:.2f}"
    yield f"Consume Diff Total: {result['diffTotal']}"
    yield f"Consume Inflight Total: {result['inflightTotal']}"


@command(
    "consumerProgress",
    option("g", "groupName", "consumer group name", default=None),
    option("t", "topicName", "topic name", default=None),
    option("s", "showClientIP", "Show Client IP per Queue", type=bool, default=False),
    option("l", "showLagTime", "also print how long the next message of each queue waits", type=bool, is_flag=True),
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
) -> Any:
    """Show how far a group has consumed each queue; without -g, show the progress of all groups.

    The exit code is 1 when queues are missing, as a broker is away.
    """
    if group_name is None and show_lag_time:
        raise click.UsageError("-l/--showLagTime needs -g/--groupName: the lag is that of a queue.")

    async def look() -> Any:
        if group_name is None:
            return await _all_groups(session)
        return await _one_group(session, group_name, topic_name, show_client_ip, show_lag_time, cluster)

    return await in_rounds(session, watch, look, _progress_lines, clears=True)


async def _one_group(
    session: Session,
    group_name: str,
    topic_name: str | None,
    show_client_ip: bool,
    show_lag_time: bool,
    cluster: str | None,
) -> dict[str, Any]:
    stats = await session.admin.consume_stats(group_name, topic_name, cluster)
    # Brokers answer with offsets of 0 for any name. Only a group that has consumed nothing is looked for by its name.
    has_consumed = any(one.consumer_offset > 0 for one in stats.offset_table.values())
    if not has_consumed and not await session.admin.group_exists(group_name):
        raise UserError(
            f"no broker knows group {group_name}; check its name with mqadmin consumerProgress,"
            " or create it with mqadmin updateSubGroup"
        )
    if cluster is None:
        await session.check_whole(dict.fromkeys(queue.topic for queue in stats.offset_table))
    ips = await client_ips(session, group_name) if show_client_ip else {}
    lags = await lags_ms(session, group_name, stats) if show_lag_time else {}
    queues = queue_rows(stats, ips, lags)
    return {
        "group": group_name,
        "showClientIP": show_client_ip,
        "showLagTime": show_lag_time,
        "queues": queues,
        "consumeTps": stats.consume_tps,
        "diffTotal": sum(row["diff"] for row in queues),
        "inflightTotal": sum(row["inflight"] for row in queues),
    }


async def _all_groups(session: Session) -> list[dict[str, Any]]:
    # As RocketMQ's tool: a group is listed once brokers have made its retry topic, which its first heartbeat does.
    topics = await session.admin.topic_list()
    groups = sorted(topic.removeprefix(_RETRY) for topic in topics if topic.startswith(_RETRY))

    progress = await progress_of_groups(session, members=True) if groups else GroupProgress()

    async def look(group: str) -> dict[str, Any]:
        stats = progress.stats.get(group)
        if stats is None:
            # Its configuration may have been deleted, and its offsets be there.
            stats = await session.admin.consume_stats(group)
        if progress.members is not None:
            return group_row(group, stats, progress.members.get(group))
        return group_row(group, stats, await _members_of(session, group, progress.addrs.get(group, ())))

    if not progress.is_whole:
        groups = [group for group in groups if group in progress.stats]
    answers = await session.each(groups, look)
    for group, error in answers.errors.items():
        session.fail(error, f"group {group}")
    for one in (await session.admin.cluster_info()).absent_brokers or ():
        session.warn(f"broker {one.broker_name} is away: what groups have not read there is not counted")
    return list(answers.values.values())


async def _members_of(session: Session, group: str, addrs: Sequence[str]) -> "GroupMembers | None":
    """The members of one group, which brokers at ``addrs`` list; None when no consumer is connected."""
    from skylark.remoting.protocol.requests.groups import GroupMembers

    try:
        found = await session.admin.consumer_connection(group, addrs[0] if len(addrs) == 1 else None)
    except (BrokerError, RouteNotFound):
        return None
    versions = {one.client_id: one.version for one in found.connection_set}
    return GroupMembers(versions, found.consume_type, found.message_model)


_RULE = "=" * 29
_STATS = Table(
    (
        ("#Topic", "topic"),
        ("#Group", "group"),
        ("#Broker Name", "brokerName"),
        ("#QID", "queueId"),
        ("#Broker Offset", "brokerOffset"),
        ("#Consumer Offset", "consumerOffset"),
        ("#Diff", "diff"),
        ("#LastTime", "lastTime"),
    ),
    "%-64s  %-64s  %-32s  %-4d  %-20d  %-20d  %-20d  %s",
)


def _config_lines(result: Mapping[str, Any]) -> Iterator[str]:
    for row in result["configs"]:
        yield f"{_RULE}{row['clusterName']}:{row['brokerName']}{_RULE}"
        for name, value in row["config"].items():
            yield f"{name:<40}=  {java_value(value)}"


@command(
    "getConsumerConfig",
    option("g", "groupName", "subscription group name", required=True),
    show=_config_lines,
)
async def get_consumer_config(session: Session, group_name: str) -> dict[str, Any]:
    """Show the settings of a consumer group at each broker that knows it."""
    masters = [one for one in all_targets(await session.admin.cluster_info()) if one.broker_id == MASTER_ID]
    by_addr = {one.addr: one for one in masters}

    from skylark.remoting.protocol.codes import ResponseCode

    async def look(addr: str) -> dict[str, Any] | None:
        try:
            return (await session.admin.group_config(addr, group_name)).to_wire()
        except BrokerError as error:
            # A group need not be on all brokers.
            if error.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                return None
            raise

    answers = await session.each(by_addr, look)
    for addr, error in answers.errors.items():
        session.fail(error, f"broker {addr}")
    configs = [_config_row(by_addr[addr], config) for addr, config in answers.values.items() if config is not None]
    if not configs and not answers.errors:
        raise UserError(f"no broker knows group {group_name}; create it with mqadmin updateSubGroup")
    return {"groupName": group_name, "configs": configs}


def _config_row(target: Target, config: dict[str, Any]) -> dict[str, Any]:
    return {"clusterName": target.cluster, "brokerName": target.broker_name, "config": config}


def _stats_lines(result: Mapping[str, Any]) -> Iterator[str]:
    yield _STATS.head()
    for row in result["queues"]:
        last = row["lastTimestamp"]
        yield _STATS.row({**row, "lastTime": seconds_text(last) if last > 0 else "N/A"})
    yield ""
    yield f"Diff Total: {result['diffTotal']}"


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
) -> dict[str, Any]:
    """Show how far every group has consumed every queue of a broker, where it is at least --level behind."""
    async with session.admin_within(timeout_millis or session.settings.timeout_ms) as admin:
        found = await admin.broker_consume_stats(broker_addr, only_ordered=order)
    rows: list[dict[str, Any]] = [
        {
            "topic": mq.topic,
            "group": group,
            "brokerName": mq.broker_name,
            "queueId": mq.queue_id,
            "brokerOffset": progress.broker_offset,
            "consumerOffset": progress.consumer_offset,
            "diff": progress.broker_offset - progress.consumer_offset,
            "lastTimestamp": progress.last_timestamp,
        }
        for one in found.consume_stats_list
        for group, stats in one.items()
        for topic_stats in stats
        for mq, progress in sorted(topic_stats.offset_table.items(), key=lambda item: item[0])
    ]
    return {
        # Not those of queues without messages.
        "queues": [row for row in rows if row["diff"] >= level and (row["lastTimestamp"] > 0 or row["diff"] > 0)],
        "diffTotal": found.total_diff,
    }


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
async def update_sub_group_list(session: Session, scope: Scope, filename: str) -> dict[str, Any]:
    """Create or change the groups of a file: [{"groupName":"g","retryMaxTimes":16}, ...]."""
    from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig

    groups = read_list(session.warn, filename, SubscriptionGroupConfig, "groupName")
    results = await at_each(
        session,
        await chosen_addrs(session, scope),
        f"groups of {filename}",
        lambda addr: session.admin.create_groups(addr, groups),
        lambda addr: f"submit batch of subscription group config to {addr} success, please check the result later.",
    )
    return {"groups": [group.group_name for group in groups], "results": results}


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
) -> dict[str, Any]:
    """Set how a group whose members let the broker assign queues consumes a topic: by pull, or by pop."""
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
    return {"topic": topic_name, "group": group_name, "mode": mode, "results": results}


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

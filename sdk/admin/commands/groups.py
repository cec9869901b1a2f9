"""Commands about consumer groups: create, change, delete, and show their progress."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from mqcommon.errors import BrokerError, RouteNotFound, UserError
from sdk.admin.command import command
from sdk.admin.params import RetryPolicy, attributes_option, broker_addr, cluster_name, option, route_cluster
from sdk.admin.progress import client_ips, group_row, lag_text, lags_ms, progress_table, queue_rows
from sdk.admin.render import Row, Table, java_object, seconds_text
from sdk.admin.rounds import in_rounds, watch_option
from sdk.admin.session import Session
from sdk.admin.targets import at_each, chosen_addrs, is_known

if TYPE_CHECKING:
    from remoting.protocol.requests.groups import SubscriptionGroupConfig

FAMILY = "Consumer groups"
_EITHER = ("broker_addr", "cluster_name")
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
    broker_addr("create subscription group to which broker"),
    cluster_name("create subscription group to which cluster"),
    option("g", "groupName", "consumer group name", required=True),
    option("s", "consumeEnable", "consume enable", type=bool, default=True),
    option("m", "consumeFromMinEnable", "from min offset", type=bool, default=False),
    option("d", "consumeBroadcastEnable", "broadcast", type=bool, default=False),
    option("o", "consumeMessageOrderly", "consume message orderly", type=bool, default=False),
    option("q", "retryQueueNums", "retry queue nums", type=click.IntRange(min=0), default=1, show_default=True),
    option("r", "retryMaxTimes", "retry max times", type=click.IntRange(min=-1), default=16, show_default=True),
    option("p", "groupRetryPolicy", _POLICY_HELP, type=RetryPolicy(), default=None),
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
    either=_EITHER,
)
async def update_sub_group(
    session: Session, broker_addr: str | None, cluster_name: str | None, **given: Any
) -> dict[str, Any]:
    """Create a consumer group, or change one."""
    from remoting.protocol.requests.groups import SubscriptionGroupConfig

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
        await chosen_addrs(session, broker_addr, cluster_name),
        f"create subscription group {config.group_name}",
        lambda addr: session.admin.create_group(addr, config),
        lambda addr: f"create subscription group to {addr} success.",
    )
    if any(result["ok"] for result in results):
        session.say(group_config_text(config))
    return {"subscriptionGroupConfig": config.to_wire(), "results": results}


@command(
    "deleteSubGroup",
    broker_addr("delete subscription group from which broker"),
    cluster_name("delete subscription group from which cluster"),
    option("g", "groupName", "subscription group name", required=True),
    option("r", "removeOffset", "also remove its offsets", type=bool, default=False),
    either=_EITHER,
)
async def delete_sub_group(
    session: Session, broker_addr: str | None, cluster_name: str | None, group_name: str, remove_offset: bool
) -> dict[str, Any]:
    """Delete a consumer group. Its %RETRY% and %DLQ% topics are kept: delete them with deleteTopic."""
    of_cluster = f" in cluster [{cluster_name}]" if cluster_name is not None else ""
    addrs = await chosen_addrs(session, broker_addr, cluster_name)
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
    """Show how far a group has consumed each queue; without -g, show the progress of all groups."""
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
    has_consumed = any(one.consumer_offset > 0 for one in stats.offset_table.values())
    if not has_consumed and not await session.admin.group_exists(group_name):
        raise UserError(
            f"no broker knows group {group_name}; check its name with mqadmin consumerProgress,"
            " or create it with mqadmin updateSubGroup"
        )
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
    topics = await session.admin.topic_list()
    groups = sorted(topic.removeprefix(_RETRY) for topic in topics if topic.startswith(_RETRY))

    async def look(group: str) -> dict[str, Any]:
        stats = await session.admin.consume_stats(group)
        try:
            consumers = await session.admin.consumer_connection(group)
        except (BrokerError, RouteNotFound):
            return group_row(group, stats, None)
        return group_row(group, stats, consumers)

    answers = await session.each(groups, look)
    for group, error in answers.errors.items():
        session.fail(error, f"group {group}")
    return list(answers.values.values())


COMMANDS = (update_sub_group, delete_sub_group, consumer_progress)

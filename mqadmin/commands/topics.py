"""Commands about topics: single ones, lists of them, ordered topics (see order_records.py), and shares of queues."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.order_records import (
    NAMESPACE,
    PERM_WRITE,
    end_order,
    format_order_conf,
    parse_order_conf,
    recorded_queues,
    refuse_fewer_queues,
    refuse_ordered,
    warn_of_lacks,
)
from skylark.mqadmin.params import (
    attributes_option,
    cluster_name,
    option,
    read_list,
    route_cluster,
    topic_option,
    where,
)
from skylark.mqadmin.render import Row, Table, java_value, time_text
from skylark.mqadmin.scope import Scope, all_ok, at_each, chosen_addrs, is_known
from skylark.mqadmin.session import Session
from skylark.mqcommon.errors import BrokerError, RouteNotFound, UserError
from skylark.mqcommon.fastjson import pretty
from skylark.mqcommon.names import MASTER_ID, is_light
from skylark.sdk.admin.targets import all_targets

if TYPE_CHECKING:
    from skylark.mqcommon.message.queue import MessageQueue
    from skylark.remoting.protocol.requests.routes import TopicRouteData


async def set_order_conf(session: Session, topic: str, queue_nums: int, scope: Scope) -> str:
    """Record an ordered topic: replace the record for a cluster, or only the entry of one broker."""
    targets = all_targets(await session.admin.cluster_info(), scope.cluster_name)
    if scope.broker_addr is None:
        entries = {one.broker_name: str(queue_nums) for one in targets}
        kind = "cluster"
    else:
        name = next((one.broker_name for one in targets if one.addr == scope.broker_addr), None)
        if name is None:
            known = f"no NameServer knows a broker at {scope.broker_addr}"
            raise UserError(f"{known}, so the order of {topic} is not recorded")
        entries = parse_order_conf(await session.admin.get_kv(NAMESPACE, topic) or "")
        entries[name] = str(queue_nums)
        kind = "broker"
    order_conf = format_order_conf(entries)
    await session.admin.put_kv(NAMESPACE, topic, order_conf)
    session.say(f"set {kind} orderConf. isOrder=true, orderConf=[{order_conf}]")
    return order_conf


async def _broker_names(session: Session, addrs: list[str]) -> list[str]:
    """The names of the brokers at these addresses."""
    return [one.broker_name for one in all_targets(await session.admin.cluster_info()) if one.addr in addrs]


_PERM_HELP = "set topic's permission(2|4|6), intro[2:W 4:R; 6:RW]"
_PERM = click.IntRange(0, 7)
_QUEUES = click.IntRange(min=1)
_HIDDEN = ("%RETRY%", "%DLQ%")


@command(
    "updateTopic",
    *where("create topic to"),
    topic_option(),
    option("r", "readQueueNums", "set read queue nums", type=_QUEUES, default=8, show_default=True),
    option("w", "writeQueueNums", "set write queue nums", type=_QUEUES, default=8, show_default=True),
    option("p", "perm", _PERM_HELP, type=_PERM, default=6, show_default=True),
    option("o", "order", "set topic's order", type=bool, default=False),
    option("u", "unit", "is unit topic", type=bool, default=False),
    option("s", "hasUnitSub", "has unit sub", type=bool, default=False),
    attributes_option("a"),
)
async def update_topic(
    session: Session,
    scope: Scope,
    topic: str,
    read_queue_nums: int,
    write_queue_nums: int,
    perm: int,
    order: bool,
    unit: bool,
    has_unit_sub: bool,
    attributes: dict[str, str] | None,
) -> dict[str, Any]:
    """Create a topic, or change one."""
    from skylark.mqadmin.reshape import topic_config
    from skylark.remoting.protocol.requests.topics import TopicConfig

    config = TopicConfig(
        topic_name=topic,
        read_queue_nums=read_queue_nums,
        write_queue_nums=write_queue_nums,
        perm=perm,
        topic_sys_flag=(1 if unit else 0) | (2 if has_unit_sub else 0),
        order=order,
        attributes=attributes or {},
    )
    # Looked at before the change, for the warning below: with another number of queues keys are hashed to other ones.
    addrs = await chosen_addrs(session, scope)
    if not order:
        queues = write_queue_nums if perm & PERM_WRITE else 0
        await refuse_fewer_queues(session, {topic: queues}, await _broker_names(session, addrs))
    known = (await session.each(addrs, lambda addr: topic_config(session, addr, topic))).values
    results = await at_each(
        session,
        addrs,
        f"create topic {topic}",
        lambda addr: session.admin.create_topic(addr, config),
        lambda addr: f"create topic to {addr} success.",
    )
    order_conf = None
    # The record names the queues on each broker; while one of them has not changed, it would be wrong.
    if order and all_ok(results):
        order_conf = await set_order_conf(session, topic, write_queue_nums, scope)
    if any(result["ok"] for result in results):
        session.say(str(config))
    if any(before is not None and before.write_queue_nums != write_queue_nums for before in known.values()):
        session.warn(f"topic {topic} has another number of queues now: messages of a key may go to another queue")
    return {"topicConfig": config.to_wire(), "orderConf": order_conf, "results": results}


@command(
    "deleteTopic",
    topic_option(),
    cluster_name("delete topic from which cluster", required=True),
)
async def delete_topic(session: Session, topic: str, cluster_name: str) -> dict[str, Any]:
    """Delete a topic from the brokers of a cluster and, when all have, from the NameServers. May be run again."""
    # Slaves are told, too: one that has lost its master would register the topic again when it stands in for it.
    addrs = await chosen_addrs(session, Scope(None, cluster_name), slaves=True)
    targets = all_targets(await session.admin.cluster_info(), cluster_name)
    with_master = {one.broker_name for one in targets if one.broker_id == MASTER_ID}
    masterless = sorted({one.broker_name for one in targets} - with_master)
    was_known = await _is_topic_known(session, topic, addrs, cluster_name)
    brokers = await at_each(
        session,
        addrs,
        f"delete topic {topic}",
        lambda addr: session.admin.delete_topic_in_broker(addr, topic),
        None,
    )

    async def forget(namesrv_addr: str) -> None:
        async with session.admin_at(namesrv_addr) as admin:
            # Brokers of other clusters that share the NameServer keep the topic, and its route.
            await admin.delete_topic_in_namesrv(topic, cluster_name)

    namesrvs: list[dict[str, Any]] = []
    left = [result["brokerAddr"] for result in brokers if not result["ok"]]
    for name in masterless:
        session.fail(UserError(f"the master of {name} is away: it brings topic {topic} back when it returns"))
    if left or masterless:
        # a broker that still has the topic would register its route again
        session.warn(
            f"{', '.join([*left, *(f'the master of {name}' for name in masterless)])} may still have topic {topic};"
            " the NameServers keep the route until every broker has deleted the topic: run this again"
        )
    elif not was_known:
        session.fail(UserError(f"there is no topic {topic}: check its name with mqadmin topicList"))
    else:
        session.say(f"delete topic [{topic}] from cluster [{cluster_name}] success.")
        namesrvs = await at_each(
            session,
            session.namesrv_addrs,
            f"delete topic {topic}",
            forget,
            None,
            key="namesrvAddr",
        )
        if all_ok(namesrvs):
            session.say(f"delete topic [{topic}] from NameServer success.")
        await end_order(session, topic, with_master)
    return {"topic": topic, "brokers": brokers, "namesrvs": namesrvs, "left": left, "masterless": masterless}


async def _is_topic_known(session: Session, topic: str, broker_addrs: list[str], cluster: str) -> bool:
    async def route(namesrv_addr: str) -> object:
        async with session.admin_at(namesrv_addr) as admin:
            found = await admin.topic_route(topic)
        return next((data for data in found.broker_datas if data.cluster == cluster), None)

    # A light queue has neither a configuration nor a route.
    return (
        is_light(topic)
        or await is_known(broker_addrs, lambda addr: session.admin.topic_config(addr, topic))
        or await is_known(session.namesrv_addrs, route)
    )


@command(
    "updateTopicPerm",
    *where("change the topic on"),
    topic_option(),
    option("p", "perm", _PERM_HELP, type=_PERM, required=True),
    option("", "force", "also if the topic is ordered and other brokers go on taking it", type=bool, is_flag=True),
)
async def update_topic_perm(session: Session, scope: Scope, topic: str, perm: int, force: bool) -> dict[str, Any]:
    """Change the permission of a topic: read, write or both."""
    if scope.broker_addr is not None and not perm & PERM_WRITE and not force:
        await _refuse_ordered_here_only(session, topic, scope.broker_addr)
    old: dict[str, int] = {}

    async def change(addr: str) -> None:
        config = await session.admin.topic_config(addr, topic)
        old[addr] = config.perm
        if config.perm != perm:
            # without attributes: brokers treat the attributes of a request as changes, and keep the others
            changed = replace(config, perm=perm, attributes={})
            await session.admin.create_topic(addr, changed)

    def done(addr: str) -> str:
        if old[addr] == perm:
            return "new perm equals to the old one!"
        return f"update topic perm from {old[addr]} to {perm} in {addr} success."

    addrs = await chosen_addrs(session, scope)
    results = await at_each(session, addrs, f"update perm of topic {topic}", change, done)
    for result in results:
        result["oldPerm"] = old.get(result["brokerAddr"])
    return {"topic": topic, "perm": perm, "results": results}


async def _refuse_ordered_here_only(session: Session, topic: str, addr: str) -> None:
    """UserError when the topic is ordered, and only the broker at ``addr`` would take no more messages of it."""
    record = await session.admin.get_kv(NAMESPACE, topic) or ""
    for name in await _broker_names(session, [addr]):
        config = await session.admin.topic_config(addr, topic)
        if not config.perm & PERM_WRITE or not (config.order or recorded_queues(record, name)):
            continue
        try:
            route = await session.admin.topic_route(topic)
        except RouteNotFound:  # no client can send to it
            continue
        if any(queue.broker_name != name and queue.perm & PERM_WRITE for queue in route.queue_datas):
            refuse_ordered([topic], name)


def _topic_list_lines(result: Mapping[str, Any]) -> Iterator[str]:
    if "rows" not in result:
        yield from result["topics"]
        return
    # RocketMQ's heads have other widths than its rows
    table = Table(
        (("#Cluster Name", "clusterName"), ("#Topic", "topic"), ("#Consumer Group", "consumerGroup")),
        "%-20s  %-64s  %-64s",
        "%-20s  %-48s  %-48s",
    )
    yield table.head()
    for row in result["rows"]:
        for group in row["consumerGroups"] or [""]:
            yield table.row({**row, "consumerGroup": group})


@command(
    "topicList",
    option("c", "clusterModel", "print the cluster and the consumer groups of each", type=bool, is_flag=True),
    show=_topic_list_lines,
)
async def topic_list(session: Session, cluster_model: bool) -> dict[str, Any]:
    """List all topics that the NameServer knows."""
    topics = sorted(await session.admin.topic_list())
    if not cluster_model:
        return {"topics": topics}
    info = await session.admin.cluster_info()
    cluster_of = {one.broker_name: one.cluster for one in all_targets(info)}

    async def look(topic: str) -> dict[str, Any]:
        route = await session.admin.topic_route(topic)
        names = sorted({cluster_of.get(queue.broker_name, "") for queue in route.queue_datas})
        groups = await session.admin.groups_of_topic(topic)
        return {"clusterName": names[0] if names else "", "topic": topic, "consumerGroups": groups}

    shown = [topic for topic in topics if not topic.startswith(_HIDDEN)]
    answers = await session.each(shown, look)
    for topic, error in answers.errors.items():
        # a topic that was deleted meanwhile is still listed, as in RocketMQ's tool
        if not isinstance(error, (BrokerError, RouteNotFound)):
            session.fail(error, f"topic {topic}")
    nothing = {"clusterName": "", "consumerGroups": []}
    rows = [answers.values.get(topic) or {**nothing, "topic": topic} for topic in shown]
    return {"topics": topics, "rows": rows}


_ROUTE = Table(
    (
        ("#ClusterName", "cluster"),
        ("#BrokerName", "brokerName"),
        ("#BrokerAddrs", "brokerAddrs"),
        ("#ReadQueue", "readQueueNums"),
        ("#WriteQueue", "writeQueueNums"),
        ("#Perm", "perm"),
    ),
    "%-45s %-32s %-50s %-10s %-11s %-5s",
)
_ROUTE_WIDTH = 158


def _route_lines(route: "TopicRouteData") -> Iterator[str]:
    """One line per broker, and the totals."""
    yield _ROUTE.head()
    queues = {data.broker_name: data for data in route.queue_datas}
    for broker in sorted(route.broker_datas, key=lambda broker: broker.broker_name):
        data = queues.get(broker.broker_name)
        yield _ROUTE.row(
            {
                "cluster": broker.cluster,
                "brokerName": broker.broker_name,
                "brokerAddrs": java_value(dict(sorted(broker.broker_addrs.items()))),
                "readQueueNums": data.read_queue_nums if data else 0,
                "writeQueueNums": data.write_queue_nums if data else 0,
                "perm": data.perm if data else 0,
            }
        )
    yield "-" * _ROUTE_WIDTH
    yield _ROUTE.row(
        {
            "cluster": "Total:",
            "brokerName": len(queues),
            "brokerAddrs": "",
            "readQueueNums": sum(data.read_queue_nums for data in queues.values()),
            "writeQueueNums": sum(data.write_queue_nums for data in queues.values()),
            "perm": "",
        }
    )


@command(
    "topicRoute",
    topic_option(),
    option("l", "list", "Use list format to print data", type=bool, is_flag=True),
)
async def topic_route(session: Session, topic: str, list: bool) -> dict[str, Any]:
    """Show the brokers and queues of a topic; it warns of brokers of the topic that are away."""
    route = await session.admin.topic_route(topic)
    if route.absent_brokers:
        from skylark.sdk.routes import absent_text

        session.warn(f"topic {topic}: {absent_text(route.absent_brokers)}")
    for line in _route_lines(route) if list else [pretty(route.to_wire())]:
        session.say(line)
    return route.to_wire()


_STATUS = Table(
    (
        ("#Broker Name", "brokerName"),
        ("#QID", "queueId"),
        ("#Min Offset", "minOffset"),
        ("#Max Offset", "maxOffset"),
        ("#Last Updated", "lastUpdated"),
    ),
    "%-32s  %-4d  %-20d  %-20d    %s",
)


def _status_lines(result: Mapping[str, Any]) -> Iterator[str]:
    rows: list[Row] = [{**row, "lastUpdated": time_text(row["lastUpdateTimestamp"])} for row in result["queues"]]
    yield from _STATUS.lines(rows)
    yield ""
    yield f"Topic Put TPS: {result['topicPutTps']}"


@command(
    "topicStatus",
    topic_option(),
    route_cluster(),
    show=_status_lines,
)
async def topic_status(session: Session, topic: str, cluster: str | None) -> dict[str, Any]:
    """Show the offsets of each queue of a topic; the exit code is 1 when a broker of the topic is away."""
    stats = await session.admin.topic_stats(topic, cluster)
    if cluster is None:
        await session.check_whole([topic])
    queues = [
        {
            "brokerName": queue.broker_name,
            "queueId": queue.queue_id,
            "minOffset": offsets.min_offset,
            "maxOffset": offsets.max_offset,
            "lastUpdateTimestamp": offsets.last_update_timestamp,
        }
        for queue, offsets in sorted(stats.offset_table.items(), key=lambda item: item[0])
    ]
    return {"topic": topic, "queues": queues, "topicPutTps": stats.topic_put_tps}


@command("topicClusterList", topic_option(), show=lambda result: result["clusters"])
async def topic_cluster_list(session: Session, topic: str) -> dict[str, Any]:
    """List the clusters that have a topic."""
    route = await session.admin.topic_route(topic)
    return {"topic": topic, "clusters": sorted({broker.cluster for broker in route.broker_datas})}


@command(
    "updateTopicList",
    *where("create topic to"),
    option("f", "filename", "Path to a file with list of TopicConfig in json format", required=True, metavar="FILE"),
)
async def update_topic_list(session: Session, scope: Scope, filename: str) -> dict[str, Any]:
    """Create or change the topics of a file: [{"topicName":"T","readQueueNums":4,"writeQueueNums":4,"perm":6}, ...]."""
    from skylark.remoting.protocol.requests.topics import TopicConfig

    topics = read_list(session.warn, filename, TopicConfig, "topicName")
    addrs = await chosen_addrs(session, scope)
    # The record of none is changed here, whatever its order in the file.
    queues = {one.topic_name: one.write_queue_nums if one.perm & PERM_WRITE else 0 for one in topics}
    await refuse_fewer_queues(session, queues, await _broker_names(session, addrs))
    results = await at_each(
        session,
        addrs,
        f"topics of {filename}",
        lambda addr: session.admin.create_topics(addr, topics),
        lambda addr: f"submit batch of topic config to {addr} success, please check the result later.",
    )
    return {"topics": [topic.topic_name for topic in topics], "results": results}


@command(
    "updateOrderConf",
    topic_option(),
    option("v", "orderConf", "set order conf [eg. brokerName1:num;brokerName2:num]", default=None),
    option(
        "m",
        "method",
        "option type [eg. put|get|delete]",
        type=click.Choice(["put", "get", "delete"]),
        required=True,
    ),
)
async def update_order_conf(session: Session, topic: str, order_conf: str | None, method: str) -> dict[str, Any]:
    """Set, show or delete the record of an ordered topic at the NameServers: its number of queues on each broker."""
    if method == "put":
        order_conf = _checked(order_conf)
        await session.admin.put_kv(NAMESPACE, topic, order_conf)
        session.say(f"update orderConf success. topic=[{topic}], orderConf=[{order_conf}]")
        await warn_of_lacks(session, topic, order_conf)
    elif method == "get":
        order_conf = await session.admin.get_kv(NAMESPACE, topic)
        if order_conf is None:
            raise UserError(f"topic {topic} has no orderConf; set it with -m put -v BROKER:QUEUES;...")
        session.say(f"get orderConf success. topic=[{topic}], orderConf=[{order_conf}] ")
    else:
        order_conf = None
        if await session.admin.get_kv(NAMESPACE, topic) is None:
            session.fail(UserError(f"topic {topic} has no orderConf: check its name with mqadmin topicList"))
        await session.admin.delete_kv(NAMESPACE, topic)
        if not session.failed:
            session.say(f"delete orderConf success. topic=[{topic}]")
    return {"topic": topic, "method": method, "orderConf": order_conf}


def _checked(order_conf: str | None) -> str:
    if order_conf is None:
        raise click.UsageError("please set orderConf with -v, eg. brokerName1:num;brokerName2:num")
    counts = parse_order_conf(order_conf)
    for name, count in counts.items():
        if not name or re.fullmatch(r"[1-9]\d{0,5}", count) is None:
            raise click.UsageError(f"orderConf {order_conf!r}: {f'{name}:{count}'!r} is not brokerName:num")
    return order_conf


def _queue_json(queue: "MessageQueue") -> dict[str, Any]:
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


@command(
    "allocateMQ",
    topic_option(),
    option("i", "ipList", "ip list separated by comma", required=True, metavar="IP,..."),
    show=lambda result: [json.dumps(result, separators=(",", ":"))],
)
async def allocate_mq(session: Session, topic: str, ip_list: str) -> dict[str, Any]:
    """Show which queues the members of a group would get from the strategy averagely; changes nothing."""
    from skylark.sdk.consumer.allocate import averagely
    from skylark.sdk.routes import make_route

    members = list(dict.fromkeys(part.strip() for part in ip_list.split(",") if part.strip()))
    if not members:
        raise click.UsageError("-i/--ipList names nobody: give -i IP,IP,...")
    queues = make_route(topic, await session.admin.topic_route(topic)).readable
    return {
        "result": {member: [_queue_json(queue) for queue in averagely(queues, members, member)] for member in members}
    }


FAMILIES = {
    "Topics": (
        update_topic,
        delete_topic,
        update_topic_perm,
        topic_list,
        topic_route,
        topic_status,
        topic_cluster_list,
        update_topic_list,
        update_order_conf,
        allocate_mq,
    ),
}

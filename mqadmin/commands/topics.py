"""Commands about topics: single topics, lists of topics, ordered topics, and shares of queues."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.params import (
    attributes_option,
    cluster_name,
    option,
    read_list,
    route_cluster,
    topic_option,
    where,
)
from skylark.mqadmin.render import Table, java_value, time_text
from skylark.mqadmin.scope import Scope, at_each, chosen_addrs
from skylark.mqadmin.session import Session
from skylark.mqcommon.errors import RouteNotFound, SkylarkError, UserError
from skylark.mqcommon.fastjson import pretty
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.sdk.admin.order_records import (
    NAMESPACE,
    PERM_WRITE,
    lacks_text,
    parse_order_conf,
    recorded_queues,
    refuse_fewer_queues,
    refuse_ordered,
)
from skylark.sdk.admin.reports.report import FLAT, plain

if TYPE_CHECKING:
    from skylark.remoting.protocol.requests.routes import TopicRouteData
    from skylark.sdk.admin.reports.changes import BrokerChange
    from skylark.sdk.admin.reports.topics import TopicClusters, TopicList, TopicStatus
    from skylark.sdk.admin.topic_changes import TopicDeletion, TopicPut


_PERM_HELP = "set topic's permission(2|4|6), intro[2:W 4:R; 6:RW]"
_PERM = click.IntRange(0, 7)
_QUEUES = click.IntRange(min=1)


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
) -> "TopicPut":
    """Create a topic, or change an existing topic."""
    from skylark.remoting.protocol.requests.topics import TopicConfig
    from skylark.sdk.admin.topic_changes import put_topic

    config = TopicConfig(
        topic_name=topic,
        read_queue_nums=read_queue_nums,
        write_queue_nums=write_queue_nums,
        perm=perm,
        topic_sys_flag=(1 if unit else 0) | (2 if has_unit_sub else 0),
        order=order,
        attributes=attributes or {},
    )

    def on_result(addr: str, error: SkylarkError | None) -> None:
        if error is None:
            session.say(f"create topic to {addr} success.")
        else:
            session.fail(error, f"create topic {topic}")

    found = await put_topic(session.admin, scope, config, on_result=on_result, on_progress=session.progress)
    if found.order_conf is not None:
        kind = "cluster" if scope.broker_addr is None else "broker"
        session.say(f"set {kind} orderConf. isOrder=true, orderConf=[{found.order_conf}]")
    if any(result.ok for result in found.results):
        session.say(str(config))
    if found.is_resized:
        session.warn(f"topic {topic} has another number of queues now: messages of a key may go to another queue")
    return found


@command(
    "deleteTopic",
    topic_option(),
    cluster_name("delete topic from which cluster", required=True),
)
async def remove_topic(session: Session, topic: str, cluster_name: str) -> "TopicDeletion":
    """Delete a topic from the brokers of a cluster, then, if all succeed, from the NameServers. May be run again."""
    from skylark.sdk.admin.topic_changes import delete_topic

    def on_result(addr: str, error: SkylarkError | None) -> None:
        if error is not None:
            session.fail(error, f"delete topic {topic}")

    found = await delete_topic(session.admin, session, topic, cluster_name, on_result=on_result)
    for error in found.failures():
        session.fail(error)
    if found.namesrvs:
        session.say(f"delete topic [{topic}] from cluster [{cluster_name}] success.")
        if all(result.ok for result in found.namesrvs):
            session.say(f"delete topic [{topic}] from NameServer success.")
    elif may_have := found.may_have_it():
        session.warn(
            f"{', '.join(may_have)} may still have topic {topic}; the NameServers keep the route until every broker has"
            " deleted the topic: run this again"
        )
    return found


@lazy_dataclass(frozen=True, slots=True)
class PermChange:
    """The result of a change of a topic's permission at one broker; the old permission is None if unknown."""

    change: "BrokerChange" = field(metadata=FLAT)
    old_perm: int | None


@lazy_dataclass(frozen=True, slots=True)
class PermChanges:
    """A topic and its new permission."""

    topic: str
    perm: int
    results: Sequence[PermChange]


@command(
    "updateTopicPerm",
    *where("change the topic on"),
    topic_option(),
    option("p", "perm", _PERM_HELP, type=_PERM, required=True),
    option(
        "", "force", "also if the topic is ordered and other brokers go on taking its messages", type=bool, is_flag=True
    ),
)
async def update_topic_perm(session: Session, scope: Scope, topic: str, perm: int, force: bool) -> PermChanges:
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
    return PermChanges(topic, perm, [PermChange(result, old.get(result.broker_addr)) for result in results])


async def _refuse_ordered_here_only(session: Session, topic: str, addr: str) -> None:
    """UserError when the topic is ordered, and brokers other than ``addr`` would go on taking its messages."""
    from skylark.sdk.admin.topic_changes import broker_names_of

    record = await session.admin.get_kv(NAMESPACE, topic) or ""
    for name in await broker_names_of(session.admin, [addr]):
        config = await session.admin.topic_config(addr, topic)
        if not config.perm & PERM_WRITE or not (config.order or recorded_queues(record, name)):
            continue
        try:
            route = await session.admin.topic_route(topic)
        except RouteNotFound:  # no client can send to it
            continue
        if any(queue.broker_name != name and queue.perm & PERM_WRITE for queue in route.queue_datas):
            refuse_ordered([topic], name)


def _topic_list_lines(found: "TopicList") -> Iterator[str]:
    if found.rows is None:
        yield from found.topics
        return
    # RocketMQ's heads have other widths than its rows
    table = Table(
        (("#Cluster Name", "cluster_name"), ("#Topic", "topic"), ("#Consumer Group", "consumer_group")),
        "%-20s  %-64s  %-64s",
        "%-20s  %-48s  %-48s",
    )
    yield table.head()
    for row in found.rows:
        for group in row.consumer_groups or ("",):
            yield table.row(row, consumer_group=group)


@command(
    "topicList",
    option("c", "clusterModel", "print the cluster and the consumer groups of each", type=bool, is_flag=True),
    show=_topic_list_lines,
)
async def list_topics(session: Session, cluster_model: bool) -> "TopicList":
    """List all topics that the NameServer knows."""
    from skylark.sdk.admin.reports.topics import topic_list

    return await topic_list(
        session.admin, uses=cluster_model, on_problem=session.report_problem, on_progress=session.progress
    )


_ROUTE = Table(
    (
        ("#ClusterName", "cluster"),
        ("#BrokerName", "broker_name"),
        ("#BrokerAddrs", "addrs_text"),
        ("#ReadQueue", "read_queue_nums"),
        ("#WriteQueue", "write_queue_nums"),
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
            broker,
            addrs_text=java_value(dict(sorted(broker.broker_addrs.items()))),
            read_queue_nums=data.read_queue_nums if data else 0,
            write_queue_nums=data.write_queue_nums if data else 0,
            perm=data.perm if data else 0,
        )
    yield "-" * _ROUTE_WIDTH
    yield _ROUTE.row(
        None,
        cluster="Total:",
        broker_name=len(queues),
        addrs_text="",
        read_queue_nums=sum(data.read_queue_nums for data in queues.values()),
        write_queue_nums=sum(data.write_queue_nums for data in queues.values()),
        perm="",
    )


@command(
    "topicRoute",
    topic_option(),
    option("l", "list", "Use list format to print data", type=bool, is_flag=True),
)
async def topic_route(session: Session, topic: str, list: bool) -> "TopicRouteData":
    """Show the brokers and queues of a topic; it warns of brokers of the topic that are away."""
    route = await session.admin.topic_route(topic)
    if route.absent_brokers:
        from skylark.sdk.routes import absent_text

        session.warn(f"topic {topic}: {absent_text(route.absent_brokers)}")
    for line in _route_lines(route) if list else [pretty(route.to_wire())]:
        session.say(line)
    return route


_STATUS = Table(
    (
        ("#Broker Name", "broker_name"),
        ("#QID", "queue_id"),
        ("#Min Offset", "min_offset"),
        ("#Max Offset", "max_offset"),
        ("#Last Updated", lambda row: time_text(row.last_update_ms)),
    ),
    "%-32s  %-4d  %-20d  %-20d    %s",
)


def _status_lines(status: "TopicStatus") -> Iterator[str]:
    yield from _STATUS.lines(status.queues)
    yield ""
    yield f"Topic Put TPS: {status.put_tps}"


@command(
    "topicStatus",
    topic_option(),
    route_cluster(),
    show=_status_lines,
)
async def show_topic_status(session: Session, topic: str, cluster: str | None) -> "TopicStatus":
    """Show the offsets of each queue of a topic; the exit code is 1 when a broker of the topic is away."""
    from skylark.sdk.admin.reports.topics import topic_status

    return await topic_status(session.admin, topic, cluster, on_problem=session.report_problem)


@command("topicClusterList", topic_option(), show=lambda found: found.clusters)
async def topic_cluster_list(session: Session, topic: str) -> "TopicClusters":
    """List the clusters that have a topic."""
    from skylark.sdk.admin.reports.topics import topic_clusters

    return await topic_clusters(session.admin, topic)


@lazy_dataclass(frozen=True, slots=True)
class TopicsPut:
    """Topics that were made or changed, and the result at each broker."""

    topics: Sequence[str]
    results: "Sequence[BrokerChange]"


@command(
    "updateTopicList",
    *where("create topic to"),
    option("f", "filename", "Path to a file with list of TopicConfig in json format", required=True, metavar="FILE"),
)
async def update_topic_list(session: Session, scope: Scope, filename: str) -> TopicsPut:
    """Create or change the topics in a file: [{"topicName":"T","readQueueNums":4,"writeQueueNums":4,"perm":6}, ...]."""
    from skylark.remoting.protocol.requests.topics import TopicConfig
    from skylark.sdk.admin.topic_changes import broker_names_of

    topics = read_list(session.warn, filename, TopicConfig, "topicName")
    addrs = await chosen_addrs(session, scope)
    # This command changes no record of an ordered topic, whatever ``order`` the file has.
    queues = {one.topic_name: one.write_queue_nums if one.perm & PERM_WRITE else 0 for one in topics}
    await refuse_fewer_queues(session.admin, queues, await broker_names_of(session.admin, addrs))
    results = await at_each(
        session,
        addrs,
        f"topics of {filename}",
        lambda addr: session.admin.create_topics(addr, topics),
        lambda addr: f"submit batch of topic config to {addr} success, please check the result later.",
    )
    return TopicsPut([topic.topic_name for topic in topics], results)


@lazy_dataclass(frozen=True, slots=True)
class OrderConf:
    """The record of an ordered topic after a command; None when the topic has no record."""

    topic: str
    method: str
    order_conf: str | None


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
async def update_order_conf(session: Session, topic: str, order_conf: str | None, method: str) -> OrderConf:
    """Set, show or delete the record of an ordered topic at the NameServers: its number of queues on each broker."""
    if method == "put":
        order_conf = _checked(order_conf)
        await session.admin.put_kv(NAMESPACE, topic, order_conf)
        session.say(f"update orderConf success. topic=[{topic}], orderConf=[{order_conf}]")
        if lacks := await lacks_text(session.admin, topic, order_conf):
            session.warn(lacks)
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
    return OrderConf(topic, method, order_conf)


def _checked(order_conf: str | None) -> str:
    if order_conf is None:
        raise click.UsageError("please set orderConf with -v, eg. brokerName1:num;brokerName2:num")
    counts = parse_order_conf(order_conf)
    for name, count in counts.items():
        if not name or re.fullmatch(r"[1-9]\d{0,5}", count) is None:
            raise click.UsageError(f"orderConf {order_conf!r}: {f'{name}:{count}'!r} is not brokerName:num")
    return order_conf


@lazy_dataclass(frozen=True, slots=True)
class AllocatedQueue:
    """A queue that a member would get."""

    broker_name: str
    queue_id: int
    topic: str


@lazy_dataclass(frozen=True, slots=True)
class Allocation:
    """The queues that each member would get."""

    result: Mapping[str, Sequence[AllocatedQueue]]


@command(
    "allocateMQ",
    topic_option(),
    option("i", "ipList", "ip list separated by comma", required=True, metavar="IP,..."),
    show=lambda found: [json.dumps(plain(found), separators=(",", ":"))],
)
async def allocate_mq(session: Session, topic: str, ip_list: str) -> Allocation:
    """Show which queues each member of a group would get by the strategy `averagely`; changes nothing."""
    from skylark.sdk.consumer.allocate import averagely
    from skylark.sdk.routes import make_route

    members = list(dict.fromkeys(part.strip() for part in ip_list.split(",") if part.strip()))
    if not members:
        raise click.UsageError("-i/--ipList names nobody: give -i IP,IP,...")
    queues = make_route(topic, await session.admin.topic_route(topic)).readable
    return Allocation(
        {
            member: [
                AllocatedQueue(queue.broker_name, queue.queue_id, queue.topic)
                for queue in averagely(queues, members, member)
            ]
            for member in members
        }
    )


FAMILIES = {
    "Topics": (
        update_topic,
        remove_topic,
        update_topic_perm,
        list_topics,
        topic_route,
        show_topic_status,
        topic_cluster_list,
        update_topic_list,
        update_order_conf,
        allocate_mq,
    ),
}

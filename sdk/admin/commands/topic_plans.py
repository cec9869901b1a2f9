"""Commands about many topics or queues at once: lists of topics, ordered topics, and shares of queues."""

import json
import re
from typing import TYPE_CHECKING, Any

import click

from mqcommon.errors import UserError
from sdk.admin.command import command
from sdk.admin.list_file import read_list
from sdk.admin.order_conf import NAMESPACE, parse_order_conf
from sdk.admin.params import broker_addr, cluster_name, option, topic_option
from sdk.admin.session import Session
from sdk.admin.targets import at_each, chosen_addrs

if TYPE_CHECKING:
    from mqcommon.message.queue import MessageQueue

FAMILY = "Topics"


@command(
    "updateTopicList",
    broker_addr("create topic to which broker"),
    cluster_name("create topic to which cluster"),
    option("f", "filename", "Path to a file with list of TopicConfig in json format", required=True, metavar="FILE"),
    either=("broker_addr", "cluster_name"),
)
async def update_topic_list(
    session: Session, broker_addr: str | None, cluster_name: str | None, filename: str
) -> dict[str, Any]:
    """Create or change the topics of a file: [{"topicName":"T","readQueueNums":4,"writeQueueNums":4,"perm":6}, ...]."""
    from remoting.protocol.requests.topics import TopicConfig

    topics = read_list(session, filename, TopicConfig, "topicName")
    results = await at_each(
        session,
        await chosen_addrs(session, broker_addr, cluster_name),
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
    from sdk.consumer.allocate import averagely
    from sdk.routes import make_route

    members = list(dict.fromkeys(part.strip() for part in ip_list.split(",") if part.strip()))
    if not members:
        raise click.UsageError("-i/--ipList names nobody: give -i IP,IP,...")
    queues = make_route(topic, await session.admin.topic_route(topic)).readable
    return {
        "result": {member: [_queue_json(queue) for queue in averagely(queues, members, member)] for member in members}
    }


COMMANDS = (update_topic_list, update_order_conf, allocate_mq)

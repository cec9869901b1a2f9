"""The rows of consumerProgress: how far a group has consumed, and which client has which queue."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mqcommon.errors import SkylarkError
from mqcommon.message.queue import MessageQueue
from sdk.admin.render import Table
from sdk.admin.session import Session
from sdk.admin.versions import version_name

if TYPE_CHECKING:
    from remoting.protocol.bodies.connections import ConsumerConnection
    from remoting.protocol.bodies.stats import ConsumeStats

_QUEUE = (
    ("#Topic", "topic"),
    ("#Broker Name", "brokerName"),
    ("#QID", "queueId"),
    ("#Broker Offset", "brokerOffset"),
    ("#Consumer Offset", "consumerOffset"),
)
_REST = (("#Diff", "diff"), ("#Inflight", "inflight"), ("#LastTime", "lastTime"))
PROGRESS = Table(
    (*_QUEUE, *_REST),
    "%-64s  %-32s  %-4d  %-20d  %-20d  %-20d %-20d %s",
    "%-64s  %-32s  %-4s  %-20s  %-20s  %-20s %-20s%s",
)
PROGRESS_WITH_CLIENT = Table(
    (*_QUEUE, ("#Client IP", "client"), *_REST),
    "%-64s  %-32s  %-4d  %-20d  %-20d  %-20s %-20d %-20d %s",
    "%-64s  %-32s  %-4s  %-20s  %-20s  %-20s %-20s %-20s%s",
)


def queue_rows(stats: "ConsumeStats", client_ips: Mapping[MessageQueue, str]) -> list[dict[str, Any]]:
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
            owners |= {queue: one.client_id.split("@")[0] for queue in info.mq_table}
    except SkylarkError as error:
        session.warn(f"not all client IPs are known: {error}")
    return owners


def group_row(group: str, stats: "ConsumeStats", consumers: "ConsumerConnection | None") -> dict[str, Any]:
    """The row of a group; ``consumers`` is None when no consumer is connected."""
    connections = list(consumers.connection_set) if consumers is not None else []
    diff = sum(one.broker_offset - one.consumer_offset for one in stats.offset_table.values())
    version = kind = model = ""
    if consumers is not None and connections:
        version = version_name(min(one.version for one in connections))
        kind = "PULL" if consumers.consume_type == "CONSUME_ACTIVELY" else "PUSH"
        model = consumers.message_model
    return {
        "group": group,
        "count": len(connections),
        "version": version,
        "type": kind,
        "messageModel": model,
        "consumeTps": stats.consume_tps,
        "diffTotal": diff,
    }

"""The rows of consumerProgress: how far a group has consumed, and which client has which queue."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mqcommon.errors import SkylarkError
from mqcommon.message.queue import MessageQueue
from sdk.admin.render import Table
from sdk.admin.session import Session
from sdk.admin.versions import version_name

if TYPE_CHECKING:
    from remoting.protocol.requests.clients import ConsumerConnection
    from remoting.protocol.requests.groups import ConsumeStats

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

"""getConsumerConfig and brokerConsumeStats: the settings of a group, and the progress of all groups of a broker."""

from collections.abc import Iterator, Mapping
from typing import Any

import click

from mqcommon.errors import BrokerError, UserError
from sdk.admin.command import command
from sdk.admin.params import broker_addr, option
from sdk.admin.render import Table, java_value, seconds_text
from sdk.admin.session import Session
from sdk.admin.targets import MASTER_ID, Target, all_targets

FAMILY = "Consumer groups"
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

    from remoting.protocol.codes import ResponseCode

    async def look(addr: str) -> dict[str, Any] | None:
        try:
            return (await session.admin.group_config(addr, group_name)).to_wire()
        except BrokerError as error:
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


COMMANDS = (get_consumer_config, broker_consume_stats)

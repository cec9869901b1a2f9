"""Commands that write topics and groups of brokers to files."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.params import broker_addr, cluster_name, option
from skylark.mqadmin.scope import Scope, chosen_addrs
from skylark.mqadmin.session import Session
from skylark.mqcommon.disk.atomic import write_atomic
from skylark.mqcommon.disk.files import OsFiles
from skylark.mqcommon.errors import StoreError, UserError
from skylark.mqcommon.fastjson import pretty
from skylark.mqcommon.names import is_dlq_topic, is_retry_topic, is_system_group, is_system_topic

if TYPE_CHECKING:
    from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig, SubscriptionGroupTable
    from skylark.remoting.protocol.requests.topics import TopicConfig, TopicConfigTable

# RocketMQ writes to /tmp/rocketmq/export, which another user of the machine may have made before.
DEFAULT_DIRECTORY = "rocketmq-export"
_VALID_PERMS = range(8)


async def user_topics(session: Session, addr: str, special: bool) -> "TopicConfigTable":
    """The broker's topics except its system topics; retry and dead-letter topics only when ``special``."""
    table = await session.admin.all_topic_config(addr)
    own = frozenset(await session.admin.system_topics_of_broker(addr))
    table.topic_config_table = {
        name: config
        for name, config in table.topic_config_table.items()
        if name not in own
        and not is_system_topic(name)
        and (special or not (is_retry_topic(name) or is_dlq_topic(name)))
        and config.perm in _VALID_PERMS
    }
    return table


async def user_groups(session: Session, addr: str) -> "SubscriptionGroupTable":
    """The broker's groups except RocketMQ's system groups."""
    table = await session.admin.all_groups(addr)
    table.subscription_group_table = {
        name: config for name, config in table.subscription_group_table.items() if not is_system_group(name)
    }
    return table


def _lines(result: Mapping[str, Any]) -> Iterator[str]:
    yield f"export {result['path']} success"


@command(
    "exportMetadata",
    cluster_name("choose a cluster to export"),
    broker_addr("choose a broker to export"),
    option("f", "filePath", "export metadata.json path", default=DEFAULT_DIRECTORY, show_default=True, metavar="DIR"),
    option("t", "topic", "only export topic metadata", type=click.BOOL, is_flag=True),
    option("g", "subscriptionGroup", "only export subscriptionGroup metadata", type=click.BOOL, is_flag=True),
    option("s", "specialTopic", "need retryTopic and dlqTopic", type=click.BOOL, is_flag=True),
    show=_lines,
)
async def export_metadata(
    session: Session,
    scope: Scope,
    file_path: str,
    topic: bool,
    subscription_group: bool,
    special_topic: bool,
) -> dict[str, Any]:
    """Write the topics and groups of a broker, or of the masters of a cluster, to a JSON file.

    The file is topic.json with -t, subscriptionGroup.json with -g, else metadata.json. For a cluster, the numbers of
    queues of a topic are added up.
    """
    if topic and subscription_group:
        raise click.UsageError("Give only one of --topic or --subscriptionGroup.")
    addrs = await chosen_addrs(session, scope)
    name, result = "metadata.json", dict[str, Any]()
    if topic:
        name = "topic.json"
    elif subscription_group:
        name = "subscriptionGroup.json"
    if not subscription_group:
        tables = (await session.each(addrs, lambda addr: user_topics(session, addr, special_topic))).all()
        result["topicConfigTable"] = _added_up_topics([table.topic_config_table for table in tables])
        if scope.broker_addr is not None and topic:
            result["dataVersion"] = tables[0].data_version.to_wire()
    if not topic:
        groups = (await session.each(addrs, lambda addr: user_groups(session, addr))).all()
        result["subscriptionGroupTable"] = _added_up_groups([each.subscription_group_table for each in groups])
        if scope.broker_addr is not None and subscription_group:
            result["dataVersion"] = groups[0].data_version.to_wire()
            result["forbiddenTable"] = groups[0].forbidden_table
    if "dataVersion" not in result:
        result["exportTime"] = int(time.time() * 1000)
    path = f"{file_path.rstrip('/')}/{name}"
    _write(file_path, path, pretty(dict(sorted(result.items()))).encode())
    return {"path": path, **result}


def _added_up_topics(tables: "list[dict[str, TopicConfig]]") -> dict[str, dict[str, Any]]:
    found: dict[str, TopicConfig] = {}
    for table in tables:
        for name, config in table.items():
            before = found.get(name)
            if before is not None:
                config = replace(
                    config,
                    read_queue_nums=config.read_queue_nums + before.read_queue_nums,
                    write_queue_nums=config.write_queue_nums + before.write_queue_nums,
                )
            found[name] = config
    return {name: config.to_wire() for name, config in found.items()}


def _added_up_groups(tables: "list[dict[str, SubscriptionGroupConfig]]") -> dict[str, dict[str, Any]]:
    found: dict[str, SubscriptionGroupConfig] = {}
    for table in tables:
        for name, config in table.items():
            before = found.get(name)
            if before is not None:
                config = replace(config, retry_queue_nums=config.retry_queue_nums + before.retry_queue_nums)
            found[name] = config
    return {name: config.to_wire() for name, config in found.items()}


def _write(directory: str, path: str, data: bytes) -> None:
    fs = OsFiles()
    try:
        fs.mkdirs(directory)
        write_atomic(fs, path, data)
    except (OSError, StoreError) as error:
        raise UserError(f"{path} cannot be written ({error}); give another directory with -f") from None


FAMILIES = {
    "Export": (export_metadata,),
}

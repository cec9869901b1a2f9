"""The users' topics and groups on a broker, or added up over all masters of a cluster."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import is_dlq_topic, is_retry_topic, is_system_group, is_system_topic
from skylark.remoting.protocol.body import DataVersion
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig, SubscriptionGroupTable
from skylark.remoting.protocol.requests.topics import TopicConfig, TopicConfigTable
from skylark.sdk.admin.reports.problems import OnProgress, ask_each
from skylark.sdk.admin.reports.report import OPTIONAL, named

if TYPE_CHECKING:
    from skylark.sdk.admin.client import Admin

_VALID_PERMS: Final = range(8)


@lazy_dataclass(frozen=True, slots=True)
class Metadata:
    """Topics and groups by name, added up over brokers; None for tables that were not asked for.

    ``data_version`` and ``forbidden_table`` are set for one broker only; otherwise ``export_time_ms`` is set.
    """

    topics: Mapping[str, TopicConfig] | None = field(metadata=named("topicConfigTable", is_optional=True))
    groups: Mapping[str, SubscriptionGroupConfig] | None = field(
        metadata=named("subscriptionGroupTable", is_optional=True)
    )
    data_version: DataVersion | None = field(metadata=OPTIONAL)
    forbidden_table: Mapping[str, Mapping[str, int]] | None = field(metadata=OPTIONAL)
    export_time_ms: int | None = field(metadata=named("exportTime", is_optional=True))


async def user_topics(admin: "Admin", addr: str, *, special: bool) -> TopicConfigTable:
    """The broker's topics except its system topics; retry and dead-letter topics only when ``special``."""
    table = await admin.all_topic_config(addr)
    own = frozenset(await admin.system_topics_of_broker(addr))
    table.topic_config_table = {
        name: config
        for name, config in table.topic_config_table.items()
        if name not in own
        and not is_system_topic(name)
        and (special or not (is_retry_topic(name) or is_dlq_topic(name)))
        and config.perm in _VALID_PERMS
    }
    return table


async def user_groups(admin: "Admin", addr: str) -> SubscriptionGroupTable:
    """The broker's groups except RocketMQ's system groups."""
    table = await admin.all_groups(addr)
    table.subscription_group_table = {
        name: config for name, config in table.subscription_group_table.items() if not is_system_group(name)
    }
    return table


async def metadata(
    admin: "Admin",
    addrs: Sequence[str],
    *,
    topics: bool = True,
    groups: bool = True,
    special: bool = False,
    is_of_broker: bool = False,
    on_progress: OnProgress | None = None,
) -> Metadata:
    """The topics and groups of the brokers at ``addrs``; an error of one broker is raised.

    Numbers of queues are added up. ``special``: also retry and dead-letter topics. ``is_of_broker``: ``addrs`` is one
    broker, whose data version is included when only topics or only groups are asked for.
    """
    version, forbidden, topic_table, group_table = None, None, None, None
    if topics:
        tables = (await ask_each(addrs, lambda addr: user_topics(admin, addr, special=special), on_progress)).all()
        topic_table = _added_up_topics(table.topic_config_table for table in tables)
        if is_of_broker and not groups:
            version = tables[0].data_version
    if groups:
        found = (await ask_each(addrs, lambda addr: user_groups(admin, addr), on_progress)).all()
        group_table = _added_up_groups(each.subscription_group_table for each in found)
        if is_of_broker and not topics:
            version, forbidden = found[0].data_version, found[0].forbidden_table
    export_time_ms = int(time.time() * 1000) if version is None else None
    return Metadata(topic_table, group_table, version, forbidden, export_time_ms)


def _added_up_topics(tables: Iterable[Mapping[str, TopicConfig]]) -> dict[str, TopicConfig]:
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
    return found


def _added_up_groups(tables: Iterable[Mapping[str, SubscriptionGroupConfig]]) -> dict[str, SubscriptionGroupConfig]:
    found: dict[str, SubscriptionGroupConfig] = {}
    for table in tables:
        for name, config in table.items():
            before = found.get(name)
            if before is not None:
                config = replace(config, retry_queue_nums=config.retry_queue_nums + before.retry_queue_nums)
            found[name] = config
    return found

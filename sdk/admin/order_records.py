"""Ordered topics: their records at NameServers, and changes that would fail the sends of some keys for good.

The record of an ordered topic is its number of queues on each broker, ``broker-a:4;broker-b:4``. With
orderMessageEnable clients choose the queue of a key from the record, whatever the route has, so that a key keeps its
queue. A broker of the record that takes no messages any more, or has fewer queues, refuses the sends of its keys until
the record is changed.
Neighbours: topic_changes.py (writes records), mqadmin/doctor/ (compares records and routes).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from skylark.mqcommon.errors import RouteNotFound, SkylarkError, UserError
from skylark.mqcommon.names import is_dlq_topic, is_retry_topic, is_system_topic

if TYPE_CHECKING:
    from skylark.remoting.protocol.requests.routes import TopicRouteData
    from skylark.remoting.protocol.requests.topics import TopicConfig
    from skylark.sdk.admin.client import Admin

NAMESPACE = "ORDER_TOPIC_CONFIG"
PERM_WRITE = 2
# The most topics that an error lists.
SHOWN = 20
WAY_ON = (
    "make a new topic for them, or end the order first (mqadmin updateTopic -o false, mqadmin updateOrderConf -m"
    " delete), or give --force"
)


def parse_order_conf(text: str) -> dict[str, str]:
    """Broker name → number of queues."""
    parts = (part.partition(":") for part in text.split(";") if part.strip())
    return {name: count for name, _, count in parts}


def format_order_conf(entries: Mapping[str, str]) -> str:
    """The record with these entries."""
    return ";".join(f"{name}:{count}" for name, count in entries.items())


def recorded_queues(record: str, broker_name: str) -> int:
    """How many queues of a broker the record has."""
    count = parse_order_conf(record).get(broker_name, "")
    return int(count) if count.isdecimal() else 0


def lacking(record: str, route: "TopicRouteData") -> dict[str, str]:
    """Broker name → why sends of keys fail there, for brokers that do not take the queues in ``record``."""
    queues = {queue.broker_name: queue for queue in route.queue_datas}
    masters = {broker.broker_name for broker in route.broker_datas if 0 in broker.broker_addrs}
    found = {}
    for name in parse_order_conf(record):
        wanted, queue = recorded_queues(record, name), queues.get(name)
        if queue is None or name not in masters:
            found[name] = "the route lacks it"
        elif not queue.perm & PERM_WRITE:
            found[name] = "it takes no messages"
        elif queue.write_queue_nums < wanted:
            found[name] = f"it has {queue.write_queue_nums} queues, not {wanted}"
    return found


def ordered_at(configs: "Mapping[str, TopicConfig]", records: Mapping[str, str], broker_name: str) -> list[str]:
    """The ordered topics that can be written on a broker: by its own ``configs``, or by ``records``."""
    return sorted(
        topic
        for topic, config in configs.items()
        if config.perm & PERM_WRITE
        and not (is_system_topic(topic) or is_retry_topic(topic) or is_dlq_topic(topic))
        and (config.order or recorded_queues(records.get(topic, ""), broker_name))
    )


def refuse_ordered(topics: Iterable[str], broker_name: str) -> None:
    """UserError when there are ``topics``: ordered topics of a broker that is to take no more messages."""
    if names := sorted(topics):
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        raise UserError(
            f"{broker_name} has queues of ordered topics: {', '.join(names[:SHOWN])}{more}. Their producers count on a"
            f" fixed number of queues, so sends of some keys would fail for good: {WAY_ON}"
        )


async def refuse_if_ordered(admin: "Admin", broker_name: str, warn: Callable[[str], object]) -> None:
    """UserError when the broker has queues of ordered topics. While its master is away, records alone count.

    ``warn`` is called when the master cannot list its topics.
    """
    records = await admin.kv_list(NAMESPACE)
    named = [topic for topic, record in records.items() if recorded_queues(record, broker_name)]
    data = (await admin.cluster_info()).broker_addr_table.get(broker_name)
    if data is not None and 0 in data.broker_addrs:
        try:
            configs = (await admin.all_topic_config(data.broker_addrs[0])).topic_config_table
        except SkylarkError as error:
            warn(f"the master of {broker_name} cannot say whether it has ordered topics: {error}")
        else:
            named = ordered_at(configs, records, broker_name)
    refuse_ordered(named, broker_name)


async def refuse_fewer_queues(admin: "Admin", topics: Mapping[str, int], broker_names: Iterable[str]) -> None:
    """UserError when a record has more queues on one of these brokers than ``topics`` will have there."""
    records = await admin.kv_list(NAMESPACE)
    for topic, queues in topics.items():
        record = records.get(topic, "")
        if too_many := [name for name in broker_names if recorded_queues(record, name) > queues]:
            raise UserError(
                f"topic {topic} is ordered, and its record has more queues than that ({record}): sends of some keys"
                f" would fail on {', '.join(sorted(too_many)[:SHOWN])}. Give -o true to mqadmin updateTopic, which"
                f" changes the record, too, or end the order first (mqadmin updateOrderConf -m delete -t {topic})"
            )


async def end_order(admin: "Admin", topic: str, broker_names: Iterable[str]) -> str | None:
    """Remove brokers that have deleted the topic from its record. Returns the record that is left, or None.

    A leftover record would apply to a new topic of the same name.
    """
    record = await admin.get_kv(NAMESPACE, topic)
    if record is None:
        return None
    known = (await admin.cluster_info()).broker_addr_table
    gone = set(broker_names)
    left = {name: count for name, count in parse_order_conf(record).items() if name in known and name not in gone}
    if left:
        await admin.put_kv(NAMESPACE, topic, format_order_conf(left))
        return format_order_conf(left)
    await admin.delete_kv(NAMESPACE, topic)
    return None


async def lacks_text(admin: "Admin", topic: str, record: str) -> str:
    """The text that says which recorded queues the topic's route lacks; empty when the route has all."""
    try:
        lacks = lacking(record, await admin.topic_route(topic))
    except RouteNotFound:
        lacks = dict.fromkeys(parse_order_conf(record), "the topic has no route")
    if not lacks:
        return ""
    reasons = "; ".join(f"{name}: {reason}" for name, reason in sorted(lacks.items()))
    return f"sends of some keys of topic {topic} fail with this record while that is so: {reasons}"

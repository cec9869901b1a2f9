"""What a cluster consists of: sets of brokers, the queues of each topic, and the lag of each group. Pure.

Lag is the number of messages that a group has not consumed. Topics of the system, and those named after clusters and
sets, are left out. Retry and dead-letter topics belong to their groups: they count in the lag of a group, and are no
topics here.
Neighbours: mqadmin/commands/topology.py asks the brokers; topology_picture.py draws.
"""

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import MASTER_ID, is_dlq_topic, is_retry_topic, is_system_topic, reply_topic
from skylark.remoting.protocol.requests.groups import ConsumeStatsList


def role_text(broker_id: int | None) -> str:
    """What a broker is in its set; None: another broker has become the master in its place."""
    if broker_id is None:
        return "former master"
    return "master" if broker_id == MASTER_ID else f"slave {broker_id}"


@lazy_dataclass(slots=True)
class SetFacts:
    """What the brokers of one set say."""

    cluster: str
    name: str
    #: Each broker as the result has it: brokerId, brokerAddr, version, inTps, outTps, lagBytes, error. The console also
    #: has brokers that are listed no longer (isListed).
    brokers: list[dict[str, Any]]
    #: The number of read and of write queues of each topic.
    queues: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    #: By group and topic.
    lags: Mapping[tuple[str, str], int] = field(default_factory=dict)


def lags_of(stats: ConsumeStatsList) -> dict[tuple[str, str], int]:
    """The lag of each group and topic in a broker's answer to 317."""
    found: dict[tuple[str, str], int] = {}
    for table in stats.consume_stats_list:
        for group, every in table.items():
            for one in every:
                for queue, at in one.offset_table.items():
                    lag = max(at.broker_offset - at.consumer_offset, 0)
                    found[group, queue.topic] = found.get((group, queue.topic), 0) + lag
    return found


def topology(sets: Iterable[SetFacts]) -> dict[str, Any]:
    """The whole cluster as plain data, topics and groups with the largest lag first."""
    sets = list(sets)
    own = {name for one in sets for name in (one.cluster, one.name, reply_topic(one.cluster))}
    topics: dict[str, dict[str, Any]] = {}
    groups: dict[str, dict[str, Any]] = {}
    clusters: dict[str, list[dict[str, Any]]] = {}
    for one in sets:
        queues = {topic: pair for topic, pair in one.queues.items() if _is_users(topic, own)}
        clusters.setdefault(one.cluster, []).append(
            {
                "brokerName": one.name,
                "hasMaster": any(
                    broker["brokerId"] == MASTER_ID and broker.get("isListed", True) for broker in one.brokers
                ),
                "brokers": one.brokers,
                "topicCount": len(queues),
                "readQueues": sum(read for read, _ in queues.values()),
                "writeQueues": sum(write for _, write in queues.values()),
                "lag": sum(one.lags.values()),
            }
        )
        for topic, (read, write) in queues.items():
            row = topics.setdefault(
                topic, {"topic": topic, "readQueues": 0, "writeQueues": 0, "lag": 0, "sets": {}, "groups": {}}
            )
            row["readQueues"] += read
            row["writeQueues"] += write
            row["sets"][one.name] = {"readQueues": read, "writeQueues": write}
        for (group, topic), lag in one.lags.items():
            _add(groups.setdefault(group, {"consumerGroup": group, "lag": 0, "topics": {}}), "topics", topic, lag)
            if topic in topics:
                _add(topics[topic], "groups", group, lag)
    return {
        "clusters": [{"clusterName": name, "sets": rows} for name, rows in sorted(clusters.items())],
        "topics": sorted(topics.values(), key=lambda row: (-row["lag"], row["topic"])),
        "groups": sorted(groups.values(), key=lambda row: (-row["lag"], row["consumerGroup"])),
    }


def _is_users(topic: str, own: set[str]) -> bool:
    return not (is_system_topic(topic) or is_retry_topic(topic) or is_dlq_topic(topic) or topic in own)


def _add(row: dict[str, Any], member: str, name: str, lag: int) -> None:
    row["lag"] += lag
    row[member][name] = row[member].get(name, 0) + lag

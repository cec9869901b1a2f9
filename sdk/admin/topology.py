"""The parts of a cluster: sets of brokers, the queues of each topic, and the lag of each group. Pure.

Lag is the number of messages that a group has not consumed. Topics of the system, and topics named after clusters and
sets, are left out. Retry and dead-letter topics belong to their groups: they count in the lag of a group, and are not
listed as topics.
Neighbours: reports/cluster_topology.py asks the brokers; topology_picture.py draws.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import MASTER_ID, is_dlq_topic, is_retry_topic, is_system_topic, reply_topic
from skylark.remoting.protocol.requests.groups import ConsumeStatsList
from skylark.sdk.admin.reports.broker_load import SlaveLag
from skylark.sdk.admin.reports.report import FLAT, OPTIONAL


@lazy_dataclass(frozen=True, slots=True)
class SetMember:
    """A broker of a set. ``error``: why it has not answered.

    Only the console fills in the last two: whether the Controllers count the broker in sync, and whether NameServers
    still list it. The id is None when another broker has replaced it as the master.
    """

    broker_id: int | None
    broker_addr: str
    version: str
    in_tps: float
    out_tps: float
    lag: SlaveLag = field(metadata=FLAT)
    error: str | None = None
    in_sync: bool | None = field(default=None, metadata=OPTIONAL)
    is_listed: bool | None = field(default=None, metadata=OPTIONAL)


@lazy_dataclass(frozen=True, slots=True)
class BrokerSet:
    """A set of brokers: its topics, their queues, and the messages that groups have not consumed there."""

    broker_name: str
    has_master: bool
    brokers: tuple[SetMember, ...]
    topic_count: int
    read_queues: int
    write_queues: int
    lag: int


@lazy_dataclass(frozen=True, slots=True)
class ClusterSets:
    """A cluster and its sets."""

    cluster_name: str
    sets: tuple[BrokerSet, ...]


@lazy_dataclass(frozen=True, slots=True)
class QueueNumbers:
    """The queues of a topic on one set."""

    read_queues: int
    write_queues: int


@lazy_dataclass(frozen=True, slots=True)
class TopicLag:
    """A topic with its queues, in all and by set, and its lag, in all and by group."""

    topic: str
    read_queues: int
    write_queues: int
    lag: int
    sets: Mapping[str, QueueNumbers]
    groups: Mapping[str, int]


@lazy_dataclass(frozen=True, slots=True)
class GroupLag:
    """A group with its lag, in all and by topic."""

    consumer_group: str
    lag: int
    topics: Mapping[str, int]


@lazy_dataclass(frozen=True, slots=True)
class Topology:
    """Clusters by name; topics and groups with the largest lag first."""

    clusters: Sequence[ClusterSets] = ()
    topics: Sequence[TopicLag] = ()
    groups: Sequence[GroupLag] = ()


def role_text(broker_id: int | None) -> str:
    """A broker's role in its set; None: another broker has replaced it as the master."""
    if broker_id is None:
        return "former master"
    return "master" if broker_id == MASTER_ID else f"slave {broker_id}"


@lazy_dataclass(slots=True)
class SetFacts:
    """The answers of the brokers of one set."""

    cluster: str
    name: str
    brokers: list[SetMember] = field(default_factory=list)
    #: The number of read and of write queues of each topic.
    queues: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    #: (group, topic) → lag.
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


def topology(sets: Iterable[SetFacts]) -> Topology:
    """The topology of all ``sets``."""
    sets = list(sets)
    own = {name for one in sets for name in (one.cluster, one.name, reply_topic(one.cluster))}
    topics: dict[str, _TopicSums] = {}
    groups: dict[str, dict[str, int]] = {}
    clusters: dict[str, list[BrokerSet]] = {}
    # Few values differ between topics, and there may be a million topics: share equal values.
    shapes: dict[tuple[int, int], QueueNumbers] = {}
    for one in sets:
        queues = {topic: pair for topic, pair in one.queues.items() if _is_users(topic, own)}
        clusters.setdefault(one.cluster, []).append(
            BrokerSet(
                one.name,
                any(broker.broker_id == MASTER_ID and broker.is_listed is not False for broker in one.brokers),
                tuple(one.brokers),
                len(queues),
                sum(read for read, _ in queues.values()),
                sum(write for _, write in queues.values()),
                sum(one.lags.values()),
            )
        )
        for topic, pair in queues.items():
            topics.setdefault(topic, _TopicSums()).add(one.name, shapes.setdefault(pair, QueueNumbers(*pair)))
        for (group, topic), lag in one.lags.items():
            _add(groups.setdefault(group, {}), topic, lag)
            if topic in topics:
                _add(topics[topic].groups, group, lag)
    return Topology(
        [ClusterSets(name, tuple(rows)) for name, rows in sorted(clusters.items())],
        sorted((sums.report(topic) for topic, sums in topics.items()), key=lambda row: (-row.lag, row.topic)),
        sorted(
            (GroupLag(group, sum(lags.values()), lags) for group, lags in groups.items()),
            key=lambda row: (-row.lag, row.consumer_group),
        ),
    )


@lazy_dataclass(slots=True)
class _TopicSums:
    read_queues: int = 0
    write_queues: int = 0
    sets: dict[str, QueueNumbers] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, queues: QueueNumbers) -> None:
        self.read_queues += queues.read_queues
        self.write_queues += queues.write_queues
        self.sets[name] = queues

    def report(self, topic: str) -> TopicLag:
        lag = sum(self.groups.values())
        return TopicLag(topic, self.read_queues, self.write_queues, lag, self.sets, self.groups)


def _is_users(topic: str, own: set[str]) -> bool:
    return not (is_system_topic(topic) or is_retry_topic(topic) or is_dlq_topic(topic) or topic in own)


def _add(lags: dict[str, int], name: str, lag: int) -> None:
    lags[name] = lags.get(name, 0) + lag

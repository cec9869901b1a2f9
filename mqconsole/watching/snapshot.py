"""The answers of one round, as rows of tables. Pure.

Rows have parts of administrators' reports (`skylark.sdk.admin.reports`): loads of brokers, and the lags and sums of a
topology for topics and groups. Neighbours: collector.py asks; web/ shows.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import (
    MASTER_ID,
    is_dlq_topic,
    is_retry_topic,
    is_system_group,
    is_system_topic,
    perm_text,
    reply_topic,
)
from skylark.mqconsole.watching.roll import AwayBroker
from skylark.remoting.protocol.requests.groups import ConsumeStatsList
from skylark.remoting.protocol.requests.topics import TopicConfigTable
from skylark.sdk.admin.reports.broker_load import (
    BrokerLoad,
    BrokerTotals,
    BucketUse,
    SlaveLag,
    StoreScrubs,
    bucket_of,
    lag_of,
    load_of,
    scrubs_of,
    totals_of,
)
from skylark.sdk.admin.reports.report import FLAT, named
from skylark.sdk.admin.targets import Target
from skylark.sdk.admin.topology import SetFacts, SetMember, TopicLag, Topology, lags_of, topology

USER, RETRY, DEAD, SYSTEM = "user", "retry", "dead letters", "system"


class Shape(NamedTuple):
    """A topic's settings on one broker. Topics of the same shape share one object: there may be a million topics."""

    read_queues: int
    write_queues: int
    perm: str
    message_type: str


class QueueLag(NamedTuple):
    """The messages of a queue that a group has not consumed."""

    group: str
    topic: str
    broker_name: str
    queue_id: int
    lag: int


@lazy_dataclass(slots=True)
class SetTables:
    """The topics and groups of one set, which change seldom."""

    shapes: dict[str, Shape] = field(default_factory=dict)
    groups: list[str] = field(default_factory=list)


@lazy_dataclass(slots=True)
class SetProgress:
    """The progress of groups at one set."""

    lags: Mapping[tuple[str, str], int] = field(default_factory=dict)
    #: Messages a second that each group has pulled, and has consumed; the latter is not known at first.
    pulled: Mapping[str, float] = field(default_factory=dict)
    consumed: Mapping[str, float] = field(default_factory=dict)
    #: Queues with messages to consume.
    late: list[QueueLag] = field(default_factory=list)


@lazy_dataclass(slots=True)
class Found:
    """The answers of a round. Sets have the key (cluster, broker name), brokers their address."""

    now_ms: int
    targets: list[Target]
    infos: Mapping[str, Mapping[str, str]]
    errors: Mapping[str, str]
    #: Brokers that do not answer, or are no longer listed.
    away: list[AwayBroker]
    tables: Mapping[tuple[str, str], SetTables]
    progress: Mapping[tuple[str, str], SetProgress]
    #: Broker name → addresses of the brokers in sync, for sets whose masters Controllers choose.
    in_sync: Mapping[str, Collection[str]] = field(default_factory=dict)
    #: Questions that brokers refused, or that Controllers did not answer.
    problems: list[str] = field(default_factory=list)


@lazy_dataclass(frozen=True, slots=True)
class BrokerRow:
    """A broker: its load, and whether it answers.

    ``broker_id`` is None when another broker has become the master in its place. ``error``: why the broker does
    not answer; the load is 0 then. ``is_listed``: whether NameServers list it. ``in_sync``: whether the Controllers of
    its set count it in sync; None without Controllers.
    """

    cluster_name: str
    broker_name: str
    broker_id: int | None
    broker_addr: str
    load: BrokerLoad = field(metadata=FLAT)
    lag: SlaveLag = field(metadata=FLAT)
    totals: BrokerTotals = field(metadata=FLAT)
    error: str | None = None
    away_since_ms: int | None = field(default=None, metadata=named("awaySince"))
    is_listed: bool = True
    boot_timestamp_ms: int | None = field(default=None, metadata=named("bootTimestamp"))
    in_sync: bool | None = None
    scrubs: StoreScrubs = field(default_factory=StoreScrubs, metadata=FLAT)
    bucket: BucketUse = field(default_factory=BucketUse, metadata=FLAT)


@lazy_dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic: queues on all sets, the groups that have consumed it, and their lag.

    ``perm`` says ``differs`` when sets have different ones.
    """

    topic: str
    kind: str
    message_type: str = field(metadata=named("type"))
    perm: str
    read_queues: int
    write_queues: int
    sets: int
    groups: int
    lag: int


@lazy_dataclass(frozen=True, slots=True)
class GroupRow:
    """A group: its lag and its rates; ``worst_topic`` has the largest part of the lag."""

    group: str
    kind: str
    lag: int
    #: Messages a second that the group has consumed; None when the rate is not known yet.
    consume_tps: float | None
    pull_tps: float
    topics: int
    #: Empty when the group does not lag.
    worst_topic: str


@lazy_dataclass(slots=True)
class Snapshot:
    """The data that pages show; empty before the first round. ``error``: why the NameServers do not answer."""

    version: int = 0
    at_ms: int = 0
    error: str = ""
    #: Questions without an answer, though the brokers answer others.
    problems: list[str] = field(default_factory=list)
    #: Masters first; brokers with a known address are also rows of ``brokers``.
    away: list[AwayBroker] = field(default_factory=list)
    brokers: Sequence[BrokerRow] = ()
    #: Clusters with their sets, topics and groups.
    topology: Topology = field(default_factory=Topology)
    topics: Sequence[TopicRow] = ()
    groups: Sequence[GroupRow] = ()
    #: Numbers for the history.
    measured: list[tuple[str, float]] = field(default_factory=list)

    def broker(self, addr: str) -> BrokerRow | None:
        """The row of the broker at ``addr``."""
        return next((row for row in self.brokers if row.broker_addr == addr), None)

    def masters(self) -> list[BrokerRow]:
        """The rows of the masters."""
        return [row for row in self.brokers if row.broker_id == MASTER_ID]

    def clusters(self) -> list[str]:
        """The names of the clusters, sorted."""
        return [one.cluster_name for one in self.topology.clusters]


def tables_of(configs: TopicConfigTable, groups: Iterable[str], shapes: dict[Shape, Shape]) -> SetTables:
    """Compact tables of a broker's answers; ``shapes`` has the shared shapes."""
    found = SetTables(groups=sorted(groups))
    for name, one in configs.topic_config_table.items():
        kind = one.attributes.get("message.type", "") if one.attributes else ""
        shape = Shape(one.read_queue_nums, one.write_queue_nums, perm_text(one.perm), kind)
        found.shapes[name] = shapes.setdefault(shape, shape)
    return found


def progress_of(stats: ConsumeStatsList, consumed: Mapping[str, float]) -> SetProgress:
    """The lags and rates in a broker's answer to 317; ``consumed`` has the rates of a `Pace`."""
    pulled: dict[str, float] = {}
    late: list[QueueLag] = []
    for table in stats.consume_stats_list:
        for group, every in table.items():
            pulled[group] = pulled.get(group, 0.0) + sum(one.consume_tps for one in every)
            for one in every:
                for queue, at in one.offset_table.items():
                    if (lag := at.broker_offset - at.consumer_offset) > 0:
                        late.append(QueueLag(group, queue.topic, queue.broker_name, queue.queue_id, lag))
    return SetProgress(lags_of(stats), pulled, consumed, late)


def snapshot_of(found: Found, version: int) -> Snapshot:
    """All rows. This takes a second or so for a very large cluster, so callers then use a thread."""
    brokers = _brokers(found)
    facts = _facts(found, brokers)
    whole = topology(facts)
    topics, groups = _topics(found, whole), _groups(found, whole)
    return Snapshot(
        version,
        found.now_ms,
        "",
        found.problems,
        found.away,
        brokers,
        whole,
        topics,
        groups,
        _measured(found, brokers, groups),
    )


def _brokers(found: Found) -> list[BrokerRow]:
    masters = {one.broker_name: one.addr for one in found.targets if one.broker_id == MASTER_ID}
    away = {one.addr: one for one in found.away}
    rows = []
    for target in found.targets:
        table = found.infos.get(target.addr, {})
        answered = target.addr in found.infos
        in_sync = found.in_sync.get(target.broker_name)
        rows.append(
            BrokerRow(
                target.cluster,
                target.broker_name,
                target.broker_id,
                target.addr,
                load_of(table, found.now_ms),
                lag_of(target, found.infos, masters),
                totals_of(table),
                error=None if answered else found.errors.get(target.addr, "no answer"),
                away_since_ms=away[target.addr].since_ms if target.addr in away else None,
                boot_timestamp_ms=_number(table.get("bootTimestamp")),
                in_sync=None if in_sync is None else target.addr in in_sync,
                scrubs=scrubs_of(table),
                bucket=bucket_of(table),
            )
        )
    return rows + [_unlisted_row(one) for one in found.away if one.addr and not one.is_listed]


def _unlisted_row(one: AwayBroker) -> BrokerRow:
    """The row of a broker that the NameServers have dropped. Another broker may have its id now."""
    return BrokerRow(
        one.cluster,
        one.broker_name,
        None if one.is_succeeded else one.broker_id,
        one.addr,
        load_of({}, 0),
        SlaveLag(),
        totals_of({}),
        error=one.reason,
        away_since_ms=one.since_ms,
        is_listed=False,
    )


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() else None


def _facts(found: Found, brokers: Iterable[BrokerRow]) -> list[SetFacts]:
    sets: dict[tuple[str, str], SetFacts] = {}
    for row in brokers:
        key = row.cluster_name, row.broker_name
        one = sets.setdefault(key, SetFacts(*key))
        one.brokers.append(
            SetMember(
                row.broker_id,
                row.broker_addr,
                row.load.version,
                row.load.in_tps,
                row.load.out_tps,
                row.lag,
                row.error,
                row.in_sync,
                row.is_listed,
            )
        )
    for key, one in sets.items():
        if (tables := found.tables.get(key)) is not None:
            one.queues = {name: (shape.read_queues, shape.write_queues) for name, shape in tables.shapes.items()}
        if (progress := found.progress.get(key)) is not None:
            one.lags = progress.lags
    return list(sets.values())


def _topics(found: Found, whole: Topology) -> list[TopicRow]:
    summed = {row.topic: row for row in whole.topics}
    own = {name for cluster, broker in found.tables for name in (cluster, broker, reply_topic(cluster))}
    shapes: dict[str, list[Shape]] = {}
    for tables in found.tables.values():
        for name, shape in tables.shapes.items():
            shapes.setdefault(name, []).append(shape)
    return [_topic_row(name, _kind(name, own), shapes[name], summed.get(name)) for name in sorted(shapes)]


def _topic_row(name: str, kind: str, shapes: Sequence[Shape], summed: TopicLag | None) -> TopicRow:
    perms = {shape.perm for shape in shapes}
    return TopicRow(
        name,
        kind,
        shapes[0].message_type,
        "differs" if len(perms) > 1 else shapes[0].perm,
        sum(shape.read_queues for shape in shapes),
        sum(shape.write_queues for shape in shapes),
        len(shapes),
        len(summed.groups) if summed else 0,
        summed.lag if summed else 0,
    )


def _kind(name: str, own: set[str]) -> str:
    if is_retry_topic(name):
        return RETRY
    if is_dlq_topic(name):
        return DEAD
    return SYSTEM if is_system_topic(name) or name in own else USER


def _groups(found: Found, whole: Topology) -> list[GroupRow]:
    summed = {row.consumer_group: row for row in whole.groups}
    pulled = _summed(one.pulled for one in found.progress.values())
    consumed = _summed(one.consumed for one in found.progress.values())
    names = {group for tables in found.tables.values() for group in tables.groups}
    rows = []
    for name in sorted(names | summed.keys()):
        lags = summed[name].topics if name in summed else {}
        worst = max(lags, key=lambda topic: (lags[topic], topic), default="")
        rows.append(
            GroupRow(
                name,
                SYSTEM if is_system_group(name) else USER,
                summed[name].lag if name in summed else 0,
                consumed.get(name),
                pulled.get(name, 0.0),
                len([topic for topic in lags if not is_retry_topic(topic)]),
                worst if worst and lags[worst] else "",
            )
        )
    return rows


def _summed(rates: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in rates:
        for group, rate in one.items():
            found[group] = found.get(group, 0.0) + rate
    return found


def _measured(found: Found, brokers: list[BrokerRow], groups: list[GroupRow]) -> list[tuple[str, float]]:
    """The measured values, the most important first: when there are too many, the last values get no series."""
    alive = [row for row in brokers if row.error is None]
    values: list[tuple[str, float]] = [
        ("in", sum(row.load.in_tps for row in alive if row.broker_id == MASTER_ID)),
        ("out", sum(row.load.out_tps for row in alive)),
    ]
    for one in alive:
        values += [(f"in {one.broker_addr}", one.load.in_tps), (f"out {one.broker_addr}", one.load.out_tps)]
    values += [(f"lag {group.group}", group.lag) for group in groups]
    values += [(f"rate {group.group}", group.consume_tps) for group in groups if group.consume_tps is not None]
    late = sorted((queue for each in found.progress.values() for queue in each.late), key=lambda queue: -queue.lag)
    values += [(f"{queues_of(each.group)}{each.topic} {each.broker_name} {each.queue_id}", each.lag) for each in late]
    return values


def queues_of(group: str) -> str:
    """The prefix of a group's series by queue. Names of RocketMQ have no blanks."""
    return f"queue {group} "

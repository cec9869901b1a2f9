"""Topics: their offsets, and which clusters and groups have them."""

from collections.abc import Iterable, Mapping
from dataclasses import field

from skylark.mqcommon.errors import BrokerError, RouteNotFound, UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.sdk.admin.client import Admin
from skylark.sdk.admin.reports.asking import AskEach, Unanswered
from skylark.sdk.admin.reports.report import NOT_PRINTED, OPTIONAL, named
from skylark.sdk.admin.targets import all_targets
from skylark.sdk.endpoint import ask_all
from skylark.sdk.routes import absent_text

# Topics of groups, which stand in their rows.
_HIDDEN = ("%RETRY%", "%DLQ%")


@lazy_dataclass(frozen=True, slots=True)
class QueueStatus:
    """A queue: the offset of its first message, its end, and when its last message was stored (0: no message)."""

    broker_name: str
    queue_id: int
    min_offset: int
    max_offset: int
    last_update_ms: int = field(metadata=named("lastUpdateTimestamp"))


@lazy_dataclass(frozen=True, slots=True)
class TopicStatus:
    """The queues of a topic, sorted, and how many messages a second are sent to it."""

    topic: str
    queues: tuple[QueueStatus, ...]
    put_tps: float = field(metadata=named("topicPutTps"))
    #: Brokers that are away: their queues are not among ``queues``.
    unanswered: tuple[Unanswered, ...] = field(default=(), metadata=NOT_PRINTED)


@lazy_dataclass(frozen=True, slots=True)
class TopicUse:
    """A topic, its cluster (the first one; empty when it is not known), and the groups that consume it."""

    cluster_name: str
    topic: str
    consumer_groups: tuple[str, ...]


@lazy_dataclass(frozen=True, slots=True)
class TopicList:
    """All topics. ``rows`` is None unless clusters and groups were asked for; topics of groups are left out there."""

    topics: tuple[str, ...]
    rows: tuple[TopicUse, ...] | None = field(default=None, metadata=OPTIONAL)
    unanswered: tuple[Unanswered, ...] = field(default=(), metadata=NOT_PRINTED)


@lazy_dataclass(frozen=True, slots=True)
class TopicClusters:
    """The clusters that have a topic."""

    topic: str
    clusters: tuple[str, ...]


async def topic_status(admin: Admin, topic: str, cluster: str | None = None) -> TopicStatus:
    """The offsets of each queue; ``cluster`` chooses other brokers than the topic's route."""
    stats = await admin.topic_stats(topic, cluster)
    queues = tuple(
        QueueStatus(queue.broker_name, queue.queue_id, one.min_offset, one.max_offset, one.last_update_timestamp)
        for queue, one in sorted(stats.offset_table.items(), key=lambda item: item[0])
    )
    absent = await absent_brokers(admin, [topic]) if cluster is None else ()
    return TopicStatus(topic, queues, stats.topic_put_tps, absent)


async def absent_brokers(admin: Admin, topics: Iterable[str]) -> tuple[Unanswered, ...]:
    """Brokers that are away and have queues of one of ``topics``, each once."""
    found: list[Unanswered] = []
    said: set[str] = set()
    for topic in topics:
        try:
            absent = (await admin.topic_route(topic)).absent_brokers or ()
        except RouteNotFound:
            continue  # a light queue, or a topic that was deleted meanwhile: nothing is missing
        new = [one for one in absent if one.broker_name not in said]
        said.update(one.broker_name for one in new)
        if new:
            error = UserError(f"topic {topic}: {absent_text(new)}: its queues are not shown")
            found.append(Unanswered("", error))
    return tuple(found)


async def topic_list(admin: Admin, *, uses: bool = False, each: AskEach = ask_all) -> TopicList:
    """All topics that NameServers list; with ``uses`` also their clusters and groups."""
    topics = tuple(sorted(await admin.topic_list()))
    if not uses:
        return TopicList(topics)
    clusters = {one.broker_name: one.cluster for one in all_targets(await admin.cluster_info())}
    shown = [topic for topic in topics if not topic.startswith(_HIDDEN)]
    answers = await each(shown, lambda topic: _use(admin, topic, clusters))
    rows = tuple(answers.values.get(topic) or TopicUse("", topic, ()) for topic in shown)
    # A topic that was deleted meanwhile is still listed, as in RocketMQ's tool.
    unanswered = tuple(
        Unanswered(f"topic {topic}", error)
        for topic, error in answers.errors.items()
        if not isinstance(error, BrokerError | RouteNotFound)
    )
    return TopicList(topics, rows, unanswered)


async def _use(admin: Admin, topic: str, clusters: Mapping[str, str]) -> TopicUse:
    route = await admin.topic_route(topic)
    names = sorted({clusters.get(queue.broker_name, "") for queue in route.queue_datas})
    return TopicUse(names[0] if names else "", topic, tuple(await admin.groups_of_topic(topic)))


async def topic_clusters(admin: Admin, topic: str) -> TopicClusters:
    """The clusters in the topic's route."""
    route = await admin.topic_route(topic)
    return TopicClusters(topic, tuple(sorted({broker.cluster for broker in route.broker_datas})))

"""Topics: their offsets, and which clusters and groups have them."""

from collections.abc import Mapping
from dataclasses import field

from skylark.mqcommon.errors import BrokerError, RouteNotFound
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.sdk.admin.client import Admin
from skylark.sdk.admin.reports.problems import OnProblem, OnProgress, ReportProblem, ask_each, report_absent_queues
from skylark.sdk.admin.reports.report import OPTIONAL, named
from skylark.sdk.admin.targets import all_targets

# Topics of groups, which are listed with their groups.
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


@lazy_dataclass(frozen=True, slots=True)
class TopicClusters:
    """The clusters that have a topic."""

    topic: str
    clusters: tuple[str, ...]


async def topic_status(admin: Admin, topic: str, cluster: str | None = None, *, on_problem: OnProblem) -> TopicStatus:
    """The offsets of each queue; ``cluster`` chooses other brokers than the topic's route.

    ``on_problem`` is called for brokers of the route that are away: their queues are not shown.
    """
    stats = await admin.topic_stats(topic, cluster)
    queues = tuple(
        QueueStatus(queue.broker_name, queue.queue_id, one.min_offset, one.max_offset, one.last_update_timestamp)
        for queue, one in sorted(stats.offset_table.items(), key=lambda item: item[0])
    )
    if cluster is None:
        await report_absent_queues(admin, [topic], on_problem)
    return TopicStatus(topic, queues, stats.topic_put_tps)


async def topic_list(
    admin: Admin, *, uses: bool = False, on_problem: OnProblem, on_progress: OnProgress | None = None
) -> TopicList:
    """All topics that NameServers list; with ``uses`` also their clusters and groups."""
    topics = tuple(sorted(await admin.topic_list()))
    if not uses:
        return TopicList(topics)
    clusters = {one.broker_name: one.cluster for one in all_targets(await admin.cluster_info())}
    shown = [topic for topic in topics if not topic.startswith(_HIDDEN)]
    answers = await ask_each(shown, lambda topic: _use(admin, topic, clusters), on_progress)
    rows = tuple(answers.values.get(topic) or TopicUse("", topic, ()) for topic in shown)
    for topic, error in answers.errors.items():
        # A topic that was deleted meanwhile is still listed, as in RocketMQ's tool.
        if not isinstance(error, BrokerError | RouteNotFound):
            on_problem(ReportProblem(f"topic {topic}", error))
    return TopicList(topics, rows)


async def _use(admin: Admin, topic: str, clusters: Mapping[str, str]) -> TopicUse:
    route = await admin.topic_route(topic)
    names = sorted({clusters.get(queue.broker_name, "") for queue in route.queue_datas})
    return TopicUse(names[0] if names else "", topic, tuple(await admin.groups_of_topic(topic)))


async def topic_clusters(admin: Admin, topic: str) -> TopicClusters:
    """The clusters in the topic's route."""
    route = await admin.topic_route(topic)
    return TopicClusters(topic, tuple(sorted({broker.cluster for broker in route.broker_datas})))

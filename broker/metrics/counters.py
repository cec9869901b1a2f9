"""Columns of all metrics but lags: of messages, clients, the store, timers and slaves."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from skylark.broker.cold_reads import reading
from skylark.broker.delivery.pop.reviving import Reviving
from skylark.broker.delivery.timed_delivery import TimedDelivery
from skylark.broker.delivery.transaction.transactions import Transactions
from skylark.broker.healing.scrub import Scrub
from skylark.broker.meta.clients import Clients
from skylark.broker.meta.metadata import Metadata
from skylark.broker.metrics import table
from skylark.broker.metrics.lag import is_system
from skylark.broker.metrics.tier import TierFigures, oldest_age_ms, stored_rows, tier_columns
from skylark.broker.observe.stats import BrokerStats, SizedStats
from skylark.broker.options import BrokerOptions
from skylark.broker.replication.role import RoleMachine
from skylark.broker.replication.stats import ReplicationStats
from skylark.broker.store.store import MessageStore
from skylark.broker.writing.admission import Admission
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.metrics.metric import Column, Histogram, column, flag, single
from skylark.mqcommon.names import TIMER_TOPIC, is_retry_topic
from skylark.remoting.net.steps import Steps
from skylark.remoting.net.tls.options import DaemonTls

# Rows that one step handles.
ROWS = 1_000
_LOCAL_DISK = (("local", "disk"),)
_MODES = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}


@lazy_dataclass(frozen=True, slots=True)
class Delivering:
    """The parts that deliver messages other than by pulls."""

    timed: TimedDelivery
    transactions: Transactions
    reviving: Reviving


@lazy_dataclass(frozen=True, slots=True)
class PresentValues:
    """Functions that give numbers of the broker's server and of its other parts."""

    #: The number of requests that wait, by kind.
    waiting: Callable[[], Mapping[str, int]]
    connections: Callable[[], int]
    #: The number of requests that access control has refused.
    refusals: Callable[[], int]
    #: The number of requests that a limit has refused, by limit.
    limits: Callable[[], Mapping[str, int]]
    #: The number of NameServers with which this broker is registered.
    registered: Callable[[], int]
    #: The table of request 28.
    runtime: Callable[[], Mapping[str, str]]


@lazy_dataclass(frozen=True, slots=True)
class Sources:
    """The objects that a broker's metrics are read from."""

    options: BrokerOptions
    store: MessageStore
    admission: Admission
    metadata: Metadata
    clients: Clients
    stats: BrokerStats
    replication: ReplicationStats
    delivering: Delivering
    role: RoleMachine
    fs: FileSystem
    clock: Clock
    flush_times: Histogram
    tls: DaemonTls
    scrub: Scrub
    now: PresentValues
    tier: TierFigures | None


def message_columns(sources: Sources) -> Steps[list[Column]]:
    """Messages in and out, by topic and by group.

    A counter begins at 0 when its topic, or its topic and group, are known: Prometheus sees no increase from nothing.
    """
    read = yield from _read_topics(sources)
    into = yield from _into(sources)
    out = yield from _out(sources, read)
    dead = yield from _dead_letters(sources, read)
    return [
        column(table.MESSAGES_IN, [(labels, count) for labels, count, _ in into]),
        column(table.THROUGHPUT_IN, [(labels, size) for labels, _, size in into]),
        column(table.MESSAGES_OUT, [(labels, count) for labels, count, _ in out]),
        column(table.THROUGHPUT_OUT, [(labels, size) for labels, _, size in out]),
        column(table.TO_DLQ, dead),
        column(table.MESSAGE_SIZE, (yield from _sizes_of_messages(sources.stats))),
    ]


# A group, and a topic that it reads.
_Pair = tuple[str, str]
# Labels, messages and bytes.
_Rows = list[tuple[tuple[str, ...], int, int]]


def _read_topics(sources: Sources) -> Steps[list[_Pair]]:
    """Each group with each topic in which it has offsets, or to which it subscribes."""
    pairs: dict[_Pair, None] = {}
    for group, topics in (yield from sources.metadata.consumer_offsets.topics_by_group()).items():
        pairs.update(((group, topic), None) for topic in topics)
    pairs.update((pair, None) for pair in sources.clients.subscriptions())
    yield None
    return list(pairs)


def _into(sources: Sources) -> Steps[_Rows]:
    topics = sources.metadata.topics
    counts = dict.fromkeys(topics.names(), (0, 0))
    counts.update((topic, (meter.nums, meter.size)) for topic, meter in sources.stats.topic_meters())
    rows: _Rows = []
    for number, (topic, (nums, size)) in enumerate(counts.items(), 1):
        if number % ROWS == 0:
            yield None
        config = topics.get(topic)
        kind = (config.attributes.get("message.type") if config else None) or "NORMAL"
        rows.append(((topic, kind.lower(), is_system(topic)), nums, size))
    return rows


def _out(sources: Sources, read: Sequence[_Pair]) -> Steps[_Rows]:
    counts = dict.fromkeys(read, (0, 0))
    counts.update(((group, topic), (meter.nums, meter.size)) for topic, group, meter in sources.stats.get_meters())
    rows: _Rows = []
    for number, ((group, topic), (nums, size)) in enumerate(counts.items(), 1):
        if number % ROWS == 0:
            yield None
        rows.append(((topic, group, flag(is_retry_topic(topic)), is_system(topic, group)), nums, size))
    return rows


def _dead_letters(sources: Sources, read: Sequence[_Pair]) -> Steps[list[tuple[tuple[str, ...], int]]]:
    """The numbers of dead letters, by group and topic."""
    counts = dict.fromkeys(read, 0)
    counts.update(((group, topic), meter.nums) for topic, group, meter in sources.stats.dead_letter_meters())
    rows: list[tuple[tuple[str, ...], int]] = []
    for number, ((group, topic), count) in enumerate(counts.items(), 1):
        if number % ROWS == 0:
            yield None
        rows.append(((group, topic, is_system(topic, group)), count))
    return rows


def _sizes_of_messages(stats: BrokerStats) -> Steps[list[tuple[tuple[str, ...], Histogram]]]:
    rows: list[tuple[tuple[str, ...], Histogram]] = []
    if isinstance(stats, SizedStats):
        for number, (topic, sizes) in enumerate(stats.sizes(), 1):
            if number % ROWS == 0:
                yield None
            rows.append(((topic, is_system(topic)), sizes.copy()))
    return rows


def client_columns(clients: Clients) -> Steps[list[Column]]:
    """Connections of producers and consumers."""
    producers: Counter[tuple[str, ...]] = Counter()
    consumers: Counter[tuple[str, ...]] = Counter()
    for number, (_, member, _) in enumerate(clients.all_producers(), 1):
        if number % ROWS == 0:
            yield None
        producers[member.language.lower(), str(member.version), "remoting"] += 1
    for number, (group, member) in enumerate(clients.all_consumers(), 1):
        if number % ROWS == 0:
            yield None
        mode = _MODES.get(group.consume_type, "push")
        language, version = member.language.lower(), str(member.version)
        consumers[group.name, language, version, mode, "remoting", is_system("", group.name)] += 1
    return [
        column(table.PRODUCERS, list(producers.items())),
        column(table.CONSUMERS, list(consumers.items())),
        column(table.DIVIDED, [((group.name,), len(group.clients_of)) for group in clients.divided_groups()]),
    ]


def state_columns(sources: Sources) -> Steps[list[Column]]:
    """Gauges and counters of the whole broker, and gauges of each slave."""
    oldest_ms = yield from reading(sources.store.earliest_store_time)
    unread_ms = yield from _unread_since(sources)
    return [
        *_broker(sources),
        *_store(sources, oldest_ms),
        *_scrub(sources),
        *_timers(sources.delivering.timed, unread_ms),
        *_transactions(sources),
        *_pops(sources),
        *_slaves(sources.replication),
        *(tier_columns(sources.tier) if sources.tier else ()),
    ]


def _unread_since(sources: Sources) -> Steps[int]:
    """Age of the oldest timed message that the timer has not read yet."""
    timed = sources.delivering.timed
    if not timed.unread:
        return 0
    stored_ms = yield from reading(partial(sources.store.store_time, TIMER_TOPIC, 0, timed.read_to))
    return max(sources.clock.now_ms() - stored_ms, 0) if stored_ms > 0 else 0


def _broker(sources: Sources) -> list[Column]:
    stats = sources.stats
    return [
        column(table.WATERMARK, [((name,), number) for name, number in sources.now.waiting().items()]),
        single(table.PERMISSION, sources.options.broker_permission),
        single(table.TOPICS, len(sources.metadata.topics.all())),
        single(table.GROUPS, len(sources.metadata.groups.all())),
        single(table.PUT_LATENCY, stats.put_times.histogram()),
        single(table.FLUSH_LATENCY, sources.flush_times.copy()),
        single(table.PUT_FAILURES, stats.put_times.failed),
        single(table.CONNECTIONS, sources.now.connections()),
        column(table.TLS_HANDSHAKES, sources.tls.handshakes()),
        single(table.REFUSALS, sources.now.refusals()),
        column(table.LIMITS, [((name,), number) for name, number in sources.now.limits().items()]),
        column(table.ROLE, [((sources.role.now.kind.value,), 1)]),
        single(table.REGISTERED, sources.now.registered()),
    ]


def _store(sources: Sources, oldest_ms: int) -> list[Column]:
    store = sources.store
    log = store.log
    age_ms = max(sources.clock.now_ms() - oldest_ms, 0) if oldest_ms >= 0 else 0
    status = sources.tier.status() if sources.tier else None
    return [
        stored_rows(table.STORAGE_SIZE, log.end - log.start, status.stored_bytes if status else None),
        Column(table.FLUSH_BEHIND, _LOCAL_DISK, (log.end - log.flushed,)),
        Column(table.DISPATCH_BEHIND, _LOCAL_DISK, (store.index_behind,)),
        stored_rows(table.RESERVE_TIME, age_ms, oldest_age_ms(status, sources.clock) if status else None),
        single(table.WRITABLE, int(not sources.admission.no_room)),
        single(table.ENTRIES_MENDED, log.entries_mended),
        single(table.MESSAGES_SKIPPED, log.messages_skipped),
        single(table.DROPPED, sources.stats.dropped.count),
        single(table.SET_BACK, store.clock_steps.times_back),
        single(table.TIME_AHEAD, store.ahead_ms),
        single(table.DISK_USED, round(1 - sources.fs.free_ratio(sources.options.store_path_root_dir), 4)),
    ]


def _scrub(sources: Sources) -> list[Column]:
    scrub, healing = sources.scrub, sources.scrub.healing
    figures = scrub.figures
    age_ms = sources.clock.now_ms() - figures.last_ended_ms
    return [
        single(table.SCRUB_CHECKED, figures.blocks_checked),
        single(table.SCRUB_SEALED, figures.blocks_sealed),
        single(table.SCRUB_PROGRESS, scrub.percent / 100),
        column(table.SCRUB_AGE, [((), max(age_ms, 0))] if figures.last_ended_ms else []),
        column(table.SCRUB_PROBLEMS, [(("mended",), figures.mended), (("left",), figures.problems - figures.mended)]),
        single(table.SUM_FILES_LOST, len(sources.store.sums_lost)),
        single(table.BLOCKS_REPAIRED, healing.blocks_repaired),
        single(table.BLOCKS_DAMAGED, healing.unrepaired),
        single(table.BLOCKS_IN_MEMORY, healing.memory_only),
        single(table.BLOCKS_UNSTABLE, healing.unstable),
    ]


def _timers(timed: TimedDelivery, unread_ms: int) -> list[Column]:
    enqueued, delivered = timed.totals()
    return [
        single(table.TIMER_ENQUEUE_LAG, timed.unread),
        single(table.TIMER_ENQUEUE_LATENCY, unread_ms),
        single(table.TIMER_DEQUEUE_LAG, timed.late),
        single(table.TIMER_DEQUEUE_LATENCY, timed.behind_ms),
        single(table.TIMING, timed.waiting),
        single(table.TIMER_ENQUEUED, enqueued),
        single(table.TIMER_DEQUEUED, delivered),
    ]


def _transactions(sources: Sources) -> list[Column]:
    counts = sources.stats.transactions
    return [
        column(table.COMMITS, [((topic, is_system(topic)), number) for topic, number in counts.commits.items()]),
        column(table.ROLLBACKS, [((topic, is_system(topic)), number) for topic, number in counts.rollbacks.items()]),
        column(
            table.FINISH_LATENCY,
            [((topic, is_system(topic)), times.copy()) for topic, times in counts.finish_ms.items()],
        ),
        single(table.HALVES, sources.delivering.transactions.open_halves),
    ]


def _pops(sources: Sources) -> list[Column]:
    counts, reviving = sources.stats.pops, sources.delivering.reviving
    back = [((group, topic, is_system(topic, group)), number) for (group, topic), number in counts.revived.items()]
    return [
        column(table.REVIVE_IN, [(("ck",), counts.checkpoints), (("ack",), counts.acks)]),
        column(table.REVIVE_RETRY, back),
        single(table.REVIVE_LATENCY, reviving.late_ms),
        single(table.POP_CHECKPOINTS, reviving.open_checkpoints),
    ]


def _slaves(replication: ReplicationStats) -> list[Column]:
    slaves = [((slave.broker_addr or slave.addr,), slave) for slave in replication.slaves()]
    return [
        column(table.SLAVE_BEHIND, [(name, slave.behind_bytes) for name, slave in slaves]),
        column(table.SLAVE_BEHIND_TIME, [(name, slave.behind_ms) for name, slave in slaves]),
        column(table.SLAVE_IN_SYNC, [(name, int(slave.in_sync)) for name, slave in slaves]),
        single(table.REPLICATION_LATENCY, replication.behind_ms.copy()),
    ]

"""The parts of a broker, in the order in which they start.

Each part gets what it needs and does not know the others. The stop goes through the list backwards, and its order
matters: unregister so that clients stop coming, refuse requests, answer those that wait, send the answers, flush the
store, send the rest of the log to slaves.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

from broker.admin.accounts import AccountHandlers
from broker.admin.clean import CleanHandlers
from broker.admin.config import ConfigHandlers
from broker.admin.explain import ExplainHandlers
from broker.admin.forwarded import ForwardedHandlers
from broker.admin.groups import GroupHandlers
from broker.admin.policies import PolicyHandlers
from broker.admin.reset_offsets import ResetOffsetHandlers
from broker.admin.runtime import NO_LIMIT, RuntimeInfo, Waiting
from broker.admin.topics import TopicHandlers
from broker.admin.users import UserHandlers
from broker.assembly import ClientPort, OpenConnections, closed_of, handlers_of
from broker.broker_names import BrokerNames
from broker.delivery.delay.delayed_delivery import DelayedDelivery
from broker.delivery.filters import Filters, SubscriptionChecks
from broker.delivery.held_pulls import HeldPulls
from broker.delivery.pop.reviving import Reviving
from broker.delivery.pull_handlers import PullHandlers
from broker.delivery.query_handlers import QueryHandlers
from broker.delivery.queue_assignment import AssignmentHandlers
from broker.delivery.queue_locks import QueueLocks
from broker.delivery.replies import Replies
from broker.delivery.retry.resent import Resent
from broker.delivery.retry.send_back import SendBack
from broker.delivery.timer.recall import Recall
from broker.delivery.timer.timed_delivery import TimedDelivery
from broker.delivery.transaction.checks import TransactionChecks
from broker.delivery.transaction.ledger import Ledger
from broker.delivery.transaction.transactions import Transactions
from broker.identity import memory_bytes
from broker.meta.client_handlers import ClientHandlers
from broker.meta.offset_handlers import OffsetHandlers
from broker.meta.offset_resets import OffsetResets
from broker.metrics.counters import Sources
from broker.metrics.export import HealthPages, Metrics
from broker.observe.consume_stats import ConsumeStatsHandlers
from broker.observe.sampler import StatsSampler
from broker.observe.stats_handlers import StatsHandlers
from broker.part import Part
from broker.registration.registrar import Registrar
from broker.registration.topic_queues import TopicQueues
from broker.replication.role import Role
from broker.replication.slave_tables import SlaveTableHandlers, TimerState
from broker.security.accounts.files import AccountFiles
from broker.security.accounts.guard import AccountGuard, LiveRules
from broker.security.audit import Audit
from broker.security.users.first_users import make_first_users, migrate
from broker.security.users.guard import Logins, UserExplainer, UserGuard
from broker.store.removal import Removal
from broker.tasks.clean import Cleaner
from broker.tasks.populate_pages import PopulatePages
from broker.unsupported_requests import RefusedHandlers
from broker.wiring.core import Core
from broker.wiring.pop import wire_pop
from broker.wiring.replication import Replicated, wire_replication
from broker.writing.send_handlers import SendHandlers
from mqcommon.names import REVIVE_GROUP, REVIVE_TOPIC_PREFIX, TIMER_TOPIC
from remoting.net.limits import connection_budget
from remoting.net.server import Server
from remoting.net.transport import Listener
from remoting.protocol.command import BROKER_NAME_FIELD

# Descriptors that are not for clients: files of the log, of 2,000 queues and more, of the index and the metadata, links
# to slaves, connections to NameServers.
OTHER_DESCRIPTORS = 4_096


@dataclass(frozen=True)
class Wiring:
    """The parts, in the order in which the daemon starts them. ``addr`` is the address that clients are given."""

    parts: tuple[Part, ...]
    addr: str


@dataclass(frozen=True)
class Access:
    """Access control: by accounts in files (ACL 1.0), by users and policies (ACL 2.0), or none.

    ``guard`` must be before all other parts, so that nothing is done for a client that may not ask for it.
    """

    guard: UserGuard | AccountGuard
    audit: Audit
    #: The requests of administrators about accounts, users and policies.
    handlers: tuple[Part, ...]


class Delivering(NamedTuple):
    """The parts that deliver otherwise than by pulls."""

    timed: TimedDelivery
    transactions: Transactions
    reviving: Reviving


def wire(
    core: Core,
    listeners: list[Listener],
    ha_listeners: list[Listener],
    listen_ha: Callable[[], Awaitable[list[Listener]]],
) -> Wiring:
    """Make the parts of the broker around ``core``, on open sockets."""
    options, store = core.options, core.store
    replicated = wire_replication(core, ha_listeners, listen_ha)
    cleaner = Cleaner(store, Removal(core.fs, options.store_path_root_dir, store), core.flusher, options, core.clock)
    access = _wire_access(core)
    transactions, timed = _transactions(core, access), _timed(core, replicated)
    runtime = RuntimeInfo(
        options.store_path_root_dir, core.fs, store, core.stats, replicated.stats, core.clock,
        is_active=lambda: replicated.members.is_lowest, waiting=lambda: _waiting(core), timers=lambda: _timers(timed),
    )  # fmt: skip
    answering = (
        access.guard, core.cold, *_answering(core, replicated, cleaner, transactions, timed, access, runtime),
        *replicated.others,
    )  # fmt: skip
    delayed = DelayedDelivery(
        store, core.writer, options.delay_levels, core.metadata.delay_offsets, core.clock,
        lambda: core.role.now.is_master and replicated.members.is_lowest, core.flusher.flush, core.turn_end,
    )  # fmt: skip
    quick, slow = handlers_of(answering, core.stepper, core.cold.guarded)
    registrar = _registrar(core, replicated)
    reviving = next(part for part in answering if isinstance(part, Reviving))
    delivering = Delivering(timed, transactions, reviving)
    health = HealthPages(options, store, core.role, lambda: len(registrar.registered_addrs))
    metrics = _wire_metrics(core, replicated, delivering, runtime, access.audit, registrar, health, lambda: server)
    if metrics is not None:
        quick, slow = metrics.measured(quick, slow)
    server = Server(
        quick,
        slow,
        limits=options.server_limits(options.frame_max_length, options.server_channel_max_idle_time_seconds),
        on_close=closed_of(answering),
        after_turn=core.turn_end,
        greeting={BROKER_NAME_FIELD: core.identity.broker_name},
        connections=connection_budget(
            options.max_connections,
            OTHER_DESCRIPTORS,
            options.max_connections_per_address,
            options.max_new_connections_per_second,
        ),
    )
    parts = (
        replicated.log, core.flusher, core.persister, cleaner, PopulatePages(store.log), delayed, timed,
        OpenConnections(server), *answering, ClientPort(server, listeners), registrar,
        health, *([metrics] if metrics is not None else []),
    )  # fmt: skip
    core.turn_end.serve(parts)
    return Wiring(parts, core.identity.addr)


def _timed(core: Core, replicated: Replicated) -> TimedDelivery:
    options = core.options
    java_file, offsets = f"{options.store_path_root_dir}/config/timercheck", core.metadata.consumer_offsets

    def is_read_here(topic: str) -> bool:
        # See delivery/pop/moving.py.
        return topic.startswith(REVIVE_TOPIC_PREFIX) and offsets.query(REVIVE_GROUP, TIMER_TOPIC, 0) >= 0

    timed = TimedDelivery(
        core.store, core.writer, options.timer_precision_ms, core.clock,
        lambda: core.role.now.is_master and replicated.members.is_lowest, core.turn_end,
        lambda: core.fs.read(java_file) if core.fs.exists(java_file) else None, core.store_host,
        is_read_here,
    )  # fmt: skip
    core.role.observe(lambda before, now: timed.forget())
    return timed


def _answering(
    core: Core, replicated: Replicated, cleaner: Cleaner, transactions: Transactions, timed: TimedDelivery,
    access: Access, runtime: RuntimeInfo,
) -> list[Part]:  # fmt: skip
    """The parts that answer clients and administrators."""
    options, store, stats, clients = core.options, core.store, core.stats, core.clients
    topics, groups, offsets = core.metadata.topics, core.metadata.groups, core.metadata.consumer_offsets
    in_memory_bytes = memory_bytes() * options.access_message_in_memory_max_ratio // 100
    held = HeldPulls(core.unconfirmed)
    # Held readers go back to their master as soon as it returns, not at the end of their hold time.
    replicated.known.on_return.append(held.release)
    resets = wire_resets(core, held)
    locks, filters = QueueLocks(core.clock), Filters()
    topic_handlers = TopicHandlers(topics, offsets, stats, core.persister.wait, core.flusher.delete_topic)
    offset_handlers = OffsetHandlers(
        store, topics, groups, offsets, core.metadata.delay_offsets, resets, in_memory_bytes
    )
    parts: list[Part] = [
        *wire_pop(core, held, filters, resets, offset_handlers.all_in_memory),
        SendHandlers(
            core.writer, core.durability, topics, stats.put_times, options, core.store_host, core.stepper,
            core.turn_end, Resent(groups, topics, locks.is_ordered).dead_letter_topic,
        ),
        Recall(core.writer, core.durability, topics, options, core.clock, core.turn_end),
        SlaveTableHandlers(
            core.clock, core.metadata.request_modes,
            lambda: TimerState(timed.behind_ms, timed.checkpoint.read_to),
        ),
        SendBack(
            store, core.writer, core.durability, topics, groups, options, stats, core.turn_end,
            access.guard.may_consume,
        ),
        transactions,
        locks,
        PullHandlers(
            store, topics, groups, offsets, clients, held, resets, core.cold, stats, options, in_memory_bytes,
            core.role, replicated.known, filters,
        ),
        SubscriptionChecks(filters, options),
        Replies(clients, topics, core.writer, options, core.store_host, core.clock, core.turn_end),
        ClientHandlers(clients, topics, groups, options, core.clock),
        ForwardedHandlers(clients, options, store.visible_record_at),
        topic_handlers,
        GroupHandlers(groups, offsets, stats, core.persister.wait),
        CleanHandlers(store, topics, cleaner, topic_handlers.delete_queues),
        ConfigHandlers(options, topics, core.fs, core.clock, runtime),
        offset_handlers,
        ResetOffsetHandlers(store, topics, groups, offsets, clients, resets, options),
        StatsHandlers(options.broker_name, core.identity.addr, store, topics, offsets, clients, stats),
        ConsumeStatsHandlers(
            options.broker_name, core.identity.addr, store, topics, groups, offsets, clients, stats, core.clock
        ),
        StatsSampler(stats, topics, groups),
        AssignmentHandlers(
            core.metadata.request_modes, clients, TopicQueues(core.identity, topics, options), core.persister.wait,
            core.open_client,
        ),
        QueryHandlers(store, clients, options),
        BrokerNames(options.broker_name),
        *access.handlers,
    ]  # fmt: skip
    answered = {code for part in (*parts, *replicated.others) for code in _codes(part)}
    return [*parts, RefusedHandlers(clients, answered)]


def _transactions(core: Core, access: Access) -> Transactions:
    ledger = Ledger(core.store, core.writer, core.metadata.consumer_offsets, core.clock, core.store_host)
    return Transactions(
        core.store, core.writer, core.durability, ledger,
        TransactionChecks(ledger, core.writer, core.clients, core.options, core.clock),
        core.options, core.stepper, core.clock,
        lambda: core.role.now.is_master, core.flusher.flush, core.turn_end, core.stats.transactions,
        access.guard.may_send,
    )  # fmt: skip


def wire_resets(core: Core, held: HeldPulls) -> OffsetResets:
    """Offsets that were set wait for consumers, as long as this broker is the master."""
    resets = OffsetResets(core.metadata.consumer_offsets, core.clients, held.release_group)
    core.role.observe(lambda before, now: None if now.is_master else resets.clear())
    return resets


def _codes(part: Part) -> list[int]:
    return [*part.handlers(), *part.step_handlers(), *part.slow_handlers()]


def _timers(timed: TimedDelivery) -> dict[str, str]:
    """RocketMQ's values of brokerStatus about timed messages."""
    rates = timed.rates()
    return {
        "timerReadBehind": str(timed.behind_ms // 1_000),
        "timerOffsetBehind": str(timed.unread),
        "timerCongestNum": str(timed.waiting),
        "timerEnqueueTps": str(round(rates.enqueued, 4)),
        "timerDequeueTps": str(round(rates.delivered, 4)),
    }


def _waiting(core: Core) -> dict[str, Waiting]:
    """Requests that wait, by the RocketMQ thread pool in whose queue they would wait."""
    durability, cold = core.durability, core.cold
    most = durability.max_waiting if durability.needs_slaves else NO_LIMIT
    sends = Waiting(len(durability), most, core.stats.put_times.head_wait_ms())
    reads = Waiting(len(cold), cold.max_waiting, round(cold.head_wait_s * 1_000))
    return {"send": sends, "pull": reads, "litePull": reads, "query": reads}


def _registrar(core: Core, replicated: Replicated) -> Registrar:
    topics, known = core.metadata.topics, replicated.by_namesrv
    registrar = Registrar(
        core.identity, topics, core.options, known, replicated.heartbeats, replicated.prepare,
        open_client=core.open_client,
    )  # fmt: skip

    def role_changed(before: Role, now: Role) -> None:
        if now.broker_id != before.broker_id:
            registrar.role_changed()

    topics.on_change.append(registrar.register_soon)
    known.ask_again = registrar.register_soon
    core.role.observe(role_changed)
    return registrar


def _wire_access(core: Core) -> Access:
    """Make the parts. Reads files: blocks, as nothing else is served yet. ConfigError when they cannot be used."""
    options, metadata = core.options, core.metadata
    make_first_users(options, metadata.users)
    migrate(options, metadata.users, metadata.acls)
    logins, audit = Logins(metadata.users, metadata.acls), Audit(core.clock)
    live = None
    if options.acl_enable:
        files = AccountFiles(options.acl_path, white_skips_all=options.acl_white_list_skips_all)
        live = LiveRules(files, core.clock)
    users = UserExplainer(metadata.users, logins, options) if options.authentication_enabled else None
    explainer = (lambda *asked: live.rules.explain(*asked)) if live is not None else users
    return Access(
        guard=UserGuard(logins, options, audit) if live is None else AccountGuard(live, audit),
        audit=audit,
        handlers=(
            UserHandlers(metadata.users, metadata.acls, logins, options, core.persister.wait),
            PolicyHandlers(metadata.users, metadata.acls, core.persister.wait),
            AccountHandlers(live, core.identity),
            ExplainHandlers(explainer),
        ),
    )


def _wire_metrics(
    core: Core, replicated: Replicated, delivering: Delivering, runtime: RuntimeInfo, audit: Audit,
    registrar: Registrar, health: HealthPages, server: Callable[[], Server],
) -> Metrics | None:  # fmt: skip
    """The part; None if metrics are off: then nothing is measured. ``server`` is made later, with its handlers."""
    if core.options.metrics_exporter_type == "DISABLE":
        return None
    sources = Sources(
        core.options, core.store, core.metadata.topics, core.metadata.groups, core.clients, core.stats,
        replicated.stats, *delivering, core.role, core.fs, core.clock, core.flusher.times_ms,
        waiting=lambda: {"send": len(core.durability), "pull": len(core.cold)},
        connections=lambda: len(server().channels),
        refusals=lambda: audit.refusals,
        limits=lambda: {**server().refusals.counts, "ha_strangers": replicated.log.strangers},
        tls=core.tls,
        registered=lambda: len(registrar.registered_addrs),
        runtime=runtime,
    )  # fmt: skip
    return Metrics(sources, core.metadata.consumer_offsets, health.health, core.stepper)

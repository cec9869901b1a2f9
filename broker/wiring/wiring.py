"""The parts of a broker, in the order in which they start.

Each part gets the objects that it needs and does not know other parts. The stop goes through the list backwards, and
its order matters: unregister so that clients stop coming, refuse new requests, answer waiting requests, send the
answers, flush the store, send the rest of the log to slaves.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from importlib.util import find_spec

from skylark.broker.admin.access_control import ExplainHandlers, PolicyHandlers, UserHandlers
from skylark.broker.admin.accounts import AccountHandlers
from skylark.broker.admin.backup import Backups, Steady
from skylark.broker.admin.clean import CleanHandlers
from skylark.broker.admin.config import ConfigHandlers
from skylark.broker.admin.draining import Draining, Undelivered
from skylark.broker.admin.forwarded import ForwardedHandlers
from skylark.broker.admin.groups import GroupHandlers
from skylark.broker.admin.reset_offsets import ResetOffsetHandlers
from skylark.broker.admin.sealing import Sealing
from skylark.broker.admin.topics import TopicHandlers
from skylark.broker.assembly import ClientPort, OpenConnections, closed_of, handlers_of
from skylark.broker.broker_names import BrokerNames
from skylark.broker.delivery.delayed_delivery import DelayedDelivery
from skylark.broker.delivery.filters import Filters, SubscriptionChecks
from skylark.broker.delivery.held_pulls import HeldPulls
from skylark.broker.delivery.logical_queues import LogicalQueues
from skylark.broker.delivery.message_ages import MessageAges
from skylark.broker.delivery.pop.acks import AckHandlers
from skylark.broker.delivery.pop.checks import PopChecks
from skylark.broker.delivery.pop.copies import RevivedCopies
from skylark.broker.delivery.pop.finder import Finder
from skylark.broker.delivery.pop.held_pops import HeldPops
from skylark.broker.delivery.pop.log import ReviveLog
from skylark.broker.delivery.pop.pops import PopHandlers
from skylark.broker.delivery.pop.positions import Positions
from skylark.broker.delivery.pop.records import Queue
from skylark.broker.delivery.pop.reviving import Reviving
from skylark.broker.delivery.pop.state import PopState
from skylark.broker.delivery.pull_handlers import Consumers, PullHandlers, PullWaits, ReadAdvice
from skylark.broker.delivery.query_handlers import QueryHandlers
from skylark.broker.delivery.queue_assignment import AssignmentHandlers
from skylark.broker.delivery.queue_locks import QueueLocks
from skylark.broker.delivery.recall import Recall
from skylark.broker.delivery.redelivery import RetrySends, SendBack
from skylark.broker.delivery.replies import Replies
from skylark.broker.delivery.timed_delivery import TimedDelivery
from skylark.broker.delivery.transaction.checks import TransactionChecks
from skylark.broker.delivery.transaction.ledger import Ledger
from skylark.broker.delivery.transaction.transactions import Transactions
from skylark.broker.identity import registered_addresses
from skylark.broker.meta.client_handlers import ClientHandlers
from skylark.broker.meta.offset_handlers import OffsetHandlers
from skylark.broker.meta.offset_resets import OffsetResets
from skylark.broker.meta.proxied_clients import ProxiedClients, ProxyHandlers
from skylark.broker.metrics.counters import Delivering, PresentValues, Sources
from skylark.broker.metrics.export import HealthPages, Metrics
from skylark.broker.metrics.runtime import NO_LIMIT, RuntimeInfo, RuntimeSources, Waiting
from skylark.broker.observe.stats_handlers import StatsHandlers
from skylark.broker.part import Part
from skylark.broker.registration.own_routes import OwnRoutes
from skylark.broker.registration.peers import Peers
from skylark.broker.registration.registrar import Registrar
from skylark.broker.registration.topic_queues import TopicQueues
from skylark.broker.registration.topic_spread import TopicSpread
from skylark.broker.replication.role import Role
from skylark.broker.replication.set_requests import SlaveTableHandlers, TimerState
from skylark.broker.security.accounts.files import AccountFiles
from skylark.broker.security.accounts.guard import AccountGuard, LiveRules
from skylark.broker.security.audit import Audit
from skylark.broker.security.users.first_users import make_first_users, migrate
from skylark.broker.security.users.guard import Logins, UserExplainer, UserGuard
from skylark.broker.store.queue.queue_maps import FEW_OPEN_FILES, OTHER_DESCRIPTORS
from skylark.broker.store.removal import Removal
from skylark.broker.store.store import MessageStore
from skylark.broker.tasks.block_sealing import BlockSealing
from skylark.broker.tasks.clean import Cleaner
from skylark.broker.tasks.flush import PopulatePages
from skylark.broker.tasks.watch_clock import WatchClock
from skylark.broker.unsupported_requests import RefusedHandlers
from skylark.broker.wiring.core import Core
from skylark.broker.wiring.healing import Healing, wire_healing
from skylark.broker.wiring.replication import Replicated, wire_replication
from skylark.broker.wiring.tiered import Tiered
from skylark.broker.writing.send_handlers import SendHandlers
from skylark.mqcommon.daemons.memory import memory_limit
from skylark.mqcommon.daemons.open_files import open_files_limit
from skylark.mqcommon.extras import needs_extra
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import REVIVE_GROUP, REVIVE_TOPIC_PREFIX, TIMER_TOPIC
from skylark.remoting.net.limits import ConnectionBudget, connection_budget
from skylark.remoting.net.server import Handler, Server, SlowHandler
from skylark.remoting.net.transport import Listener
from skylark.remoting.protocol.command import BROKER_NAME_FIELD
from skylark.remoting.protocol.requests.sends import DEFERRED_BATCHES

logger = logging.getLogger(__name__)


@lazy_dataclass(frozen=True)
class Wiring:
    """The parts, in the order in which the daemon starts them. ``addr`` is the address that clients are given.

    ``connections`` is the budget of all ports for clients.
    """

    parts: tuple[Part, ...]
    addr: str
    connections: ConnectionBudget


@lazy_dataclass(frozen=True)
class Access:
    """Access control: by accounts in files (ACL 1.0), by users and policies (ACL 2.0), or none.

    ``guard`` must be before all other parts, so that no part does any work for a request that is not allowed.
    """

    guard: UserGuard | AccountGuard
    audit: Audit
    #: The requests of administrators about accounts, users and policies.
    handlers: tuple[Part, ...]


def wire(
    core: Core,
    listeners: list[Listener],
    ha_listeners: list[Listener],
    listen_ha: Callable[[], Awaitable[list[Listener]]],
) -> Wiring:
    """Make the parts of the broker around ``core``, on open sockets."""
    options, store = core.options, core.store
    replicated = wire_replication(core, ha_listeners, listen_ha)
    access = _wire_access(core)

    def delivers_delayed() -> bool:
        return core.is_master and replicated.members.is_lowest

    transactions, timed = _transactions(core, access), _timed(core, delivers_delayed)
    sealing = BlockSealing(store.log, lambda: store.safe_end)
    peers = Peers(lambda: core.namesrvs.addrs, core.open_client)
    healing = wire_healing(core, replicated, peers, sealing)
    tiered = _tiered(core, replicated, healing)
    cleaner = Cleaner(
        store,
        Removal(core.fs, options.store_path_root_dir, store),
        core.flusher,
        core.admission,
        options,
        core.clock,
        lambda: _needed_from(core),
        uploaded_to=tiered.uploaded_to,
        why_kept=tiered.why_kept,
    )
    runtime_sources = RuntimeSources(
        store,
        core.stats,
        replicated.stats,
        core.fs,
        core.clock,
        is_active=lambda: replicated.members.is_lowest,
        waiting=lambda: _waiting(core),
        timers=lambda: _timers(timed),
        slowest_flush_ms=lambda: core.flusher.slowest_ms,
        damage=healing.scrub.rows,
        tier=tiered.rows,
    )
    runtime = RuntimeInfo(options.store_path_root_dir, runtime_sources)
    delayed = DelayedDelivery(core.background(delivers_delayed), options.delay_levels, core.metadata.delay_offsets)
    core.role.observe(lambda before, now: delayed.forget())
    others = (*replicated.others, *healing.answering, *tiered.answering)
    answering = (
        access.guard,
        core.cold,
        *_request_parts(core, replicated, cleaner, transactions, timed, delayed, access, runtime, others),
        *others,
    )
    registrar = _registrar(core, replicated)
    spread = TopicSpread(core.identity, core.metadata.topics, options, peers)
    logical = LogicalQueues(options.broker_name, store, core.metadata, core.clients, peers, core.role)
    core.metadata.topics.on_created_by_send.append(spread.created)
    # The first of the parts of pops.
    reviving = next(part for part in answering if isinstance(part, Reviving))
    delivering = Delivering(timed, transactions, reviving)
    health = HealthPages(
        options,
        core.admission,
        core.role,
        lambda: len(registrar.registered_addrs),
        replicated.joining.why_not,
        lambda: core.flusher.disk_fault,
    )
    metrics = None
    if options.metrics_exporter_type != "DISABLE":  # else nothing is measured
        now = PresentValues(
            waiting=lambda: {"send": len(core.durability), "pull": len(core.cold)},
            connections=lambda: len(server.channels),
            refusals=lambda: access.audit.refusals,
            limits=lambda: {**server.refusals.counts, "ha_strangers": replicated.log.strangers},
            registered=lambda: len(registrar.registered_addrs),
            runtime=runtime,
        )
        sources = Sources(
            options,
            store,
            core.admission,
            core.metadata,
            core.clients,
            core.stats,
            replicated.stats,
            delivering,
            core.role,
            core.fs,
            core.clock,
            core.flusher.times_ms,
            core.tls,
            healing.scrub,
            now,
            tiered.figures,
        )
        metrics = Metrics(sources, health.health, core.stepper)
    static_topics = core.metadata.topics.static

    translates = bool(static_topics.all())

    def handlers() -> tuple[dict[int, Handler], dict[int, SlowHandler]]:
        # Only a broker with static topics pays the cost of checking each request.
        translating = {"translating": logical.translating} if static_topics.all() else {}
        made = handlers_of(answering, core.stepper, core.cold.guarded, **translating)
        return made if metrics is None else metrics.measured(*made)

    def static_topics_changed() -> None:
        nonlocal translates
        if translates != bool(static_topics.all()):
            translates = not translates
            server.replace_handlers(*handlers())

    static_topics.on_change.append(static_topics_changed)
    connections = connection_budget(
        options.max_connections,
        OTHER_DESCRIPTORS,
        options.max_connections_per_address,
        options.max_new_connections_per_second,
    )
    _log_open_files(store, connections.most)
    server = Server(
        *handlers(),
        limits=options.server_limits(options.frame_max_length, options.server_channel_max_idle_time_seconds),
        on_close=closed_of(answering),
        after_turn=core.turn_end,
        greeting={BROKER_NAME_FIELD: core.identity.broker_name, DEFERRED_BATCHES: "true"},
        connections=connections,
        reached_at=options.reached_at(registered_addresses(core.identity, options)),
    )
    parts = (
        replicated.log,
        # Stops after the flusher: what that has flushed last is sealed, too.
        sealing,
        core.flusher,
        core.persister,
        core.removal,
        cleaner,
        PopulatePages(store.log),
        WatchClock(store),
        delayed,
        timed,
        peers,
        healing.healer,
        healing.index_files,
        healing.attesting,
        *tiered.parts,
        logical,
        OpenConnections(server),
        *answering,
        ClientPort(server, listeners),
        core.namesrvs,
        registrar,
        spread,
        health,
        *([metrics] if metrics is not None else []),
    )
    core.turn_end.serve(parts)
    return Wiring(parts, core.identity.addr, connections)


def _tiered(core: Core, replicated: Replicated, healing: Healing) -> Tiered:
    if not core.options.tier_path:
        return Tiered()
    with needs_extra("tierPath", "tier"):
        # For the process that uploads: this one would only lose memory by the imports.
        for package in ("pyarrow", "isal"):
            if find_spec(package) is None:
                raise ModuleNotFoundError(f"No module named '{package}'")
        # Imported here: most brokers have no tier.
        from skylark.broker.wiring.tier import wire_tier

    return wire_tier(core, replicated, healing, lambda: _safe_end(core))


def _log_open_files(store: MessageStore, connections: int) -> None:
    limit = open_files_limit()
    text = "open files: limit=%d connections=%d queue_files=%d"
    if limit < FEW_OPEN_FILES:
        text += ": few; more queues than that are read slower. Raise ulimit -n (systemd: LimitNOFILE)"
    level = logging.WARNING if limit < FEW_OPEN_FILES else logging.INFO
    logger.log(level, text, limit, connections, store.queues.maps.most)


def _needed_from(core: Core) -> float:
    """The offset from which the reachable members of a DLedger group still need the log of this leader."""
    acked = [slave.acked for slave in core.acks.slaves()] if core.options.enable_dleger_commit_log else []
    return min(acked, default=math.inf)


def _timed(core: Core, is_active: Callable[[], bool]) -> TimedDelivery:
    options, fs = core.options, core.fs
    java_file, offsets = f"{options.store_path_root_dir}/config/timercheck", core.metadata.consumer_offsets

    def is_read_here(topic: str) -> bool:
        # See delivery/pop/java_takeover.py.
        return topic.startswith(REVIVE_TOPIC_PREFIX) and offsets.query(REVIVE_GROUP, TIMER_TOPIC, 0) >= 0

    timed = TimedDelivery(
        core.background(is_active),
        options.timer_precision_ms,
        core.store_host,
        lambda: fs.read(java_file) if fs.exists(java_file) else None,
        is_read_here,
    )
    core.role.observe(lambda before, now: timed.forget())
    return timed


def _request_parts(
    core: Core,
    replicated: Replicated,
    cleaner: Cleaner,
    transactions: Transactions,
    timed: TimedDelivery,
    delayed: DelayedDelivery,
    access: Access,
    runtime: RuntimeInfo,
    others: Sequence[Part],
) -> list[Part]:
    """The parts that answer clients and administrators, but for ``others``, which answer members of the set."""
    options, store, stats, clients = core.options, core.store, core.stats, core.clients
    topics, groups = core.metadata.topics, core.metadata.groups
    in_memory_bytes = memory_limit().limit_bytes * options.access_message_in_memory_max_ratio // 100
    held = HeldPulls(core.unconfirmed)
    # Held readers go back to their master as soon as it returns, not at the end of their hold time.
    replicated.known.on_return.append(held.release)
    resets = wire_resets(core, held)
    locks, filters = QueueLocks(core.clock), Filters()
    topic_handlers = TopicHandlers(store, core.metadata, core.persister.wait, core.removal)
    offset_handlers = OffsetHandlers(store, core.metadata, resets, lambda: core.role.now.is_master, in_memory_bytes)
    pops = wire_pop(core, held, filters, resets, offset_handlers.all_in_memory)
    reviving = pops[0]
    undelivered = Undelivered(
        delayed=lambda: delayed.undelivered,
        timed=lambda: timed.undelivered,
        half=lambda: transactions.undelivered,
        popped=lambda: reviving.undelivered,
    )

    async def end_retries(group: str) -> None:
        await reviving.end_group(group)
        await topic_handlers.delete_retry_topics(group)

    proxied = ProxiedClients()
    client_handlers = ClientHandlers(clients, proxied, topics, groups, options, core.clock, access.guard.callers)
    parts: list[Part] = [
        *pops,
        SendHandlers(
            core.writer,
            topics,
            options,
            core.store_host,
            core.stepper,
            core.turn_end,
            RetrySends(groups, topics, locks.is_ordered, stats).dead_letter_topic,
        ),
        Recall(core.writer, topics, options, core.clock),
        SlaveTableHandlers(
            core.clock,
            core.metadata.request_modes,
            lambda: TimerState(timed.behind_ms, timed.checkpoint.read_to),
        ),
        SendBack(store, core.writer, core.metadata, options, stats, core.turn_end, access.guard.may_consume),
        transactions,
        locks,
        PullHandlers(
            store,
            core.metadata,
            Consumers(clients, filters, resets),
            PullWaits(held, core.cold),
            ReadAdvice(store, options, core.role, replicated.known, in_memory_bytes),
            stats,
            options,
        ),
        SubscriptionChecks(filters, options),
        Replies(clients, topics, core.writer, options, core.store_host, core.clock, core.turn_end),
        client_handlers,
        ProxyHandlers(
            proxied, client_handlers.prepared_group, lambda name: groups.get(name) is not None, options, core.clock
        ),
        ForwardedHandlers(clients, proxied, options, store.visible_record_at),
        topic_handlers,
        Draining(store, core.metadata, clients, core.writer, undelivered, core.persister.wait, core.clock),
        Sealing(
            store,
            core.metadata,
            clients,
            core.writer,
            reviving.popped_to,
            reviving.open_in,
            core.persister.wait,
            core.turn_end,
        ),
        GroupHandlers(core.metadata, stats, core.persister.wait, end_retries),
        CleanHandlers(store, topics, cleaner, topic_handlers.delete_queues),
        ConfigHandlers(options, topics, core.fs, core.clock, runtime),
        Backups(
            core.fs,
            options,
            store,
            core.metadata.journal,
            Steady(core.flusher, core.persister, cleaner),
            core.role,
            core.clock,
        ),
        offset_handlers,
        ResetOffsetHandlers(store, core.metadata, clients, resets, options),
        StatsHandlers(core.identity, store, core.metadata, clients, proxied, stats, core.clock),
        AssignmentHandlers(
            core.metadata.request_modes,
            clients,
            TopicQueues(core.identity, topics, options, core.namesrvs),
            core.persister.wait,
            core.open_client,
        ),
        QueryHandlers(store, clients, options),
        BrokerNames(options.broker_name),
        OwnRoutes(core.identity, topics, options),
        *access.handlers,
    ]
    answered = {code for part in (*parts, *others) for code in _codes(part)}
    return [*parts, RefusedHandlers(clients, answered)]


def _transactions(core: Core, access: Access) -> Transactions:
    ledger = Ledger(core.store, core.writer, core.metadata.consumer_offsets, core.clock, core.store_host)
    ages = MessageAges(core.store, core.clock)
    checks = TransactionChecks(ledger, core.writer, core.clients, core.options, core.clock, ages, access.guard.callers)
    transactions = Transactions(
        core.background(lambda: core.is_master),
        ledger,
        checks,
        core.options,
        core.stepper,
        core.stats.transactions,
        ages,
        access.guard.may_send,
    )
    core.role.observe(lambda before, now: transactions.forget())
    return transactions


def wire_pop(
    core: Core, held_pulls: HeldPulls, filters: Filters, resets: OffsetResets, all_in_memory: Callable[[str, int], bool]
) -> tuple[Reviving, PopHandlers, AckHandlers]:
    """The parts of pop; `Reviving` is the first part, so that it has read the revive log before clients connect."""
    options, store, clock, metadata = core.options, core.store, core.clock, core.metadata
    topics, groups, offsets = metadata.topics, metadata.groups, metadata.consumer_offsets
    log = ReviveLog(store, core.writer, offsets, clock, options, core.store_host, core.stats.pops)

    def on_foreign_offset(queue: Queue) -> None:
        # Without this the new offset would wait for a pull of the group.
        resets.pending.pop(queue, None)

    positions = Positions(log, offsets, store, clock, all_in_memory, on_foreign_offset)
    held = HeldPops(options.max_pop_polling_size, options.pop_polling_size)
    held_pulls.watchers.append(held.arrived)
    state = PopState(log, positions, held, RevivedCopies(core.writer, topics, groups, options, core.stats))
    checks = PopChecks(topics, groups, filters, options)

    async def persist() -> None:
        await core.persister.append_offsets()
        await core.persister.wait()

    background = core.background(lambda: core.is_master)
    reviving = Reviving(state, background, offsets, lambda: _safe_end(core), persist, core.stats.pops)

    def role_changed(before: Role, now: Role) -> None:
        if before.is_master or now.is_master:
            reviving.role_changed()

    core.role.observe(role_changed)
    topics.deletions.on_begin.append(reviving.topic_deleted)
    finder = Finder(store, topics, log, positions, core.unconfirmed)
    return (
        reviving,
        PopHandlers(state, finder, checks, core.cold, core.stats, options, clock),
        AckHandlers(state, checks, store, core.durability, clock),
    )


def _safe_end(core: Core) -> int:
    """Up to where the log is safe on this broker and on all slaves that are in sync."""
    store, acks = core.store, core.acks
    return min([store.safe_end, *[slave.acked for slave in acks.slaves() if acks.is_in_sync(slave, store.log.end)]])


def wire_resets(core: Core, held: HeldPulls) -> OffsetResets:
    """Make the `OffsetResets`. They are cleared when this broker stops to be the master."""
    resets = OffsetResets(core.metadata.consumer_offsets, core.clients, held.release_group)
    core.role.observe(lambda before, now: None if now.is_master else resets.clear())
    core.metadata.topics.deletions.on_begin.append(resets.topic_deleted)
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
        core.identity,
        topics,
        core.options,
        known,
        replicated.heartbeats,
        replicated.prepare,
        open_client=core.open_client,
        namesrvs=core.namesrvs,
    )

    def role_changed(before: Role, now: Role) -> None:
        if now.broker_id != before.broker_id:
            registrar.role_changed()

    topics.on_change.append(registrar.register_soon)
    core.namesrvs.on_change.append(registrar.list_changed)
    known.ask_again = registrar.register_soon
    core.role.observe(role_changed)
    return registrar


def _wire_access(core: Core) -> Access:
    """Make the parts. Reads files: blocks, as nothing else is served yet. ConfigError when they cannot be used."""
    options, metadata = core.options, core.metadata
    make_first_users(options, metadata.users)
    migrate(options, metadata.users, metadata.acls)
    plain = options.plain_codes
    logins, audit = Logins(metadata.users, metadata.acls, plain), Audit(core.clock)
    live = None
    if options.acl_enable:
        files = AccountFiles(options.acl_path, white_skips_all=options.acl_white_list_skips_all)
        live = LiveRules(files, core.clock)
    users = UserExplainer(metadata.users, logins, options) if options.authentication_enabled else None
    explainer = (lambda *asked: live.rules.explain(*asked)) if live is not None else users
    return Access(
        guard=UserGuard(logins, options, audit) if live is None else AccountGuard(live, audit, plain),
        audit=audit,
        handlers=(
            UserHandlers(metadata.users, metadata.acls, logins, options, core.persister.wait),
            PolicyHandlers(metadata.users, metadata.acls, core.persister.wait),
            AccountHandlers(live, core.identity),
            ExplainHandlers(explainer),
        ),
    )

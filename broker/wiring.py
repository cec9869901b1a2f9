"""Every room of a broker, each given what it needs; they know no other."""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

from broker.delivery.cold import ColdReads
from broker.delivery.hold import HeldPulls
from broker.handlers.admin_clean import CleanHandlers
from broker.handlers.admin_config import ConfigHandlers
from broker.handlers.admin_groups import GroupHandlers
from broker.handlers.admin_topics import TopicHandlers
from broker.handlers.broker_name import NAME_THE_BROKER, checking_broker_name
from broker.handlers.client import ClientHandlers
from broker.handlers.offsets import OffsetHandlers
from broker.handlers.pull import PullHandlers
from broker.handlers.query import QueryHandlers
from broker.handlers.refused import RefusedHandlers
from broker.handlers.runtime import NO_LIMIT, RuntimeInfo, Waiting
from broker.handlers.send import SendHandlers
from broker.handlers.stats import StatsHandlers
from broker.identity import Identity, memory_bytes
from broker.meta.clients import Clients
from broker.meta.metadata import Metadata
from broker.observe.stats import BrokerStats
from broker.options import BrokerOptions
from broker.registration.registrar import Registrar
from broker.replication.part import Replication, build_replication
from broker.replication.slave_tables import SlaveTableHandlers
from broker.store.removal import Removal
from broker.store.store import MessageStore
from broker.tasks.clean import Cleaner
from broker.tasks.flush import Flusher
from broker.tasks.pages import PagesAhead
from broker.tasks.persist import Persister
from broker.writing.group_commit import GroupCommit
from broker.writing.stored_properties import StoredProperties
from broker.writing.writer import Writer
from mqcommon.addresses import split_address
from mqcommon.clock import Clock
from mqcommon.files import FileSystem
from mqcommon.message.ids import UniqueKeys, encode_host
from remoting.net.channel import Channel
from remoting.net.connection_limit import connection_budget
from remoting.net.server import Server, ServerLimits
from remoting.net.steps import Stepper
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import BROKER_NAME_FIELD

logger = logging.getLogger(__name__)

# Descriptors for what is not a client's connection: files of the log, of 2,000 queues and more, of the index and the
# metadata, links of slaves, connections to NameServers.
OTHER_DESCRIPTORS = 4_096

# Requests whose handlers may meet messages, entries of queues or of the index that are on disk only, besides pulls.
READ_THE_STORE = (
    RequestCode.VIEW_MESSAGE_BY_ID,
    RequestCode.QUERY_CONSUME_QUEUE,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.GET_BROKER_RUNTIME_INFO,
)


@dataclass(frozen=True)
class Rooms:
    """What the broker runs and stops."""

    server: Server
    registrar: Registrar
    flusher: Flusher
    cleaner: Cleaner
    persister: Persister
    held: HeldPulls
    cold: ColdReads
    pages: PagesAhead
    stats: BrokerStats
    client_handlers: ClientHandlers
    replication: Replication


def build_rooms(
    options: BrokerOptions, identity: Identity, store: MessageStore, metadata: Metadata, fs: FileSystem, clock: Clock
) -> Rooms:
    """The rooms around an open store and open metadata."""
    stats, clients, commits, held, cold = BrokerStats(clock), Clients(), GroupCommit(), HeldPulls(), ColdReads()
    in_memory_bytes = memory_bytes() * options.access_message_in_memory_max_ratio // 100
    persister = Persister(metadata, options)
    flusher, pages = Flusher(store, commits, options, persister.settle), PagesAhead(store.log)
    cleaner = Cleaner(store, Removal(fs, options.store_path_root_dir, store), flusher, options, clock)

    def after_turn() -> None:
        stats.put_times.end_turn()
        flusher.wake()
        pages.wake()
        if master is not None:
            master.wake()
        if store.arrived:
            arrived = list(store.arrived)
            store.arrived.clear()
            held.arrived(arrived)

    replication = build_replication(options, identity, store, metadata, commits, persister, flusher, clock, after_turn)
    master, known_master, acting = replication.master, replication.known_master, replication.acting
    topics, groups, offsets = metadata.topics, metadata.groups, metadata.consumer_offsets
    stepper, (ip, port) = Stepper(), split_address(identity.addr)
    store_host = encode_host(ip, port)
    properties = StoredProperties(
        options.region_id, options.broker_cluster_name, "true" if options.trace_on else "false",
        UniqueKeys(ip, os.getpid(), port), clock,
    )  # fmt: skip
    writer = Writer(
        store, replication.durability, stats, properties,
        store_host_is_v6=len(store_host) > 8, max_message_bytes=options.max_message_size,
    )  # fmt: skip
    client_handlers = ClientHandlers(clients, topics, groups, options, clock, store.record_at)
    runtime = RuntimeInfo(
        options.store_path_root_dir, fs, store, stats, replication.stats, clock,
        is_active=lambda: acting.members.is_lowest, waiting=lambda: _waiting(options, replication, cold, stats),
    )  # fmt: skip
    topic_handlers = TopicHandlers(topics, offsets, stats, persister.wait, flusher.delete_topic)
    group_handlers = GroupHandlers(groups, offsets, stats, persister.wait)
    clean_handlers = CleanHandlers(store, topics, cleaner, topic_handlers.delete_queues)
    config_handlers = ConfigHandlers(options, topics, fs, clock, runtime)
    quick_and_slow = (client_handlers, topic_handlers, clean_handlers, group_handlers, config_handlers)
    offset_handlers = OffsetHandlers(store, topics, groups, offsets, metadata.delay_offsets, in_memory_bytes)
    stats_handlers = StatsHandlers(options.broker_name, identity.addr, store, topics, offsets, clients, stats)
    query_handlers = QueryHandlers(store, clients, options)
    in_steps = (client_handlers, topic_handlers, group_handlers, offset_handlers, stats_handlers, query_handlers)
    families = (
        *quick_and_slow,
        SendHandlers(writer, replication.durability, topics, stats.put_times, options, store_host, stepper, after_turn),
        PullHandlers(
            store, topics, groups, offsets, clients, held, cold, stats, options, in_memory_bytes, known_master
        ),
        query_handlers, offset_handlers, stats_handlers, SlaveTableHandlers(clock), replication,
    )  # fmt: skip
    handlers = {code: handler for family in families for code, handler in family.handlers().items()}
    handlers |= {code: cold.guarded(handlers[code]) for code in READ_THE_STORE}
    handlers |= {code: checking_broker_name(options.broker_name, handlers[code]) for code in NAME_THE_BROKER}
    slow_handlers = {code: handler for family in quick_and_slow for code, handler in family.slow_handlers().items()}
    step_handlers = {code: handler for family in in_steps for code, handler in family.step_handlers().items()}
    slow_handlers |= stepper.handlers(step_handlers)
    handlers |= RefusedHandlers(clients).handlers(handlers.keys() | slow_handlers.keys())

    server = Server(
        handlers,
        slow_handlers,
        limits=_limits(options),
        on_close=_each(client_handlers.closed, held.drop, replication.metadata_watch.drop, cold.drop),
        after_turn=after_turn,
        greeting={BROKER_NAME_FIELD: identity.broker_name},
        connections=connection_budget(options.max_connections, OTHER_DESCRIPTORS),
    )
    prepare = acting.pre_online.prepare if acting.pre_online else None
    registrar = Registrar(identity, topics, options, known_master, acting.heartbeats, prepare)
    return Rooms(server, registrar, flusher, cleaner, persister, held, cold, pages, stats, client_handlers, replication)


def _limits(options: BrokerOptions) -> ServerLimits:
    return ServerLimits(
        max_frame_bytes=options.frame_max_length,
        idle_timeout_ms=options.server_channel_max_idle_time_seconds * 1000,
    )


def _waiting(
    options: BrokerOptions, replication: Replication, cold: ColdReads, stats: BrokerStats
) -> dict[str, Waiting]:
    """What waits in this broker, by the thread pool in whose queue it would wait in RocketMQ's."""
    most = replication.durability.max_waiting if options.is_sync_master else NO_LIMIT
    sends = Waiting(len(replication.durability), most, stats.put_times.head_wait_ms())
    reads = Waiting(len(cold), cold.max_waiting, round(cold.head_wait_s * 1_000))
    return {"send": sends, "pull": reads, "litePull": reads, "query": reads}


def _each(*drops: Callable[[Channel], None]) -> Callable[[Channel], None]:
    """All of them, for a connection that has closed, even when one fails."""

    def on_close(channel: Channel) -> None:
        for drop in drops:
            try:
                drop(channel)
            except Exception:
                logger.exception("%s failed for the closed connection of %s", drop.__qualname__, channel.remote)

    return on_close

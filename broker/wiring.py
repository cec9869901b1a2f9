"""Every room of a broker, each given what it needs; they know no other."""

import os
from dataclasses import dataclass

import trio

from broker.delivery.cold import ColdReads
from broker.delivery.hold import HeldPulls
from broker.handlers.admin_clean import CleanHandlers
from broker.handlers.admin_config import ConfigHandlers
from broker.handlers.admin_groups import GroupHandlers
from broker.handlers.admin_topics import TopicHandlers
from broker.handlers.client import ClientHandlers
from broker.handlers.ha import HaHandlers
from broker.handlers.offsets import OffsetHandlers
from broker.handlers.pull import PullHandlers
from broker.handlers.query import QueryHandlers
from broker.handlers.send import SendHandlers
from broker.handlers.slave import refusals
from broker.handlers.stats import StatsHandlers
from broker.handlers.watch_metadata import MetadataWatch
from broker.identity import Identity, memory_bytes
from broker.meta.clients import Clients
from broker.meta.metadata import Metadata
from broker.observe.replication import ReplicationStats
from broker.observe.runtime import RuntimeInfo
from broker.observe.stats import BrokerStats
from broker.options import BrokerOptions
from broker.registrar import Registrar
from broker.replication.acks import AckLedger
from broker.replication.acting import Acting, build_acting
from broker.replication.build import build_master, build_slave
from broker.replication.double_write import DoubleWrite
from broker.replication.known_master import KnownMaster
from broker.replication.master import Master
from broker.replication.progress import SlaveProgress
from broker.replication.slave import Slave
from broker.replication.slave_sync import SlaveSync
from broker.store.group_commit import GroupCommit
from broker.store.removal import Removal
from broker.store.store import MessageStore
from broker.tasks.clean import Cleaner
from broker.tasks.flush import Flusher
from broker.tasks.persist import Persister
from common.clock import Clock
from common.files import FileSystem
from common.message.ids import UniqueKeys, encode_host
from remoting.net.channel import Channel
from remoting.net.client import split_address
from remoting.net.server import Server, ServerLimits
from remoting.protocol.codes import RequestCode

# Requests whose handlers may meet messages, entries of queues or of the index that are on disk only, besides pulls.
READ_THE_STORE = (
    RequestCode.QUERY_MESSAGE,
    RequestCode.VIEW_MESSAGE_BY_ID,
    RequestCode.QUERY_CONSUME_QUEUE,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.GET_TOPIC_STATS_INFO,
    RequestCode.GET_CONSUME_STATS,
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
    stats: BrokerStats
    client_handlers: ClientHandlers
    acks: AckLedger
    double_write: DoubleWrite
    ha_handlers: HaHandlers
    progress: SlaveProgress
    metadata_watch: MetadataWatch
    master: Master | None
    # of a slave
    slave: Slave | None
    known_master: KnownMaster | None
    slave_sync: SlaveSync | None
    acting: Acting


def build_rooms(
    options: BrokerOptions, identity: Identity, store: MessageStore, metadata: Metadata, fs: FileSystem, clock: Clock
) -> Rooms:
    """The rooms around an open store and open metadata."""
    stats, clients, commits, held, cold = BrokerStats(clock), Clients(), GroupCommit(), HeldPulls(), ColdReads()
    known_master = KnownMaster() if options.is_slave else None
    in_memory_bytes = memory_bytes() * options.access_message_in_memory_max_ratio // 100
    acks = AckLedger(options.ha_max_gap_not_in_sync)
    double_write = DoubleWrite(commits, acks, options)
    metadata_watch = MetadataWatch(metadata, clock.now_ms())
    persister = Persister(metadata, options)
    flusher = Flusher(store, commits, options, persister.settle)
    cleaner = Cleaner(store, Removal(fs, options.store_path_root_dir, store), flusher, options, clock)
    topics, groups, offsets = metadata.topics, metadata.groups, metadata.consumer_offsets
    ip, port = split_address(identity.addr)
    unique_keys = UniqueKeys(ip, os.getpid(), port)
    client_handlers = ClientHandlers(clients, topics, groups, options, clock, store.record_at)
    replication = ReplicationStats(acks, double_write, lambda: store.log.end, clock)
    progress = SlaveProgress()
    ha_handlers = HaHandlers(options, store, replication, progress, clock)
    acting = build_acting(options, identity, store, metadata, persister, known_master)
    runtime = RuntimeInfo(
        options.store_path_root_dir, fs, store, stats, replication, clock, is_active=lambda: acting.members.is_lowest
    )
    topic_handlers = TopicHandlers(topics, offsets, stats, persister.wait, flusher.delete_topic)
    quick_and_slow = (
        client_handlers,
        topic_handlers,
        CleanHandlers(store, topics, cleaner, topic_handlers.delete_queues),
        GroupHandlers(groups, offsets, stats, persister.wait),
        ConfigHandlers(options, topics, fs, clock, runtime),
    )
    families = (
        *quick_and_slow,
        SendHandlers(
            store,
            topics,
            commits,
            stats,
            options,
            clock,
            encode_host(ip, port),
            unique_keys,
            double_write if options.is_sync_master else None,
        ),
        PullHandlers(
            store, topics, groups, offsets, clients, held, cold, stats, options, in_memory_bytes, known_master
        ),
        QueryHandlers(store, clients, options),
        OffsetHandlers(store, topics, groups, offsets, metadata.delay_offsets, in_memory_bytes),
        ha_handlers,
        StatsHandlers(options.broker_name, identity.addr, store, topics, offsets, clients, stats),
        metadata_watch,
    )

    handlers = {code: handler for family in families for code, handler in family.handlers().items()}
    handlers |= acting.handlers
    if options.is_slave:
        handlers |= refusals()
    handlers |= {code: cold.guarded(handlers[code]) for code in READ_THE_STORE}

    master = None if options.is_slave else build_master(options, store, acks)

    def after_turn() -> None:
        if store.arrived:
            arrived = list(store.arrived)
            store.arrived.clear()
            held.arrived(arrived)
        flusher.wake()
        if master is not None:
            master.wake()

    def on_close(channel: Channel) -> None:
        client_handlers.closed(channel)
        held.drop(channel)
        metadata_watch.drop(channel)
        cold.drop(channel)

    server = Server(
        handlers,
        {code: handler for family in quick_and_slow for code, handler in family.slow_handlers().items()},
        limits=ServerLimits(idle_timeout_ms=options.server_channel_max_idle_time_seconds * 1000),
        on_close=on_close,
        after_turn=after_turn,
    )
    slave_sync = slave = None
    if known_master is not None:
        slave = build_slave(options, identity, store, known_master, progress, after_turn, flusher.flush, clock)
        online = acting.hand_over.master_is_online if acting.hand_over else trio.lowlevel.checkpoint
        slave_sync = SlaveSync(known_master, metadata, persister, lambda: store.log.raw_end, online)
    prepare = acting.pre_online.prepare if acting.pre_online else None
    return Rooms(
        server=server,
        registrar=Registrar(identity, topics, options, known_master, acting.heartbeats, prepare),
        flusher=flusher,
        cleaner=cleaner,
        persister=persister,
        held=held,
        cold=cold,
        stats=stats,
        client_handlers=client_handlers,
        acks=acks,
        double_write=double_write,
        ha_handlers=ha_handlers,
        progress=progress,
        metadata_watch=metadata_watch,
        master=master,
        slave=slave,
        known_master=known_master,
        slave_sync=slave_sync,
        acting=acting,
    )

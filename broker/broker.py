"""The broker: wiring, start and stop.

Start: bind, recover metadata and store (in a thread), serve, register. Stop: unregister, refuse what comes now, answer
what is in flight, make all durable, close. Neighbours: each room gets what it needs here and knows no other.
"""

import logging
import os

import trio

from broker.delivery.hold import HeldPulls
from broker.handlers.admin_config import ConfigHandlers
from broker.handlers.admin_groups import GroupHandlers
from broker.handlers.admin_topics import TopicHandlers
from broker.handlers.client import ClientHandlers
from broker.handlers.offsets import OffsetHandlers
from broker.handlers.pull import PullHandlers
from broker.handlers.query import QueryHandlers
from broker.handlers.send import SendHandlers
from broker.handlers.stats import StatsHandlers
from broker.identity import Identity, identity_of, memory_bytes, resolved
from broker.meta.clients import Clients
from broker.meta.metadata import Metadata
from broker.observe.runtime import RuntimeInfo
from broker.observe.stats import BrokerStats
from broker.options import BrokerOptions
from broker.registrar import Registrar
from broker.store.group_commit import GroupCommit
from broker.store.store import MessageStore, StoreOptions
from broker.tasks.flush import Flusher
from broker.tasks.persist import Persister
from broker.tasks.repeat import repeat
from common.clock import Clock, SystemClock
from common.files import FileSystem, OsFiles
from common.message.ids import UniqueKeys, encode_host
from remoting.net.channel import Channel
from remoting.net.client import split_address
from remoting.net.server import Server, ServerLimits, address_of, listen

logger = logging.getLogger(__name__)

HELD_PULLS_INTERVAL_MS = 100
STATS_INTERVAL_MS = 1_000
CLIENTS_INTERVAL_MS = 10_000
DRAIN_TIMEOUT_MS = 2_000


class Broker:
    """One broker. ``run`` serves until `stop` is called or it is cancelled."""

    def __init__(self, options: BrokerOptions, *, fs: FileSystem | None = None, clock: Clock | None = None) -> None:
        self.options = resolved(options)
        self._fs = fs or OsFiles()
        self._clock = clock or SystemClock()
        self._stopping = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until `stop`; starts with the address ``"ip:port"`` that clients are told.

        Raises UserError when the port cannot be had, StoreError when the store cannot be opened.
        """
        options = self.options
        listeners = await listen(options.bind_address, options.listen_port)
        identity = identity_of(options, split_address(address_of(listeners))[1])
        metadata = Metadata(self._fs, f"{options.store_path_root_dir}/config", self._clock, options)
        store = MessageStore(self._fs, store_options(options), self._clock, encode_host(*split_address(identity.addr)))
        await trio.to_thread.run_sync(self._recover, store, metadata)
        try:
            await self._serve(listeners, identity, store, metadata, task_status)
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(store.close)
        logger.info("broker %s stopped", options.broker_name)

    def stop(self) -> None:
        """Begin a graceful stop; `run` returns when it is done."""
        self._stopping.set()

    def _recover(self, store: MessageStore, metadata: Metadata) -> None:
        # The store first: its lock keeps a second broker from touching the metadata, too.
        report = store.open()
        if report.torn_file:
            logger.warning(
                "torn tail cut: file=%s offset=%d reason=%s", report.torn_file, report.end, report.torn_reason
            )
        if not report.clean and report.end:
            logger.info(
                "recovered after a crash: records=%d from=%d end=%d", report.records, report.scanned_from, report.end
            )
        try:
            for cut in metadata.open().cuts:
                logger.warning("metadata: %s", cut)
        except BaseException:
            store.close()
            raise

    async def _serve(
        self,
        listeners: list[trio.SocketListener],
        identity: Identity,
        store: MessageStore,
        metadata: Metadata,
        task_status: trio.TaskStatus[str],
    ) -> None:
        options, clock = self.options, self._clock
        stats = BrokerStats(clock)
        clients = Clients()
        commits = GroupCommit()
        held = HeldPulls()
        flusher = Flusher(store, commits, options)
        persister = Persister(metadata, options)
        registrar = Registrar(identity, metadata.topics, options)
        topics, groups, offsets = metadata.topics, metadata.groups, metadata.consumer_offsets
        ip, port = split_address(identity.addr)
        unique_keys = UniqueKeys(ip, os.getpid(), port)
        client_handlers = ClientHandlers(clients, topics, groups, options, clock)
        runtime = RuntimeInfo(options.store_path_root_dir, self._fs, store, stats, clock)
        quick_and_slow = (
            client_handlers,
            TopicHandlers(topics, offsets, stats, persister.wait, flusher.delete_topic),
            GroupHandlers(groups, offsets, stats, persister.wait),
            ConfigHandlers(options, topics, self._fs, clock, runtime),
        )
        families = (
            *quick_and_slow,
            SendHandlers(store, topics, commits, stats, options, clock, encode_host(ip, port), unique_keys),
            PullHandlers(store, topics, groups, offsets, clients, held, stats, options),
            QueryHandlers(store, options),
            OffsetHandlers(store, topics, groups, offsets, memory_bytes()),
            StatsHandlers(options.broker_name, identity.addr, store, topics, offsets, clients, stats),
        )

        def after_turn() -> None:
            if store.arrived:
                arrived = list(store.arrived)
                store.arrived.clear()
                held.arrived(arrived)
            flusher.wake()

        def on_close(channel: Channel) -> None:
            client_handlers.closed(channel)
            held.drop(channel)

        server = Server(
            {code: handler for family in families for code, handler in family.handlers().items()},
            {code: handler for family in quick_and_slow for code, handler in family.slow_handlers().items()},
            limits=ServerLimits(idle_timeout_ms=options.server_channel_max_idle_time_seconds * 1000),
            on_close=on_close,
            after_turn=after_turn,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flusher.run)
            nursery.start_soon(persister.run)
            nursery.start_soon(repeat, HELD_PULLS_INTERVAL_MS, lambda: held.expire(trio.current_time()))
            nursery.start_soon(repeat, STATS_INTERVAL_MS, stats.sample)
            nursery.start_soon(repeat, CLIENTS_INTERVAL_MS, client_handlers.expire)
            await nursery.start(server.serve_on, listeners)
            await nursery.start(registrar.run)
            task_status.started(identity.addr)
            await self._stopping.wait()
            await registrar.stop()
            server.stop_accepting()
            held.release()
            await server.drain(DRAIN_TIMEOUT_MS)
            await flusher.flush()
            nursery.cancel_scope.cancel()
        await persister.close()


def store_options(options: BrokerOptions) -> StoreOptions:
    """What the store needs of the options."""
    return StoreOptions(
        directory=options.store_path_root_dir,
        commitlog_segment_bytes=options.mapped_file_size_commit_log,
        consumequeue_segment_bytes=options.queue_file_bytes,
        index_slots=options.max_hash_slot_num,
        index_capacity=options.max_index_num,
        index_enabled=options.message_index_enable,
    )

"""The broker: start and stop.

Start: bind, recover metadata and store (in a thread), serve, register. Stop: unregister, refuse what comes now, answer
what is in flight, make all durable, close. Neighbour: wiring.py makes the rooms.
"""

import logging
from contextlib import suppress

import trio

from broker.identity import Identity, identity_of, resolved
from broker.meta.metadata import Metadata, MetadataReport
from broker.options import BrokerOptions
from broker.store.recovery import LastStop
from broker.store.store import MessageStore, StoreOptions
from broker.tasks.repeat import repeat
from broker.wiring import Rooms, build_rooms
from mqcommon.addresses import split_address
from mqcommon.clock import Clock, SystemClock
from mqcommon.errors import OutOfDescriptors, UserError
from mqcommon.files import FileSystem, OsFiles
from mqcommon.message.ids import encode_host
from remoting.net.server import address_of, listen

logger = logging.getLogger(__name__)

STATS_INTERVAL_MS = 1_000
CLIENTS_INTERVAL_MS = 10_000
DRAIN_TIMEOUT_MS = 2_000
# The files that a roll of the log, of the index and of some queues, a checkpoint and the journal open at one time.
SPARE_DESCRIPTORS = 32
# A clock that is behind the newest message by this much is worth a warning.
CLOCK_WARNING_MS = 1_000


class Broker:
    """One broker. ``run`` serves until `stop` is called or it is cancelled."""

    def __init__(self, options: BrokerOptions, *, fs: FileSystem | None = None, clock: Clock | None = None) -> None:
        self.options = resolved(options)
        self._fs = fs or OsFiles(SPARE_DESCRIPTORS)
        self._clock = clock or SystemClock()
        self._stopping = trio.Event()
        # Where slaves connect to, once that is known.
        self.ha_addr = ""

    async def run(self, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until `stop`; starts with the address ``"ip:port"`` that clients are told.

        Raises UserError when the port cannot be had, StoreError when the store cannot be opened.
        """
        options = self.options
        listeners = await listen(options.bind_address, options.listen_port)
        port = split_address(address_of(listeners))[1]
        ha_port = options.ha_listen_port or (port + 1 if options.listen_port else 0)
        ha_listeners: list[trio.SocketListener] = []
        if not options.is_slave:
            try:
                ha_listeners = await listen(options.bind_address, ha_port, "haListenPort")
            except BaseException:
                for listener in listeners:
                    await listener.aclose()
                raise
            ha_port = split_address(address_of(ha_listeners))[1]
        listeners += await _listen_fast(options)
        if options.is_sync_master and options.in_sync_replicas == 1:
            logger.warning("SYNC_MASTER with inSyncReplicas=1 waits for no slave, as ASYNC_MASTER; 2 waits for one")
        identity = identity_of(options, port, ha_port)
        self.ha_addr = identity.ha_addr
        metadata = Metadata(self._fs, f"{options.store_path_root_dir}/config", self._clock, options)
        store = MessageStore(self._fs, store_options(options), self._clock, encode_host(*split_address(identity.addr)))
        await trio.to_thread.run_sync(self._recover, store, metadata)
        try:
            await self._serve(listeners, ha_listeners, identity, store, metadata, task_status)
        finally:
            with trio.CancelScope(shield=True):
                unwritten = await trio.to_thread.run_sync(store.close)
        if unwritten:
            logger.warning("the store was not closed cleanly, the next start reads the end of its log: %s", unwritten)
        logger.info("broker %s stopped", options.broker_name)

    def stop(self) -> None:
        """Begin a graceful stop; `run` returns when it is done."""
        self._stopping.set()

    def _recover(self, store: MessageStore, metadata: Metadata) -> None:
        # The store first: its lock keeps a second broker from touching the metadata, too.
        try:
            report = store.open(lambda line: logger.info("recovery: %s", line))
        except OSError as error:
            directory = self.options.store_path_root_dir
            raise UserError(
                f"store {directory} cannot be opened: {error.strerror or error} ({error.filename});"
                " make it writable or set another storePathRootDir"
            ) from None
        if report.torn_file:
            logger.warning(
                "torn tail cut: file=%s offset=%d reason=%s", report.torn_file, report.end, report.torn_reason
            )
        if not report.clean and report.end:
            logger.info(
                "recovered after %s: records=%d from=%d end=%d",
                {LastStop.KILLED: "a crash", LastStop.POWER_LOSS: "a crash or power loss"}[report.last_stop],
                report.records,
                report.scanned_from,
                report.end,
            )
        if report.rebuilt:
            names = ", ".join(report.rebuilt[:10]) + (" ..." if len(report.rebuilt) > 10 else "")
            logger.warning("%d consume queues lacked messages and were made anew: %s", len(report.rebuilt), names)
        if report.ahead_ms >= CLOCK_WARNING_MS and not self.options.is_slave:
            logger.warning(
                "the clock was set back: the newest message was stored %d s from now. New messages get its store time"
                " until the clock has caught up; set the clock right",
                report.ahead_ms // 1000,
            )
        if report.unchecked:
            logger.warning(
                "the consume queues of this large store are taken as they are; broker verifyStore compares them"
            )
        try:
            self._report(metadata.open())
        except BaseException:
            store.close()
            raise

    def _report(self, report: MetadataReport) -> None:
        if report.imported:
            logger.info("metadata imported: %s", report.imported)
        for warning in [*report.journal.cuts, *report.warnings]:
            logger.warning("metadata: %s", warning)

    async def _serve(
        self,
        listeners: list[trio.SocketListener],
        ha_listeners: list[trio.SocketListener],
        identity: Identity,
        store: MessageStore,
        metadata: Metadata,
        task_status: trio.TaskStatus[str],
    ) -> None:
        rooms = build_rooms(self.options, identity, store, metadata, self._fs, self._clock)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(rooms.flusher.run)
                nursery.start_soon(rooms.persister.run)
                await nursery.start(rooms.cleaner.run)
                nursery.start_soon(rooms.cold.run)
                nursery.start_soon(rooms.pages.run)
                nursery.start_soon(rooms.held.run)
                nursery.start_soon(rooms.client_handlers.notices.run)
                nursery.start_soon(repeat, STATS_INTERVAL_MS, rooms.stats.sample)
                nursery.start_soon(repeat, CLIENTS_INTERVAL_MS, rooms.client_handlers.expire)
                await nursery.start(rooms.replication.run, ha_listeners)
                await nursery.start(rooms.server.serve_on, listeners)
                await nursery.start(rooms.registrar.run)
                task_status.started(identity.addr)
                await self._stopping.wait()
                await rooms.registrar.stop()
                rooms.server.stop_accepting()
                rooms.held.release()
                rooms.replication.metadata_watch.release()
                with trio.move_on_after(DRAIN_TIMEOUT_MS / 1000):
                    await rooms.cold.stop()
                await _nobody_waits(rooms)
                await rooms.server.drain(DRAIN_TIMEOUT_MS)
                with suppress(OutOfDescriptors):  # the store's close flushes, too, when all connections are gone
                    await rooms.flusher.flush()
                await rooms.replication.drain(DRAIN_TIMEOUT_MS / 1000)
                nursery.cancel_scope.cancel()
        finally:
            await rooms.persister.close()
            await rooms.replication.finish()


async def _listen_fast(options: BrokerOptions) -> list[trio.SocketListener]:
    """The fast port, where the same is served. A broker serves without it, too: few need it."""
    if not options.fast_port:
        return []
    try:
        return await listen(options.bind_address, options.fast_port, "fastListenPort")
    except UserError as error:
        logger.warning("no fast port: slaves of RocketMQ and clients with VIP channels fail: %s", error)
        return []


async def _nobody_waits(rooms: Rooms) -> None:
    """Until all sends and held pulls are answered, or not much longer."""
    with trio.move_on_after(DRAIN_TIMEOUT_MS / 1000):
        # Looked at once in a process's life, as in Server.drain.
        while rooms.replication.durability or rooms.held:  # noqa: ASYNC110
            await trio.sleep(0.005)


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

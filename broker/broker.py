"""The broker: start and stop.

Start: bind, recover store and metadata (in a thread), serve, register. Stop: unregister, refuse new requests, answer
requests in flight, flush, close. Neighbour: wiring/ makes the parts.
"""

import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

import trio

from skylark.broker.assembly import overrides
from skylark.broker.identity import Identity, identity_of, listening, registered_addresses, resolved, with_port
from skylark.broker.meta.metadata import Metadata, MetadataReport
from skylark.broker.options import UNKNOWN_ID, BrokerOptions
from skylark.broker.replication.dledger.group_store import DIRECTORY as DLEDGER
from skylark.broker.replication.dledger.group_store import LostDisk, is_group_store
from skylark.broker.replication.role import RoleMachine
from skylark.broker.store.backup.manifest import refuse_unfinished
from skylark.broker.store.checkpoint import LastStop
from skylark.broker.store.store import MessageStore, StoreOptions
from skylark.broker.store.sums.sum_files import path_in
from skylark.broker.store.truncation.saved import DIRECTORY as CUT_OFF
from skylark.broker.tasks.ticks import Ticks
from skylark.broker.wiring.core import make_core
from skylark.broker.wiring.tiered import CACHE_FILE
from skylark.broker.wiring.wiring import Wiring, wire
from skylark.broker.writing.elected import Elected
from skylark.mqcommon.addresses import is_any_address, split_address
from skylark.mqcommon.clock import Clock, SystemClock
from skylark.mqcommon.disk.atomic import remove_all_leftovers, remove_leftovers
from skylark.mqcommon.disk.files import FileSystem, OsFiles
from skylark.mqcommon.errors import NewerVersion, StoreCorrupt, UserError
from skylark.mqcommon.exposure import opened
from skylark.mqcommon.message.ids import encode_host
from skylark.remoting.net.in_process import InProcessListener, NearServer
from skylark.remoting.net.sockets import listen
from skylark.remoting.net.tls.options import DaemonTls, daemon_tls
from skylark.remoting.net.transport import Listener

logger = logging.getLogger(__name__)

# Files that may be opened at the same time: new files of the log, the index and some queues, checkpoint, journal.
SPARE_DESCRIPTORS = 32
# Warn when the clock is behind the store time of the newest message by this much.
CLOCK_WARNING_MS = 1_000
_ANYBODY = "whoever reaches the ports can read and write all topics; set aclEnable=true, or"


class Broker:
    """One broker. ``run`` serves until `stop` is called or it is cancelled."""

    def __init__(
        self,
        options: BrokerOptions,
        *,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
        opened_because: str = "",
    ) -> None:
        """``opened_because``: why the broker listens on all interfaces although its options do not say so."""
        self.options = resolved(options)
        self._opened_because = opened_because or listening(options).because
        self._close_files: Callable[[], None] = lambda: None
        if fs is None:
            fs = files = OsFiles(SPARE_DESCRIPTORS)
            self._close_files = files.close
        self._fs = fs
        self._clock = clock or SystemClock()
        self._stopping = trio.Event()
        self._tls = DaemonTls()
        self._near: NearServer | None = None
        # The address for slaves; empty until the HA port is bound.
        self.ha_addr = ""
        #: May be changed while the broker runs.
        self.role = RoleMachine(_first_id(self.options))

    async def run(self, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until `stop`. The task status gets the address ``"ip:port"`` that clients are given.

        Raises UserError when the port cannot be bound, StoreError when the store cannot be opened.
        """
        options = self.options
        # Bind the ports before the recovery: a port in use is reported at once, and clients that connect meanwhile wait
        # in the backlog. Nothing is accepted before all parts have started.
        self._tls = await trio.to_thread.run_sync(daemon_tls, options)
        listeners = await self._listen(options.listen_port)
        port = split_address(listeners[0].address)[1]
        ha_port = options.ha_listen_port or (port + 1 if options.listen_port else 0)
        ha_listeners: list[Listener] = []
        ha_key = "haListenPort"
        if options.enable_dleger_commit_log:
            # Members get the log at the group's port, whoever leads.
            ha_key = "dLegerPeers"
            ha_port = split_address(options.group_peers[options.d_leger_self_id])[1]
        if self.role.now.is_master or options.enable_dleger_commit_log:
            try:
                ha_listeners = await self._listen(ha_port, ha_key)
            except BaseException:
                for listener in listeners:
                    await listener.aclose()
                raise
            ha_port = split_address(ha_listeners[0].address)[1]
        listeners += await self._listen_fast()
        identity = identity_of(options, port, ha_port)
        near = InProcessListener(identity.addr, registered_addresses(identity, options))
        if options.enable_proxy:
            listeners.append(near)
        self.ha_addr = identity.ha_addr
        anybody = "" if options.has_access_control else _ANYBODY
        if is_any_address(options.bind_address) and (line := opened(identity.addr, self._opened_because, anybody)):
            logger.warning("%s", line)
        metadata, store = self._metadata(), self._store(identity)
        try:
            unwritten = await trio.to_thread.run_sync(self._recover, store, metadata)
        except StoreCorrupt as error:
            # Checked before anything is served: a member that has lost entries must not speak for its id any more.
            async with AsyncExitStack() as closing:
                closing.callback(self._close_files)
                for listener in (*listeners, *ha_listeners):
                    closing.push_async_callback(listener.aclose)
                if not await self._begin_anew(error):
                    logger.info("broker %s stopped before it served", options.broker_name)
                    return
                closing.pop_all()
            metadata, store = self._metadata(), self._store(identity)
            unwritten = await trio.to_thread.run_sync(self._recover, store, metadata)
        try:
            elected = Elected(trio.current_time) if options.elects_master else None
            core = make_core(
                options,
                identity,
                store,
                metadata,
                self._fs,
                self._clock,
                self.role,
                self._tls,
                elected=elected,
                unwritten=unwritten,
            )
            wiring = wire(core, listeners, ha_listeners, partial(self._listen_for_slaves, identity, ha_port))
            if options.enable_proxy:
                self._near = NearServer(near.shortcut, wiring.connections)
            await self._serve(wiring, task_status)
        finally:
            # Shielded: a cancelled broker writes its checkpoint, too; otherwise the next start must scan its log.
            with trio.CancelScope(shield=True):
                unclean = await trio.to_thread.run_sync(store.close)
            self._close_files()
        if unclean:
            logger.warning("the store was not closed cleanly; the next start scans the end of its log: %s", unclean)
        if store.sums_unwritten:
            logger.warning("the last block sums are lost, a scrub makes them again: %s", store.sums_unwritten)
        logger.info("broker %s stopped", options.broker_name)

    def _metadata(self) -> Metadata:
        return Metadata(self._fs, f"{self.options.store_path_root_dir}/config", self._clock, self.options)

    def _store(self, identity: Identity) -> MessageStore:
        host = encode_host(*split_address(identity.addr))
        return MessageStore(self._fs, store_options(self.options), self._clock, host)

    async def _begin_anew(self, error: StoreCorrupt) -> bool:
        """Move the store of a member of a DLedger group aside, once the other members are a whole majority.

        Returns False if the broker was stopped before the move. Raises ``error`` when no group has the messages of this
        store: then an administrator decides what becomes of them.
        """
        options, root = self.options, self.options.store_path_root_dir
        if (
            isinstance(error, NewerVersion)
            or not options.enable_dleger_commit_log
            or not is_group_store(self._fs, root)
        ):
            raise error
        # Imported here, and check_promises below: only members of a group need these modules.
        from skylark.broker.replication.dledger.begin_anew import can_begin_anew, set_aside
        from skylark.broker.wiring.group_link import until_others_lead

        if not can_begin_anew(options.group_peers, root):
            raise error
        is_told = isinstance(error, LostDisk)
        lost = error if is_told else LostDisk(error.file, error.offset, f"offset {error.offset}: {error.reason}")
        logger.error("%s", lost)
        is_aside = False
        async with trio.open_nursery() as nursery:

            async def stopped() -> None:
                await self._stopping.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(stopped)
            await until_others_lead(self.options, self._tls)
            with trio.CancelScope(shield=True):
                aside = await trio.to_thread.run_sync(set_aside, self._fs, self._clock, root)
            is_aside = True
            nursery.cancel_scope.cancel()
        if is_aside:
            logger.warning(
                "the store is kept in %s: delete that directory when the group is whole again and you do not need it",
                aside,
            )
        return is_aside

    @property
    def near(self) -> NearServer:
        """How a proxy in this event loop reaches this broker, which must serve with ``enableProxy``."""
        assert self._near is not None, "the broker does not serve yet"
        return self._near

    def stop(self) -> None:
        """Begin a graceful stop; `run` returns when it is done."""
        self._stopping.set()

    def _recover(self, store: MessageStore, metadata: Metadata) -> str:
        """Open both. Returns why the recovery could not write queue entries; "" if it could."""
        refuse_unfinished(self._fs, self.options.store_path_root_dir)
        # Open the store first: its lock also keeps a second broker from changing the metadata.
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
                "torn tail cut: file=%s offset=%d reason=%s bytes=%d messages=%d kept=%s",
                report.torn_file,
                report.end,
                report.torn_reason,
                report.cut_bytes,
                report.cut_messages,
                report.kept_in or "nothing",
            )
            if report.cut_messages and report.kept_in:
                logger.warning("to see which messages were cut, run: broker printCut %s", report.kept_in)
            if report.not_kept:
                logger.error("the bytes that were cut could not be kept: %s", report.not_kept)
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
            logger.warning("%d consume queues lacked messages and were rebuilt: %s", len(report.rebuilt), names)
        if report.sums_dropped:
            logger.warning("block sums were dropped, a scrub makes them again: %s", report.sums_dropped)
        if report.sums_lost:
            lost = [path_in(store.options.directory, base) for base in report.sums_lost]
            logger.warning(
                "%s missing: something has removed what this broker wrote. A scrub makes the sums again from the"
                " messages, whose properties nobody can prove until another replica has attested them: begin it now"
                " (mqadmin scrub --now), and see what else was removed",
                f"{lost[0]} is" if len(lost) == 1 else f"{len(lost)} files of block sums, {lost[0]} first, are",
            )
        # Store times never go back within a log, or a search by time would miss messages.
        if report.ahead_ms >= CLOCK_WARNING_MS and self.role.now.is_master:
            logger.warning(
                "the clock was set back: the store time of the newest message is %d s in the future. New messages get"
                " that store time until the clock has caught up, and what waited for a delay waits anew; correct the"
                " clock",
                report.ahead_ms // 1000,
            )
        if report.unchecked:
            logger.warning(
                "the store is large, so its consume queues were not compared with its log; broker verifyStore does that"
            )
        # The store remembers that there was metadata. A broker whose config directory was lost must not start with
        # empty tables: its consumers would start from the beginning, and NameServers would drop all topics.
        try:
            if self.options.enable_dleger_commit_log:
                from skylark.broker.replication.dledger.log_disk import check_promises

                check_promises(self._fs, self.options.store_path_root_dir, store.log)
            self._remove_leftovers()
            self._report(metadata.open(must_exist=store.inventory.has_metadata))
            store.inventory.note_metadata()
        except BaseException:
            store.close()
            raise
        return report.unwritten

    def _remove_leftovers(self) -> None:
        """Remove temporary files of writes that a crash broke off, and what only a living process needs."""
        root, conf = self.options.store_path_root_dir, self.options.broker_config_path
        for directory in (root, f"{root}/config", f"{root}/{CUT_OFF}", f"{root}/{DLEDGER}"):
            remove_all_leftovers(self._fs, directory)
        if self._fs.exists(f"{root}/{CACHE_FILE}"):
            self._fs.remove(f"{root}/{CACHE_FILE}")
        if conf and (reason := remove_leftovers(self._fs, conf)):
            logger.warning("%s", reason)

    def _report(self, report: MetadataReport) -> None:
        if report.imported:
            logger.info("metadata imported: %s", report.imported)
        for warning in [*report.journal.cuts, *report.warnings]:
            logger.warning("metadata: %s", warning)

    async def _listen(self, port: int, key: str = "listenPort") -> list[Listener]:
        return self._tls.secured(await listen(self.options.bind_address, port, key))

    async def _listen_fast(self) -> list[Listener]:
        """Open the fast port, which serves the same requests. Few clients need it, so a failure is only logged."""
        if not self.options.fast_port:
            return []
        try:
            return await self._listen(self.options.fast_port, "fastListenPort")
        except UserError as error:
            logger.warning("no fast port: RocketMQ slaves and clients with VIP channels cannot connect: %s", error)
            return []

    async def _listen_for_slaves(self, identity: Identity, port: int) -> list[Listener]:
        """Open the HA port of a broker that has become a master."""
        listeners = await self._listen(port, "haListenPort")
        self.ha_addr = identity.ha_addr = with_port(identity.ha_addr, split_address(listeners[0].address)[1])
        return listeners

    async def _serve(self, wiring: Wiring, task_status: trio.TaskStatus[str]) -> None:
        """Start all parts in order, wait for `stop`, and stop them in reverse order."""
        async with AsyncExitStack() as closing:
            for part in wiring.parts:
                closing.push_async_callback(part.close)
            async with trio.open_nursery() as nursery:
                if self._tls.server is not None:
                    nursery.start_soon(self._tls.server.watch)
                ticks = Ticks(nursery)
                for part in wiring.parts:
                    if overrides(part, "run"):
                        await nursery.start(part.run)
                    if part.tick_interval_ms:
                        ticks.add(part.tick_interval_ms, part.tick)
                task_status.started(wiring.addr)
                # A part stops while the parts before it in the list still run, so messages and answers of its last
                # moments are still stored and sent.
                await self._stopping.wait()
                for part in reversed(wiring.parts):
                    await part.stop()
                nursery.cancel_scope.cancel()


def _first_id(options: BrokerOptions) -> int:
    """The broker id at the start: a broker whose set elects its master begins as a slave."""
    if options.enable_dleger_commit_log:
        return options.group_follower_id
    return UNKNOWN_ID if options.enable_controller_mode else options.broker_id


def store_options(options: BrokerOptions) -> StoreOptions:
    """The options of the store, made of the broker's options."""
    return StoreOptions(
        directory=options.store_path_root_dir,
        commitlog_segment_bytes=options.mapped_file_size_commit_log,
        consumequeue_segment_bytes=options.queue_file_bytes,
        batchqueue_segment_bytes=options.batch_queue_file_bytes,
        index_slots=options.max_hash_slot_num,
        index_capacity=options.max_index_num,
        index_enabled=options.message_index_enable,
        delay_levels=options.delay_levels,
    )

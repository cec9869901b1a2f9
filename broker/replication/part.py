"""All rooms of replication, out of the options, and what runs in them.

Neighbours: build.py (the link), acting.py (slaves that act), wiring.py (the rest of the broker), broker.py (runs this).
"""

from collections.abc import Callable
from dataclasses import dataclass

import trio

from broker.identity import Identity
from broker.meta.metadata import Metadata
from broker.options import BrokerOptions
from broker.replication.acting import Acting, build_acting
from broker.replication.build import build_master, build_slave
from broker.replication.ha_status import HaHandlers
from broker.replication.known_master import KnownMaster
from broker.replication.master import Master
from broker.replication.progress import SlaveProgress
from broker.replication.refusals import refusals
from broker.replication.slave import Slave
from broker.replication.slave_sync import SlaveSync
from broker.replication.stats import ReplicationStats
from broker.replication.watch_metadata import TICK_MS as WATCH_TICK_MS
from broker.replication.watch_metadata import MetadataWatch
from broker.store.store import MessageStore
from broker.tasks.flush import Flusher
from broker.tasks.persist import Persister
from broker.tasks.repeat import repeat
from broker.writing.acks import AckLedger
from broker.writing.durability import Durability
from broker.writing.group_commit import GroupCommit
from mqcommon.clock import Clock
from remoting.net.server import Handler

WAITING_SENDS_INTERVAL_MS = 100
STATS_INTERVAL_MS = 1_000


@dataclass(frozen=True)
class Replication:
    """`run` it; `finish` after that. ``durability`` says when messages are safe."""

    is_sync_master: bool
    durability: Durability
    stats: ReplicationStats
    ha_handlers: HaHandlers
    metadata_watch: MetadataWatch
    acting: Acting
    # of a master
    master: Master | None
    # of a slave
    known_master: KnownMaster | None
    slave: Slave | None
    slave_sync: SlaveSync | None

    def handlers(self) -> dict[int, Handler]:
        """They go before all others: a slave refuses what would make it other than its master."""
        handlers = self.ha_handlers.handlers() | self.metadata_watch.handlers() | self.acting.handlers
        return handlers if self.known_master is None else handlers | refusals()

    async def run(
        self, listeners: list[trio.SocketListener], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Until cancelled; a master serves slaves on ``listeners``."""
        async with trio.open_nursery() as nursery:
            if self.is_sync_master:
                nursery.start_soon(
                    repeat, WAITING_SENDS_INTERVAL_MS, lambda: self.durability.expire(trio.current_time())
                )
            nursery.start_soon(repeat, STATS_INTERVAL_MS, self.ha_handlers.sample)
            nursery.start_soon(repeat, WATCH_TICK_MS, self.metadata_watch.tick)
            if self.master is not None:
                await nursery.start(self.master.serve_on, listeners)
            if self.slave_sync is not None:
                nursery.start_soon(self.slave_sync.run)
            if self.slave is not None:
                nursery.start_soon(self.slave.run)
            if self.acting.hand_over is not None:
                nursery.start_soon(self.acting.hand_over.run)
            task_status.started()

    async def drain(self, timeout_s: float) -> None:
        """Before a stop: a master's slaves get what was written last, if they take it in time."""
        if self.master is not None:
            await self.master.drain(timeout_s)

    async def finish(self) -> None:
        """After `run` was cancelled."""
        if self.slave is not None:
            with trio.CancelScope(shield=True):
                await self.slave.finish()


def build_replication(
    options: BrokerOptions,
    identity: Identity,
    store: MessageStore,
    metadata: Metadata,
    commits: GroupCommit,
    persister: Persister,
    flusher: Flusher,
    clock: Clock,
    arrived: Callable[[], None],
) -> Replication:
    """``arrived`` is called when a slave's queues got messages."""
    known = KnownMaster() if options.is_slave else None
    acks = AckLedger(options.ha_max_gap_not_in_sync)
    durability = Durability(commits, acks, options, double_write=options.is_sync_master)
    stats = ReplicationStats(acks, durability, lambda: store.log.end, clock)
    progress = SlaveProgress()
    acting = build_acting(options, identity, store, metadata, persister, known, acks)
    slave_sync = slave = None
    if known is not None:
        slave = build_slave(options, identity, store, known, progress, arrived, flusher, clock)
        online = acting.hand_over.master_is_online if acting.hand_over else trio.lowlevel.checkpoint
        slave_sync = SlaveSync(known, metadata, persister, lambda: store.log.raw_end, online, options.frame_max_length)
    return Replication(
        is_sync_master=options.is_sync_master,
        durability=durability,
        stats=stats,
        ha_handlers=HaHandlers(options, store, stats, progress, clock),
        metadata_watch=MetadataWatch(metadata),
        acting=acting,
        master=build_master(options, store, acks) if known is None else None,
        known_master=known,
        slave=slave,
        slave_sync=slave_sync,
    )

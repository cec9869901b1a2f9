"""The parts that heal the log: they find who else has its bytes, and answer others who ask for them."""

import logging
from collections.abc import Iterator
from functools import partial
from random import Random

import trio

from skylark.broker.healing.healer import LogHealer
from skylark.broker.healing.index_files import IndexFiles
from skylark.broker.healing.members import OtherMembers
from skylark.broker.healing.other_files import FileKind, OtherFiles
from skylark.broker.healing.peers import PeerLogs
from skylark.broker.healing.queue_files import QueueChecks
from skylark.broker.healing.rewriting import LogBlocks
from skylark.broker.healing.scrub import Scrub
from skylark.broker.healing.serving import LogServing
from skylark.broker.healing.small_files import MetadataFiles, SmallFiles, store_files, write_sums
from skylark.broker.part import Part
from skylark.broker.registration.peers import Peers
from skylark.broker.replication.attesting import Attesting
from skylark.broker.tasks.block_sealing import BlockSealing
from skylark.broker.wiring.core import Core
from skylark.broker.wiring.replication import Replicated
from skylark.mqcommon.disk.small_file import SmallFile
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.lazy_dataclass import lazy_dataclass

logger = logging.getLogger(__name__)

# The others are known without NameServers, too: a slave knows its master, and a master its slaves.
NAMESRV_S = 0.5


@lazy_dataclass(frozen=True)
class Healing:
    """``answering``: the parts with handlers of requests; ``attesting``: what tells the master this log's sums."""

    healer: LogHealer
    scrub: Scrub
    index_files: IndexFiles
    answering: tuple[Part, ...]
    attesting: Attesting


def wire_healing(core: Core, replicated: Replicated, peers: Peers, sealing: BlockSealing) -> Healing:
    """Make the parts. ``peers`` asks NameServers for the set's brokers."""
    store, options = core.store, core.options

    def linked() -> Iterator[str]:
        if replicated.known.address is not None:
            yield replicated.known.address.addr
        # Some masters know their slaves by the numbers of the brokers only.
        yield from (slave.broker_addr for slave in replicated.stats.slaves() if ":" in slave.broker_addr)

    async def registered() -> list[str] | None:
        if not options.has_namesrvs:
            return []
        with trio.move_on_after(NAMESRV_S):
            try:
                of_set = (await peers.cluster_info()).broker_addr_table.get(options.broker_name)
            except RequestRefused:
                return None
            return [] if of_set is None else list(of_set.broker_addrs.values())
        return None

    def may_be_alone() -> bool:
        # Only a broker of a set is given another role. A slave attests sums, unless it is RocketMQ's.
        is_single = options.broker_role == "ASYNC_MASTER" and not options.elects_master
        has_met = core.acks.had_slaves or store.log.sums.has_attested
        return is_single and not options.enable_slave_acting_master and not has_met

    members = OtherMembers(core.identity.addr, linked, registered, may_be_alone)

    def is_current() -> bool:
        # What is confirmed by a majority or a SyncStateSet is never cut. Where the configuration names the master, a
        # slave whose log differs from its master's does not follow it.
        return core.elected is not None or core.is_master or replicated.is_following()

    healer = LogHealer(
        store,
        LogBlocks(core.fs, options.store_path_root_dir),
        PeerLogs(core.open_client, members.find, options.mapped_file_size_commit_log, is_current),
        core.flusher.repairing,
        core.flusher.one_at_a_time,
        replicated.entries_of,
    )
    healer.on_repaired.append(store.log.blocks.repaired)
    if (tail := store.damaged_tail) is not None:
        text = (
            "the disk has changed the block at %d of the log since the last checkpoint: the other replicas are asked"
            " for it in a minute, and until then only the bodies of its messages are checked"
        )
        logger.error(text, tail.part.start)
        healer.figures.damaged.add(tail.part.start)
    core.cold.healer = healer
    assert core.cold.hold is not None
    core.cold.hold.is_alone = lambda: members.is_alone
    if core.elected is not None:
        core.elected.has_sound_disk = lambda: not healer.figures.is_disk_failing
    attesting = Attesting(store.log.sums, core.role, replicated.known, core.open_client, healer.suspect)
    index_files = IndexFiles(core.fs, store, core.flusher)
    scrub = Scrub(
        core.fs,
        options,
        store,
        healer,
        _other_files(core, replicated, index_files),
        core.clock,
        sealed_to=lambda: min(sealing.sealed_to, store.safe_end),
        is_held_up=lambda: bool(core.cold) or core.flusher.is_held_up,
    )
    serving = LogServing(store.log, lambda: store.safe_end, healer.suspect, is_current)
    return Healing(healer, scrub, index_files, (serving, scrub), attesting)


def _other_files(core: Core, replicated: Replicated, index_files: IndexFiles) -> OtherFiles:
    fs, store, flusher = core.fs, core.store, core.flusher

    def small_files() -> list[SmallFile]:
        return [*store_files(fs, store, flusher), *replicated.small_files()]

    kinds: tuple[FileKind, ...] = (
        SmallFiles(fs, small_files, flusher),
        MetadataFiles(fs, core.metadata.journal, core.persister),
        index_files,
        *replicated.file_kinds,
        QueueChecks(fs, store, flusher),
    )
    return OtherFiles(kinds, Random(), partial(write_sums, store, flusher))

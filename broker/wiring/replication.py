"""The parts that replicate: a master sends its log and its tables to its slaves."""

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import trio

from skylark.broker.healing.healer import EntriesOf
from skylark.broker.healing.other_files import FileKind
from skylark.broker.part import Part
from skylark.broker.registration.heartbeats import Heartbeats
from skylark.broker.registration.pre_online import PreOnline
from skylark.broker.replication.copied_deletions import CopiedDeletions
from skylark.broker.replication.dledger.group_store import check_kind
from skylark.broker.replication.find_master import MasterFinder
from skylark.broker.replication.hello import VERSION, Hello
from skylark.broker.replication.joining import Joining
from skylark.broker.replication.known_master import KnownMaster, MasterAddress
from skylark.broker.replication.members import Members
from skylark.broker.replication.offset_hand_over import OffsetHandOver
from skylark.broker.replication.plain_dialogue import PlainDialogue, compare_logs, plain_sessions
from skylark.broker.replication.replica import Replica
from skylark.broker.replication.replication import Replication
from skylark.broker.replication.role import Role, RoleKind
from skylark.broker.replication.session import Dialogue
from skylark.broker.replication.set_requests import MemberHandlers, SlaveRefusals
from skylark.broker.replication.slave_sync import SlaveSync, adopt_topics
from skylark.broker.replication.stats import HaHandlers, ReplicationStats, SlaveProgress
from skylark.broker.replication.watch_metadata import MetadataWatch
from skylark.broker.wiring.core import Core
from skylark.broker.wiring.link_parts import Copier, Link, ha_port, ha_slaves, link_terms
from skylark.broker.writing.admission import Reason
from skylark.mqcommon.disk.small_file import SmallFile
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.polling import poll_until
from skylark.remoting.net.client import RemotingClient
from skylark.remoting.net.transport import Listener

logger = logging.getLogger(__name__)

# How often a slave in Controller mode checks whether it copies its master's log; only then it copies tables.
POLL_S = 0.02
# Who reports the master, in place of a NameServer.
HA_LINK = "HA link"


@lazy_dataclass(frozen=True)
class Replicated:
    """The parts of replication. ``log`` starts first and so stops last; the ``others`` answer requests."""

    log: Replication
    others: tuple[Part, ...]
    known: KnownMaster
    #: What NameServers report; not used in Controller mode, where the Controllers say who is the master.
    by_namesrv: KnownMaster
    members: Members
    stats: ReplicationStats
    #: None without enableSlaveActingMaster.
    heartbeats: Heartbeats | None
    joining: Joining
    entries_of: EntriesOf
    #: Whether this broker copies a master's log, which has all of its own.
    is_following: Callable[[], bool]
    #: Files of this kind of set that the scrub checks.
    small_files: Callable[[], list[SmallFile]]
    #: The scrub's checks of larger files of this kind of set.
    file_kinds: Sequence[FileKind]
    #: Called before a master registers.
    prepare: Callable[[RemotingClient], Awaitable[None]] | None
    #: In which term, or epoch, this broker was elected; None where nobody is elected.
    term: Callable[[], int | None]


def wire_replication(
    core: Core, listeners: list[Listener], listen: Callable[[], Awaitable[list[Listener]]]
) -> Replicated:
    """Make the parts. ``listeners`` and ``listen`` are the HA port, see `Replication`."""
    options, store, metadata, role, clock = core.options, core.store, core.metadata, core.role, core.clock
    known, progress, members = KnownMaster(), SlaveProgress(), Members(core.identity.broker_id)
    stats = ReplicationStats(core.acks, core.durability, lambda: store.log.end, clock)
    watch = MetadataWatch(metadata)
    acting = _acting(core, known, members)
    check_kind(core.fs, options.store_path_root_dir, store.log, in_group=options.enable_dleger_commit_log)
    deletions = CopiedDeletions(metadata.topics, core.removal, lambda: store.log.end)
    listening = listeners, listen
    if options.enable_dleger_commit_log:
        # Imported here, as below: most brokers are in no group and have no Controllers, and start sooner.
        from skylark.broker.wiring.group_link import group_link

        link = group_link(core, known, listeners, deletions.add_one)
    elif core.elected is not None:
        from skylark.broker.wiring.controlled_link import controlled_link

        link = controlled_link(core, known, progress, *listening)
    else:
        link = _plain_link(core, known, progress, *listening, acting.prepare)
    slaves: list[Copier] = []

    async def copying() -> None:
        # Before this broker copies, its own log may have a tail that the master lacks and that must be cut first.
        await poll_until(lambda: bool(slaves and slaves[-1].following), math.inf, POLL_S)

    online = acting.hand_over.master_is_online if acting.hand_over else trio.lowlevel.checkpoint
    if core.elected is not None:
        online = copying
    sync = SlaveSync(known, metadata, core.persister, lambda: store.log.raw_end, deletions, online, core.open_client)

    def new_slave() -> Copier:
        slaves[:] = [link.new_slave(Replica(store, lambda: core.flusher.unwritten))]
        return slaves[0]

    log = Replication(role, link.server, new_slave, sync, link.before_leading)

    def role_changed(before: Role, now: Role) -> None:
        if now.is_master:
            known.forget()
            if deletions.lead(store.log.raw_end):
                core.admission.refuse(Reason.TOPIC_DELETION)
                core.removal.finish_soon(lambda: core.admission.allow(Reason.TOPIC_DELETION))
            else:
                core.admission.allow(Reason.TOPIC_DELETION)
            adopt_topics(store, metadata.topics, metadata.topics_to.value)
            metadata.topics_to.put(store.log.raw_end)
        if now.broker_id != before.broker_id:
            members.renumbered(now.broker_id)

    stats.problem = link.problem
    stats.copy_problem = lambda: slaves[-1].problem if slaves and role.now.follows else ""
    role.observe(role_changed)
    role.observe(log.role_changed)
    known.on_change += [link.changed, sync.master_moved]
    if options.enable_controller_mode:
        known.on_change.append(log.master_moved)
    for table in (
        metadata.topics,
        metadata.groups,
        metadata.delay_offsets,
        metadata.request_modes,
        metadata.users,
        metadata.acls,
    ):
        table.on_change.append(watch.changed)
    others = (
        watch,
        HaHandlers(role, store, stats, progress, clock),
        SlaveRefusals(role),
        *acting.parts,
        *link.parts,
    )

    def has_slaves() -> bool:
        if options.elects_master or options.broker_role != "SYNC_MASTER" or options.enable_auto_in_sync_replicas:
            return True
        return 1 + sum(slave.in_sync for slave in stats.slaves()) >= options.in_sync_replicas

    def is_following() -> bool:
        return bool(slaves and slaves[-1].following)

    joining = Joining(role, is_following, has_slaves, link.is_in_sync)
    return Replicated(
        log,
        others,
        known,
        link.by_namesrv,
        members,
        stats,
        acting.heartbeats,
        joining,
        link.entries_of,
        is_following,
        link.small_files,
        link.file_kinds,
        link.prepare,
        link.term,
    )


def _plain_link(
    core: Core,
    known: KnownMaster,
    progress: SlaveProgress,
    listeners: list[Listener],
    listen: Callable[[], Awaitable[list[Listener]]],
    prepare: Callable[[RemotingClient], Awaitable[None]] | None,
) -> Link:
    options, who = core.options, core.identity
    terms = replace(link_terms(options, core.tls), client_addr=who.addr)
    finder = MasterFinder(known, options, core.open_client, has_secret=bool(terms.secret))

    def met(addr: str) -> None:
        # Where nobody else says who the master is: its tables are copied from there, and damage is mended.
        if not options.has_namesrvs:
            known.reported(HA_LINK, MasterAddress(addr, options.ha_master_address))

    def new_dialogue(replica: Replica) -> Dialogue:
        return PlainDialogue(
            replica,
            terms,
            Hello(VERSION, who.cluster_name, who.broker_name, who.broker_id, who.addr, b""),
            core.flusher.one_at_a_time,
            sync_flush=options.flush_disk_type == "SYNC_FLUSH",
            last_file=options.sync_from_last_file,
            met=met,
        )

    sessions, examine = plain_sessions(core.store.log, core.acks, terms), compare_logs(core.store.log)
    return Link(
        finder.changed,
        ha_port(core, listeners, listen, sessions, examine),
        ha_slaves(core, known, progress, finder.find, new_dialogue),
        _is_to_lead,
        known,
        prepare,
    )


async def _is_to_lead() -> bool:
    """Always True: in a set whose master the configuration names, no other broker can be elected meanwhile."""
    return True


@lazy_dataclass(frozen=True)
class _Acting:
    parts: tuple[Part, ...] = ()
    hand_over: OffsetHandOver | None = None
    heartbeats: Heartbeats | None = None
    prepare: Callable[[RemotingClient], Awaitable[None]] | None = None


def _acting(core: Core, known: KnownMaster, members: Members) -> _Acting:
    """The parts for ``enableSlaveActingMaster``. Without it only the master can be the lowest member."""
    options, role, identity = core.options, core.role, core.identity
    if not options.enable_slave_acting_master:
        if role.now.is_master:
            members.came_online()
        return _Acting()
    heartbeats = Heartbeats(options, members, lambda: role.now.follows)
    hand_over = OffsetHandOver(members, core.metadata.consumer_offsets, core.open_client)
    requests = MemberHandlers(role, identity, core.store, known, heartbeats.ask_soon)
    prepare = None
    if role.now.is_master:
        pre_online = PreOnline(
            identity,
            options,
            core.namesrvs,
            core.metadata,
            core.persister,
            members,
            core.acks,
            core.durability,
            core.store.max_offset,
        )
        prepare = pre_online.prepare

    def members_changed() -> None:
        if role.now.follows:
            known.lives(members.master_addr is not None)
            role.acting(members.is_acting)

    def role_changed(before: Role, now: Role) -> None:
        if now.kind is RoleKind.ACTING:
            logger.warning("this slave acts as the master: no member with a lower id is alive")
        elif before.kind is RoleKind.ACTING:
            logger.info("this slave stopped acting as the master: a member with a lower id is alive")

    members.on_change += [members_changed, hand_over.changed]
    role.observe(role_changed)
    return _Acting((hand_over, requests), hand_over, heartbeats, prepare)

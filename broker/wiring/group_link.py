"""The link of a DLedger group: its log on disk, the member, and what may reach its port."""

from collections.abc import Callable
from functools import partial

from skylark.broker.healing.entry_files import EntryFiles
from skylark.broker.healing.judgement import EntrySum
from skylark.broker.healing.repaired_entries import give_entries
from skylark.broker.healing.rewriting import LogBlocks
from skylark.broker.options import BrokerOptions
from skylark.broker.replication.dledger.agreed_tables import AgreedTables
from skylark.broker.replication.dledger.begin_anew import until_others_are_whole
from skylark.broker.replication.dledger.followers import FollowerReport
from skylark.broker.replication.dledger.following import Following
from skylark.broker.replication.dledger.gate import GroupGate
from skylark.broker.replication.dledger.log_disk import GroupLog, LogDisk
from skylark.broker.replication.dledger.member import GroupMember, GroupPort, LeadershipEffects
from skylark.broker.replication.dledger.proposing import Proposing
from skylark.broker.replication.known_master import KnownMaster
from skylark.broker.replication.replica import Replica
from skylark.broker.store.sums.block_sums import Block
from skylark.broker.wiring.core import Core
from skylark.broker.wiring.link_parts import (
    Copier,
    Link,
    began_leading,
    copied_log,
    link_terms,
    log_cutter,
)
from skylark.mqcommon.addresses import server_address, split_address
from skylark.remoting.net.client import open_client
from skylark.remoting.net.limits import ServerLimits
from skylark.remoting.net.tls.options import DaemonTls
from skylark.remoting.net.transport import Listener
from skylark.remoting.raft.group import NodeOptions


def _group_name(options: BrokerOptions) -> str:
    return options.d_leger_group or options.broker_name


def _group_gate(options: BrokerOptions, tls: DaemonTls) -> GroupGate:
    hosts = None
    if not (options.ha_allow_plain_peers == "true" or tls.requires_certificates):
        hosts = {split_address(addr)[0] for addr in options.group_peers.values()} | options.plain_hosts
    return GroupGate(
        _group_name(options),
        link_terms(options, tls).secret,
        hosts,
        options.plain_signature_addresses,
        options.plain_codes,
    )


async def until_others_lead(options: BrokerOptions, tls: DaemonTls) -> None:
    """Return when the other members of this broker's DLedger group are a whole majority, with a leader."""
    gate = _group_gate(options, tls)
    async with open_client(credentials=gate.credentials, connect=tls.connect) as client:
        await until_others_are_whole(client, _group_name(options), options.group_peers, options.d_leger_self_id)


def group_link(core: Core, known: KnownMaster, listeners: list[Listener], deleted: Callable[[str, int], None]) -> Link:
    """Make the link of a DLedger group. ``deleted``: see `AgreedTables`."""
    options, log, elected = core.options, core.store.log, core.elected
    assert elected is not None
    sync_flush, peers, group = options.flush_disk_type == "SYNC_FLUSH", options.group_peers, _group_name(options)
    disk = LogDisk(
        core.fs, options.store_path_root_dir, GroupLog(log, core.flusher.flush, log_cutter(core, elected), sync_flush)
    )
    disk.on_mended = partial(give_entries, core.store, LogBlocks(core.fs, options.store_path_root_dir))
    gate = _group_gate(options, core.tls)
    port = GroupPort(
        listeners,
        gate.guarded,
        gate.guarded_slow,
        core.client_opener(gate.credentials),
        ServerLimits(max_frame_bytes=options.frame_max_length),
        options.reached_at({server_address(peers[options.d_leger_self_id])}),
    )
    tables = AgreedTables(core.metadata, lambda: core.is_master, lambda: elected.is_leased, deleted)
    core.persister.agreed = tables.wait
    followers = FollowerReport(core.acks, disk.index, lambda: log.start)
    member = GroupMember(
        NodeOptions(
            group,
            options.d_leger_self_id,
            peers,
            max_uncommitted_bytes=1 << 62,
            tells_commits=False,
            calls_turn=True,
            client_addr=core.identity.addr,
            problem=lambda: member.problem,
            is_unfit=lambda: not elected.has_sound_disk(),
        ),
        disk,
        LeadershipEffects(
            core.role,
            elected,
            known,
            options.group_follower_id,
            began_leading(core),
            tables,
            followers,
            lambda: options.preferred_leaders,
            lambda: options.flush_interval_commit_log / 1000,
            lambda: len(core.durability),
        ),
        port,
        core.clock,
    )
    proposing = Proposing(
        log,
        lambda: member.node,
        lambda: core.is_master,
        lambda: disk.entries.position,
        lambda: elected.confirm_offset,
        lambda: gate.refusals,
        tables,
    )

    def new_slave(replica: Replica) -> Copier:
        return Following(copied_log(core, replica), disk, lambda: member.leader)

    def entries_of(block: Block) -> list[EntrySum]:
        return [EntrySum(each.start, each.size, each.crc) for each in disk.index.in_log(block.start, block.end)]

    return Link(
        lambda: None,
        proposing,
        new_slave,
        member.prepare_to_lead,
        KnownMaster(),
        None,
        (member,),
        lambda: member.problem,
        entries_of=entries_of,
        term=lambda: 0 if member.node is None else member.node.term,
        small_files=disk.as_small_files,
        file_kinds=(EntryFiles(core.fs, disk, member.mend_entries),),
    )

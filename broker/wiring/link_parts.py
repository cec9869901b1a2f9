"""What the links of all kinds of sets are made of: plain ones, those with Controllers, and DLedger groups."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Protocol

from skylark.broker.healing.healer import EntriesOf, no_entries
from skylark.broker.healing.other_files import FileKind
from skylark.broker.options import BrokerOptions
from skylark.broker.part import Part
from skylark.broker.replication.copying import CopiedLog
from skylark.broker.replication.hello import LinkTerms
from skylark.broker.replication.known_master import KnownMaster
from skylark.broker.replication.master import HaServer
from skylark.broker.replication.replica import Replica
from skylark.broker.replication.replication import HaPort, LogCopier, LogServer
from skylark.broker.replication.session import Dialogue, Examine, MasterTarget, NewMasterSide
from skylark.broker.replication.slave import HaClient, MasterAccess
from skylark.broker.replication.stats import SlaveProgress
from skylark.broker.tasks.truncate import LogTruncation
from skylark.broker.wiring.core import Core
from skylark.broker.writing.elected import Elected
from skylark.mqcommon.addresses import format_address, server_address
from skylark.mqcommon.disk.small_file import SmallFile
from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.net.client import RemotingClient
from skylark.remoting.net.tls.options import DaemonTls
from skylark.remoting.net.transport import Listener

# A Skylark slave says hello at once; a RocketMQ slave reports its offset with its first heartbeat, after about 5 s.
HELLO_S = 3.0
PLAIN_HELLO_S = 10.0


class Copier(LogCopier, Protocol):
    """Copies the log from the master."""

    @property
    def following(self) -> str:
        """The master whose log is being copied; "" when there is none."""

    @property
    def problem(self) -> str:
        """The damaged record that keeps the messages after it from being shown; "" if there is none."""


@lazy_dataclass(frozen=True)
class Link:
    """The objects that depend on how the set chooses its master; see also `Replicated`."""

    #: Called when another broker is the master.
    changed: Callable[[], None]
    server: LogServer
    new_slave: Callable[[Replica], Copier]
    before_leading: Callable[[], Awaitable[bool]]
    by_namesrv: KnownMaster
    prepare: Callable[[RemotingClient], Awaitable[None]] | None
    parts: tuple[Part, ...] = ()
    #: What keeps members of a DLedger group from getting entries; "" if nothing does.
    problem: Callable[[], str] = str
    #: With Controllers: whether this broker is in the SyncStateSet.
    is_in_sync: Callable[[], bool] | None = None
    #: The entries of a DLedger group that have bytes of a block of the log.
    entries_of: EntriesOf = no_entries
    #: Files of this kind of set that the scrub checks.
    small_files: Callable[[], list[SmallFile]] = list
    #: The scrub's checks of larger files of this kind of set.
    file_kinds: Sequence[FileKind] = ()
    #: In which term, or epoch, this broker was elected; None where nobody is elected.
    term: Callable[[], int | None] = lambda: None


def copied_log(core: Core, replica: Replica) -> CopiedLog:
    sync_flush = core.options.flush_disk_type == "SYNC_FLUSH"
    return CopiedLog(replica, core.turn_end, core.flusher.one_at_a_time, core.flusher.flush if sync_flush else None)


def ha_slaves(
    core: Core,
    known: KnownMaster,
    progress: SlaveProgress,
    find: Callable[[], Awaitable[MasterTarget]],
    new_dialogue: Callable[[Replica], Dialogue],
) -> Callable[[Replica], Copier]:
    def new_slave(replica: Replica) -> Copier:
        master = MasterAccess(find, new_dialogue(replica), lambda: known.ask_again(), core.tls.connect)
        return HaClient(copied_log(core, replica), master, progress, core.clock)

    return new_slave


def ha_port(
    core: Core,
    listeners: list[Listener],
    listen: Callable[[], Awaitable[list[Listener]]],
    new_session: NewMasterSide,
    examine: Examine,
) -> HaPort:
    return HaPort(HaServer(core.store.log, new_session, examine, lambda: _ha_rate(core.options)), listeners, listen)


def link_terms(options: BrokerOptions, tls: DaemonTls) -> LinkTerms:
    """The options that both ends of the link need. ConfigError when a slave cannot be distinguished from a stranger."""
    secret = options.ha_shared_secret.encode()
    if not secret and options.has_access_control and (inner := options.inner_credentials) is not None:
        # Members of a set have the same account.
        secret = f"{inner.access_key}\n{inner.secret_key}".encode()
    knows_slaves = secret or options.allow_plain_peers or options.plain_hosts or tls.requires_certificates
    if options.elects_master and options.has_access_control and not knows_slaves:
        raise ConfigError(
            "haSharedSecret: access control is on, and nothing tells the brokers of this set from strangers who want to"
            " copy the log. Set haSharedSecret or innerClientAuthenticationCredentials to the same on all of them, or"
            " have TLS ask for certificates (tls.server.mode=enforcing, tls.server.need.client.auth=require)"
        )
    return LinkTerms(
        cluster=options.broker_cluster_name,
        broker=options.broker_name,
        secret=secret,
        allow_plain=options.allow_plain_peers,
        plain_hosts=options.plain_hosts,
        must_prove=options.has_access_control and not options.allow_plain_peers and not tls.requires_certificates,
        heartbeat_s=options.ha_send_heartbeat_interval / 1000,
        timeout_s=options.ha_housekeeping_interval / 1000,
        hello_s=PLAIN_HELLO_S if options.allow_plain_peers or options.plain_hosts else HELLO_S,
        plain_chunk_bytes=options.ha_transfer_batch_size,
        reached_at=options.reached_at({_ha_address(options)}),
    )


def _ha_address(options: BrokerOptions) -> str:
    """The address to which slaves should connect; its port is 0 when the system chooses the port."""
    port = options.ha_listen_port or (options.listen_port + 1 if options.listen_port else 0)
    return server_address(format_address(options.broker_ip2, port))


def _ha_rate(options: BrokerOptions) -> int:
    """Most bytes a second to each slave; 0: no limit."""
    limit = options.max_ha_transfer_byte_in_second if options.ha_flow_control_enable else 0
    return min([rate for rate in (options.ha_max_transfer_rate, limit) if rate], default=0)


def began_leading(core: Core) -> Callable[[int], None]:
    """The function to call with the epoch when this broker is elected."""

    def began(epoch: int) -> None:
        # NameServers believe the broker with the highest state version.
        topics = core.metadata.topics
        topics.adopt_version(replace(topics.data_version.next(core.clock.now_ms()), state_version=epoch))

    return began


def log_cutter(core: Core, elected: Elected) -> Callable[[int], Awaitable[None]]:
    """A function that cuts the log at an offset, and updates all that depends on the log's end."""
    cutter = LogTruncation(core.fs, core.options.store_path_root_dir, core.store, core.flusher)

    async def cut(offset: int) -> None:
        core.metadata.topics.deletions.log_is_cut(offset)
        await cutter.cut(offset)
        elected.cut(offset)
        # The next master's log may have new topics from ``offset`` on.
        core.metadata.topics_to.put(min(core.metadata.topics_to.value, offset))

    return cut

"""What many parts of a broker share: the store, the tables, and the tasks that make them durable."""

import logging
import os
from collections.abc import Callable
from functools import partial

from skylark.broker.assembly import TurnEnd
from skylark.broker.cold_reads import ColdReads
from skylark.broker.damage_hold import DamageHold
from skylark.broker.delivery.background import Background
from skylark.broker.delivery.unconfirmed import Unconfirmed
from skylark.broker.identity import Identity
from skylark.broker.meta.clients import Clients
from skylark.broker.meta.metadata import Metadata
from skylark.broker.observe.stats import BrokerStats, SizedStats
from skylark.broker.options import BrokerOptions
from skylark.broker.registration.namesrv_list import NameServerList
from skylark.broker.replication.role import Role, RoleMachine
from skylark.broker.store.store import MessageStore
from skylark.broker.tasks.delete_topics import TopicRemoval
from skylark.broker.tasks.flush import MAX_INDEX_BEHIND_BYTES, MAX_SLAVE_INDEX_BEHIND_BYTES, Flusher
from skylark.broker.tasks.persist import Persister
from skylark.broker.writing.admission import Admission, Reason
from skylark.broker.writing.deferred import Deferral
from skylark.broker.writing.durability import Durability
from skylark.broker.writing.elected import Elected
from skylark.broker.writing.light import LightQueues
from skylark.broker.writing.stored_properties import StoredProperties
from skylark.broker.writing.waits import AckLedger, LogWaits
from skylark.broker.writing.writer import Writer
from skylark.mqcommon.addresses import split_address
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.ids import UniqueKeys, encode_host
from skylark.remoting.net.client import OpenClient, open_client
from skylark.remoting.net.steps import Stepper
from skylark.remoting.net.tls.options import DaemonTls
from skylark.remoting.protocol.requests.registrations import PROBE_BROKER
from skylark.remoting.protocol.signature import Credentials

logger = logging.getLogger(__name__)


@lazy_dataclass(frozen=True)
class Core:
    """The shared objects of one broker, whose store and metadata are open."""

    options: BrokerOptions
    identity: Identity
    store: MessageStore
    metadata: Metadata
    fs: FileSystem
    clock: Clock
    role: RoleMachine
    clients: Clients
    stats: BrokerStats
    store_host: bytes
    acks: AckLedger
    admission: Admission
    durability: Durability
    writer: Writer
    persister: Persister
    flusher: Flusher
    removal: TopicRemoval
    namesrvs: NameServerList
    cold: ColdReads
    stepper: Stepper
    turn_end: TurnEnd
    tls: DaemonTls
    #: None if the master of the set is not elected; so is the next attribute.
    elected: Elected | None
    unconfirmed: Unconfirmed | None

    @property
    def open_client(self) -> OpenClient:
        """Opens clients for requests to other servers, with the size of frames and the credentials of the options."""
        return self.client_opener(self.options.inner_credentials)

    def client_opener(self, credentials: Credentials | None) -> OpenClient:
        """As `open_client`, with other credentials."""
        options = self.options
        return partial(
            open_client,
            {PROBE_BROKER.code: lambda channel, request: request.respond()},
            max_frame_bytes=options.frame_max_length,
            credentials=credentials,
            connect=self.tls.connect,
        )

    @property
    def is_master(self) -> bool:
        """Whether this broker is the master now."""
        return self.role.now.is_master

    def background(self, is_active: Callable[[], bool]) -> Background:
        """The tools of a part that stores messages without a request, while ``is_active``."""
        return Background(
            self.store,
            self.writer,
            self.clock,
            is_active,
            self.flusher.flush,
            self.turn_end,
            self.metadata.topics.deletions.covers,
            self.stats.dropped.add,
        )

    def take_role(self, before: Role, now: Role) -> None:
        """Apply the role to the store and the tables; called at each change of the role.

        A slave's tables are mirrors of its master's, and it refuses messages: a slave's log is a byte-for-byte copy, so
        nothing but the replica may append to it.
        """
        is_master = now.is_master
        self.identity.broker_id = now.broker_id
        metadata = self.metadata
        for table in (metadata.topics, metadata.groups, metadata.users, metadata.acls):
            table.is_mirror = not is_master
        # A slave that catches up copies the log first; its index may lag further.
        self.flusher.index_may_lag(MAX_INDEX_BEHIND_BYTES if is_master else MAX_SLAVE_INDEX_BEHIND_BYTES)
        if is_master:
            self.admission.allow(Reason.NOT_MASTER)
        else:
            self.admission.refuse(Reason.NOT_MASTER)
        self.durability.lead(is_master)


def make_core(
    options: BrokerOptions,
    identity: Identity,
    store: MessageStore,
    metadata: Metadata,
    fs: FileSystem,
    clock: Clock,
    role: RoleMachine,
    tls: DaemonTls,
    elected: Elected | None = None,
    unwritten: str = "",
) -> Core:
    """Make the shared objects of a broker in its present role.

    ``elected``: in Controller mode. ``unwritten``: as in the report of the store's recovery.
    """
    store.queues.use_kinds(metadata.topics.has_batch_queues)
    ip, port = split_address(identity.addr)
    store_host = encode_host(ip, port)
    stats = BrokerStats(clock) if options.metrics_exporter_type == "DISABLE" else SizedStats(clock)
    commits, acks = LogWaits(), AckLedger(options.ha_max_gap_not_in_sync)
    if options.broker_role == "SYNC_MASTER" and options.in_sync_replicas == 1:
        logger.warning("SYNC_MASTER with inSyncReplicas=1 waits for no slave, as ASYNC_MASTER; 2 waits for one")
    # A slave that becomes the master waits for its slaves, as in RocketMQ.
    durability = Durability(commits, acks, options, double_write=options.broker_role != "ASYNC_MASTER", elected=elected)
    admission = Admission(durability if durability.double_write else None)
    if unwritten:
        logger.error(
            "sends are refused: entries of consume queues cannot be written: %s; make room or mend the disk,"
            " then sends are accepted again",
            unwritten,
        )
        admission.refuse(Reason.ENTRIES_UNWRITTEN, unwritten)
    # Not the port: brokers in containers may share address, pid and port, and a recall could then hit a message of
    # another broker.
    unique_keys = UniqueKeys(ip, os.getpid(), int.from_bytes(os.urandom(4), "big"))
    writer = Writer(
        store,
        admission,
        durability,
        stats,
        StoredProperties(options, unique_keys, clock),
        Deferral(options, unique_keys, clock),
        store_host_is_v6=len(store_host) > 8,
        max_message_bytes=options.max_message_size,
        light=LightQueues(store, options.max_lmq_consume_queue_num) if options.enable_multi_dispatch else None,
        queue_for=metadata.topics.queue_for,
    )
    persister, turn_end = Persister(metadata, options), TurnEnd()
    unconfirmed = None
    if elected is not None:
        store.confirmed = lambda: elected.confirm_offset
        unconfirmed = Unconfirmed(store, elected, turn_end)
    flusher = Flusher(store, commits, admission, options, persister.settle)
    removal = TopicRemoval(
        metadata,
        stats,
        persister.wait,
        lambda topic, before: flusher.delete_topic(topic, before=before),
        lambda: (store.log.start, store.log.raw_end),
        store.has_queues_before,
    )
    core = Core(
        options,
        identity,
        store,
        metadata,
        fs,
        clock,
        role=role,
        clients=Clients(),
        stats=stats,
        store_host=store_host,
        acks=acks,
        admission=admission,
        durability=durability,
        writer=writer,
        persister=persister,
        flusher=flusher,
        removal=removal,
        namesrvs=NameServerList(options),
        cold=ColdReads(hold=DamageHold(store.log, options)),
        stepper=Stepper(),
        turn_end=turn_end,
        tls=tls,
        elected=elected,
        unconfirmed=unconfirmed,
    )
    store.log.blocks.hold = core.cold.hold
    metadata.journal.on_append = persister.appended
    core.take_role(role.now, role.now)
    role.observe(core.take_role)
    return core

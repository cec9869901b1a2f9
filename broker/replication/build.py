"""The rooms of replication, out of the options."""

from collections.abc import Callable

from broker.identity import Identity
from broker.options import BrokerOptions
from broker.replication.find_master import MasterFinder
from broker.replication.hello import VERSION, Hello
from broker.replication.known_master import KnownMaster
from broker.replication.link import LinkTerms
from broker.replication.master import Master
from broker.replication.progress import SlaveProgress
from broker.replication.replica import Replica
from broker.replication.slave import Slave
from broker.store.store import MessageStore
from broker.tasks.flush import Flusher
from broker.writing.acks import AckLedger
from mqcommon.clock import Clock

# A slave of ours says hello at once; one of RocketMQ tells its offset with its first heartbeat, after 5 s and some.
HELLO_S = 3.0
PLAIN_HELLO_S = 10.0


def link_terms(options: BrokerOptions) -> LinkTerms:
    """What both ends of the link need of the options."""
    return LinkTerms(
        cluster=options.broker_cluster_name,
        broker=options.broker_name,
        secret=options.ha_shared_secret.encode(),
        allow_plain=options.allow_plain_peers,
        heartbeat_s=options.ha_send_heartbeat_interval / 1000,
        timeout_s=options.ha_housekeeping_interval / 1000,
        hello_s=PLAIN_HELLO_S if options.allow_plain_peers else HELLO_S,
        plain_chunk_bytes=options.ha_transfer_batch_size,
    )


def build_master(options: BrokerOptions, store: MessageStore, acks: AckLedger) -> Master:
    """The master's side."""
    return Master(store.log, acks, link_terms(options), lambda: options.ha_rate)


def build_slave(
    options: BrokerOptions,
    identity: Identity,
    store: MessageStore,
    known: KnownMaster,
    progress: SlaveProgress,
    arrived: Callable[[], None],
    flusher: Flusher,
    clock: Clock,
) -> Slave:
    """The slave's side."""
    return Slave(
        Replica(store),
        link_terms(options),
        Hello(VERSION, identity.cluster_name, identity.broker_name, identity.broker_id, identity.addr, b""),
        MasterFinder(known, options).find,
        arrived,
        lambda: known.ask_again(),
        flusher.flush if options.flush_disk_type == "SYNC_FLUSH" else None,
        progress,
        clock,
        flusher.one_at_a_time,
        last_file=options.sync_from_last_file,
    )

"""The options of broker.conf and the command line, with their defaults, which are defined only here.

Keys and defaults are RocketMQ's, except ``forceRegister`` (off: a NameServer is asked first whether it needs all
topics), ``inSyncReplicas`` with ``totalReplicas`` (2: with RocketMQ 5's 1 a SYNC_MASTER waits for no slave),
``controllerHeartBeatTimeoutMills`` (10,000 in RocketMQ) and ``allAckInSyncStateSet`` (false in RocketMQ). Options
that may change while the broker runs (``mutable``) are read at each use.
RocketMQ's keys of features that this broker lacks are in ignored_keys.py: they are accepted with a warning, or refused
if ignoring them would be unsafe.
"""

import json
import os
from collections.abc import Mapping
from typing import ClassVar

from skylark.broker.ignored_keys import IGNORED_KEYS, LIMITED_KEYS
from skylark.broker.store.queue.delay_levels import DEFAULT_LEVELS, DelayLevels
from skylark.broker.store.queue.entry import BATCH_ENTRY_BYTES, ENTRY_BYTES
from skylark.broker.store.retention import HOUR_MS, RetentionRules, delete_hours
from skylark.mqcommon.addresses import is_address, parse_advertised, parse_peers
from skylark.mqcommon.errors import ConfigError, RequestRefused
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.logs.options import LogOptions, parse_levels
from skylark.mqcommon.message.layout import BLANK_BYTES, MAX_OVERHEAD_BYTES, MAX_PROPERTIES
from skylark.mqcommon.metrics.options import HealthOptions, MetricsOptions
from skylark.mqcommon.names import RETRY_TOPIC_MAX_LENGTH, TRACE_TOPIC, check_topic
from skylark.mqcommon.options.fields import BYTES, LimitedKey, option
from skylark.remoting.net.address_server import address_of, address_server_url
from skylark.remoting.net.inner_credentials import InnerCredentialsOptions
from skylark.remoting.net.limits import LimitOptions
from skylark.remoting.net.signature_options import SignatureOptions
from skylark.remoting.net.tls.options import TlsOptions
from skylark.remoting.protocol.plain_codes import whos

KIB, MIB = 1024, 1024 * 1024

# The id of a broker in Controller mode until the Controllers have assigned one.
UNKNOWN_ID = -1
_USER_FORM = '{"username":"...","password":"..."}'


@lazy_dataclass(frozen=True)
class BrokerOptions(
    LogOptions,
    InnerCredentialsOptions,
    SignatureOptions,
    LimitOptions,
    TlsOptions,
    MetricsOptions,
    HealthOptions,
):
    """The options of one broker."""

    # --- who and where
    broker_cluster_name: str = option("DefaultCluster", "cluster that the broker belongs to")
    broker_name: str = option("", "name of the broker set; the same for a master and its slaves; default: host name")
    broker_instances: str = option(
        "1", "brokers that the command starts, NAME-0 and so on; auto: one for each core; docs/operate/all-cores.md"
    )
    broker_id: int = option(0, "0 for the master of the set; each slave has its own id above 0", minimum=-1)
    broker_role: str = option(
        "ASYNC_MASTER",
        "SYNC_MASTER: sends wait until slaves have the message; ASYNC_MASTER: they do not; SLAVE: copies a master",
        choices=("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"),
    )
    broker_ip1: str = option(
        "", "address that clients connect to; default: first IPv4 address that is not loopback", key="brokerIP1"
    )
    broker_ip2: str = option("", "address that slaves connect to; default: brokerIP1", key="brokerIP2")
    bind_address: str = option(
        "", "address to listen on; empty: 127.0.0.1, or all interfaces when options name other machines"
    )
    listen_port: int = option(10911, "port for clients; 0 takes a free one", minimum=0, maximum=65535)
    ha_listen_port: int = option(0, "port for slaves; 0: listenPort + 1", minimum=0, maximum=65535)
    fast_listen_port: int = option(
        -1,
        "a second port for clients, used by RocketMQ's slaves and VIP channels; -1: listenPort - 2; 0: none",
        minimum=-1,
        maximum=65535,
    )
    advertised_addresses: str = option(
        "",
        "other addresses for clients of some networks, NETWORK=HOST[:PORT],...: Skylark's NameServers give a client"
        " the address for the narrowest network that contains it, otherwise brokerIP1",
    )
    namesrv_addr: str = option(
        "", "NameServers to register with: host:port;host:port; may be empty", env="NAMESRV_ADDR", mutable=True
    )
    fetch_namesrv_addr_by_address_server: bool = option(
        False, "without namesrvAddr, use the NameServers that an address server lists"
    )
    rmq_address_server_domain: str = option(
        "jmenv.tbsite.net",
        "host or host:port (8080) of the address server, which is asked for http://DOMAIN/rocketmq/SUBGROUP",
    )
    rmq_address_server_sub_group: str = option("nsaddr", "the last part of the path at the address server")
    fetch_namesrv_addr_interval: int = option(
        10_000, "how often the address server is asked and names are looked up, ms", minimum=1_000
    )
    fetch_name_srv_addr_by_dns_lookup: bool = option(
        True, "a name in namesrvAddr stands for all addresses that it resolves to; false: for one of them"
    )
    broker_config_path: str = option(
        "", "conf file that keeps options changed by updateBrokerConfig; set by -c, empty: they last until the stop"
    )
    config_black_list: str = option("configBlackList;brokerConfigPath", "keys that updateBrokerConfig may not touch")
    max_connections: int = option(
        0, "most connections of clients; 0: the limit of open files (ulimit -n) without those for the store", minimum=0
    )
    server_channel_max_idle_time_seconds: int = option(
        120, "connections silent for this long are closed", unit="s", minimum=1
    )
    frame_max_length: int = option(
        16_777_216,
        "longest frame sent and accepted; set all peers to the same (-Dcom.rocketmq.remoting.frameMaxLength)",
        unit=BYTES,
        minimum=65_536,
        maximum=1 << 30,
    )

    # --- the proxy
    enable_proxy: bool = option(False, "serve clients of RocketMQ 5 by gRPC, too; docs/reference/proxy.md, In a broker")
    grpc_server_port: int = option(
        -1, "port for gRPC; 0 takes a free one, -1: as proxyConfigPath says, or 8081", minimum=-1, maximum=65535
    )
    proxy_config_path: str = option(
        "", "conf file with options of the proxy that serves gRPC; empty: its defaults, with the broker's bindAddress"
    )

    # --- registration
    register_name_server_period: int = option(
        30_000,
        "how often the broker registers; lower values count as 10,000, higher ones as 60,000",
        unit="ms",
        minimum=1,
    )
    register_broker_timeout_mills: int = option(24_000, "how long a NameServer may take", unit="ms", minimum=1)
    force_register: bool = option(
        False, "send all topics in each period, without asking whether the NameServer needs them", mutable=True
    )

    # --- topics and groups
    broker_permission: int = option(
        6, "what clients may do on this broker: 4 read, 2 write, 6 both", minimum=0, maximum=7, mutable=True
    )
    auto_create_topic_enable: bool = option(True, "a send to an unknown topic creates it, like TBW102", mutable=True)
    auto_create_on_all_masters: bool = option(
        False, "a topic that a send creates here is created on the other masters of the cluster, too", mutable=True
    )
    auto_create_subscription_group: bool = option(True, "an unknown consumer group is created", mutable=True)
    default_topic_queue_nums: int = option(8, "queues of TBW102: the most that such a topic gets", minimum=1)
    cluster_topic_enable: bool = option(True, "the topic named as the cluster may be used")
    broker_topic_enable: bool = option(True, "the topic named as the broker may be used")
    trace_topic_enable: bool = option(False, "create the topic msgTraceTopicName, for clients that trace")
    msg_trace_topic_name: str = option(TRACE_TOPIC, "the topic that traceTopicEnable creates")
    region_id: str = option("DefaultRegion", "region: the property MSG_REGION of stored messages and answers to sends")
    trace_on: bool = option(True, "whether clients that trace may trace messages of this broker (TRACE_ON)")
    reject_transaction_message: bool = option(False, "refuse messages of transactions", mutable=True)
    transaction_time_out: int = option(
        6_000, "a transaction that is open for this long is checked", unit="ms", minimum=1, mutable=True
    )
    transaction_check_interval: int = option(30_000, "time between checks of transactions", unit="ms", minimum=100)
    transaction_check_max: int = option(15, "checks before a transaction is given up", minimum=1, mutable=True)
    flush_consumer_offset_interval: int = option(
        5_000, "how often changed consumer offsets are written to disk", unit="ms", minimum=10, mutable=True
    )
    channel_expired_timeout: int = option(
        120_000, "clients without a heartbeat for this long are disconnected", unit="ms", minimum=1, mutable=True
    )
    notify_consumer_ids_changed_enable: bool = option(
        True, "notify the members of a consumer group when one joins or leaves", mutable=True
    )
    forward_timeout: int = option(
        3_000, "how long a client may take to answer a forwarded request", unit="ms", minimum=1, mutable=True
    )
    use_server_side_reset_offset: bool = option(True, "resets offsets here; else clients are told to", mutable=True)

    # --- store
    store_path_root_dir: str = option("~/store", "directory of messages and metadata")
    store_path_commit_log: str = option("", "empty, or commitlog in storePathRootDir: the commit log is always there")
    mapped_file_size_commit_log: int = option(1024 * MIB, "size of a commit log file", unit=BYTES, minimum=4 * KIB)
    mapped_file_size_consume_queue: int = option(
        300_000 * ENTRY_BYTES, "size of a queue file; 20 bytes a message", unit=BYTES, minimum=ENTRY_BYTES
    )
    mapper_file_size_batch_consume_queue: int = option(
        300_000 * BATCH_ENTRY_BYTES,
        "size of a queue file of topics with queue.type=BatchCQ; 46 bytes a batch",
        unit=BYTES,
        minimum=BATCH_ENTRY_BYTES,
    )
    message_index_enable: bool = option(True, "keep an index of message keys")
    max_hash_slot_num: int = option(5_000_000, "hash slots of an index file", minimum=1)
    max_index_num: int = option(20_000_000, "keys of an index file", minimum=2)
    max_message_size: int = option(
        4 * MIB, "largest body of a message", unit=BYTES, minimum=1, maximum=15 * MIB, mutable=True
    )
    flush_disk_type: str = option(
        "ASYNC_FLUSH",
        "SYNC_FLUSH: an acknowledged message survives power loss; ASYNC_FLUSH: it survives a crash of the broker",
        choices=("ASYNC_FLUSH", "SYNC_FLUSH"),
    )
    flush_interval_commit_log: int = option(
        500, "ASYNC_FLUSH: how often messages are flushed to disk", unit="ms", minimum=1, mutable=True
    )
    flush_commit_log_least_pages: int = option(
        4, "ASYNC_FLUSH: fewer new pages of 4096 bytes wait for the thorough interval", minimum=0, mutable=True
    )
    flush_commit_log_thorough_interval: int = option(
        10_000, "ASYNC_FLUSH: after this time even a few new pages are flushed", unit="ms", minimum=1
    )
    sync_flush_timeout: int = option(
        5_000, "SYNC_FLUSH: a send is answered FLUSH_DISK_TIMEOUT after this time", unit="ms", minimum=1, mutable=True
    )
    scrub_enable: bool = option(
        True, "read the whole store again and again, to find damage and to repair it from other brokers", mutable=True
    )
    scrub_cycle_days: int = option(
        14, "the time in which a scrub reads the whole store", unit="days", minimum=1, maximum=365, mutable=True
    )

    damaged_policy: str = option(
        "skip",
        "a message that is damaged on disk or in the bucket, and that is not mended within damagedHoldMs: skip: readers"
        " skip it until it is mended; hold: they wait",
        choices=("skip", "hold"),
        mutable=True,
    )
    damaged_hold_ms: int = option(
        60_000, "how long readers of a damaged message wait until it is mended", unit="ms", minimum=0, mutable=True
    )

    # --- replication: copies that a SYNC_MASTER waits for
    in_sync_replicas: int = option(
        2,
        "SYNC_MASTER: copies of a message, with the master's, before it is acknowledged; 1: do not wait for slaves",
        minimum=1,
        mutable=True,
    )
    min_in_sync_replicas: int = option(
        0,
        "SYNC_MASTER, enableControllerMode: sends are refused while fewer brokers, with the master, are in sync; 0:"
        " 1, but 2 in Controller mode in a set of three or more",
        minimum=0,
        mutable=True,
    )
    total_replicas: int = option(2, "brokers of the set, the master and its slaves", minimum=1)
    enable_auto_in_sync_replicas: bool = option(
        False, "SYNC_MASTER: wait for as many copies as are in sync, down to minInSyncReplicas", mutable=True
    )
    slave_timeout: int = option(
        3_000, "SYNC_MASTER: a send is answered FLUSH_SLAVE_TIMEOUT after this time", unit="ms", minimum=1, mutable=True
    )
    ha_max_gap_not_in_sync: int = option(
        256 * MIB, "a slave that is this far behind, or further, is not in sync", unit=BYTES, minimum=1
    )

    # --- replication: the link
    ha_master_address: str = option(
        "", "SLAVE: address of the master's HA port, host:port; default: asked from NameServers"
    )
    ha_shared_secret: str = option(
        "",
        "a secret that a master and its slaves must both have; empty: with ACL it is"
        " innerClientAuthenticationCredentials, else nothing is checked",
        env="ROCKETMQ_HA_SHARED_SECRET",
        secret=True,
    )
    ha_allow_plain_peers: str = option(
        "auto",
        "serve slaves without a handshake, such as RocketMQ's; auto: if haSharedSecret is empty and ACL is off",
        choices=("auto", "true", "false"),
    )
    ha_plain_peer_addresses: str = option(
        "",
        "hosts of RocketMQ's masters and slaves of this set, which cannot prove who they are; several separated by ;",
    )
    ha_send_heartbeat_interval: int = option(
        5_000, "an idle link to a slave or master gets a heartbeat after this time", unit="ms", minimum=1
    )
    ha_housekeeping_interval: int = option(
        20_000, "a slave or master that is silent for this long is disconnected", unit="ms", minimum=1
    )
    ha_transfer_batch_size: int = option(
        32 * KIB, "most bytes of one frame to a RocketMQ slave", unit=BYTES, minimum=1, maximum=1024 * KIB
    )
    ha_max_transfer_rate: int = option(
        0, "most bytes a second to each slave; 0: no limit", unit=BYTES, minimum=0, mutable=True
    )
    ha_flow_control_enable: bool = option(
        False, "limit the bytes a second to each slave to maxHaTransferByteInSecond", mutable=True
    )
    max_ha_transfer_byte_in_second: int = option(
        100 * MIB, "the limit for haFlowControlEnable", unit=BYTES, minimum=1, mutable=True
    )
    sync_from_last_file: bool = option(
        False, "SLAVE without messages: copy only the master's last commit log file, not the whole log"
    )

    # --- retention
    file_reserved_time: int = option(
        72, "a commit log file expires when its youngest message is older", unit="hours", minimum=1, mutable=True
    )
    delete_when: str = option(
        "04", "hours of the day, local time, at which expired files are deleted; several separated by ;", mutable=True
    )
    disk_max_used_space_ratio: int = option(
        75,
        "percent of the disk in use above which expired files are deleted at any hour",
        minimum=10,
        maximum=95,
        mutable=True,
    )
    disk_space_clean_forcibly_ratio: int = option(
        85,
        "percent of the disk in use above which the oldest files are deleted even if not expired; at least 30",
        minimum=1,
        maximum=100,
        mutable=True,
    )
    clean_file_forcibly_enable: bool = option(
        True,
        "delete such files; false: only expired files are deleted, and on a full disk sends are refused",
        mutable=True,
    )
    disk_space_warning_level_ratio: int = option(
        90,
        "percent of the disk in use above which sends are refused; at least 35; 100: when no new file fits",
        minimum=1,
        maximum=100,
        mutable=True,
    )
    clean_resource_interval: int = option(
        10_000,
        "how often the broker checks the disk and looks for files to delete",
        unit="ms",
        minimum=10,
        mutable=True,
    )
    delete_file_batch_max: int = option(10, "most commit log files deleted at one time", minimum=1, mutable=True)
    delete_commit_log_files_interval: int = option(
        100, "pause after each deleted file, to limit the load of the disk", unit="ms", minimum=0, mutable=True
    )
    redelete_hanged_file_interval: int = option(
        120_000, "a file that could not be deleted is tried again after this time", unit="ms", minimum=1, mutable=True
    )

    # --- tiered storage: files of the log in a bucket
    tier_path: str = option(
        "",
        "a bucket that gets every full commit log file, which may then leave this disk: s3://BUCKET/PREFIX, gs://, az://"
        " or file:///DIRECTORY; docs/operate/tiered.md",
    )
    tier_local_bytes: int = option(
        0,
        "tierPath: how much of the log stays on this disk: older files leave as soon as they are in the bucket; 0: no"
        " limit, fileReservedTime and the limits of the disk decide",
        unit=BYTES,
        minimum=0,
        mutable=True,
    )
    tier_reserved_time_hours: int = option(
        0,
        "tierPath: how long the bucket keeps messages, unless the topic's attribute reserve.time says otherwise; 0: for"
        " ever",
        unit="hours",
        minimum=0,
        mutable=True,
    )
    tier_tail_interval_ms: int = option(
        300_000,
        "tierPath: how often the file that is being written, and the metadata, are copied to the bucket",
        unit="ms",
        minimum=1_000,
        mutable=True,
    )
    tier_tail_bytes: int = option(
        64 * MIB,
        "tierPath: the file that is being written is copied after this many new bytes, too",
        unit=BYTES,
        minimum=4 * KIB,
        mutable=True,
    )
    tier_cache_bytes: int = option(
        256 * MIB, "tierPath: memory for what was read from the bucket", unit=BYTES, minimum=8 * MIB
    )
    tier_disk_cache_bytes: int = option(
        0, "tierPath: disk for what was read from the bucket, in tiercache of the store; 0: none", unit=BYTES, minimum=0
    )
    tier_timeout_ms: int = option(
        30_000, "tierPath: how long a request to the bucket may take", unit="ms", minimum=1_000
    )

    # --- Controllers choose the master
    enable_controller_mode: bool = option(
        False, "Controllers choose the master of the set; brokerId and brokerRole are not used then"
    )
    controller_addr: str = option("", "enableControllerMode: all Controllers, host:port;host:port")
    controller_heart_beat_timeout_mills: int = option(
        3_000,
        "enableControllerMode: silent for this long, the broker is dead for Controllers; a master that they do not"
        " answer stops to accept messages a fifth earlier",
        unit="ms",
        minimum=500,
        maximum=600_000,
    )
    sync_broker_metadata_period: int = option(
        5_000,
        "enableControllerMode: how often the broker asks who is the master, besides notices",
        unit="ms",
        minimum=100,
    )
    all_ack_in_sync_state_set: bool = option(
        True,
        "enableControllerMode: a message is acknowledged when all of the SyncStateSet have it; false, RocketMQ's"
        " default: when inSyncReplicas have it, and it may be lost when another broker is elected",
        mutable=True,
    )
    ha_max_time_slave_not_catchup: int = option(
        15_000,
        "enableControllerMode: a slave that lacked messages for this long leaves the SyncStateSet",
        unit="ms",
        minimum=100,
    )
    async_learner: bool = option(
        False, "enableControllerMode: copy the log, but be in no SyncStateSet, and never the master"
    )
    broker_election_priority: int = option(
        2_147_483_647,
        "enableControllerMode: of brokers with equal logs the one with the lowest number is elected",
        minimum=0,
        maximum=2_147_483_647,
    )
    store_path_epoch_file: str = option(
        "", "enableControllerMode: file of master epochs; default: epochFileCheckpoint in storePathRootDir"
    )
    store_path_broker_identity: str = option(
        "", "enableControllerMode: file with the broker's id; default: brokerIdentity in storePathRootDir"
    )

    # --- DLedger: the brokers of the set agree on the log by Raft
    enable_dleger_commit_log: bool = option(
        False,
        "the brokers of the set are a DLedger group and elect the master; brokerId and brokerRole are not used",
        key="enableDLegerCommitLog",
    )
    d_leger_group: str = option("", "enableDLegerCommitLog: name of the group; default: brokerName")
    d_leger_peers: str = option(
        "", "enableDLegerCommitLog: where all members listen for each other: n0-10.0.0.1:40911;n1-10.0.0.2:40911"
    )
    d_leger_self_id: str = option(
        "", "enableDLegerCommitLog: which of dLegerPeers this broker is: n and a number, as in n0"
    )

    preferred_leader_ids: str = option(
        "", "enableDLegerCommitLog: members that lead when they have the whole log: n0;n1", mutable=True
    )
    preferred_leader_id: str = option("", "the same, RocketMQ's key of older versions", mutable=True)

    # --- slaves that act as masters
    enable_slave_acting_master: bool = option(
        False, "while the master is down, the slave with the lowest id acts as it, for reading; same for the whole set"
    )
    broker_heartbeat_interval: int = option(
        1_000, "enableSlaveActingMaster: how often the broker sends NameServers a heartbeat", unit="ms", minimum=1
    )
    broker_not_active_timeout_millis: int = option(
        10_000,
        "enableSlaveActingMaster: NameServers forget a broker that is silent for this long",
        unit="ms",
        minimum=1,
    )
    sync_broker_member_group_period: int = option(
        1_000,
        "enableSlaveActingMaster: how often a slave asks which brokers of its set are alive",
        unit="ms",
        minimum=1,
    )
    skip_pre_online: bool = option(
        False, "enableSlaveActingMaster: a master registers without fetching consumer offsets from its slaves"
    )

    # --- reads from slaves
    slave_read_enable: bool = option(
        False, "consumers of messages too old to be in the master's memory are sent to a slave", mutable=True
    )
    access_message_in_memory_max_ratio: int = option(
        40, "percent of the memory that holds the youngest messages; older ones are on disk", minimum=0, maximum=100
    )
    offset_check_in_slave: bool = option(
        False, "SLAVE: correct an offset that it does not have; false: it may only be behind", mutable=True
    )

    # --- pulls and queries
    long_polling_enable: bool = option(True, "hold a pull that finds nothing until a message comes", mutable=True)
    short_polling_time_mills: int = option(
        1_000, "how long such a pull is held when longPollingEnable is off", unit="ms", minimum=0, mutable=True
    )
    max_transfer_count_on_message_in_memory: int = option(32, "most messages of one pull", minimum=1, mutable=True)
    max_transfer_bytes_on_message_in_memory: int = option(
        256 * KIB, "most bytes of one pull", unit=BYTES, minimum=1, mutable=True
    )
    max_transfer_count_on_message_in_disk: int = option(
        8, "most messages of one pull that waited for the disk", minimum=1, mutable=True
    )
    max_transfer_bytes_on_message_in_disk: int = option(
        64 * KIB, "most bytes of one pull that waited for the disk", unit=BYTES, minimum=1, mutable=True
    )
    store_reply_message_enable: bool = option(True, "store replies, besides pushing them to who asked", mutable=True)
    enable_property_filter: bool = option(False, "serve consumers that filter by properties (SQL92)", mutable=True)
    default_query_max_num: int = option(32, "most messages that a query by unique key returns", minimum=1, mutable=True)

    # --- access control: accounts in files (ACL 1.0), users and policies (ACL 2.0)
    acl_enable: bool = option(
        False, "serve only requests that an account of aclFile has signed, and may send (ACL 1.0)"
    )
    acl_file: str = option(
        "",
        "accounts of ACL 1.0 (RocketMQ's plain_acl.yml), with those in the folder acl beside it; for aclEnable and "
        "migrateAuthFromV1Enabled; mode 0600; default: conf/plain_acl.yml in $ROCKETMQ_HOME",
    )
    acl_white_list_skips_all: bool = option(
        True, "clients at addresses of white lists may do everything, as in RocketMQ; false: they only need not sign"
    )

    authentication_enabled: bool = option(
        False, "serve only requests that a user of this broker has signed (users: mqadmin createUser)"
    )
    authorization_enabled: bool = option(
        False, "allow users only what their policies allow (mqadmin createAcl); needs authenticationEnabled"
    )
    authentication_whitelist: str = option(
        "", "request codes that need no signature, separated by commas; those that need a right need both lists"
    )
    authorization_whitelist: str = option(
        "", "request codes that any user may send, whatever the policies say, separated by commas"
    )
    plain_passwords_to: str = option(
        "",
        "super users who may be told passwords that are not encrypted, such as RocketMQ's proxy and its tools:"
        " proxy@10.0.0.9;10.0.0.8; a user, an address or network, or both; empty: nobody",
    )
    init_authentication_user: str = option(
        "",
        f"a super user that the broker creates at its start if there is no user of that name: {_USER_FORM}",
        env="ROCKETMQ_INIT_AUTHENTICATION_USER",
        secret=True,
    )

    migrate_auth_from_v1_enabled: bool = option(
        False, "at the start, make users and policies of the accounts in aclFile, but for those that are users already"
    )

    # --- pops
    pop_polling_size: int = option(1_024, "most pops held for one group and topic", minimum=1)
    max_pop_polling_size: int = option(100_000, "most pops held in all", minimum=1)
    enable_retry_topic_v2: bool = option(False, "retry topics of pops are %RETRY%group+topic; else group_topic")
    pop_from_retry_probability: int = option(
        20, "percent of the pops that look for retries before other messages", minimum=0, maximum=100, mutable=True
    )

    # --- priorities
    priority_order_asc: bool = option(
        True, "topics of type PRIORITY: the highest number is the most urgent; false: 0 is", mutable=True
    )
    pop_from_retry_probability_for_priority: int = option(
        0, "popFromRetryProbability for topics of type PRIORITY", minimum=0, maximum=100, mutable=True
    )
    use_separate_retry_queue: bool = option(
        False,
        "a retry topic of pops has as many queues as its topic, and a message keeps its queue; always so for topics of"
        " type PRIORITY, whose retries keep their priority by it",
        mutable=True,
    )

    # --- delayed messages
    message_delay_level: str = option(
        DEFAULT_LEVELS, "how long messages of each delay level wait, level 1 first; units: s, m, h, d"
    )
    timer_wheel_enable: bool = option(True, "take messages with a time of delivery; false: refuse them")
    timer_precision_ms: int = option(
        1_000, "how much later than its time a message may come", unit="ms", minimum=100, maximum=60_000
    )
    timer_max_delay_sec: int = option(
        259_200, "a message may ask to be delivered at most this much later", unit="s", minimum=1, mutable=True
    )
    recall_message_enable: bool = option(
        True, "producers may recall messages that wait for their time (off in RocketMQ)", mutable=True
    )

    # --- light queues
    enable_lmq: bool = option(False, "light queues: any topic and group %LMQ%... may be read")
    enable_multi_dispatch: bool = option(False, "put messages into the light queues that they name, too")
    max_lmq_consume_queue_num: int = option(20_000, "most light queues that are made", minimum=1)

    # --- metrics; mqcommon/metrics/options.py has those that NameServers have, too
    exporter_compatible_names: bool = option(
        False, "also give metrics under the names of rocketmq-exporter, for dashboards that were made for it"
    )

    ignored_keys: ClassVar[frozenset[str]] = IGNORED_KEYS
    limited_keys: ClassVar[Mapping[str, LimitedKey]] = LIMITED_KEYS

    def __post_init__(self) -> None:
        self.check_inner_credentials()
        self.check_signature_options()
        try:
            whos(self.plain_passwords_to)
        except ValueError as error:
            raise ConfigError(f"plainPasswordsTo: {error}") from None
        self.check_metrics()
        if not self.store_path_root_dir.strip():
            raise ConfigError("storePathRootDir: it is empty; give the directory of the store, or leave the key out")
        if self.tier_path:
            # Imported here: most brokers have no tier.
            from skylark.mqcommon.tier.opening import check_url

            try:
                check_url(self.tier_path)
            except ConfigError as error:
                raise ConfigError(f"tierPath: {error}") from None
        self._check_controller_mode()
        self._check_dledger()
        if self.is_slave and self.broker_id == 0 and not self.elects_master:
            raise ConfigError("brokerId: 0 is the master's; give each SLAVE its own id above 0")
        if self.broker_id > 0 and not self.is_slave and not self.elects_master:
            raise ConfigError(f"brokerId: {self.broker_id} is a slave's; set brokerRole=SLAVE, or leave brokerId out")
        if self.is_sync_master and not self.min_in_sync_replicas <= self.in_sync_replicas <= self.total_replicas:
            raise ConfigError(
                f"inSyncReplicas: {self.in_sync_replicas} is not between"
                f" minInSyncReplicas={self.min_in_sync_replicas or 1} and totalReplicas={self.total_replicas};"
                " set the three so that it is"
            )
        if self.listen_port == 65535 and not self.ha_listen_port and not self.is_slave:
            raise ConfigError("haListenPort: listenPort + 1 is not a port; set another one")
        self._check_texts()
        self._check_access_control()

    def _check_controller_mode(self) -> None:
        """ConfigError when the options of Controller mode do not fit each other or the others."""
        if not self.enable_controller_mode:
            if self.broker_id < 0 and not self.enable_dleger_commit_log:
                raise ConfigError(
                    "brokerId: -1 asks Controllers for one; set enableControllerMode=true, or give 0 or more"
                )
            return
        if not self.controller_addrs:
            raise ConfigError("controllerAddr: it is empty; give the Controllers as host:port;host:port")
        for addr in self.controller_addrs:
            if not is_address(addr):
                raise ConfigError(f"controllerAddr: {addr!r} is not an address; give host:port, several separated by ;")
        if self.enable_slave_acting_master:
            raise ConfigError(
                "enableSlaveActingMaster: Controllers elect another master at once, so no slave needs to act as it;"
                " leave it out"
            )
        least_ms = 3 * self.broker_heartbeat_interval
        if self.controller_heart_beat_timeout_mills < least_ms:
            raise ConfigError(
                "controllerHeartBeatTimeoutMills: it must be at least three times brokerHeartbeatInterval, so that a"
                f" lost heartbeat does no harm; set it to {least_ms} or more"
            )

    def _check_dledger(self) -> None:
        """ConfigError when the options of DLedger mode do not fit each other or the others."""
        if not self.enable_dleger_commit_log:
            return
        for is_set, key, why in (
            (self.enable_controller_mode, "enableControllerMode", "a DLedger group elects its master itself"),
            (self.enable_slave_acting_master, "enableSlaveActingMaster", "a DLedger group elects another master"),
            (self.ha_master_address, "haMasterAddress", "a DLedger group elects its master"),
        ):
            if is_set:
                raise ConfigError(f"{key}: {why}; leave it out, or leave out enableDLegerCommitLog")
        peers = self.group_peers
        if self.d_leger_self_id not in peers:
            raise ConfigError(
                f"dLegerSelfId: {self.d_leger_self_id!r} is not in dLegerPeers, which has {', '.join(peers)}"
            )
        unknown = [name for name in self.preferred_leaders if name not in peers]
        if unknown:
            raise ConfigError(f"preferredLeaderIds: {unknown[0]!r} is not in dLegerPeers, which has {', '.join(peers)}")
        for name in peers:
            if not (name[:1] == "n" and name[1:].isdecimal() and name.isascii()):
                raise ConfigError(f"dLegerPeers: {name!r} is not n and a number, as in n0; broker ids follow from it")

    @property
    def elects_master(self) -> bool:
        """Whether the master of the set is elected: by Controllers, or by the DLedger group."""
        return self.enable_controller_mode or self.enable_dleger_commit_log

    @property
    def group_peers(self) -> dict[str, str]:
        """``dLegerPeers``: addresses by id. ConfigError when it is wrong."""
        return parse_peers(self.d_leger_peers, "dLegerPeers", "members")

    @property
    def preferred_leaders(self) -> list[str]:
        """``preferredLeaderIds`` and ``preferredLeaderId`` as a list, in order."""
        return _listed(f"{self.preferred_leader_ids};{self.preferred_leader_id}")

    @property
    def group_follower_id(self) -> int:
        """The broker id of this member of a DLedger group while it does not lead: as RocketMQ numbers them."""
        return int(self.d_leger_self_id[1:]) + 1

    def _check_address_server(self) -> None:
        url = address_server_url(self.rmq_address_server_domain, self.rmq_address_server_sub_group)
        try:
            address_of(url)
            if not url.isascii() or not url.isprintable() or " " in url or "/" in self.rmq_address_server_domain:
                raise ValueError(url)
        except ValueError:
            raise ConfigError(
                f"rmqAddressServerDomain: {url!r} is not the URL of an address server; give host or host:port"
            ) from None

    def _check_texts(self) -> None:
        """ConfigError for the first value that cannot be read."""
        if self.ha_master_address and not is_address(self.ha_master_address):
            raise ConfigError(
                f"haMasterAddress: {self.ha_master_address!r} is not an address; give host:port of the master's HA port"
            )
        for addr in self.namesrv_addrs:
            if not is_address(addr):
                raise ConfigError(f"namesrvAddr: {addr!r} is not an address; give host:port, several separated by ;")
        try:
            parse_advertised(self.advertised_addresses, self.listen_port or 1)
        except ValueError as error:
            raise ConfigError(f"advertisedAddresses: {error}") from None
        if self.fetch_namesrv_addr_by_address_server:
            self._check_address_server()
        parse_levels(self.log_levels)
        try:
            check_topic(self.msg_trace_topic_name)
        except RequestRefused as refused:
            raise ConfigError(f"msgTraceTopicName: {self.msg_trace_topic_name!r}: {refused.remark}") from None
        try:
            delete_hours(self.delete_when)
        except ValueError:
            raise ConfigError(
                f"deleteWhen: {self.delete_when!r} are not hours; give 00 to 23, several separated by ;"
            ) from None
        try:
            DelayLevels.parse(self.message_delay_level)
        except ValueError as error:
            raise ConfigError(f"messageDelayLevel: {error}") from None

    def _check_access_control(self) -> None:
        """ConfigError for the first of these options that cannot be used."""
        if self.acl_enable and self.authentication_enabled:
            raise ConfigError(
                "aclEnable: accounts in files and users (authenticationEnabled) cannot both be asked; switch one of"
                " them off (migrateAuthFromV1Enabled makes users of accounts)"
            )
        if self.authorization_enabled and not self.authentication_enabled:
            raise ConfigError(
                "authorizationEnabled: without authenticationEnabled any client could claim any user's name; set both"
            )
        if (self.acl_enable or self.migrate_auth_from_v1_enabled) and not self.acl_path:
            key = "aclEnable" if self.acl_enable else "migrateAuthFromV1Enabled"
            raise ConfigError(
                f"aclFile: {key} needs the accounts; give the path of plain_acl.yml, or set $ROCKETMQ_HOME"
            )
        _ = self.first_user, self.unsigned_codes, self.open_codes

    @property
    def is_slave(self) -> bool:
        """Whether this broker copies a master, and takes no messages itself."""
        return self.broker_role == "SLAVE"

    @property
    def is_sync_master(self) -> bool:
        """Whether sends wait for slaves."""
        return self.broker_role == "SYNC_MASTER"

    @property
    def allow_plain_peers(self) -> bool:
        """Whether slaves without a handshake are served."""
        if self.ha_allow_plain_peers != "auto":
            return self.ha_allow_plain_peers == "true"
        return not self.ha_shared_secret and not self.has_access_control

    @property
    def plain_hosts(self) -> frozenset[str]:
        """``haPlainPeerAddresses`` as a set."""
        return frozenset(host.strip("[]") for host in _listed(self.ha_plain_peer_addresses))

    @property
    def has_access_control(self) -> bool:
        """Whether clients must sign their requests."""
        return self.acl_enable or self.authentication_enabled or self.authorization_enabled

    @property
    def fast_port(self) -> int:
        """The port that ``fastListenPort`` means; 0: none, also when the system chooses ``listenPort``."""
        if self.fast_listen_port >= 0:
            return self.fast_listen_port
        return max(self.listen_port - 2, 0)

    @property
    def forbidden_keys(self) -> frozenset[str]:
        """The keys of ``configBlackList``."""
        return frozenset(key.strip() for key in self.config_black_list.split(";") if key.strip())

    @property
    def namesrv_addrs(self) -> list[str]:
        """``namesrvAddr`` as a list, in order, each once."""
        return _listed(self.namesrv_addr)

    @property
    def has_namesrvs(self) -> bool:
        """Whether there are NameServers to register with, though an address server may not have listed any yet."""
        return bool(self.namesrv_addr) or self.fetch_namesrv_addr_by_address_server

    @property
    def register_period_ms(self) -> int:
        """``registerNameServerPeriod`` within RocketMQ's bounds."""
        return min(max(self.register_name_server_period, 10_000), 60_000)

    @property
    def retention_rules(self) -> RetentionRules:
        """The rules for deleting files.

        Ratios have RocketMQ's lower bounds, but not its upper ones (85 and 90): here a full disk only refuses sends and
        ends nothing, so a large disk may be used up.
        """
        return RetentionRules(
            reserved_ms=self.file_reserved_time * HOUR_MS,
            hours=delete_hours(self.delete_when),
            clean_ratio=self.disk_max_used_space_ratio,
            force_ratio=max(self.disk_space_clean_forcibly_ratio, 30),
            refuse_ratio=max(self.disk_space_warning_level_ratio, 35),
            force=self.clean_file_forcibly_enable,
            batch_max=self.delete_file_batch_max,
            local_bytes=self.tier_local_bytes if self.tier_path else 0,
        )

    @property
    def queue_file_bytes(self) -> int:
        """``mappedFileSizeConsumeQueue`` in whole entries."""
        return -(-self.mapped_file_size_consume_queue // ENTRY_BYTES) * ENTRY_BYTES

    @property
    def batch_queue_file_bytes(self) -> int:
        """``mapperFileSizeBatchConsumeQueue`` in whole entries."""
        return -(-self.mapper_file_size_batch_consume_queue // BATCH_ENTRY_BYTES) * BATCH_ENTRY_BYTES

    @property
    def controller_addrs(self) -> list[str]:
        """``controllerAddr`` as a list, in order, each once."""
        return _listed(self.controller_addr)

    @property
    def delay_levels(self) -> DelayLevels:
        """``messageDelayLevel``, parsed."""
        return DelayLevels.parse(self.message_delay_level)

    @property
    def acl_path(self) -> str:
        """``aclFile`` as a path; empty when neither it nor $ROCKETMQ_HOME is set."""
        home = os.environ.get("ROCKETMQ_HOME", "")
        return os.path.expanduser(self.acl_file or (home and os.path.join(home, "conf", "plain_acl.yml")))

    @property
    def first_user(self) -> tuple[str, str] | None:
        """Name and password of ``initAuthenticationUser``."""
        return _pair(self.init_authentication_user, "initAuthenticationUser", _USER_FORM)

    @property
    def unsigned_codes(self) -> frozenset[int]:
        """``authenticationWhitelist``."""
        return _codes(self.authentication_whitelist, "authenticationWhitelist")

    @property
    def open_codes(self) -> frozenset[int]:
        """``authorizationWhitelist``."""
        return _codes(self.authorization_whitelist, "authorizationWhitelist")


def _listed(text: str) -> list[str]:
    """The entries of a list whose separator is ``;`` or ``,``, each once."""
    entries = (entry.strip() for entry in text.replace(",", ";").split(";"))
    return list(dict.fromkeys(entry for entry in entries if entry))


def _pair(text: str, key: str, form: str) -> tuple[str, str] | None:
    """The two texts of a JSON object like ``form``. Error messages do not show the text, which is secret."""
    if not text.strip():
        return None
    first, second = json.loads(form)
    try:
        found = json.loads(text)
        values = found[first], found[second]
    except (ValueError, TypeError, KeyError):
        raise ConfigError(f"{key}: the value is not of the form {form}") from None
    if not all(isinstance(value, str) and value.strip() for value in values):
        raise ConfigError(f"{key}: one of the two texts is empty, or no text; give {form}")
    return values


def _codes(text: str, key: str) -> frozenset[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    wrong = next((part for part in parts if not (part.isascii() and part.isdigit())), None)
    if wrong is not None:
        raise ConfigError(f"{key}: {wrong!r} is no request code; give numbers, separated by commas, as 10,310")
    return frozenset(map(int, parts))


# The most that a log record needs besides its body, plus the filler at the end of a file.
OVERHEAD_BYTES = MAX_OVERHEAD_BYTES + RETRY_TOPIC_MAX_LENGTH + MAX_PROPERTIES + BLANK_BYTES


def check_file_size(options: BrokerOptions) -> None:
    """ConfigError when a message of ``maxMessageSize`` does not fit into a file of ``mappedFileSizeCommitLog``.

    Called when the command starts a broker and when maxMessageSize changes. Tests that make a `Broker` directly may use
    smaller files.
    """
    file_bytes, needed = options.mapped_file_size_commit_log, options.max_message_size + OVERHEAD_BYTES
    if file_bytes >= needed:
        return
    most = file_bytes - OVERHEAD_BYTES
    remedy = f"set maxMessageSize={most} or less, or " if most > 0 else ""
    raise ConfigError(
        f"mappedFileSizeCommitLog: a message of maxMessageSize={options.max_message_size} bytes does not fit into a"
        f" file of {file_bytes} bytes; {remedy}set mappedFileSizeCommitLog={needed} or more"
    )

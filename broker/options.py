"""The options of broker.conf and the command line, with their defaults, which are defined only here.

Keys and defaults are RocketMQ's, except ``forceRegister`` (off: a NameServer is asked first whether it needs all
topics) and ``inSyncReplicas`` with ``totalReplicas`` (2: with RocketMQ 5's 1 a SYNC_MASTER waits for no slave). Options
that may change while the broker runs (``mutable``) are read at each use.
Options of features that this broker lacks are refused if ignoring them would be unsafe (missing_features.py), and
otherwise accepted with a warning (ignored_keys.py).
"""

from dataclasses import dataclass
from typing import ClassVar

from broker.auth_options import AuthOptions, check_auth
from broker.controller_options import ControllerModeOptions, check_controller_mode
from broker.delivery_options import DeliveryOptions
from broker.ignored_keys import IGNORED_KEYS
from broker.metrics_options import BrokerMetricsOptions
from broker.missing_features import CONFIG_VERSION, STORE_TYPE, refuse_missing
from broker.option_checks import check_texts
from broker.store.queue.entry import BATCH_ENTRY_BYTES, ENTRY_BYTES
from broker.store.retention import HOUR_MS, RetentionRules, delete_hours
from mqcommon.errors import ConfigError
from mqcommon.logs.options import LogOptions
from mqcommon.metrics.options import MetricsOptions
from mqcommon.names import TRACE_TOPIC
from mqcommon.options.fields import option
from remoting.net.inner_credentials import InnerCredentialsOptions
from remoting.net.limit_options import LimitOptions
from remoting.net.tls_options import TlsOptions

KIB, MIB = 1024, 1024 * 1024


@dataclass(frozen=True)
class BrokerOptions(
    LogOptions, DeliveryOptions, AuthOptions, InnerCredentialsOptions, LimitOptions, TlsOptions, MetricsOptions,
    BrokerMetricsOptions, ControllerModeOptions,
):  # fmt: skip
    """The options of one broker."""

    # --- who and where
    broker_cluster_name: str = option("DefaultCluster", "cluster that the broker belongs to")
    broker_name: str = option("", "name of the broker set; the same for a master and its slaves; default: host name")
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
    bind_address: str = option("0.0.0.0", "address to listen on")
    listen_port: int = option(10911, "port for clients; 0 takes a free one", minimum=0, maximum=65535)
    ha_listen_port: int = option(0, "port for slaves; 0: listenPort + 1", minimum=0, maximum=65535)
    fast_listen_port: int = option(
        -1, "a second port for clients, used by RocketMQ's slaves and VIP channels; -1: listenPort - 2; 0: none",
        minimum=-1, maximum=65535,
    )  # fmt: skip
    namesrv_addr: str = option(
        "", "NameServers to register with: host:port;host:port; may be empty", env="NAMESRV_ADDR"
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
        unit="bytes", minimum=65_536, maximum=1 << 30,
    )  # fmt: skip

    # --- registration
    register_name_server_period: int = option(
        30_000, "how often the broker registers; lower values count as 10,000, higher ones as 60,000",
        unit="ms", minimum=1,
    )  # fmt: skip
    register_broker_timeout_mills: int = option(24_000, "how long a NameServer may take", unit="ms", minimum=1)
    force_register: bool = option(
        False, "send all topics in each period, without asking whether the NameServer needs them", mutable=True
    )

    # --- topics and groups
    broker_permission: int = option(
        6, "what clients may do on this broker: 4 read, 2 write, 6 both", minimum=0, maximum=7, mutable=True
    )
    auto_create_topic_enable: bool = option(True, "a send to an unknown topic creates it, like TBW102", mutable=True)
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
    mapped_file_size_commit_log: int = option(1024 * MIB, "size of a commit log file", unit="bytes", minimum=4 * KIB)
    mapped_file_size_consume_queue: int = option(
        300_000 * ENTRY_BYTES, "size of a queue file; 20 bytes a message", unit="bytes", minimum=ENTRY_BYTES
    )
    mapper_file_size_batch_consume_queue: int = option(
        300_000 * BATCH_ENTRY_BYTES,
        "size of a queue file of topics with queue.type=BatchCQ; 46 bytes a batch",
        unit="bytes",
        minimum=BATCH_ENTRY_BYTES,
    )
    message_index_enable: bool = option(True, "keep an index of message keys")
    max_hash_slot_num: int = option(5_000_000, "hash slots of an index file", minimum=1)
    max_index_num: int = option(20_000_000, "keys of an index file", minimum=2)
    max_message_size: int = option(
        4 * MIB, "largest body of a message", unit="bytes", minimum=1, maximum=15 * MIB, mutable=True
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

    # --- replication: copies that a SYNC_MASTER waits for
    in_sync_replicas: int = option(
        2, "SYNC_MASTER: copies of a message, with the master's, before it is acknowledged; 1: do not wait for slaves",
        minimum=1, mutable=True,
    )  # fmt: skip
    min_in_sync_replicas: int = option(
        0, "SYNC_MASTER, enableControllerMode: sends are refused while fewer brokers, with the master, are in sync; 0:"
        " 1, but 2 in Controller mode in a set of three or more", minimum=0, mutable=True,
    )  # fmt: skip
    total_replicas: int = option(2, "brokers of the set, the master and its slaves", minimum=1)
    enable_auto_in_sync_replicas: bool = option(
        False, "SYNC_MASTER: wait for as many copies as are in sync, down to minInSyncReplicas", mutable=True
    )
    slave_timeout: int = option(
        3_000, "SYNC_MASTER: a send is answered FLUSH_SLAVE_TIMEOUT after this time", unit="ms", minimum=1, mutable=True
    )
    ha_max_gap_not_in_sync: int = option(
        256 * MIB, "a slave that is this far behind, or further, is not in sync", unit="bytes", minimum=1
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
        "auto", "serve slaves without a handshake, such as RocketMQ's; auto: if haSharedSecret is empty and ACL is off",
        choices=("auto", "true", "false"),
    )  # fmt: skip
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
        32 * KIB, "most bytes of one frame to a RocketMQ slave", unit="bytes", minimum=1, maximum=1024 * KIB
    )
    ha_max_transfer_rate: int = option(
        0, "most bytes a second to each slave; 0: no limit", unit="bytes", minimum=0, mutable=True
    )
    ha_flow_control_enable: bool = option(
        False, "limit the bytes a second to each slave to maxHaTransferByteInSecond", mutable=True
    )
    max_ha_transfer_byte_in_second: int = option(
        100 * MIB, "the limit for haFlowControlEnable", unit="bytes", minimum=1, mutable=True
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
        75, "percent of the disk in use above which expired files are deleted at any hour",
        minimum=10, maximum=95, mutable=True,
    )  # fmt: skip
    disk_space_clean_forcibly_ratio: int = option(
        85, "percent of the disk in use above which the oldest files are deleted even if not expired; at least 30",
        minimum=1, maximum=100, mutable=True,
    )  # fmt: skip
    clean_file_forcibly_enable: bool = option(
        True, "delete such files; false: only expired files are deleted, and on a full disk sends are refused",
        mutable=True,
    )  # fmt: skip
    disk_space_warning_level_ratio: int = option(
        90, "percent of the disk in use above which sends are refused; at least 35; 100: when no new file fits",
        minimum=1, maximum=100, mutable=True,
    )  # fmt: skip
    clean_resource_interval: int = option(
        10_000, "how often the broker checks the disk and looks for files to delete",
        unit="ms", minimum=10, mutable=True,
    )  # fmt: skip
    delete_file_batch_max: int = option(10, "most commit log files deleted at one time", minimum=1, mutable=True)
    delete_commit_log_files_interval: int = option(
        100, "pause after each deleted file, to limit the load of the disk", unit="ms", minimum=0, mutable=True
    )
    redelete_hanged_file_interval: int = option(
        120_000, "a file that could not be deleted is tried again after this time", unit="ms", minimum=1, mutable=True
    )

    # --- slaves that act as masters
    enable_slave_acting_master: bool = option(
        False, "while the master is down, the slave with the lowest id acts as it, for reading; same for the whole set"
    )
    broker_heartbeat_interval: int = option(
        1_000, "enableSlaveActingMaster: how often the broker sends NameServers a heartbeat", unit="ms", minimum=1
    )
    broker_not_active_timeout_millis: int = option(
        10_000, "enableSlaveActingMaster: NameServers forget a broker that is silent for this long",
        unit="ms", minimum=1,
    )  # fmt: skip
    sync_broker_member_group_period: int = option(
        1_000, "enableSlaveActingMaster: how often a slave asks which brokers of its set are alive",
        unit="ms", minimum=1,
    )  # fmt: skip
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
        256 * KIB, "most bytes of one pull", unit="bytes", minimum=1, mutable=True
    )
    max_transfer_count_on_message_in_disk: int = option(
        8, "most messages of one pull that waited for the disk", minimum=1, mutable=True
    )
    max_transfer_bytes_on_message_in_disk: int = option(
        64 * KIB, "most bytes of one pull that waited for the disk", unit="bytes", minimum=1, mutable=True
    )
    store_reply_message_enable: bool = option(True, "store replies, besides pushing them to who asked", mutable=True)
    enable_property_filter: bool = option(False, "serve consumers that filter by properties (SQL92)", mutable=True)
    default_query_max_num: int = option(32, "most messages that a query by unique key returns", minimum=1, mutable=True)

    # --- not yet: refused when switched on
    enable_dleger_commit_log: bool = option(False, "not supported yet: must be false", key="enableDLegerCommitLog")
    store_type: str = option(STORE_TYPE, "RocksDB is not supported yet: must be default")
    config_manager_version: str = option(CONFIG_VERSION, "RocksDB is not supported yet: must be v1")

    ignored_keys: ClassVar[frozenset[str]] = IGNORED_KEYS

    def __post_init__(self) -> None:
        self.check_inner_credentials()
        self.check_metrics()
        refuse_missing(self)
        if not self.store_path_root_dir.strip():
            raise ConfigError("storePathRootDir: it is empty; give the directory of the store, or leave the key out")
        check_controller_mode(self)
        if self.is_slave and self.broker_id == 0 and not self.enable_controller_mode:
            raise ConfigError("brokerId: 0 is the master's; give each SLAVE its own id above 0")
        if self.broker_id > 0 and not self.is_slave and not self.enable_controller_mode:
            raise ConfigError(f"brokerId: {self.broker_id} is a slave's; set brokerRole=SLAVE, or leave brokerId out")
        if self.is_sync_master and not self.min_in_sync_replicas <= self.in_sync_replicas <= self.total_replicas:
            raise ConfigError(
                f"inSyncReplicas: {self.in_sync_replicas} is not between"
                f" minInSyncReplicas={self.min_in_sync_replicas or 1} and totalReplicas={self.total_replicas};"
                " set the three so that it is"
            )
        if self.listen_port == 65535 and not self.ha_listen_port and not self.is_slave:
            raise ConfigError("haListenPort: listenPort + 1 is not a port; set another one")
        check_texts(self)
        check_auth(self)

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
        hosts = (host.strip().strip("[]") for host in self.ha_plain_peer_addresses.replace(",", ";").split(";"))
        return frozenset(host for host in hosts if host)

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
        addrs = (addr.strip() for addr in self.namesrv_addr.replace(",", ";").split(";"))
        return list(dict.fromkeys(addr for addr in addrs if addr))

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
        )

    @property
    def queue_file_bytes(self) -> int:
        """``mappedFileSizeConsumeQueue`` in whole entries."""
        return -(-self.mapped_file_size_consume_queue // ENTRY_BYTES) * ENTRY_BYTES

    @property
    def batch_queue_file_bytes(self) -> int:
        """``mapperFileSizeBatchConsumeQueue`` in whole entries."""
        return -(-self.mapper_file_size_batch_consume_queue // BATCH_ENTRY_BYTES) * BATCH_ENTRY_BYTES

"""What can be set in broker.conf and on the command line; the only home of each default.

Keys and defaults are RocketMQ's, except ``forceRegister`` (off: a NameServer is asked first whether it needs the whole
set). Those that may change while the broker runs (``mutable``) are read at each use.
What RocketMQ has and this broker does not do yet is refused where ignoring it would lose safety, and otherwise
accepted with a warning (ignored_keys.py).
"""

from dataclasses import dataclass
from typing import ClassVar

from broker.ignored_keys import IGNORED_KEYS
from broker.store.retention import HOUR_MS, RetentionRules, delete_hours
from common.errors import ConfigError
from common.options import option

KIB, MIB = 1024, 1024 * 1024
QUEUE_ENTRY_BYTES = 20
# What a user who sets the option expects, and would not get.
_NOT_YET = {
    "acl_enable": ("aclEnable", "access control"),
    "authentication_enabled": ("authenticationEnabled", "access control"),
    "authorization_enabled": ("authorizationEnabled", "access control"),
    "enable_controller_mode": ("enableControllerMode", "a controller"),
    "enable_dleger_commit_log": ("enableDLegerCommitLog", "a DLedger commit log"),
    "enable_slave_acting_master": ("enableSlaveActingMaster", "acting masters"),
}


@dataclass(frozen=True)
class BrokerOptions:
    """The options of one broker."""

    # --- who and where
    broker_cluster_name: str = option("DefaultCluster", "cluster that the broker belongs to")
    broker_name: str = option("", "name of the broker set; the same for a master and its slaves; default: host name")
    broker_id: int = option(0, "0 is the master of the set", minimum=0)
    broker_role: str = option("ASYNC_MASTER", "how the broker replicates", choices=("ASYNC_MASTER",))
    broker_ip1: str = option(
        "", "address that clients are told; default: first IPv4 address that is not loopback", key="brokerIP1"
    )
    broker_ip2: str = option("", "address that slaves are told; default: brokerIP1", key="brokerIP2")
    bind_address: str = option("0.0.0.0", "address to listen on")
    listen_port: int = option(10911, "port for clients; 0 takes a free one", minimum=0, maximum=65535)
    ha_listen_port: int = option(0, "port for slaves; 0: listenPort + 1", minimum=0, maximum=65535)
    namesrv_addr: str = option(
        "", "NameServers to register with: host:port;host:port; a broker without any serves too", env="NAMESRV_ADDR"
    )
    broker_config_path: str = option(
        "", "conf file that keeps options changed by updateBrokerConfig; set by -c, empty: they last until the stop"
    )
    config_black_list: str = option("configBlackList;brokerConfigPath", "keys that updateBrokerConfig may not touch")
    server_channel_max_idle_time_seconds: int = option(
        120, "connections silent for this long are closed", unit="s", minimum=1
    )

    # --- registration
    register_name_server_period: int = option(
        30_000, "how often the broker registers; at least 10,000, at most 60,000 count", unit="ms", minimum=1
    )
    register_broker_timeout_mills: int = option(
        24_000, "how long a NameServer may take to answer a registration", unit="ms", minimum=1
    )
    force_register: bool = option(
        False, "send the whole set at each period, without asking whether the NameServer needs it", mutable=True
    )

    # --- topics and groups
    broker_permission: int = option(
        6, "what clients may do here: 4 read, 2 write, 6 both", minimum=0, maximum=7, mutable=True
    )
    auto_create_topic_enable: bool = option(True, "a send creates its topic as TBW102 says", mutable=True)
    auto_create_subscription_group: bool = option(True, "a consumer creates its group", mutable=True)
    default_topic_queue_nums: int = option(8, "queues of TBW102, the most that a created topic gets", minimum=1)
    cluster_topic_enable: bool = option(True, "the topic named as the cluster may be used")
    broker_topic_enable: bool = option(True, "the topic named as the broker may be used")
    trace_topic_enable: bool = option(False, "make RMQ_SYS_TRACE_TOPIC, for clients that trace")
    flush_consumer_offset_interval: int = option(
        5_000, "how often consumers' offsets that changed go to disk", unit="ms", minimum=10, mutable=True
    )
    channel_expired_timeout: int = option(
        120_000, "clients without a heartbeat for this long are forgotten", unit="ms", minimum=1, mutable=True
    )
    notify_consumer_ids_changed_enable: bool = option(
        True, "tell the members of a consumer group when one comes or goes", mutable=True
    )
    forward_timeout: int = option(
        3_000, "how long a client may take to answer what the broker forwards to it", unit="ms", minimum=1, mutable=True
    )

    # --- store
    store_path_root_dir: str = option("~/store", "directory of messages and metadata")
    store_path_commit_log: str = option("", "must be commitlog in storePathRootDir, where the commit log is; or empty")
    mapped_file_size_commit_log: int = option(1024 * MIB, "size of a commit log file", unit="bytes", minimum=4 * KIB)
    mapped_file_size_consume_queue: int = option(
        300_000 * QUEUE_ENTRY_BYTES, "size of a queue file; 20 bytes a message", unit="bytes", minimum=QUEUE_ENTRY_BYTES
    )
    message_index_enable: bool = option(True, "keep an index of message keys")
    max_hash_slot_num: int = option(5_000_000, "hash slots of an index file", minimum=1)
    max_index_num: int = option(20_000_000, "keys of an index file", minimum=2)
    max_message_size: int = option(
        4 * MIB, "largest body of a message", unit="bytes", minimum=1, maximum=15 * MIB, mutable=True
    )
    flush_disk_type: str = option(
        "ASYNC_FLUSH",
        "SYNC_FLUSH: an acknowledged message survives power loss; ASYNC_FLUSH: the death of the broker",
        choices=("ASYNC_FLUSH", "SYNC_FLUSH"),
    )
    flush_interval_commit_log: int = option(
        500, "ASYNC_FLUSH: how often messages go to disk", unit="ms", minimum=1, mutable=True
    )
    flush_commit_log_least_pages: int = option(
        4, "ASYNC_FLUSH: fewer new pages of 4096 bytes wait for the thorough interval", minimum=0, mutable=True
    )
    flush_commit_log_thorough_interval: int = option(
        10_000, "ASYNC_FLUSH: after this time any new message goes to disk", unit="ms", minimum=1
    )
    sync_flush_timeout: int = option(
        5_000, "SYNC_FLUSH: a send is answered FLUSH_DISK_TIMEOUT after this time", unit="ms", minimum=1, mutable=True
    )
    # --- retention
    file_reserved_time: int = option(
        72, "a commit log file may go when its youngest message is older", unit="hours", minimum=1, mutable=True
    )
    delete_when: str = option(
        "04", "hours of the day, local time, at which such files are deleted; several separated by ;", mutable=True
    )
    disk_max_used_space_ratio: int = option(
        75, "percent of the disk in use above which such files are deleted at any hour",
        minimum=10, maximum=95, mutable=True,
    )  # fmt: skip
    disk_space_clean_forcibly_ratio: int = option(
        85, "percent of the disk in use above which the oldest files go, however young; at least 30 count",
        minimum=1, maximum=100, mutable=True,
    )  # fmt: skip
    clean_file_forcibly_enable: bool = option(
        True, "do that; false: on a full disk sends are refused, and nothing young is deleted", mutable=True
    )
    disk_space_warning_level_ratio: int = option(
        90, "percent of the disk in use above which sends are refused; at least 35 count; 100: when no file fits",
        minimum=1, maximum=100, mutable=True,
    )  # fmt: skip
    clean_resource_interval: int = option(
        10_000, "how often the broker looks for what to delete, and at the disk", unit="ms", minimum=10, mutable=True
    )
    delete_file_batch_max: int = option(10, "most commit log files that go at one look", minimum=1, mutable=True)
    delete_commit_log_files_interval: int = option(
        100, "pause between two files, for the disk's sake", unit="ms", minimum=0, mutable=True
    )
    redelete_hanged_file_interval: int = option(
        120_000, "a file that could not be deleted is tried again after this time", unit="ms", minimum=1, mutable=True
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
    default_query_max_num: int = option(32, "most messages that a query by unique key returns", minimum=1, mutable=True)

    # --- not yet: refused when switched on
    acl_enable: bool = option(False, "not supported yet: must be false")
    authentication_enabled: bool = option(False, "not supported yet: must be false")
    authorization_enabled: bool = option(False, "not supported yet: must be false")
    enable_controller_mode: bool = option(False, "not supported yet: must be false")
    enable_dleger_commit_log: bool = option(False, "not supported yet: must be false", key="enableDLegerCommitLog")
    enable_slave_acting_master: bool = option(False, "not supported yet: must be false")

    ignored_keys: ClassVar[frozenset[str]] = IGNORED_KEYS

    def __post_init__(self) -> None:
        for name, (key, what) in _NOT_YET.items():
            if getattr(self, name):
                raise ConfigError(f"{key}: this version does not have {what}; set it to false, or leave it out")
        if self.broker_id != 0:
            raise ConfigError("brokerId: a master's id is 0, and this version has no slaves; leave it out")
        for addr in self.namesrv_addrs:
            host, _, port = addr.rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise ConfigError(f"namesrvAddr: {addr!r} is no address; give host:port, several separated by ;")
        try:
            delete_hours(self.delete_when)
        except ValueError:
            raise ConfigError(
                f"deleteWhen: {self.delete_when!r} names no hours; give 00 to 23, several separated by ;"
            ) from None

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
        """What of the options says what may go.

        Ratios have RocketMQ's lower bounds, and not its upper ones (85 and 90): here a full disk is an error to whoever
        sends, and ends nothing, so that those who have a large disk may use it.
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
        return -(-self.mapped_file_size_consume_queue // QUEUE_ENTRY_BYTES) * QUEUE_ENTRY_BYTES

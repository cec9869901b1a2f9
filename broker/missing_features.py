"""Options that are refused when they are switched on, since what they stand for is not here and safety would be lost.

The error is one line that names the feature. Neighbours: options.py, ignored_keys.py (what may be ignored).
"""

from typing import TYPE_CHECKING

from mqcommon.errors import ConfigError

if TYPE_CHECKING:
    from broker.options import BrokerOptions

# What a user who sets the option expects, and would not get. The first that is set is the one that is named.
_SWITCHES = {
    "enable_controller_mode": ("enableControllerMode", "a controller"),
    "enable_dleger_commit_log": ("enableDLegerCommitLog", "a DLedger commit log"),
    "acl_enable": ("aclEnable", "access control"),
    "authentication_enabled": ("authenticationEnabled", "access control"),
    "authorization_enabled": ("authorizationEnabled", "access control"),
    "use_tls": ("useTLS", "TLS"),
    "all_ack_in_sync_state_set": ("allAckInSyncStateSet", "a controller, which keeps the set of replicas in sync"),
    "enable_lmq": ("enableLmq", "light queues (LMQ)"),
    "enable_multi_dispatch": ("enableMultiDispatch", "light queues (LMQ)"),
}
# Other values name a store or tables in RocksDB: without those the broker would start empty.
STORE_TYPE, CONFIG_VERSION = "default", "v1"


def refuse_missing(options: "BrokerOptions") -> None:
    """ConfigError when ``options`` ask for what is not here."""
    for name, (key, what) in _SWITCHES.items():
        if getattr(options, name):
            raise ConfigError(f"{key}: this version does not have {what}; set it to false, or leave it out")
    for key, value, only in (
        ("storeType", options.store_type, STORE_TYPE),
        ("configManagerVersion", options.config_manager_version, CONFIG_VERSION),
    ):
        if value.lower() not in ("", only):
            raise ConfigError(
                f"{key}: this version does not have stores or tables in RocksDB ({value}); export them as files with"
                f" RocketMQ's tools, and set it to {only}"
            )
    if options.broker_id < 0:
        raise ConfigError("brokerId: -1 is given out by a controller, which this version does not have; give 0 or more")

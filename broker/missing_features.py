"""Options that are refused when switched on: this broker lacks the feature, and ignoring the option would be unsafe.

The error is one line that names the feature. Neighbours: options.py, ignored_keys.py (keys that may be ignored).
"""

from typing import TYPE_CHECKING

from mqcommon.errors import ConfigError

if TYPE_CHECKING:
    from broker.options import BrokerOptions

# By option: its key and the feature that it switches on. The error names the first one that is set.
_SWITCHES = {
    "enable_dleger_commit_log": ("enableDLegerCommitLog", "a DLedger commit log"),
}
# Other values mean a store or tables in RocksDB: a broker that cannot read them would start empty.
STORE_TYPE, CONFIG_VERSION = "default", "v1"


def refuse_missing(options: "BrokerOptions") -> None:
    """ConfigError when ``options`` ask for a feature that this broker does not have."""
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

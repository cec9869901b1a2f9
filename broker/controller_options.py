"""Options of a broker whose master the Controllers choose."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mqcommon.addresses import is_address
from mqcommon.errors import ConfigError
from mqcommon.options.fields import option

if TYPE_CHECKING:
    from broker.options import BrokerOptions

# The id of a broker in Controller mode until the Controllers have told it.
UNKNOWN_ID = -1


@dataclass(frozen=True)
class ControllerModeOptions:
    """Part of `BrokerOptions`. Keys and defaults are RocketMQ's, but for two.

    RocketMQ's controllerHeartBeatTimeoutMills is 10,000, and its allAckInSyncStateSet is false.
    """

    # --- Controllers choose the master
    enable_controller_mode: bool = option(
        False, "Controllers choose the master of the set; brokerId and brokerRole are not used then"
    )
    controller_addr: str = option("", "enableControllerMode: all Controllers, host:port;host:port")
    controller_heart_beat_timeout_mills: int = option(
        3_000,
        "enableControllerMode: silent for this long, the broker is dead for Controllers; a master that they do not"
        " answer stops to accept messages a fifth earlier",
        unit="ms", minimum=500, maximum=600_000,
    )  # fmt: skip
    sync_broker_metadata_period: int = option(
        5_000, "enableControllerMode: how often the broker asks who is the master, besides notices",
        unit="ms", minimum=100,
    )  # fmt: skip
    all_ack_in_sync_state_set: bool = option(
        True,
        "enableControllerMode: a message is acknowledged when all of the SyncStateSet have it; false, RocketMQ's"
        " default: when inSyncReplicas have it, and it may be lost when another broker is elected",
        mutable=True,
    )
    ha_max_time_slave_not_catchup: int = option(
        15_000, "enableControllerMode: a slave that lacked messages for this long leaves the SyncStateSet",
        unit="ms", minimum=100,
    )  # fmt: skip
    async_learner: bool = option(
        False, "enableControllerMode: copy the log, but be in no SyncStateSet, and never the master"
    )
    broker_election_priority: int = option(
        2_147_483_647, "enableControllerMode: of brokers with equal logs the one with the lowest number is elected",
        minimum=0, maximum=2_147_483_647,
    )  # fmt: skip
    store_path_epoch_file: str = option(
        "", "enableControllerMode: file of master epochs; default: epochFileCheckpoint in storePathRootDir"
    )
    store_path_broker_identity: str = option(
        "", "enableControllerMode: file with the broker's id; default: brokerIdentity in storePathRootDir"
    )

    @property
    def controller_addrs(self) -> list[str]:
        """``controllerAddr`` as a list, in order, each once."""
        addrs = (addr.strip() for addr in self.controller_addr.replace(",", ";").split(";"))
        return list(dict.fromkeys(addr for addr in addrs if addr))


def check_controller_mode(options: "BrokerOptions") -> None:
    """ConfigError when the options of Controller mode do not fit each other or the others."""
    if not options.enable_controller_mode:
        if options.broker_id < 0:
            raise ConfigError("brokerId: -1 asks Controllers for one; set enableControllerMode=true, or give 0 or more")
        return
    if not options.controller_addrs:
        raise ConfigError("controllerAddr: it is empty; give the Controllers as host:port;host:port")
    for addr in options.controller_addrs:
        if not is_address(addr):
            raise ConfigError(f"controllerAddr: {addr!r} is not an address; give host:port, several separated by ;")
    if options.enable_slave_acting_master:
        raise ConfigError(
            "enableSlaveActingMaster: Controllers elect another master at once, so no slave needs to act as it;"
            " leave it out"
        )
    least_ms = 3 * options.broker_heartbeat_interval
    if options.controller_heart_beat_timeout_mills < least_ms:
        raise ConfigError(
            "controllerHeartBeatTimeoutMills: it must be at least three times brokerHeartbeatInterval, so that a lost"
            f" heartbeat does no harm; set it to {least_ms} or more"
        )

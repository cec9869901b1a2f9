"""Options of a Controller, under RocketMQ's names: in a conf file of its own, or in a NameServer's conf file."""

import os
from typing import Any, ClassVar

from skylark.mqcommon.addresses import parse_peers
from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.logs.options import LogOptions, parse_levels
from skylark.mqcommon.metrics.options import HealthOptions
from skylark.mqcommon.options.fields import option
from skylark.namesrv.access import AccessOptions
from skylark.remoting.net.inner_credentials import InnerCredentialsOptions
from skylark.remoting.net.limits import LimitOptions
from skylark.remoting.net.signature_options import SignatureOptions
from skylark.remoting.net.tls.options import TlsOptions

_PEERS = "where all Controllers of the group listen for each other and for brokers: n0-10.0.0.1:9877;n1-10.0.0.2:9877"


# A dead master is found at most this much later.
DEFAULT_SCAN_MS = 100


@lazy_dataclass(frozen=True)
class ControllerOptions:
    """Part of the options of a NameServer and of the command ``controller``."""

    controller_d_leger_group: str = option("group1", "name of the group of Controllers")
    controller_d_leger_peers: str = option("", _PEERS)
    controller_d_leger_self_id: str = option("", "which of controllerDLegerPeers this one is, as in n0")
    controller_store_path: str = option("~/DLedgerController", "directory of the Controller's log and snapshots")
    controller_type: str = option(
        "DLedger", "how Controllers agree: by Raft; RocketMQ's jRaft is another implementation of the same"
    )
    enable_elect_unclean_master: bool = option(
        False,
        "elect a replica that may lack acknowledged messages when no member of the SyncStateSet is alive",
        mutable=True,
    )
    notify_broker_role_changed: bool = option(True, "tell the brokers of a set at once who the master is", mutable=True)
    broker_heartbeat_timeout: int = option(
        3_000,
        "a broker that does not say its own timeout is dead when it was silent for this long",
        unit="ms",
        minimum=100,
        mutable=True,
    )
    scan_inactive_master_interval: int = option(
        5_000,
        "time between two looks at all sets for those without a living master",
        unit="ms",
        minimum=10,
        mutable=True,
    )
    controller_election_timeout: int = option(
        1_000, "another Controller leads when nothing was heard of the leader for this long", unit="ms", minimum=100
    )

    @property
    def controller_peers(self) -> dict[str, str]:
        """``controllerDLegerPeers``: addresses by id. ConfigError when it is wrong."""
        return parse_peers(self.controller_d_leger_peers, "controllerDLegerPeers", "Controllers")

    @property
    def scan_brokers_ms(self) -> int:
        """The time between two scans of a Controller for silent brokers."""
        return DEFAULT_SCAN_MS

    def check_controller(self) -> None:
        """ConfigError when these options cannot make a Controller."""
        if self.controller_type.lower() != "dledger":
            raise ConfigError(
                f"controllerType: {self.controller_type} is not supported; use DLedger, with controllerDLegerPeers"
            )
        if not self.controller_d_leger_group:
            raise ConfigError("controllerDLegerGroup: it is empty; give the same name to all Controllers of the group")
        peers = self.controller_peers
        if self.controller_d_leger_self_id not in peers:
            raise ConfigError(
                f"controllerDLegerSelfId: {self.controller_d_leger_self_id!r} is not in controllerDLegerPeers,"
                f" which has {', '.join(peers)}"
            )

    @property
    def controller_bind_address(self) -> str:
        """Where the Controller listens; empty: at its own address of ``controllerDLegerPeers``."""
        return ""

    @property
    def controller_dir(self) -> str:
        """``controllerStorePath`` as a path."""
        return os.path.expanduser(self.controller_store_path)


def check_that_controllers_sign(options: Any) -> None:
    """ConfigError when Controllers with access control would refuse each other."""
    if options.is_guarded and options.inner_credentials is None:
        raise ConfigError(
            "innerClientAuthenticationCredentials: aclEnable and registrationUsers need it, as Controllers sign what"
            " they send each other"
        )


@lazy_dataclass(frozen=True)
class ControllerDaemonOptions(
    ControllerOptions,
    LogOptions,
    AccessOptions,
    InnerCredentialsOptions,
    SignatureOptions,
    LimitOptions,
    TlsOptions,
    HealthOptions,
):
    """The options of the command ``controller``."""

    bind_address: str = option(
        "",
        "address to listen on; empty: its own address of controllerDLegerPeers. Set it where that is no address of this"
        " machine: behind NAT, or a name that is not known yet at the start",
        env="SKYLARK_BIND_ADDRESS",
    )
    config_store_path: str = option(
        "", "conf file that keeps options changed by updateControllerConfig; set by -c, empty: they last until the stop"
    )
    config_black_list: str = option("configBlackList;configStorePath", "keys that updateControllerConfig may not touch")
    scan_not_active_broker_interval: int = option(
        DEFAULT_SCAN_MS,
        "time between two scans for silent brokers; RocketMQ's default is 5000",
        unit="ms",
        minimum=10,
        mutable=True,
    )

    # threads, buffers, metrics and JRaft: RocketMQ's options that mean nothing here
    ignored_keys: ClassVar[frozenset[str]] = frozenset(
        {
            "controllerRequestThreadPoolQueueCapacity",
            "controllerThreadPoolNums",
            "electMasterMaxRetryCount",
            "enableShutdownGracefully",
            "isProcessReadEvent",
            "jraftConfig",
            "listenPort",
            "mappedFileSize",
            "metricsExporterType",
            "rocketmqHome",
        }
    )

    def __post_init__(self) -> None:
        self.check_controller()
        self.check_access_options()
        self.check_inner_credentials()
        self.check_signature_options()
        check_that_controllers_sign(self)
        parse_levels(self.log_levels)

    @property
    def scan_brokers_ms(self) -> int:
        return self.scan_not_active_broker_interval

    @property
    def controller_bind_address(self) -> str:
        return self.bind_address

    @property
    def forbidden_keys(self) -> frozenset[str]:
        """The keys of ``configBlackList``."""
        return frozenset(key.strip() for key in self.config_black_list.split(";") if key.strip())

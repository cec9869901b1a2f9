"""The options of namesrv.conf and the command line, with their defaults.

Keys are RocketMQ's. Options that may change while the NameServer runs (``mutable``) are read at each use.
"""

from collections.abc import Collection
from typing import ClassVar

from skylark.mqcommon.exposure import Exposure, exposure
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.logs.options import LogOptions, parse_levels
from skylark.mqcommon.metrics.options import MetricsOptions
from skylark.mqcommon.options.fields import BYTES, option
from skylark.namesrv.access import AccessOptions
from skylark.namesrv.controller.options import ControllerOptions, check_that_controllers_sign
from skylark.remoting.net.inner_credentials import InnerCredentialsOptions
from skylark.remoting.net.limits import LimitOptions
from skylark.remoting.net.signature_options import SignatureOptions
from skylark.remoting.net.tls.options import TlsOptions

# RocketMQ's keys without effect here: threads, buffers and Netty; some of a Controller.
_IGNORED = """
    clientRequestThreadPoolNums clientRequestThreadPoolQueueCapacity clusterTest
    controllerRequestThreadPoolQueueCapacity controllerThreadPoolNums defaultThreadPoolNums
    defaultThreadPoolQueueCapacity enableShutdownGracefully isProcessReadEvent productEnvName rocketmqHome
    serverAsyncSemaphoreValue serverCallbackExecutorThreads serverNettyWorkerGroupEnable serverOnewaySemaphoreValue
    serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog serverSocketRcvBufSize
    serverSocketSndBufSize serverWorkerThreads shutdownWaitTimeSeconds unRegisterBrokerQueueCapacity
    useEpollNativeSelector writeBufferHighWaterMark writeBufferLowWaterMark
"""


@lazy_dataclass(frozen=True)
class NamesrvOptions(
    LogOptions,
    AccessOptions,
    InnerCredentialsOptions,
    SignatureOptions,
    LimitOptions,
    TlsOptions,
    MetricsOptions,
    ControllerOptions,
):
    """The options of one NameServer."""

    # A broker on the same machine has RocketMQ's default, 5557.
    metrics_prom_exporter_port: int = option(
        5556, "port of the pages /metrics, /healthz and /readyz; 0 takes a free one", minimum=0, maximum=65535
    )
    listen_port: int = option(9876, "port for brokers and clients; 0 takes a free one", minimum=0, maximum=65535)
    bind_address: str = option(
        "", "address to listen on; empty: 127.0.0.1, or all interfaces when options name other machines"
    )
    kv_config_path: str = option("~/namesrv/kvConfig.json", "file that holds the KV config; made at the first change")
    config_store_path: str = option(
        "", "conf file that keeps options changed by updateNamesrvConfig; set by -c, empty: they last until the stop"
    )
    scan_not_active_broker_interval: int = option(
        5_000, "time between two scans for silent brokers", unit="ms", minimum=10, mutable=True
    )
    probe_brokers: bool = option(
        True, "ask silent brokers of Skylark whether they live; a stopped one leaves the routes in 10 s", mutable=True
    )
    max_connections: int = option(
        0, "most connections of brokers and clients; 0: as many as open files (ulimit -n) allow", minimum=0
    )
    server_channel_max_idle_time_seconds: int = option(
        120, "connections silent for this long are closed", unit="s", minimum=1
    )
    frame_max_length: int = option(
        16_777_216,
        "longest frame sent and taken; as RocketMQ's -Dcom.rocketmq.remoting.frameMaxLength, and so set at all peers",
        unit=BYTES,
        minimum=65_536,
        maximum=1 << 30,
    )
    order_message_enable: bool = option(
        False, "tell clients the order of a topic's queues (KV namespace ORDER_TOPIC_CONFIG)", mutable=True
    )
    return_order_topic_config_to_broker: bool = option(
        True, "answer a broker's registration with KV namespace ORDER_TOPIC_CONFIG", mutable=True
    )
    delete_topic_with_broker_registration: bool = option(
        False, "forget a broker's topics that are absent from its newest registration", mutable=True
    )
    support_acting_master: bool = option(
        False, "show the slave with the lowest id as master of a set that lost its master", mutable=True
    )
    notify_min_broker_id_changed: bool = option(
        False, "notify slaves that may act as masters as soon as the lowest member of their set changes", mutable=True
    )
    enable_all_topic_list: bool = option(True, "answer requests for the list of all topics", mutable=True)
    enable_topic_list: bool = option(
        True, "answer requests for the topics of a cluster, the system topics and the unit topics", mutable=True
    )
    need_wait_for_service: bool = option(
        False, "answer no route queries until waitSecondsForService after the start", mutable=True
    )
    wait_seconds_for_service: int = option(
        45, "time that brokers have to register before clients are answered", unit="s", minimum=0, mutable=True
    )
    config_black_list: str = option(
        "configBlackList;configStorePath;kvConfigPath", "keys that updateNamesrvConfig may not touch"
    )

    enable_controller_in_namesrv: bool = option(
        False, "be a Controller, too, at the address that controllerDLegerPeers has for controllerDLegerSelfId"
    )

    ignored_keys: ClassVar[frozenset[str]] = frozenset(_IGNORED.split())

    def __post_init__(self) -> None:
        self.check_metrics()
        self.check_access_options()
        self.check_inner_credentials()
        self.check_signature_options()
        if self.enable_controller_in_namesrv:
            self.check_controller()
            check_that_controllers_sign(self)
        parse_levels(self.log_levels)

    def listening(self, conf_keys: Collection[str] = ()) -> Exposure:
        """Where the NameServer listens; ``conf_keys`` are the keys in its conf file."""
        peers = self.controller_d_leger_peers if self.enable_controller_in_namesrv else ""
        return exposure(self.bind_address, [("controllerDLegerPeers", peers)], conf_keys)

    @property
    def forbidden_keys(self) -> frozenset[str]:
        """The keys of ``configBlackList``."""
        return frozenset(key.strip() for key in self.config_black_list.split(";") if key.strip())

"""The options of a proxy's conf file and command line, with their defaults. Keys are RocketMQ's."""

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import ClassVar

from skylark.mqcommon.addresses import is_address
from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.exposure import Exposure, exposure, opened
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.logs.options import LogOptions, parse_levels
from skylark.mqcommon.metrics.options import MetricsOptions
from skylark.mqcommon.options.conf_file import conf_keys, load_conf
from skylark.mqcommon.options.fields import BYTES, option
from skylark.remoting.net.inner_credentials import InnerCredentialsOptions
from skylark.remoting.net.tls.options import TlsOptions
from skylark.remoting.net.tls.settings import DISABLED, ENFORCING, PERMISSIVE

# RocketMQ's keys without effect here: threads, queues in front of them, its caches, its table of open transactions
# (this proxy has no such table), and its port for the remoting protocol. `enableACL` of old versions is not among them:
# a user who sets it wants a closed port.
_IGNORED = """
    enableGrpcEpoll grpcBossLoopNum grpcWorkerLoopNum grpcThreadPoolNums grpcProducerThreadPoolNums
    grpcProducerThreadQueueCapacity grpcConsumerThreadPoolNums grpcConsumerThreadQueueCapacity grpcRouteThreadPoolNums
    grpcRouteThreadQueueCapacity grpcClientManagerThreadPoolNums grpcClientManagerThreadQueueCapacity
    grpcTransactionThreadPoolNums grpcTransactionThreadQueueCapacity producerProcessorThreadPoolNums
    producerProcessorThreadPoolQueueCapacity consumerProcessorThreadPoolNums consumerProcessorThreadPoolQueueCapacity
    rocketMQClusterName rocketmqMQClientNum enablePrintJstack printJstackInMillis
    printThreadPoolStatusInMillis metadataThreadPoolNums metadataThreadPoolQueueCapacity transactionDataExpireMillis
    transactionDataExpireScanPeriodMillis transactionDataMaxNum transactionDataMaxWaitClearMillis
    transactionHeartbeatBatchNum transactionHeartbeatThreadPoolNums transactionHeartbeatThreadPoolQueueCapacity
    authorizationEnabled authConfigPath authenticationProvider authenticationMetadataProvider authenticationStrategy
    authenticationWhitelist authorizationProvider authorizationMetadataProvider authorizationStrategy
    authorizationWhitelist initAuthenticationUser aclCacheExpiredSeconds aclCacheRefreshSeconds aclCacheMaxNum
    heartbeatSyncerTopicClusterName heartbeatSyncerThreadPoolNums heartbeatSyncerThreadPoolQueueCapacity
    heartbeatSyncerTopicName namesrvDomain namesrvDomainSubgroup brokerConfigPath maxLiteTopicSize
    maxLiteRenewNumPerChannel maxSyncLiteSubscriptionRate enableProxyClientReadServiceCleaner
    enableProxyClientAdminCrossProxyQuery proxyClientAdminPeerRequestTimeoutMillis proxyClientAdminPeerGrpcTargets
    proxyClientReadServiceCleanerInactiveTimeoutMillis proxyClientReadServiceCleanerIntervalMillis
    channelExpiredInSeconds contextExpiredInSeconds grpcProxyRelayRequestTimeoutInSeconds
    topicRouteServiceCacheExpiredSeconds topicRouteServiceCacheRefreshSeconds topicRouteServiceCacheMaxNum
    topicRouteServiceThreadPoolNums topicRouteServiceThreadPoolQueueCapacity topicConfigCacheExpiredSeconds
    subscriptionGroupConfigCacheExpiredSeconds subscriptionGroupConfigCacheRefreshSeconds
    subscriptionGroupConfigCacheMaxNum longPollingReserveTimeInMillis invisibleTimeMillisWhenClear maxRenewRetryTimes
    renewThreadPoolNums renewMaxThreadPoolNums renewThreadPoolQueueCapacity lockTimeoutMsInHandleGroup
    returnHandleGroupThreadPoolNums enableAclRpcHookForClusterMode useDelayLevel messageDelayLevel regionId traceOn
    enableRemotingLocalProxyGrpc localProxyConnectTimeoutMs
    remotingAccessAddr remotingListenPort sendLatencyEnable startDetectorEnable detectTimeout detectInterval
    remotingHeartbeatThreadPoolNums remotingTopicRouteThreadPoolNums remotingSendMessageThreadPoolNums
    remotingPullMessageThreadPoolNums remotingUpdateOffsetThreadPoolNums remotingDefaultThreadPoolNums
    remotingHeartbeatThreadPoolQueueCapacity remotingTopicRouteThreadPoolQueueCapacity
    remotingSendThreadPoolQueueCapacity remotingPullThreadPoolQueueCapacity remotingUpdateOffsetThreadPoolQueueCapacity
    remotingDefaultThreadPoolQueueCapacity remotingWaitTimeMillsInSendQueue remotingWaitTimeMillsInPullQueue
    remotingWaitTimeMillsInHeartbeatQueue remotingWaitTimeMillsInUpdateOffsetQueue
    remotingWaitTimeMillsInTopicRouteQueue remotingWaitTimeMillsInDefaultQueue enableBatchAck
"""


@lazy_dataclass(frozen=True)
class ProxyOptions(LogOptions, InnerCredentialsOptions, TlsOptions, MetricsOptions):
    """The options of one proxy."""

    namesrv_addr: str = option("", "NameServers of the cluster: host:port;host:port", env="NAMESRV_ADDR")
    bind_address: str = option(
        "", "address to listen on; empty: 127.0.0.1, or all interfaces when options name other machines"
    )
    grpc_server_port: int = option(8081, "port for clients; 0 takes a free one", minimum=0, maximum=65535)
    local_serve_addr: str = option(
        "", "address of this proxy in routes for clients that do not say at which address they reach it"
    )
    use_endpoint_port_from_request: bool = option(
        False, "routes name the port that the client uses, for a proxy behind a port mapping"
    )
    grpc_shutdown_time_seconds: int = option(
        30, "at a stop, calls in progress have this long to end", unit="s", minimum=0
    )
    grpc_thread_pool_queue_capacity: int = option(100_000, "most calls in progress; others are refused", minimum=1)
    grpc_max_inbound_message_size: int = option(
        130 * 1024 * 1024, "largest request", unit=BYTES, minimum=1024, maximum=2**31 - 1
    )
    grpc_max_concurrent_calls_per_connection: int = option(
        10_000, "most calls in progress on one connection", minimum=1, maximum=2**31 - 1
    )
    grpc_client_idle_time_mills: int = option(
        120_000, "connections without a call in progress for this long are closed", unit="ms", minimum=1
    )
    grpc_server_permit_keep_alive_time_millis: int = option(
        5_000, "clients that ping more often are disconnected", unit="ms", minimum=0
    )
    grpc_server_permit_keep_alive_without_calls: bool = option(
        True, "the same without a call in progress; false: two minutes are the least then"
    )
    max_connections: int = option(
        0, "most connections of clients; 0: what the limit of open files (ulimit -n) allows", minimum=0
    )
    max_connections_per_address: int = option(
        0, "most connections from one address, or one /64 of IPv6; 0: no limit", minimum=0
    )
    max_new_connections_per_second: int = option(
        0, "most new connections a second from one address, or one /64 of IPv6; 0: no limit", minimum=0
    )
    max_requests_per_second: int = option(
        0, "most calls a second from one address, or one /64 of IPv6; 0: no limit", minimum=0
    )
    slow_frame_timeout: int = option(
        60_000, "a request must be whole this long after its call began", unit="ms", minimum=100
    )
    slow_reader_timeout: int = option(
        20_000, "a client must take each message that is sent to it within this time", unit="ms", minimum=100
    )

    proxy_mode: str = option("CLUSTER", "CLUSTER: brokers are found through NameServers")
    tls_server_mode: str = option(
        PERMISSIVE,
        "permissive: clients with and without TLS; enforcing: with TLS only; disabled: without only",
        key="tls.server.mode",
        choices=(PERMISSIVE, ENFORCING, DISABLED),
    )
    tls_test_mode_enable: bool = option(True, "without a certificate, make a self-signed one")
    tls_cert_path: str = option("", "certificate (chain), PEM; default: as in tlsConfigFile")
    tls_key_path: str = option("", "key of the certificate, PEM")
    tls_key_password: str = option("", "password of an encrypted key", secret=True)
    tls_cert_watch_interval_ms: int = option(
        500, "time between two looks whether the certificate is another one", unit="ms", minimum=10
    )

    max_message_size: int = option(
        4 * 1024 * 1024, "largest body of a message; 0: as large as a request", unit=BYTES, minimum=0
    )
    enable_message_body_empty_check: bool = option(True, "refuse messages with an empty body")
    max_user_property_size: int = option(
        16 * 1024, "most bytes of a message's properties, tag and keys; 0: no limit", unit=BYTES, minimum=0
    )
    user_property_max_num: int = option(128, "most properties of a message", minimum=0)
    max_message_group_size: int = option(
        64, "a message group must be shorter than this; 0: no limit", unit=BYTES, minimum=0
    )
    max_delay_time_mills: int = option(
        24 * 3600 * 1000, "longest delay of a message; 0: no limit", unit="ms", minimum=0
    )
    enable_topic_message_type_check: bool = option(
        True, "refuse messages whose type differs from their topic's (attribute message.type)"
    )

    grpc_client_producer_max_attempts: int = option(3, "how often a client tries a send", minimum=1)
    grpc_client_producer_backoff_initial_millis: int = option(
        10, "a client's pause before its second try", unit="ms", minimum=0
    )
    grpc_client_producer_backoff_max_millis: int = option(
        1_000, "longest pause of a client between tries", unit="ms", minimum=0
    )
    grpc_client_producer_backoff_multiplier: int = option(2, "how fast these pauses grow", minimum=1)
    default_invisible_time_mills: int = option(
        60_000, "a message is hidden this long for clients that leave it to the proxy", unit="ms", minimum=1_000
    )
    enable_proxy_auto_renew: bool = option(
        True, "keep messages hidden while clients consume them that leave the time to the proxy"
    )
    renew_ahead_time_millis: int = option(
        10_000, "messages are renewed this long before they are shown", unit="ms", minimum=1
    )
    renew_max_time_millis: int = option(
        3 * 3600 * 1000, "messages are renewed for this long at most", unit="ms", minimum=1
    )
    renew_schedule_period_millis: int = option(
        5_000, "time between two looks at what must be renewed", unit="ms", minimum=1
    )
    min_invisible_time_mills_for_recv: int = option(
        10_000, "least time that a receive may hide messages", unit="ms", minimum=0
    )
    max_invisible_time_mills: int = option(
        12 * 3600 * 1000, "longest time that a message may be hidden; 0: no limit", unit="ms", minimum=0
    )
    grpc_client_consumer_min_long_polling_timeout_millis: int = option(
        5_000, "least time that a receiver waits for messages, unless it names a time itself", unit="ms", minimum=0
    )
    grpc_client_consumer_max_long_polling_timeout_millis: int = option(
        20_000, "longest time that a receiver waits for messages", unit="ms", minimum=1
    )
    grpc_client_consumer_long_polling_batch_size: int = option(
        32, "most messages of one receive", minimum=1, maximum=32
    )
    authentication_enabled: str = option(
        "auto",
        "serve only calls that a user of the brokers has signed; auto: if innerClientAuthenticationCredentials is set,"
        " which must belong to a super user, as the proxy reads users and their secrets from brokers",
        choices=("auto", "true", "false"),
    )
    user_cache_refresh_seconds: int = option(
        20,
        "how old what is known of a user may be: a changed or deleted user counts after this time",
        unit="s",
        minimum=1,
    )
    user_cache_expired_seconds: int = option(300, "the same while no broker answers", unit="s", minimum=1)
    user_cache_max_num: int = option(20_000, "how many users are remembered", minimum=1)

    channel_expired_timeout: int = option(
        120_000, "a client without a heartbeat for this long is forgotten", unit="ms", minimum=1_000
    )
    max_transaction_recovery_second: int = option(
        3600,
        "longest time in which a producer wants not to be asked about a transaction; 0: no limit",
        unit="s",
        minimum=0,
    )
    transaction_heartbeat_period_second: int = option(
        20, "time between two looks at which topics have producers of transactions", unit="s", minimum=1
    )
    topic_config_cache_refresh_seconds: int = option(
        20, "how old what is known of topics and groups may be", unit="s", minimum=1
    )
    topic_config_cache_max_num: int = option(20_000, "how many topics and groups are remembered", minimum=1)

    proxy_instances: str = option(
        "1", "processes that serve grpcServerPort together; auto: one for each core; docs/reference/proxy.md, All cores"
    )
    proxy_cluster_name: str = option("DefaultCluster", "label cluster of metrics")
    proxy_name: str = option("", "label node_id of metrics; empty: the name of this host")
    metric_collector_mode: str = option(
        "off", "on: clients are told to send their metrics to metricCollectorAddress", choices=("off", "on")
    )
    metric_collector_address: str = option(
        "", "host:port of an OpenTelemetry collector for the metrics of clients, by OTLP over gRPC"
    )

    #: RocketMQ's proxy has its options in rmq-proxy.json.
    conf_may_be_json: ClassVar[bool] = True
    ignored_keys: ClassVar[frozenset[str]] = frozenset(_IGNORED.split())

    @property
    def most_body_bytes(self) -> int:
        """The largest body of a message, after decompression: ``maxMessageSize``, if it is set."""
        return self.max_message_size or self.grpc_max_inbound_message_size

    @property
    def is_authenticating(self) -> bool:
        """Whether calls must be signed."""
        if self.authentication_enabled == "auto":
            return bool(self.inner_client_authentication_credentials)
        return self.authentication_enabled == "true"

    def __post_init__(self) -> None:
        parse_levels(self.log_levels)
        self.check_inner_credentials()
        if self.is_authenticating and not self.inner_client_authentication_credentials:
            raise ConfigError(
                "authenticationEnabled=true: signatures are checked with what brokers know of users; set"
                " innerClientAuthenticationCredentials to a super user's"
            )
        self.check_metrics()
        if self.metric_collector_mode == "on" and not is_address(self.metric_collector_address):
            raise ConfigError("metricCollectorAddress: metricCollectorMode=on needs host:port of a collector")
        if self.proxy_mode.upper() != "CLUSTER":
            raise ConfigError(
                f"proxyMode={self.proxy_mode}: this proxy has the mode CLUSTER only; a broker is started on its own"
            )
        if bool(self.tls_cert_path) != bool(self.tls_key_path):
            raise ConfigError("tlsCertPath and tlsKeyPath belong together; set both, or neither")

    def listening(self, conf_keys: Collection[str] = ()) -> Exposure:
        """Where the proxy listens; ``conf_keys`` are the keys in its conf file."""
        named = (("namesrvAddr", self.namesrv_addr), ("localServeAddr", self.local_serve_addr))
        return exposure(self.bind_address, named, conf_keys)

    @property
    def node_id(self) -> str:
        """The name of this proxy in metrics."""
        return self.proxy_name or os.uname().nodename

    @property
    def metric_labels(self) -> tuple[tuple[str, str], ...]:
        """The labels that all metrics of this proxy have, as in RocketMQ."""
        return (
            ("cluster", self.proxy_cluster_name),
            ("node_type", "proxy"),
            ("node_id", self.node_id),
            ("proxy_mode", self.proxy_mode.lower()),
        )


def load_options(
    conf: str | None,
    given: Mapping[str, str],
    warnings: list[str],
    environ: Mapping[str, str] | None = None,
) -> ProxyOptions:
    """The options of a conf file and of flags, with the address to listen on. UserError when one is wrong.

    Harmless mistakes, and where the proxy can be reached from, are added to ``warnings``. ``environ`` is by default the
    environment of the process.
    """
    options = load_conf(ProxyOptions, conf, given, environ=environ, warnings=warnings)
    where = options.listening(conf_keys(ProxyOptions, conf))
    if where.because:
        warnings.append(opened(f"{where.address}:{options.grpc_server_port}", where.because, ""))
    return replace(options, bind_address=where.address)

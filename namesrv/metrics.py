"""A NameServer's metrics: names, and what they are read from. RocketMQ's NameServer has none, so the names are ours."""

from collections.abc import Callable

from skylark.mqcommon.metrics.metric import Column, Metric, column, single
from skylark.namesrv.state import State
from skylark.remoting.metrics.rpc import RPC_LATENCY, RpcTimes
from skylark.remoting.net.server import Server
from skylark.remoting.net.steps import Steps
from skylark.remoting.net.tls.options import DaemonTls

BROKERS = Metric("skylark_namesrv_brokers", "gauge", "", (), "Brokers that are registered")
TOPICS = Metric("skylark_namesrv_topics", "gauge", "", (), "Topics that have a route")
DISPLACED = Metric(
    "skylark_namesrv_displaced_brokers_total", "counter", "", (), "Brokers whose name and id another address took"
)
REFUSALS = Metric("skylark_auth_refusals_total", "counter", "", (), "Requests that access control refused")
LIMITS = Metric("skylark_limit_refusals_total", "counter", "", ("limit",), "What peers were refused because of a limit")
TLS_HANDSHAKES = Metric(
    "skylark_tls_handshakes_total", "counter", "", ("result",), "Peers that got through (ok) or not (failed)"
)
CONNECTIONS = Metric("skylark_connections", "gauge", "", (), "Connections of brokers and clients")

NAMESRV_METRICS = (BROKERS, TOPICS, DISPLACED, REFUSALS, LIMITS, TLS_HANDSHAKES, CONNECTIONS, RPC_LATENCY)


def collect(
    state: State, rpc: RpcTimes, server: Server, refusals: Callable[[], int], tls: DaemonTls
) -> Steps[list[Column]]:
    """All columns. Steps are what the exporter takes; all of this is cheap."""
    return [
        single(BROKERS, state.routes.broker_count),
        single(TOPICS, state.routes.topic_count),
        single(DISPLACED, state.displacements),
        single(REFUSALS, refusals()),
        column(LIMITS, [((name,), number) for name, number in server.refusals.counts.items()]),
        column(TLS_HANDSHAKES, tls.handshakes()),
        single(CONNECTIONS, len(server.channels)),
        rpc.column(),
    ]
    yield  # never reached; it makes this a generator

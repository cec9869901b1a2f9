"""A proxy: its port, its certificate, its limits, its start and its graceful stop."""

import logging
from functools import partial

import trio

from skylark.mqcommon.addresses import format_address
from skylark.mqcommon.errors import UserError
from skylark.mqproxy.certificates import proxy_tls
from skylark.mqproxy.instances import shares_port
from skylark.mqproxy.metadata import Metadata
from skylark.mqproxy.metrics import Meters, Served
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.service import Calls
from skylark.mqproxy.sessions import Sessions
from skylark.mqproxy.users import KnownUsers
from skylark.remoting.grpc.limits import GrpcLimits
from skylark.remoting.grpc.server import GrpcServer
from skylark.remoting.http2.limits import Http2Limits
from skylark.remoting.net.limits import ConnectionBudget, connection_budget, within_memory
from skylark.remoting.net.sockets import listen
from skylark.remoting.net.tls.server import TlsListener, TlsServer
from skylark.remoting.net.tls.settings import Tls
from skylark.remoting.net.transport import Listener, Shortcut
from skylark.remoting.protocol.signature import Credentials
from skylark.sdk.admin.client import Admin
from skylark.sdk.client import Client, ClientInstance, sharing

logger = logging.getLogger(__name__)

# A client must have agreed on TLS and HTTP/2 within this time.
FIRST_BYTES_TIMEOUT_MS = 10_000
PING_INTERVAL_MS = 60_000
# The least time between two pings of a client without a call, unless grpcServerPermitKeepAliveWithoutCalls.
IDLE_PING_INTERVAL_MS = 120_000
# Descriptors of connections to brokers, logs and libraries.
OTHER_DESCRIPTORS = 1_024


async def serve(
    options: ProxyOptions,
    stopping: trio.Event,
    *,
    meters: Meters,
    shortcut: Shortcut | None = None,
    connections: ConnectionBudget | None = None,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until ``stopping`` is set, then end gracefully; started with ``"ip:port"``.

    ``meters`` learns that the proxy serves, and with ``metricsExporterType`` counts calls. ``shortcut`` leads to the
    broker in whose process the proxy is. ``connections`` is the budget that clients share with others, by default as
    the options say.

    Raises UserError when the options cannot be used.
    """
    if not options.namesrv_addr:
        raise UserError("no NameServer: set namesrvAddr in the conf file, --namesrv-addr or $NAMESRV_ADDR")
    tls = await trio.to_thread.run_sync(proxy_tls, options)
    make_client = partial(_client, options, tls.client, shortcut)
    secured = None
    if tls.server is not None:
        interval_s = options.tls_cert_watch_interval_ms / 1000
        secured = await trio.to_thread.run_sync(partial(TlsServer, tls.server, ("h2",), interval_s))
    if connections is None:
        connections = connection_budget(
            options.max_connections,
            OTHER_DESCRIPTORS,
            options.max_connections_per_address,
            options.max_new_connections_per_second,
        )
    async with make_client(options.inner_credentials) as client, Admin(client) as admin, trio.open_nursery() as nursery:
        metadata = Metadata(admin, options, nursery)
        async with Sessions(options, make_client, KnownUsers(admin, options, nursery), metadata).serving() as sessions:
            _warn_if_open(options)
            listeners = await _listen(options, secured)
            port = int(listeners[0].address.rpartition(":")[2])
            counting = meters if options.metrics_exporter_type != "DISABLE" else None
            calls = Calls(options, sessions, metadata, port, counting)
            server = GrpcServer(calls.methods(), limits=_limits(options), connections=connections)
            await nursery.start(server.serve_on, listeners)
            if secured is not None:
                nursery.start_soon(secured.watch)
            meters.served = Served(sessions, server.__len__)
            task_status.started(format_address(options.bind_address, port))
            try:
                await stopping.wait()
            finally:
                meters.served = None
            server.stop_accepting()
            calls.stop_waiting()
            await server.leave(options.grpc_shutdown_time_seconds)
        nursery.cancel_scope.cancel()


def _limits(options: ProxyOptions) -> GrpcLimits:
    """The limits of gRPC's server as the options set them."""
    least_ping_ms = options.grpc_server_permit_keep_alive_time_millis
    may_ping_idle = options.grpc_server_permit_keep_alive_without_calls
    return GrpcLimits(
        max_message_bytes=options.grpc_max_inbound_message_size,
        max_buffered_bytes=within_memory(GrpcLimits.max_buffered_bytes),
        max_calls=options.grpc_thread_pool_queue_capacity,
        request_timeout_ms=options.slow_frame_timeout,
        idle_timeout_ms=options.grpc_client_idle_time_mills,
        first_bytes_timeout_ms=FIRST_BYTES_TIMEOUT_MS,
        # For clients that vanish, or do not read: their streams would stay for ever.
        ping_interval_ms=PING_INTERVAL_MS,
        ping_timeout_ms=options.slow_reader_timeout,
        # Clients of RocketMQ ping more often than gRPC allows by default.
        min_ping_interval_ms=least_ping_ms,
        min_idle_ping_interval_ms=least_ping_ms if may_ping_idle else max(IDLE_PING_INTERVAL_MS, least_ping_ms),
        write_timeout_ms=options.slow_reader_timeout,
        http2=Http2Limits(max_concurrent_streams=options.grpc_max_concurrent_calls_per_connection),
    )


def _client(
    options: ProxyOptions, tls: Tls | None, shortcut: Shortcut | None, credentials: Credentials | None
) -> Client:
    return sharing(ClientInstance(options.namesrv_addr, credentials=credentials, tls=tls, shortcut=shortcut))


def _warn_if_open(options: ProxyOptions) -> None:
    if not options.is_authenticating and options.inner_credentials is not None:
        logger.warning(
            "authenticationEnabled=false: calls are not checked, so all who reach grpcServerPort have the rights of"
            " %s at brokers",
            options.inner_credentials.access_key,
        )


async def _listen(options: ProxyOptions, secured: TlsServer | None) -> list[Listener]:
    address = options.listening().address
    listeners = await listen(address, options.grpc_server_port, "grpcServerPort", is_shared=shares_port())
    return listeners if secured is None else [TlsListener(listener, secured) for listener in listeners]

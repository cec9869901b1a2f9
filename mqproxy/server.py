"""The gRPC server of a proxy: its ports, its certificate, its limits, its start and its graceful stop."""

import asyncio
import logging
from collections.abc import Callable

import grpc

from skylark.mqcommon.addresses import format_address
from skylark.mqcommon.errors import UserError
from skylark.mqproxy.certificates import Certificate, ProxyTls, proxy_tls
from skylark.mqproxy.metadata import Metadata
from skylark.mqproxy.metrics import Meters, Served
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.relay import Relay
from skylark.mqproxy.service import Calls
from skylark.mqproxy.sessions import Sessions
from skylark.mqproxy.users import KnownUsers
from skylark.remoting.net.tls.settings import ENFORCING
from skylark.sdk.aio import Admin, Client

logger = logging.getLogger(__name__)

_LOOPBACK = "127.0.0.1:0"
# A client must have agreed on TLS and HTTP/2 within this time.
HANDSHAKE_TIMEOUT_MS = 10_000
PING_INTERVAL_MS = 60_000
# The most calls that have come and are not begun yet; gRPC cancels further calls. With its default, 1,000, a peer that
# begins and cancels calls all the time causes the calls of others to be cancelled.
MAX_PENDING = 10_000
_ONLY_IDENTITY = 1 << grpc.Compression.NoCompression


async def serve(
    options: ProxyOptions, started: Callable[[str], None], stopping: asyncio.Event, meters: Meters | None = None
) -> None:
    """Serve until ``stopping`` is set, then end gracefully. ``started`` is called with the address.

    ``meters`` learns that the proxy serves, and with ``metricsExporterType`` counts calls.

    Raises UserError when the options cannot be used.
    """
    if not options.namesrv_addr:
        raise UserError("no NameServer: set namesrvAddr in the conf file, --namesrv-addr or $NAMESRV_ADDR")
    tls = await asyncio.to_thread(proxy_tls, options)
    async with (
        Client(options.namesrv_addr, credentials=options.inner_credentials, tls=tls.client) as client,
        Admin(client) as admin,
        Sessions(options, client, tls.client, KnownUsers(admin, options), Metadata(admin, options)) as sessions,
    ):
        if not options.is_authenticating and options.inner_credentials is not None:
            logger.warning(
                "authenticationEnabled=false: calls are not checked, so all who reach grpcServerPort have the rights of"
                " %s at brokers",
                options.inner_credentials.access_key,
            )
        listening = _Listening(options, tls, meters)
        await listening.open(lambda port, real: Calls(options, sessions, sessions.metadata, port, real), stopping.set)
        try:
            started(f"{options.bind_address}:{listening.port}")
            await stopping.wait()
        finally:
            await listening.close()


class _Listening:
    """The ports of a proxy: the relay has the clients' port, and gRPC a loopback port with TLS and one without."""

    def __init__(self, options: ProxyOptions, tls: ProxyTls, meters: Meters | None) -> None:
        self._options = options
        self._tls = tls
        self._meters = meters
        self._watching: asyncio.Task[None] | None = None
        self._relay: Relay | None = None
        self._calls: Calls | None = None
        self._certificate: Certificate | None = None
        self._server = _new_server(options)
        self._restarting: asyncio.Task[None] | None = None
        self.port = 0

    async def open(
        self, service: Callable[[int, Callable[[str], str]], Calls], when_failed: Callable[[], None]
    ) -> None:
        """Serve. ``when_failed`` is called when serving ends by itself; `close` then raises the error."""
        options = self._options
        if self._tls.server is not None:
            interval_s = options.tls_cert_watch_interval_ms / 1000
            self._certificate = await asyncio.to_thread(Certificate, self._tls.server, interval_s)
        self._relay = relay = Relay(options, *self._bind_both())
        try:
            self.port = relay.listen(options.listening().address, options.grpc_server_port)
        except OSError as error:
            raise UserError(
                f"grpcServerPort: cannot listen on {format_address(options.bind_address, options.grpc_server_port)}:"
                f" {error.strerror or error}; another server may have the port"
            ) from None
        self._calls = service(self.port, relay.real_address)
        await self._start(self._calls)
        if self._meters is not None:
            self._meters.served = Served(self._calls.sessions, relay.__len__)
        self._restarting = asyncio.get_running_loop().create_task(self._restart(relay, self._calls))
        self._restarting.add_done_callback(lambda task: when_failed())
        if self._certificate is not None:
            self._watching = asyncio.get_running_loop().create_task(self._certificate.watch())

    async def _start(self, calls: Calls) -> None:
        measured = self._meters if self._options.metrics_exporter_type != "DISABLE" else None
        self._server.add_generic_rpc_handlers((calls.handlers(measured),))
        await self._server.start()

    async def _restart(self, relay: Relay, calls: Calls) -> None:
        """Make a new server when gRPC's server ends by itself, as it does after a call whose path is not UTF-8.

        Any peer can send such a call. All connections are closed then; clients connect again.
        """
        while True:
            try:
                await self._server.wait_for_termination()
            except Exception as error:
                logger.error("gRPC's server ended, and is started again: %s", error)
            else:
                return
            self._server = _new_server(self._options)
            relay.connect_to(*self._bind_both())
            await self._start(calls)

    async def close(self) -> None:
        if self._meters is not None:
            self._meters.served = None
        if self._relay is not None:
            await self._relay.stop_accepting()
        if self._calls is not None:
            self._calls.stop_waiting()
        if self._relay is not None:
            await self._relay.send_away(self._options.grpc_shutdown_time_seconds)
        await self._server.stop(self._options.grpc_shutdown_time_seconds)
        for task in filter(None, (self._watching, self._restarting)):
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                task.result()  # raises the task's error
        if self._relay is not None:
            await self._relay.close()

    def _bind_both(self) -> tuple[int | None, int | None]:
        """The ports behind the relay: without TLS, and with TLS; None for a port that is not needed."""
        # A port without TLS that clients must not use is not opened at all.
        plain = None if self._tls.mode == ENFORCING else self._bind(None)
        return plain, None if self._certificate is None else self._bind(self._certificate.credentials())

    def _bind(self, credentials: grpc.ServerCredentials | None) -> int:
        if credentials is None:
            return int(self._server.add_insecure_port(_LOOPBACK))
        return int(self._server.add_secure_port(_LOOPBACK, credentials))


def _new_server(options: ProxyOptions) -> grpc.aio.Server:
    return grpc.aio.server(
        maximum_concurrent_rpcs=options.grpc_thread_pool_queue_capacity,
        options=[
            ("grpc.max_receive_message_length", options.grpc_max_inbound_message_size),
            ("grpc.max_send_message_length", -1),
            # gRPC would expand a request of some kilobytes to `grpcMaxInboundMessageSize`, and all requests of a user
            # at once. RocketMQ's clients compress bodies of messages instead.
            ("grpc.compression_enabled_algorithms_bitset", _ONLY_IDENTITY),
            ("grpc.server.max_pending_requests", MAX_PENDING),
            ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING),
            ("grpc.max_concurrent_streams", options.grpc_max_concurrent_calls_per_connection),
            # Otherwise two proxies at one port would each get some of the connections.
            ("grpc.so_reuseport", 0),
            ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
            ("grpc.max_connection_idle_ms", options.grpc_client_idle_time_mills),
            # Clients of RocketMQ ping more often than gRPC allows by default.
            ("grpc.http2.min_ping_interval_without_data_ms", options.grpc_server_permit_keep_alive_time_millis),
            ("grpc.keepalive_permit_without_calls", int(options.grpc_server_permit_keep_alive_without_calls)),
            # For clients that vanish, or do not read: their streams would stay for ever.
            ("grpc.keepalive_time_ms", PING_INTERVAL_MS),
            ("grpc.keepalive_timeout_ms", options.slow_reader_timeout),
            ("grpc.http2.max_pings_without_data", 0),
        ],
    )

"""The gRPC server of a proxy: its ports, its certificate, its limits, its start and its graceful stop."""

import asyncio
from collections.abc import Callable

import grpc

from mqcommon.errors import ConfigError, UserError
from mqproxy.brokers import Brokers
from mqproxy.metadata import Metadata
from mqproxy.metrics import Meters, Served
from mqproxy.options import DISABLED, PERMISSIVE, ProxyOptions
from mqproxy.relay import Relay
from mqproxy.service import Calls
from remoting.net.tls.contexts import self_signed
from sdk.aio import Admin, Client, Producer

# Streams of one connection. A client has one for each receive that waits, and there is one for each queue.
MAX_STREAMS = 10_000


async def serve(
    options: ProxyOptions, started: Callable[[str], None], stopping: asyncio.Event, meters: Meters | None = None
) -> None:
    """Serve until ``stopping`` is set, then end gracefully. ``started`` is told the address.

    ``meters`` is told that it serves, and with ``metricsExporterType`` counts calls.

    Raises UserError when the options cannot be used.
    """
    if not options.namesrv_addr:
        raise UserError("no NameServer: set namesrvAddr in the conf file, --namesrv-addr or $NAMESRV_ADDR")
    async with (
        Client(options.namesrv_addr, credentials=options.inner_credentials) as client,
        Admin(client) as admin,
        # Sends answer with the status of a weaker acknowledgement instead of raising.
        Producer(client, group="mqproxy", accept_weaker=True, max_message_bytes=_most_bytes(options)) as producer,
        Brokers(client) as brokers,
    ):
        listening = _Listening(options, meters)
        await listening.open(lambda port, real: Calls(
            options, producer, brokers, Metadata(admin, options), port, real
        ))  # fmt: skip
        try:
            started(f"{options.bind_address}:{listening.port}")
            await stopping.wait()
        finally:
            await listening.close()


def _most_bytes(options: ProxyOptions) -> int:
    return options.max_message_size or options.grpc_max_inbound_message_size


class _Listening:
    """The ports of a proxy. With mode permissive a relay has the port of clients, and gRPC two of its own."""

    def __init__(self, options: ProxyOptions, meters: Meters | None) -> None:
        self._options = options
        self._meters = meters
        self._relay: Relay | None = None
        self._calls: Calls | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._server = grpc.aio.server(
            maximum_concurrent_rpcs=options.grpc_thread_pool_queue_capacity,
            options=[
                ("grpc.max_receive_message_length", options.grpc_max_inbound_message_size),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", MAX_STREAMS),
                # Two proxies at one port would each get some of the connections.
                ("grpc.so_reuseport", 0),
                # Clients of RocketMQ ping more often than gRPC allows without this.
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
                ("grpc.keepalive_permit_without_calls", 1),
            ],
        )
        self.port = 0

    async def open(self, service: Callable[[int, Callable[[str], str]], Calls]) -> None:
        options = self._options
        mode = options.tls_server_mode
        credentials = None if mode == DISABLED else await asyncio.to_thread(_credentials, options)
        host = f"[{options.bind_address}]" if ":" in options.bind_address else options.bind_address
        if mode == PERMISSIVE:
            self._relay = relay = Relay(self._bind("127.0.0.1:0", None), self._bind("127.0.0.1:0", credentials))
            try:
                self.port = relay.listen(options.bind_address, options.grpc_server_port)
            except OSError as error:
                raise _cannot_listen(host, options.grpc_server_port, error.strerror or str(error)) from None
            real_address = relay.real_address
        else:
            self.port = self._bind(f"{host}:{options.grpc_server_port}", credentials)
            real_address = _plain_address
        self._calls = service(self.port, real_address)
        measured = self._meters if options.metrics_exporter_type != "DISABLE" else None
        self._server.add_generic_rpc_handlers((self._calls.handlers(measured),))
        await self._server.start()
        if self._meters is not None:
            self._meters.served = Served(self._calls.clients, self._calls.renewals, self._connections)
        self._renewing = asyncio.get_running_loop().create_task(self._calls.renewals.run())

    def _connections(self) -> int | None:
        """How many connections are open; gRPC does not tell."""
        return None if self._relay is None else len(self._relay)

    async def close(self) -> None:
        if self._meters is not None:
            self._meters.served = None
        if self._relay is not None:
            await self._relay.stop_accepting()
        if self._calls is not None:
            self._calls.stop_waiting()
        await self._server.stop(self._options.grpc_shutdown_time_seconds)
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait({self._renewing})
            if not self._renewing.cancelled():
                self._renewing.result()  # raises what ended it
        if self._relay is not None:
            await self._relay.close()

    def _bind(self, address: str, credentials: grpc.ServerCredentials | None) -> int:
        try:
            if credentials is None:
                return int(self._server.add_insecure_port(address))
            return int(self._server.add_secure_port(address, credentials))
        except RuntimeError as error:
            host, _, port = address.rpartition(":")
            raise _cannot_listen(host, int(port), str(error)) from None


def _plain_address(peer: str) -> str:
    """gRPC writes ``ipv4:127.0.0.1:4711``."""
    return peer.partition(":")[2]


def _cannot_listen(host: str, port: int, reason: str) -> UserError:
    return UserError(f"grpcServerPort: cannot listen on {host}:{port}: {reason}; another server may have the port")


def _credentials(options: ProxyOptions) -> grpc.ServerCredentials:
    """The certificate of the options, or a new one that is signed by itself. UserError when it cannot be used."""
    if not options.tls_cert_path:
        certificate, key = self_signed()
        return grpc.ssl_server_credentials([(key, certificate)])
    parts: list[bytes] = []
    for name, path in (("tlsKeyPath", options.tls_key_path), ("tlsCertPath", options.tls_cert_path)):
        try:
            with open(path, "rb") as file:
                parts.append(file.read())
        except OSError as error:
            raise ConfigError(f"{name}: {path} cannot be read: {error.strerror}") from None
    return grpc.ssl_server_credentials([(parts[0], parts[1])])

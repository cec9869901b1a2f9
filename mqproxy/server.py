"""The gRPC server of a proxy: its ports, its certificate, its limits, its start and its graceful stop."""

import asyncio
import logging
from collections.abc import Callable

import grpc

from mqcommon.errors import ConfigError, UserError
from mqproxy.brokers import Brokers
from mqproxy.metadata import Metadata
from mqproxy.options import DISABLED, PERMISSIVE, ProxyOptions
from mqproxy.relay import Relay
from mqproxy.service import Calls
from remoting.net.tls.contexts import self_signed
from sdk.aio import Admin, Client, Producer

logger = logging.getLogger(__name__)

# Streams of one connection. A client has one for each receive that waits, and there is one for each queue.
MAX_STREAMS = 10_000


async def serve(options: ProxyOptions, started: Callable[[str], None], stopping: asyncio.Event) -> None:
    """Serve until ``stopping`` is set, then end gracefully. ``started`` is told the address.

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
        listening = _Listening(options)
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

    def __init__(self, options: ProxyOptions) -> None:
        self._options = options
        self._relay: Relay | None = None
        self._calls: Calls | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._restarting: asyncio.Task[None] | None = None
        self._credentials: grpc.ServerCredentials | None = None
        self._server = _new_server(options)
        self.port = 0

    async def open(self, service: Callable[[int, Callable[[str], str]], Calls]) -> None:
        options = self._options
        if options.tls_server_mode != DISABLED:
            self._credentials = await asyncio.to_thread(_credentials, options)
        if options.tls_server_mode == PERMISSIVE:
            self._relay = relay = Relay(*self._bind_both())
            try:
                self.port = relay.listen(options.bind_address, options.grpc_server_port)
            except OSError as error:
                raise _cannot_listen(self._host, options.grpc_server_port, error.strerror or str(error)) from None
            real_address = relay.real_address
        else:
            self.port = self._bind(f"{self._host}:{options.grpc_server_port}", self._credentials)
            real_address = _plain_address
        self._calls = service(self.port, real_address)
        await self._start(self._calls)
        loop = asyncio.get_running_loop()
        self._renewing = loop.create_task(self._calls.renewals.run())
        self._restarting = loop.create_task(self._restart(self._calls))

    async def _start(self, calls: Calls) -> None:
        self._server.add_generic_rpc_handlers((calls.handlers(),))
        await self._server.start()

    async def _restart(self, calls: Calls) -> None:
        """Make a new server when gRPC's ends by itself, as it does after a call whose path is not UTF-8.

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
            if self._relay is not None:
                self._relay.connect_to(*self._bind_both())
            else:
                self._bind(f"{self._host}:{self.port}", self._credentials)
            await self._start(calls)

    async def close(self) -> None:
        if self._relay is not None:
            await self._relay.stop_accepting()
        if self._calls is not None:
            self._calls.stop_waiting()
        if self._relay is not None:
            await self._relay.send_away(self._options.grpc_shutdown_time_seconds)
        await self._server.stop(self._options.grpc_shutdown_time_seconds)
        for task in filter(None, (self._renewing, self._restarting)):
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                task.result()  # raises what ended it
        if self._relay is not None:
            await self._relay.close()

    @property
    def _host(self) -> str:
        return f"[{self._options.bind_address}]" if ":" in self._options.bind_address else self._options.bind_address

    def _bind_both(self) -> tuple[int, int]:
        """The ports behind the relay: without TLS, and with it."""
        return self._bind("127.0.0.1:0", None), self._bind("127.0.0.1:0", self._credentials)

    def _bind(self, address: str, credentials: grpc.ServerCredentials | None) -> int:
        try:
            if credentials is None:
                return int(self._server.add_insecure_port(address))
            return int(self._server.add_secure_port(address, credentials))
        except RuntimeError as error:
            host, _, port = address.rpartition(":")
            raise _cannot_listen(host, int(port), str(error)) from None


def _new_server(options: ProxyOptions) -> grpc.aio.Server:
    return grpc.aio.server(
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

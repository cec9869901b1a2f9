"""The four servers of `skylark dev`: small files, loopback only, no rules about the disk.

Each server starts when the server below it serves, and stops before it: NameServer, broker, proxy, console. The ports
are taken first, so a port in use is reported at once. A server whose libraries are not installed is left out.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import TypeVar

import trio

from skylark.cli.dev import HOST
from skylark.mqcommon.addresses import format_address
from skylark.mqcommon.errors import ConfigError, StoreLocked, UserError, leaves
from skylark.mqcommon.extras import missing_extra
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.net.sockets import HeldPort

T = TypeVar("T")

_TIMEOUT_MS = 5_000
# The console asks the brokers this often.
_POLL_S = 2
# Messages are kept this long, as by RocketMQ's default.
_KEPT_H = 72

#: Called with a line about a server that is left out.
Warn = Callable[[str], None]


@lazy_dataclass(frozen=True, slots=True)
class Ports:
    """The ports of the four servers; 0 takes a free one."""

    namesrv: int
    broker: int
    grpc: int
    console: int


@lazy_dataclass(frozen=True, slots=True)
class Addresses:
    """Where the four servers serve, as ``host:port``; "" for a server that is left out."""

    namesrv: str
    broker: str
    grpc: str
    console: str


@asynccontextmanager
async def serving(home: Path, ports: Ports, warn: Warn) -> AsyncIterator[Addresses]:
    """Run the servers in the block, with their files in ``home``.

    Raises UserError when a port is in use, or another process has the directory.
    """
    async with AsyncExitStack() as stack:
        held = []
        for port, option in (
            (ports.namesrv, "--port"),
            (ports.broker, "--broker-port"),
            (ports.grpc, "--grpc-port"),
            (ports.console, "--console-port"),
        ):
            held.append(_hold(port, option))
            stack.callback(held[-1].release)
        # The broker opens a port for slaves, which nobody has to know.
        slaves = HeldPort(HOST)
        stack.callback(slaves.release)
        namesrv_port, broker_port, grpc_port, console_port = (each.port for each in held)
        nameserver = await _started(stack, _namesrv(home, namesrv_port), namesrv_port, "--port")
        has_proxy = _has_proxy(warn)
        broker = _Broker(home, nameserver, broker_port, slaves.port, grpc_port if has_proxy else -1)
        broker_address = await _started(stack, broker.serving(), broker_port, "--broker-port")
        if has_proxy:
            await _started(stack, broker.proxy(warn), grpc_port, "--grpc-port")
        console = await _started(stack, _console(nameserver, console_port, warn), console_port, "--console-port")
        yield Addresses(nameserver, broker_address, format_address(HOST, grpc_port) if has_proxy else "", console)


def _hold(port: int, option: str) -> HeldPort:
    try:
        return HeldPort(HOST, port, option)
    except UserError as error:
        raise _in_use(error, option) or error from None


async def _started(stack: AsyncExitStack, server: AbstractAsyncContextManager[T], port: int, option: str) -> T:
    """Start a server until ``stack`` ends. A held port may be taken by a process that held the same port."""
    try:
        return await stack.enter_async_context(server)
    except* UserError as group:
        for error in leaves(group):
            if f":{port} " in str(error) and (in_use := _in_use(error, option)):
                raise in_use from None
        raise


def _in_use(error: BaseException, option: str) -> UserError | None:
    """The error for a port in use with the option of this command; None when the port is not in use."""
    # The rest of the text names a key of a conf file.
    what, in_use, _ = str(error).partition(" is in use")
    return (
        UserError(f"{what}{in_use}. Is another skylark dev running? {option} 0 takes a free port") if in_use else None
    )


@asynccontextmanager
async def _namesrv(home: Path, port: int) -> AsyncIterator[str]:
    from skylark.namesrv.namesrv import Namesrv
    from skylark.namesrv.options import NamesrvOptions

    namesrv = Namesrv(
        NamesrvOptions(
            listen_port=port,
            bind_address=HOST,
            kv_config_path=str(home / "namesrv" / "kvConfig.json"),
            order_message_enable=True,
        )
    )
    async with trio.open_nursery() as nursery:
        yield await nursery.start(namesrv.run)
        await namesrv.stop()
        nursery.cancel_scope.cancel()


def _has_proxy(warn: Warn) -> bool:
    """Whether the proxy's libraries are installed."""
    try:
        # With it, its libraries are imported: protobuf, too.
        import_module("skylark.mqproxy.near")
    except ModuleNotFoundError as error:
        warn(missing_extra("the gRPC port", "proxy", error))
        return False
    return True


class _Broker:
    """The broker, and the proxy in its process."""

    def __init__(self, home: Path, nameserver: str, port: int, slaves_port: int, grpc_port: int) -> None:
        """``grpc_port``: -1 for no proxy."""
        from skylark.broker.broker import Broker
        from skylark.sdk.testing.daemons import broker_options

        self._home = home
        # `broker_options` keeps messages for ever, for tests.
        given: dict[str, object] = {"enablePropertyFilter": True, "fileReservedTime": _KEPT_H}
        if grpc_port >= 0:
            given |= {"enableProxy": True, "grpcServerPort": grpc_port}
        self._options = broker_options("broker-a", home / "store", nameserver, port, slaves_port, given)
        self._broker = Broker(self._options)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Run the broker in the block."""
        try:
            async with trio.open_nursery() as nursery:
                yield await nursery.start(self._broker.run)
                self._broker.stop()
        except* StoreLocked:
            raise UserError(
                f"{self._home} is in use by another process (skylark dev or a broker); stop that one, or give another "
                "directory (--data)"
            ) from None
        except* ConfigError as group:
            raise UserError(
                f"{self._home / 'store'} was made by a broker with other options; give another directory (--data), or "
                "start it with skylark broker"
            ) from group

    @asynccontextmanager
    async def proxy(self, warn: Warn) -> AsyncIterator[None]:
        """Run the proxy of the broker, which serves, in the block."""
        from skylark.broker.with_proxy import proxy_given
        from skylark.mqproxy.near import NearProxy

        warnings: list[str] = []
        environ = {"NAMESRV_ADDR": self._options.namesrv_addr}
        near = NearProxy(lambda: self._broker.near, "", proxy_given(self._options), environ, warnings)
        for warning in warnings:
            warn(warning)
        serves, stopping = trio.Event(), trio.Event()

        async def run() -> None:
            if why := await near.run(stopping, serves.set):
                raise UserError(f"the gRPC proxy ended: {why}")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await serves.wait()
            yield
            stopping.set()


@asynccontextmanager
async def _console(nameserver: str, port: int, warn: Warn) -> AsyncIterator[str]:
    """Run the console in the block; yields "" when its libraries are not installed."""
    try:
        from skylark.mqconsole.console import Console
    except ModuleNotFoundError as error:
        warn(missing_extra("the console", "console", error))
        yield ""
        return
    from skylark.mqconsole.options import ConsoleOptions
    from skylark.mqconsole.people.person import Cluster

    options = ConsoleOptions(listen_port=port, bind_address=HOST, poll_interval=_POLL_S)
    console = Console(options, Cluster(nameserver, _TIMEOUT_MS, None, float(_POLL_S)), None)
    async with trio.open_nursery() as nursery:
        url = await nursery.start(console.run)
        yield url.removeprefix("http://")
        console.stop()

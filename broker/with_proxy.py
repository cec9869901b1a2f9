"""With ``enableProxy`` a proxy for clients of RocketMQ 5 (mqproxy) starts after the broker, and stops before it.

One broker and its proxy share a process and its event loop (mqproxy/near.py); several brokers of one conf file have one
proxy, a process of its own (proxy_process.py). A proxy that ends is started again, after a pause that grows as long as
it keeps ending. If the proxy does not come up at the first start, its options are wrong, and the broker ends.
"""

import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from random import Random

import trio

from skylark.broker.options import BrokerOptions
from skylark.mqcommon.addresses import format_address
from skylark.mqcommon.backoff import RestartPauses
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.extras import missing_extra
from skylark.mqcommon.options.environment import without_options_of
from skylark.remoting.net.daemon import Main, Ready

logger = logging.getLogger(__name__)

#: Serves until the event is set, and calls the function once it serves. Returns why it ended; "" for no error.
RunProxy = Callable[[trio.Event, Callable[[], None]], Awaitable[str]]


class WithProxy:
    """Runs ``main`` (the broker, or the supervisor of several brokers) and one proxy for all of its brokers."""

    def __init__(self, main: Main, proxy: RunProxy) -> None:
        self._main = main
        self._proxy = proxy
        self._has_begun = False
        self._ended = trio.Event()

    async def run(self, stopping: trio.Event, ready: Ready) -> None:
        """Run both until ``stopping`` is set. UserError when the proxy does not come up."""
        broker_serves, broker_stopping = trio.Event(), trio.Event()
        address_text = ""

        def serves(text: str) -> None:
            nonlocal address_text
            address_text = text
            broker_serves.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep, broker_serves, stopping, lambda: ready(f"{address_text}, with a proxy"))
            nursery.start_soon(self._stop_in_order, stopping, broker_stopping)
            await self._main(broker_stopping, serves)
            # If the broker ended by itself, end the proxy, too.
            nursery.cancel_scope.cancel()

    async def _stop_in_order(self, stopping: trio.Event, broker_stopping: trio.Event) -> None:
        # The proxy sees ``stopping`` itself.
        await stopping.wait()
        if self._has_begun:
            # The broker serves until the proxy has finished the requests of its clients.
            await self._ended.wait()
        broker_stopping.set()

    async def _keep(self, broker_serves: trio.Event, stopping: trio.Event, ready: Callable[[], None]) -> None:
        """Run the proxy again and again, until all stop."""
        await broker_serves.wait()
        if stopping.is_set():
            return
        self._has_begun = True
        has_served, pauses = False, RestartPauses(Random())

        def serves() -> None:
            nonlocal has_served
            if not has_served:
                has_served = True
                ready()

        while not stopping.is_set():
            began = trio.current_time()
            why = await self._proxy(stopping, serves)
            if stopping.is_set():
                if why:
                    logger.error("the proxy ended: %s", why)
                break
            if not has_served:
                raise UserError(f"enableProxy: the proxy does not start: {why}")
            pause_s = pauses.next_s(trio.current_time() - began)
            logger.error("the proxy ended: %s; starting it in %.1f s", why, pause_s)
            with trio.move_on_after(pause_s):
                await stopping.wait()
        self._ended.set()


def check_proxy(options: BrokerOptions, *, is_process: bool) -> None:
    """UserError when the options do not allow for a proxy.

    Also when the proxy is a process of its own (``is_process``), and its libraries are not installed here.
    """
    if not options.namesrv_addr:
        if options.fetch_namesrv_addr_by_address_server:
            raise UserError("enableProxy: the proxy asks no address server for NameServers; set namesrvAddr")
        if options.broker_instances.strip() != "1" or not options.listen_port:
            raise UserError(
                "enableProxy: without namesrvAddr there must be one broker, and a listenPort; set namesrvAddr"
            )
    if is_process:
        try:
            import_module("google.protobuf")
        except ImportError as error:
            raise UserError(missing_extra("enableProxy", "proxy", error)) from None


def proxy_given(options: BrokerOptions) -> dict[str, str]:
    """The options of the proxy, by name, that take precedence over its own conf file."""
    given = {} if options.proxy_config_path else {"bind_address": options.bind_address}
    if options.grpc_server_port >= 0:
        given["grpc_server_port"] = str(options.grpc_server_port)
    return given


def proxy_environ(options: BrokerOptions) -> Mapping[str, str]:
    """The environment of the proxy. Keys in the proxy's own conf file take precedence."""
    # Without NameServers the broker itself says where its topics are: registration/own_routes.py.
    namesrv_addr = options.namesrv_addr or format_address(options.broker_ip1, options.listen_port)
    # A variable of an option that both have is the broker's: two cannot have the same port of health pages.
    environ = {**without_options_of(BrokerOptions, os.environ, but=("bind_address",)), "NAMESRV_ADDR": namesrv_addr}
    if options.inner_client_authentication_credentials:
        # Secrets go into the environment: other users can see command lines, but not the environment.
        environ["ROCKETMQ_INNER_CLIENT_CREDENTIALS"] = options.inner_client_authentication_credentials
    if options.plain_signature_addresses:
        environ["ROCKETMQ_PLAIN_SIGNATURE_ADDRESSES"] = options.plain_signature_addresses
    return environ

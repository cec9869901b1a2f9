"""With ``enableProxy`` a proxy for clients of RocketMQ 5 (mqproxy) starts after the broker, and stops before it.

The proxy is a process of its own: in one process the broker and the proxy would share one core. The broker imports
nothing of the proxy, so a broker without a proxy starts as fast as before. A proxy that dies is started again, after a
pause that grows as long as it keeps dying. If the proxy does not come up at the first start, its options are wrong, and
the broker ends.
"""

import importlib.util
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from random import Random

import trio

from skylark.broker.options import BrokerOptions
from skylark.mqcommon.addresses import format_address
from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.logs.copier import LineCopier
from skylark.remoting.net.children import end_text, run_child
from skylark.remoting.net.daemon import Main, Ready

logger = logging.getLogger(__name__)

NAME = "mqproxy"
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
# A proxy that has run for this long counts as having started.
STABLE_S = 60.0


class WithProxy:
    """Runs ``main`` (the broker, or the supervisor of several brokers) and one proxy for all of its brokers."""

    def __init__(self, options: BrokerOptions, main: Main) -> None:
        """Raises UserError when the options do not allow for a proxy, or its libraries are not installed."""
        _check(options)
        self._options = options
        self._main = main
        # Copies the lines that the proxy prints.
        self._lines = LineCopier()
        self._has_begun = False
        self._has_served = False
        self._ended = trio.Event()
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S, Random())

    async def run(self, stopping: trio.Event, ready: Ready) -> None:
        """Run both until ``stopping`` is set. UserError when the proxy does not come up."""
        try:
            await self._run(stopping, ready)
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._lines.close)

    async def _run(self, stopping: trio.Event, ready: Ready) -> None:
        broker_serves, broker_stopping = trio.Event(), trio.Event()
        words = ""

        def serves(text: str) -> None:
            nonlocal words
            words = text
            broker_serves.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep, broker_serves, stopping, lambda: ready(f"{words}, with a proxy"))
            nursery.start_soon(self._stop_in_order, stopping, broker_stopping)
            await self._main(broker_stopping, serves)
            # If the broker ended by itself, end the proxy, too.
            nursery.cancel_scope.cancel()

    async def _stop_in_order(self, stopping: trio.Event, broker_stopping: trio.Event) -> None:
        # The proxy gets SIGTERM from `run_child`.
        await stopping.wait()
        if self._has_begun:
            # The broker serves until the proxy has finished the requests of its clients.
            await self._ended.wait()
        broker_stopping.set()

    async def _keep(self, broker_serves: trio.Event, stopping: trio.Event, ready: Callable[[], object]) -> None:
        """Run the proxy again and again, until all stop."""
        await broker_serves.wait()
        if stopping.is_set():
            return
        self._has_begun = True
        failures = 0
        while not stopping.is_set():
            began = trio.current_time()
            code = await self._run_once(stopping, ready)
            if stopping.is_set():
                # A child that gets SIGTERM before its handler is installed dies of the signal.
                if code and code != -signal.SIGTERM:
                    logger.error("the proxy ended with %s", end_text(code))
                break
            if not self._has_served:
                raise UserError(
                    f"enableProxy: the proxy ended with {end_text(code)} before it served; its log says why, in the"
                    f" lines of {NAME}"
                )
            # If the proxy has served for long, the pause is short again.
            failures = 1 if trio.current_time() - began >= STABLE_S else failures + 1
            pause_s = self._backoff.pause_s(failures)
            logger.error("the proxy ended with %s; starting it in %.1f s", end_text(code), pause_s)
            with trio.move_on_after(pause_s):
                await stopping.wait()
        self._ended.set()

    async def _run_once(self, stopping: trio.Event, ready: Callable[[], object]) -> int:
        def started(process: trio.Process) -> None:
            logger.info("the proxy has process %d", process.pid)

        def serves() -> None:
            if not self._has_served:
                self._has_served = True
                ready()

        return await run_child(
            proxy_command(self._options),
            NAME,
            started=started,
            serves=serves,
            stopping=stopping,
            copy=self._lines.put,
            environ=proxy_environ(self._options),
            in_json=self._options.log_format == "json",
        )


def proxy_command(options: BrokerOptions) -> list[str]:
    """The command line of the proxy for brokers with these options."""
    command = [sys.executable, "-P", "-m", NAME, "--log-format", options.log_format]
    if options.proxy_config_path:
        command += ["-c", options.proxy_config_path]
    else:
        command += ["--bind-address", options.bind_address]
        if options.log_file:
            command += ["--log-file", os.path.join(os.path.dirname(options.log_file), f"{NAME}.log")]
    if options.grpc_server_port >= 0:
        command += ["--grpc-server-port", str(options.grpc_server_port)]
    return command


def proxy_environ(options: BrokerOptions) -> Mapping[str, str]:
    """The environment of the proxy. Keys in the proxy's own conf file take precedence."""
    # Without NameServers the broker itself says where its topics are: registration/own_routes.py.
    namesrv_addr = options.namesrv_addr or format_address(options.broker_ip1, options.listen_port)
    environ = {**os.environ, "NAMESRV_ADDR": namesrv_addr}
    if options.inner_client_authentication_credentials:
        # Secrets go into the environment: other users can see command lines, but not the environment.
        environ["ROCKETMQ_INNER_CLIENT_CREDENTIALS"] = options.inner_client_authentication_credentials
    if options.plain_signature_addresses:
        environ["ROCKETMQ_PLAIN_SIGNATURE_ADDRESSES"] = options.plain_signature_addresses
    return environ


def _check(options: BrokerOptions) -> None:
    if not options.namesrv_addr:
        if options.fetch_namesrv_addr_by_address_server:
            raise UserError("enableProxy: the proxy asks no address server for NameServers; set namesrvAddr")
        if options.broker_instances.strip() != "1" or not options.listen_port:
            raise UserError(
                "enableProxy: without namesrvAddr there must be one broker, and a listenPort; set namesrvAddr"
            )
    if importlib.util.find_spec("google") is None:
        raise UserError("enableProxy: the library protobuf is missing; pip install 'skylark-mq[proxy]'")

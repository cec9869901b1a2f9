"""A proxy in the process and the event loop of one broker: ``enableProxy``.

Its requests to that broker go by connections inside of the loop, and are handled as requests that come by remoting;
other brokers are reached over the network. It logs as the broker does, and shares the broker's limits of connections.
An error in it is logged, and does not reach the broker.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final

import trio

from skylark.mqcommon.errors import ConfigError, SkylarkError, leaves
from skylark.mqcommon.logs.options import LogOptions
from skylark.mqcommon.options.conf_file import conf_keys
from skylark.mqcommon.options.fields import options_of
from skylark.mqproxy.daemon import run_proxy
from skylark.mqproxy.instances import KEY
from skylark.mqproxy.options import ProxyOptions, load_options
from skylark.remoting.net.in_process import NearServer

logger = logging.getLogger(__name__)

# A large request is parsed in one step, in which the broker's event loop does nothing else.
MAX_REQUEST_BYTES: Final = 16 << 20
_OF_CONNECTIONS: Final = ("maxConnections", "maxConnectionsPerAddress", "maxNewConnectionsPerSecond")


class NearProxy:
    """The proxy of one broker. ``broker`` returns that broker's server; it is called when the broker serves."""

    def __init__(
        self,
        broker: Callable[[], NearServer],
        conf: str,
        given: Mapping[str, str],
        environ: Mapping[str, str],
        warnings: list[str],
    ) -> None:
        """``conf`` is the proxy's own file, "" for none; ``given`` beats it, and it beats ``environ``.

        Raises UserError when the options cannot be used.
        """
        self._broker = broker
        keys = conf_keys(ProxyOptions, conf or None)
        if "grpcMaxInboundMessageSize" not in keys:
            given = {"grpc_max_inbound_message_size": str(MAX_REQUEST_BYTES), **given}
        self._options = load_options(conf or None, given, warnings, environ)
        if self._options.proxy_instances.strip() != "1":
            raise ConfigError(
                f"{conf}: {KEY}: enableProxy runs one proxy; for several set enableProxy=false and start mqproxy with"
                f" {KEY}"
            )
        without_effect = {*_OF_CONNECTIONS, *(o.key for o in options_of(LogOptions))}
        for key in sorted(without_effect & keys):
            warnings.append(f"{conf}: {key} has no effect in a broker's own proxy: set it in the broker's conf")

    async def run(self, stopping: trio.Event, serves: Callable[[], None]) -> str:
        """Serve until ``stopping`` is set. Returns why it ended; "" when it was to end."""
        broker, why = self._broker(), ""
        try:
            await run_proxy(
                self._options,
                stopping,
                lambda text: serves(),
                shortcut=broker.shortcut,
                connections=broker.connections,
            )
        except* SkylarkError as group:
            why = "; ".join(str(error) for error in leaves(group))
        except* Exception as group:
            logger.error("the proxy failed", exc_info=group)
            errors = "; ".join(f"{type(error).__name__}: {error}" for error in leaves(group))
            why = f"{errors}; the log has the traceback"
        return why

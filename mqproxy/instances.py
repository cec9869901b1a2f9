"""Several proxies at one port (``proxyInstances``), as one proxy uses one core.

All of them listen at ``grpcServerPort``, and the system spreads new connections over them. Each is a proxy of its own,
as if it had a machine to itself. Neighbour: remoting/net/supervisor.py runs them.
"""

import os
import sys
from collections.abc import Mapping
from typing import Final

import trio

from skylark.mqcommon.daemons.instances import numbered
from skylark.mqcommon.options.fields import options_of
from skylark.mqproxy.options import ProxyOptions
from skylark.remoting.net.daemon import Ready
from skylark.remoting.net.sockets import HeldPort
from skylark.remoting.net.supervisor import Child, Supervisor

KEY: Final = "proxyInstances"
# In the environment of each of several proxies.
_SHARES_PORT: Final = "_SKYLARK_SHARES_PORT"


def shares_port() -> bool:
    """Whether this process is one of several proxies at one port."""
    return _SHARES_PORT in os.environ


class Instances:
    """``count`` proxies with the same ``options``; ``conf`` and ``given`` are where these come from."""

    def __init__(self, options: ProxyOptions, count: int, conf: str | None, given: Mapping[str, str]) -> None:
        """Raises UserError when another server has the port."""
        self._port = HeldPort(options.bind_address, options.grpc_server_port, "grpcServerPort")
        self._port.share()
        children = [self._child(options, number, conf, given) for number in range(count)]
        self._supervisor = Supervisor("proxy", "proxies", children, logs=options, pages=options)

    async def run(self, stopping: trio.Event, ready: Ready) -> None:
        """Run the proxies until ``stopping`` is set and all have ended. UserError when one does not come up."""
        try:
            await self._supervisor.run(stopping, ready)
        finally:
            self._port.release()

    def _child(self, options: ProxyOptions, number: int, conf: str | None, given: Mapping[str, str]) -> Child:
        own = {
            **given,
            "proxy_instances": "1",
            "bind_address": options.bind_address,
            "grpc_server_port": str(self._port.port),
            # A label of the metrics: the rows of two proxies must differ.
            "proxy_name": f"{options.node_id}-{number}",
        }
        if options.log_file:
            own["log_file"] = numbered(options.log_file, number)
        start = [sys.executable, "-P", "-m", "skylark.mqproxy", *([] if conf is None else ["-c", conf])]
        flags = {o.name: o.flag for o in options_of(ProxyOptions)}

        def command(more: Mapping[str, str]) -> list[str]:
            return start + [part for name, value in {**own, **more}.items() for part in (flags[name], value)]

        return Child(f"mqproxy-{number}", command, {_SHARES_PORT: "1"})

"""The proxy of several brokers of one conf file: a process of its own, beside the brokers' processes.

It ends with the supervisor, even when that is killed. Its lines are in the supervisor's log, or in mqproxy.log beside
that. Neighbour: with_proxy.py starts and stops it.
"""

import logging
import os
import signal
import sys
from collections.abc import Callable

import trio

from skylark.broker.options import BrokerOptions
from skylark.broker.with_proxy import proxy_environ, proxy_given
from skylark.mqcommon.logs.copier import LineCopier
from skylark.remoting.net.children import end_text, run_child

logger = logging.getLogger(__name__)

NAME = "mqproxy"


class ProxyProcess:
    """Runs a command ``mqproxy`` for brokers with these options."""

    def __init__(self, options: BrokerOptions) -> None:
        self._options = options

    async def run(self, stopping: trio.Event, serves: Callable[[], None]) -> str:
        """Run the process until it ends; returns why, or "" when it was to end."""

        def started(process: trio.Process) -> None:
            logger.info("the proxy has process %d", process.pid)

        lines = LineCopier()
        try:
            code = await run_child(
                proxy_command(self._options),
                NAME,
                started=started,
                serves=serves,
                stopping=stopping,
                copy=lines.put,
                environ=proxy_environ(self._options),
                in_json=self._options.log_format == "json",
            )
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(lines.close)
        # A child that gets SIGTERM before its handler is installed dies of the signal.
        was_to_end = stopping.is_set() and code in (0, -signal.SIGTERM)
        if was_to_end:
            return ""
        return f"{end_text(code)}; its lines ({NAME}) in this log or the proxy's own log file say why"


def proxy_command(options: BrokerOptions) -> list[str]:
    """The command line of the proxy for brokers with these options."""
    command = [sys.executable, "-P", "-m", "skylark.mqproxy", "--log-format", options.log_format]
    if options.proxy_config_path:
        command += ["-c", options.proxy_config_path]
    elif options.log_file:
        command += ["--log-file", os.path.join(os.path.dirname(options.log_file), f"{NAME}.log")]
    for name, value in proxy_given(options).items():
        command += [f"--{name.replace('_', '-')}", value]
    return command

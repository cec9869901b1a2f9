"""A proxy with its health and metrics pages, as a process of its own and a broker run it."""

import logging
from functools import partial

import trio

from skylark.mqproxy.metrics import Meters
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.server import serve
from skylark.remoting.metrics.export import Exporter
from skylark.remoting.metrics.health import Health
from skylark.remoting.net.daemon import Ready
from skylark.remoting.net.limits import ConnectionBudget
from skylark.remoting.net.steps import Stepper
from skylark.remoting.net.transport import Shortcut

logger = logging.getLogger(__name__)


async def run_proxy(
    options: ProxyOptions,
    stopping: trio.Event,
    ready: Ready,
    *,
    shortcut: Shortcut | None = None,
    connections: ConnectionBudget | None = None,
) -> None:
    """Serve until ``stopping`` is set, then end gracefully. ``ready`` is called once the proxy serves.

    `serve` explains the other arguments. Raises UserError when the options cannot be used.
    """
    meters = Meters()
    health = Health(options, meters.unready)
    exporter = Exporter(options, options.metric_labels, meters.collect, health, Stepper())
    async with trio.open_nursery() as pages:
        # The pages are served until the end: a probe sees that the proxy starts or stops.
        await pages.start(health.run)
        await pages.start(exporter.run)
        async with trio.open_nursery() as nursery:
            address = await nursery.start(
                partial(serve, options, stopping, meters=meters, shortcut=shortcut, connections=connections)
            )
            logger.info("the proxy serves at %s", address)
            ready(f"serves at {address}")
        pages.cancel_scope.cancel()
    logger.info("the proxy stopped")

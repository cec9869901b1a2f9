"""The command ``mqproxy``: a conf file, a flag for each option, RocketMQ's own flags, and a daemon.

The signals and the log belong to a trio loop in the main thread, as in the other daemons; gRPC runs in an asyncio loop
in a thread of its own.
"""

import logging
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import click
import trio

from skylark.mqcommon.daemons.malloc import keep_freed_memory
from skylark.mqcommon.daemons.start_report import DaemonCommand, StartReport, log_format_of
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.exposure import opened
from skylark.mqcommon.options.command_line import click_options, given_options
from skylark.mqcommon.options.conf_file import conf_keys, load_conf, to_properties
from skylark.mqproxy.grpc_logs import quieten
from skylark.mqproxy.options import ProxyOptions
from skylark.remoting.metrics.export import Exporter
from skylark.remoting.metrics.health import Health
from skylark.remoting.net.children import stop_with_supervisor
from skylark.remoting.net.daemon import Ready, run_daemon
from skylark.remoting.net.steps import Stepper

if TYPE_CHECKING:
    from skylark.mqproxy.thread import ProxyThread

logger = logging.getLogger(__name__)


@click.command(cls=DaemonCommand, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option(
    "-c",
    "--config-file",
    "-pc",
    "--proxyConfigPath",
    "conf",
    metavar="FILE",
    help="conf file with RocketMQ's keys: key=value lines, or JSON as in rmq-proxy.json",
)
@click.option("-p", "--print-config", is_flag=True, help="print all options with their values and exit")
@click_options(ProxyOptions, {"namesrv_addr": ("-n", "--namesrvAddr"), "proxy_mode": ("-pm", "--proxyMode")})
@click.version_option(package_name="skylark-mq", prog_name="mqproxy")
def main(conf: str | None, print_config: bool, **arguments: str | None) -> None:
    """Run a proxy: clients of RocketMQ 5 send and receive messages through it by gRPC."""
    warnings: list[str] = []
    given = given_options(ProxyOptions, arguments)
    report = StartReport("mqproxy", log_format_of(ProxyOptions, conf, given))
    try:
        options = load_conf(ProxyOptions, conf, given, warnings=warnings)
        where = options.listening(conf_keys(ProxyOptions, conf))
        options = replace(options, bind_address=where.address)
        if where.because:
            warnings.append(opened(f"{where.address}:{options.grpc_server_port}", where.because, ""))
        for warning in warnings:
            report.warn(warning)
        if print_config:
            click.echo(to_properties(options), nl=False)
            return
        quieten()
        try:
            from skylark.mqproxy.thread import ProxyThread
        except ImportError as error:
            raise UserError(f"mqproxy needs packages ({error}): pip install 'skylark-mq[proxy]'") from None
    except UserError as error:
        report.fail(str(error))
        sys.exit(1)
    sys.exit(run_daemon(partial(_serve, ProxyThread(options)), name="mqproxy", logs=options))


async def _serve(thread: "ProxyThread", stopping: trio.Event, ready: Ready) -> None:
    keep_freed_memory()
    health = Health(thread.options, thread.meters.unready)
    exporter = Exporter(thread.options, thread.options.metric_labels, thread.meters.collect, health, Stepper())
    async with trio.open_nursery() as pages:
        # The pages are served until the end: a probe sees that the proxy starts or stops.
        await pages.start(health.run)
        await pages.start(exporter.run)
        async with trio.open_nursery() as nursery:
            # With enableProxy a broker is the parent.
            nursery.start_soon(stop_with_supervisor, stopping)
            address = await nursery.start(thread.run)
            logger.info("the proxy serves at %s", address)
            ready(f"serves at {address}")
            await stopping.wait()
            thread.stop()
        pages.cancel_scope.cancel()
    logger.info("the proxy stopped")

"""The command ``controller``: a conf file, a flag for each option, and a daemon."""

import logging
import sys
from functools import partial

import click
import trio

from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.daemons.start_report import DaemonCommand, StartReport, log_format_of
from skylark.mqcommon.disk.files import OsFiles
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.options.command_line import click_options, given_options
from skylark.mqcommon.options.conf_file import load_conf, to_properties
from skylark.namesrv.controller.controller import Controller, Holder
from skylark.namesrv.controller.options import ControllerDaemonOptions
from skylark.remoting.metrics.health import Health
from skylark.remoting.net.daemon import Ready, run_daemon
from skylark.remoting.net.tls.options import daemon_tls

logger = logging.getLogger(__name__)


@click.command(cls=DaemonCommand, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option("-c", "--config-file", "conf", metavar="FILE", help="conf file with RocketMQ's keys (key=value lines)")
@click.option("-p", "--print-config", is_flag=True, help="print all options with their values and exit")
@click_options(ControllerDaemonOptions)
@click.version_option(package_name="skylark-mq", prog_name="controller")
def main(conf: str | None, print_config: bool, **arguments: str | None) -> None:
    """Run a Controller: it elects another master of a broker set when the master dies."""
    warnings: list[str] = []
    given = given_options(ControllerDaemonOptions, arguments)
    if conf is not None:
        given.setdefault("config_store_path", conf)
    report = StartReport("controller", log_format_of(ControllerDaemonOptions, conf, given))
    try:
        options = load_conf(ControllerDaemonOptions, conf, given, warnings=warnings)
        for warning in warnings:
            report.warn(warning)
        if print_config:
            click.echo(to_properties(options), nl=False)
            return
    except UserError as error:
        report.fail(str(error))
        sys.exit(1)
    sys.exit(run_daemon(partial(_serve, options), name="controller", logs=options))


async def _serve(options: ControllerDaemonOptions, stopping: trio.Event, ready: Ready) -> None:
    controller = Controller(Holder(options, OsFiles()), SystemClock())
    tls = await trio.to_thread.run_sync(daemon_tls, options)
    async with trio.open_nursery() as nursery:
        # The pages come first: a probe sees that the Controller starts.
        await nursery.start(Health(options, lambda: controller.unready).run)
        address = await nursery.start(controller.run, tls)
        if tls.server is not None:
            nursery.start_soon(tls.server.watch)
        logger.info("Controller %s serves at %s", options.controller_d_leger_self_id, address)
        ready(f"serves at {address}")
        await stopping.wait()
        await controller.stop()
        nursery.cancel_scope.cancel()
    logger.info("Controller stopped")

"""The command ``namesrv``: a conf file, a flag for each option, and a daemon."""

import logging
import sys
from dataclasses import replace
from functools import partial

import click
import trio

from skylark.mqcommon.daemons.start_report import DaemonCommand, StartReport, log_format_of
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.options.command_line import click_options, given_options
from skylark.mqcommon.options.conf_file import conf_keys, load_conf, to_properties
from skylark.namesrv.namesrv import Namesrv
from skylark.namesrv.options import NamesrvOptions
from skylark.remoting.net.daemon import Ready, run_daemon

logger = logging.getLogger(__name__)


@click.command(cls=DaemonCommand, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option("-c", "--config-file", "conf", metavar="FILE", help="conf file with RocketMQ's keys (key=value lines)")
@click.option("-p", "--print-config", is_flag=True, help="print all options with their values and exit")
@click_options(NamesrvOptions)
@click.version_option(package_name="skylark-mq", prog_name="namesrv")
def main(conf: str | None, print_config: bool, **arguments: str | None) -> None:
    """Run a NameServer: brokers register with it, clients ask it where a topic is."""
    warnings: list[str] = []
    given = given_options(NamesrvOptions, arguments)
    if conf is not None:
        given.setdefault("config_store_path", conf)
    report = StartReport("namesrv", log_format_of(NamesrvOptions, conf, given))
    try:
        options = load_conf(NamesrvOptions, conf, given, warnings=warnings)
        where = options.listening(conf_keys(NamesrvOptions, conf))
        options = replace(options, bind_address=where.address)
        for warning in warnings:
            report.warn(warning)
        if print_config:
            click.echo(to_properties(options), nl=False)
            return
    except UserError as error:
        report.fail(str(error))
        sys.exit(1)
    sys.exit(run_daemon(partial(_serve, options, where.because), name="namesrv", logs=options))


async def _serve(options: NamesrvOptions, opened_because: str, stopping: trio.Event, ready: Ready) -> None:
    # Made here: the log has begun, and the limit of open files is raised.
    namesrv = Namesrv(options, opened_because=opened_because)
    async with trio.open_nursery() as nursery:
        address = await nursery.start(namesrv.run)
        logger.info("NameServer serves at %s", address)
        ready(f"serves at {address}")
        await stopping.wait()
        await namesrv.stop()
        nursery.cancel_scope.cancel()
    logger.info("NameServer stopped")

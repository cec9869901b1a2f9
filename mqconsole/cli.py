"""The command ``mqconsole``: mqadmin's options for the cluster, a flag for each option of the console, and a daemon."""

import logging
import sys
from functools import partial
from typing import TYPE_CHECKING

import click
import trio

from skylark.mqadmin.command import cluster_options, given_credentials, given_tls
from skylark.mqcommon.daemons.start_report import DaemonCommand, StartReport, log_format_of
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.extras import missing_extra
from skylark.mqcommon.options.command_line import click_options, given_options
from skylark.mqcommon.options.conf_file import load_conf, to_properties
from skylark.mqconsole.options import ConsoleOptions
from skylark.mqconsole.people.person import Cluster
from skylark.remoting.metrics.health import Health
from skylark.remoting.net.daemon import Ready, run_daemon

if TYPE_CHECKING:
    from skylark.mqconsole.console import Console

logger = logging.getLogger(__name__)


@click.command(cls=DaemonCommand, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@cluster_options
@click.option("-c", "--config-file", "conf", metavar="FILE", help="conf file with these options as key=value lines")
@click.option("-p", "--print-config", is_flag=True, help="print all options with their values and exit")
@click_options(ConsoleOptions)
@click.version_option(package_name="skylark-mq", prog_name="mqconsole")
def main(
    namesrv_addr: str | None,
    credentials_file: str | None,
    plain_signature_addresses: str,
    tls_config: str | None,
    timeout: float,
    conf: str | None,
    print_config: bool,
    **arguments: str | None,
) -> None:
    """Run a console for browsers: mqconsole -n 127.0.0.1:9876, then open http://127.0.0.1:8088.

    Without --login everybody who reaches the port acts with the console's credentials, so it listens on loopback only.
    """
    given = given_options(ConsoleOptions, arguments)
    report = StartReport("mqconsole", log_format_of(ConsoleOptions, conf, given))
    warnings: list[str] = []
    try:
        options = load_conf(ConsoleOptions, conf, given, warnings=warnings)
        for warning in warnings:
            report.warn(warning)
        if print_config:
            click.echo(to_properties(options), nl=False)
            return
        if namesrv_addr is None:
            raise UserError("no NameServer address: give -n HOST:PORT or set NAMESRV_ADDR")
        cluster = Cluster(
            namesrv_addr,
            round(timeout * 1000),
            given_tls(tls_config),
            float(options.poll_interval),
            plain_signature_addresses,
        )
        credentials = given_credentials(credentials_file, plain_signature_addresses)
    except (UserError, click.ClickException) as error:
        report.fail(str(error))
        sys.exit(1)
    try:
        from skylark.mqconsole.console import Console
    except ModuleNotFoundError as error:
        report.fail(missing_extra("the console", "console", error))
        sys.exit(1)
    console = Console(options, cluster, credentials)
    sys.exit(run_daemon(partial(_serve, console, options), name="mqconsole", logs=options))


async def _serve(console: "Console", options: ConsoleOptions, stopping: trio.Event, ready: Ready) -> None:
    serves = False

    def unready() -> str:
        return "the console stops" if stopping.is_set() else "" if serves else "the console starts"

    async with trio.open_nursery() as pages:
        # The pages are served until the end: a probe sees that the console starts or stops.
        await pages.start(Health(options, unready).run)
        async with trio.open_nursery() as nursery:
            address = await nursery.start(console.run)
            serves = True
            logger.info("the console serves at %s", address)
            ready(f"serves at {address}")
            await stopping.wait()
            console.stop()
        pages.cancel_scope.cancel()
    logger.info("the console stopped")

"""The command ``mqproxy``: a conf file, a flag for each option, RocketMQ's own flags, and a daemon."""

import sys

import click
import trio

from skylark.mqcommon.daemons.instances import instance_count, usable_cores
from skylark.mqcommon.daemons.malloc import keep_freed_memory
from skylark.mqcommon.daemons.start_report import DaemonCommand, StartReport, log_format_of
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.extras import needs_extra
from skylark.mqcommon.options.command_line import click_options, given_options
from skylark.mqcommon.options.conf_file import to_properties
from skylark.mqproxy.instances import KEY, Instances
from skylark.mqproxy.options import ProxyOptions, load_options
from skylark.remoting.net.children import stop_with_supervisor
from skylark.remoting.net.daemon import Main, Ready, run_daemon


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
        options = load_options(conf, given, warnings)
        for warning in warnings:
            report.warn(warning)
        if print_config:
            click.echo(to_properties(options), nl=False)
            return
        count = instance_count(KEY, options.proxy_instances, usable_cores())
        main_task = Instances(options, count, conf, given).run if count > 1 else _one(options)
    except UserError as error:
        report.fail(str(error))
        sys.exit(1)
    sys.exit(run_daemon(_with_supervisor(main_task), name="mqproxy", logs=options))


def _one(options: ProxyOptions) -> Main:
    """One proxy. UserError when its libraries are not installed."""
    with needs_extra("the proxy", "proxy"):
        # Imported here: a supervisor does not need the proxy's modules.
        from skylark.mqproxy.daemon import run_proxy

    async def serve(stopping: trio.Event, ready: Ready) -> None:
        keep_freed_memory()
        await run_proxy(options, stopping, ready)

    return serve


def _with_supervisor(main_task: Main) -> Main:
    """``main_task``, which also stops when the parent is gone that supervises it."""

    async def run(stopping: trio.Event, ready: Ready) -> None:
        async with trio.open_nursery() as nursery:
            # The parent is a supervisor of several brokers with enableProxy, or of several proxies.
            nursery.start_soon(stop_with_supervisor, stopping)
            await main_task(stopping, ready)

    return run

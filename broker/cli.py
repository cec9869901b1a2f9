"""The command ``broker``: runs the daemon (conf file, a flag per option); subcommands work on a store offline."""

import gc
import logging
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import trio

from skylark.broker.identity import listening, resolved
from skylark.broker.instances import KEY, check_directory, instances_of, supervisor_of
from skylark.broker.options import BrokerOptions, check_file_size
from skylark.mqcommon.daemons.instances import instance_count, usable_cores
from skylark.mqcommon.daemons.malloc import keep_freed_memory
from skylark.mqcommon.daemons.open_files import raise_open_files
from skylark.mqcommon.daemons.start_report import DaemonGroup, StartReport, log_format_of
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.extras import needs_extra
from skylark.mqcommon.options.command_line import click_options, given_options
from skylark.mqcommon.options.conf_file import conf_keys, load_conf, to_properties
from skylark.remoting.net.children import stop_with_supervisor
from skylark.remoting.net.daemon import Main, Ready, run_daemon

if TYPE_CHECKING:
    from skylark.broker.broker import Broker

logger = logging.getLogger(__name__)


def _offline_commands() -> list[click.Command]:
    # Imported here: a broker that serves needs no subcommand.
    from skylark.broker.commands.diverged_slave import print_cut, resync_slave
    from skylark.broker.commands.dledger_store import dledger_init
    from skylark.broker.commands.json_metadata import export_metadata, import_metadata
    from skylark.broker.commands.rebuild_metadata import rebuild_metadata
    from skylark.broker.commands.restore import restore
    from skylark.broker.commands.verify_store import verify_store

    return [
        dledger_init,
        export_metadata,
        import_metadata,
        print_cut,
        rebuild_metadata,
        restore,
        resync_slave,
        verify_store,
    ]


@click.group(
    cls=DaemonGroup,
    load=_offline_commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.option("-c", "--config-file", "conf", metavar="FILE", help="conf file with RocketMQ's keys (key=value lines)")
@click.option("-p", "--print-config", is_flag=True, help="print all options with their values and exit")
@click_options(BrokerOptions)
@click.version_option(package_name="skylark-mq", prog_name="broker")
@click.pass_context
def main(context: click.Context, /, conf: str | None, print_config: bool, **arguments: str | None) -> None:
    """Run a broker: it stores messages, delivers them to consumers, and registers its topics with NameServers.

    The commands below work on the store of a stopped broker.
    """
    if context.invoked_subcommand is not None:
        raise_open_files()
        return
    warnings: list[str] = []
    given = given_options(BrokerOptions, arguments)
    if conf is not None:
        given.setdefault("broker_config_path", conf)
    report = StartReport("broker", log_format_of(BrokerOptions, conf, given))
    try:
        loaded = load_conf(BrokerOptions, conf, given, warnings=warnings)
        where = listening(loaded, conf_keys(BrokerOptions, conf))
        options = resolved(replace(loaded, bind_address=where.address))
        check_file_size(options)
        count = instance_count(KEY, options.broker_instances, usable_cores())
        check_directory(options, count)
        broker = None
        if count > 1:
            main_task: Main = supervisor_of(options, instances_of(options, count), conf, given).run
        else:
            # Imported here: a supervisor does not need the broker's modules.
            from skylark.broker.broker import Broker

            broker = Broker(options, opened_because=where.because)
            main_task = partial(_serve, broker)
        if options.enable_proxy:
            main_task = _with_proxy(main_task, options, broker, warnings)
    except UserError as error:
        report.fail(str(error))
        sys.exit(1)
    for warning in warnings:
        report.warn(warning)
    if print_config:
        click.echo(to_properties(options), nl=False)
        return
    sys.exit(run_daemon(main_task, name="broker", logs=options))


def _with_proxy(main: Main, options: BrokerOptions, broker: "Broker | None", warnings: list[str]) -> Main:
    """``main`` with a proxy: in the process of ``broker``, or in its own for several brokers."""
    # Imported here: brokers without a proxy start sooner.
    from skylark.broker.with_proxy import WithProxy, check_proxy, proxy_environ, proxy_given

    check_proxy(options, is_process=broker is None)
    if broker is None:
        from skylark.broker.proxy_process import ProxyProcess

        return WithProxy(main, ProxyProcess(options).run).run
    with needs_extra("enableProxy", "proxy"):
        # The broker knows nothing else of the proxy.
        from skylark.mqproxy.near import NearProxy

    given, environ = proxy_given(options), proxy_environ(options)
    near = NearProxy(lambda: broker.near, options.proxy_config_path, given, environ, warnings)
    return WithProxy(main, near.run).run


async def _serve(broker: "Broker", stopping: trio.Event, ready: Ready) -> None:
    keep_freed_memory()

    async def stop() -> None:
        # The broker can be stopped before it serves, too: a member of a DLedger group that joins anew may wait for the
        # other members for ever.
        await stopping.wait()
        broker.stop()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_with_supervisor, stopping)
        nursery.start_soon(stop)
        await broker.run(task_status=_Serving(broker.options.broker_name, ready))
        nursery.cancel_scope.cancel()


class _Serving(trio.TaskStatus[str]):
    """The task status of a broker. Unlike a nursery's, it need not be called: a start may be stopped."""

    def __init__(self, name: str, ready: Ready) -> None:
        self._name = name
        self._ready = ready

    def started(self, value: Any = None) -> None:
        """``value``: where the broker serves."""
        # The recovered tables live as long as the process. With 200,000 topics the garbage collector would need 50 ms
        # to look for cycles among them.
        gc.freeze()
        logger.info("broker %s serves at %s", self._name, value)
        self._ready(f"serves at {value}")

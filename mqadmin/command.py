"""Makes an async function into a click command: ``@command(name, *params, show=...)``.

The function gets a Session and its options, and returns a report (a dataclass, a list or a table of them, or None when
``session.say`` has printed everything). ``show`` turns the report into the lines of a table; with ``--output json`` the
report is printed as JSON. Options and the types of their values are in `params`.
"""

import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from skylark.mqadmin.params import Address, BrokerAddress, BrokerName, PlainAddresses
from skylark.mqadmin.render import to_json
from skylark.mqadmin.scope import Scope, addr_of, name_of
from skylark.mqadmin.session import Clients, SdkClients, Session, Settings
from skylark.mqcommon.daemons.output import OutputFailed
from skylark.mqcommon.daemons.start import INTERRUPTED, import_quietly
from skylark.mqcommon.errors import SkylarkError, UserError
from skylark.mqcommon.options.command_line import refuse_repeated
from skylark.sdk.admin.failures import error_report, explain, first_of

if TYPE_CHECKING:
    from skylark.remoting.net.tls.settings import Tls
    from skylark.remoting.protocol.signature import Credentials

Work = Callable[..., Awaitable[Any]]
Show = Callable[[Any], Iterable[str]]
F = TypeVar("F", bound=Callable[..., Any])
_SCOPE = ("broker_addr", "cluster_name")
# The common options that say where the cluster is, and how to reach it: the arguments of `settings_of`.
_OF_CLUSTER = ("namesrv_addr", "credentials_file", "plain_signature_addresses", "tls_config", "timeout")


class AdminCommand(click.Command):
    """A command with mqadmin's common options.

    It refuses an option with several names (``-n``, ``--namesrvAddr``) when it is given twice. click would use the
    last value, RocketMQ's tools use the first, and neither says that the other value has no effect.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        refuse_repeated(self, ctx, args)
        return super().parse_args(ctx, args)


def common_options() -> list[click.Parameter]:
    """The options of every command."""
    return [
        click.Option(
            ["-n", "--namesrvAddr", "namesrv_addr"],
            type=Address(several=True),
            metavar="HOST:PORT[;...]",
            envvar="NAMESRV_ADDR",
            show_envvar=True,
            help="NameServer address list, eg: 192.168.0.1:9876;192.168.0.2:9876",
        ),
        click.Option(
            ["--credentials", "credentials_file"],
            type=click.Path(),
            metavar="FILE",
            envvar="ROCKETMQ_CREDENTIALS_FILE",
            show_envvar=True,
            help="file with accessKey and secretKey, mode 0600: requests are signed",
        ),
        click.Option(
            ["--plain-signature-addresses", "plain_signature_addresses"],
            type=PlainAddresses(),
            metavar="HOST:PORT|NETWORK[,...]",
            default="",
            envvar="ROCKETMQ_PLAIN_SIGNATURE_ADDRESSES",
            show_envvar=True,
            help="servers that may get RocketMQ's signature, which they could use for other requests",
        ),
        click.Option(
            ["--tls-config", "tls_config"],
            type=click.Path(),
            metavar="FILE",
            envvar="ROCKETMQ_TLS_CONFIG",
            show_envvar=True,
            help="tls.properties with tls.client.trustCertPath, certPath, keyPath: connections are encrypted",
        ),
        click.Option(
            ["--timeout", "timeout"],
            type=click.FloatRange(min=0, min_open=True),
            metavar="SECONDS",
            default=5.0,
            show_default=True,
            help="how long to wait for each answer",
        ),
        click.Option(
            ["--output"],
            type=click.Choice(["table", "json"]),
            default="table",
            show_default=True,
            help="how to print the result",
        ),
    ]


def command(
    name: str,
    *params: click.Parameter,
    show: Show | None = None,
    either: tuple[str, ...] = (),
    asks_servers: bool = True,
) -> Callable[[Work], AdminCommand]:
    """Make an async function into a click command; exactly one of the arguments named in ``either`` must be given.

    One of -b and -c must be given, too, unless ``either`` names more: the function gets both as its ``scope``.
    A command that does not ask servers needs no address.
    """

    has_scope = not either and {*_SCOPE} <= {param.name for param in params}

    def make(work: Work) -> AdminCommand:
        def run(output: str, **options: Any) -> None:
            ctx = click.get_current_context()
            of_cluster = {name: options.pop(name) for name in _OF_CLUSTER}
            _check_either(ctx, _SCOPE if has_scope else either, options)
            if asks_servers and of_cluster["namesrv_addr"] is None and not _names_broker(ctx, options):
                raise click.UsageError("no NameServer address: give -n HOST:PORT or set NAMESRV_ADDR", ctx)
            settings = settings_of(**of_cluster, output=output)
            clients = ctx.obj if ctx.obj is not None else SdkClients()

            async def at_brokers(session: Session, **options: Any) -> Any:
                for param in params:
                    if isinstance(param.type, BrokerAddress | BrokerName) and options[str(param.name)] is not None:
                        find = addr_of if isinstance(param.type, BrokerAddress) else name_of
                        options[str(param.name)] = await find(session, options[str(param.name)])
                if has_scope:
                    options["scope"] = Scope(*(options.pop(name) for name in _SCOPE))
                return await work(session, **options)

            if not run_work(clients, settings, at_brokers, options, show):
                ctx.exit(1)

        help_text = (work.__doc__ or "").strip()
        context = {"help_option_names": ["-h", "--help"]}
        return AdminCommand(name, context, run, [*params, *common_options()], help=help_text)

    return make


def cluster_options(command: F) -> F:
    """Add the common options but ``--output`` to a click command; `settings_of` takes their values."""
    command.__click_params__ = [  # type: ignore[attr-defined]  # as click's decorators do
        *getattr(command, "__click_params__", []),
        *reversed([param for param in common_options() if param.name in _OF_CLUSTER]),
    ]
    return command


def settings_of(
    namesrv_addr: str | None,
    credentials_file: str | None,
    plain_signature_addresses: str,
    tls_config: str | None,
    timeout: float,
    output: str,
) -> Settings:
    """The settings that the common options give; ``timeout`` is in seconds."""
    return Settings(
        namesrv_addr or "",
        round(timeout * 1000),
        output,
        given_credentials(credentials_file, plain_signature_addresses),
        given_tls(tls_config),
    )


# Here and below: click passes options by name, and has checked their types against the command's parameters.
def run_work(clients: Clients, settings: Settings, work: Work, options: dict[str, Any], show: Show | None) -> bool:
    """Run ``work`` with an opened Admin and print what it returns; False when anything failed."""
    import_quietly("skylark.sdk.admin.client")

    session: Session | None = None

    async def main() -> Any:
        nonlocal session
        # One DNS name may stand for several NameServers, and some commands must change each NameServer.
        every = replace(settings, namesrv=await _behind_names(settings))
        async with clients.admin(every) as admin:
            session = Session(clients, every, admin)
            return await work(session, **options)

    try:
        result = _run(main)
    except BaseException as error:
        # trio wraps exceptions of its tasks in groups. Search the groups for known errors, the most specific first.
        _clear(session)
        if (usage := first_of(error, click.ClickException)) is not None:
            raise usage from None
        if first_of(error, KeyboardInterrupt) is not None:
            raise click.exceptions.Exit(INTERRUPTED) from None
        if (pipe := first_of(error, BrokenPipeError)) is not None:
            # the reader of stdout has closed it: click ends without an error message
            raise pipe from None
        if (output := first_of(error, OutputFailed)) is not None:
            raise output from None
        if (failure := first_of(error, SkylarkError)) is None:
            raise
        in_json = settings.output == "json"
        line = to_json(error_report(failure), one_line=True) if in_json else f"{_program()}: {explain(failure)}"
        click.echo(line, err=True)
        return False
    assert session is not None
    session.clear_progress()
    if settings.output == "json":
        if result is not None:
            click.echo(to_json(result))
    elif show is not None and result is not None:
        for line in show(result):
            click.echo(line)
    return not session.failed


def _run(main: Callable[[], Awaitable[Any]]) -> Any:
    """`trio.run`; Ctrl-C raises KeyboardInterrupt at a checkpoint, and a second Ctrl-C ends the process at once."""
    import signal
    import threading
    from types import FrameType

    import trio

    raises_interrupt = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not raises_interrupt or threading.current_thread() is not threading.main_thread():
        return trio.run(main)

    async def interruptible() -> Any:
        interrupt = signal.getsignal(signal.SIGINT)
        assert callable(interrupt)  # trio's

        def first(number: int, frame: FrameType | None) -> None:
            # A second KeyboardInterrupt would break off the closing of connections, in the middle of trio's nurseries.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            interrupt(number, frame)

        signal.signal(signal.SIGINT, first)
        return await main()

    try:
        # Between checkpoints, too, KeyboardInterrupt could leave a nursery open: trio would end with an internal error.
        return trio.run(interruptible, restrict_keyboard_interrupt_to_checkpoints=True)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


async def _behind_names(settings: Settings) -> str:
    """The NameServers, with all addresses of each DNS name: a change of stored data must reach every NameServer."""
    from skylark.remoting.net.address_server import resolved

    if settings.tls is not None:  # the certificate may be valid for the DNS name only
        return settings.namesrv
    found: list[str] = []
    for addr in filter(None, settings.namesrv.split(";")):
        try:
            found += await resolved(addr)
        except OSError:
            found.append(addr)  # connecting will report the error
    return ";".join(dict.fromkeys(found))


def given_credentials(file: str | None, plain_signature_addresses: str) -> "Credentials | None":
    """The credentials in ``file``, in the environment, or in RocketMQ's own file for tools.

    ``plain_signature_addresses``: servers that may get RocketMQ's signature.
    """
    from skylark.sdk.credentials import credentials_of_tools

    try:
        found = credentials_of_tools(file, os.environ, lambda warning: click.echo(f"{_program()}: {warning}", err=True))
    except UserError as error:
        raise click.ClickException(str(error)) from None
    return found and replace(found, plain_signature_addresses=plain_signature_addresses)


def given_tls(file: str | None) -> "Tls | None":
    """The TLS settings in ``file``."""
    if file is None:
        return None
    from skylark.sdk.credentials import read_tls_config

    try:
        return read_tls_config(file)
    except UserError as error:
        raise click.ClickException(str(error)) from None


def _program() -> str:
    """The name of the program that runs, such as mqadmin."""
    return click.get_current_context().find_root().info_name or "mqadmin"


def _names_broker(ctx: click.Context, options: dict[str, Any]) -> bool:
    """Whether a broker's address is given. A NameServer is optional then; a command that needs a NameServer checks."""
    addresses = [param.name for param in ctx.command.params if isinstance(param.type, Address | BrokerAddress)]
    # A broker's name is looked up at a NameServer.
    return any(name is not None and ":" in (options.get(name) or "") for name in addresses)


def _check_either(ctx: click.Context, either: tuple[str, ...], options: dict[str, Any]) -> None:
    if not either:
        return
    given = [name for name in either if options.get(name) is not None]
    spellings = {param.name: param.opts[-1] for param in ctx.command.params if param.name in either}
    names = " or ".join(f"{spellings[name]}" for name in either)
    if not given:
        raise click.UsageError(f"Missing option: give {names}.", ctx)
    if len(given) > 1:
        raise click.UsageError(f"Give only one of {names}.", ctx)


def _clear(session: Session | None) -> None:
    if session is not None:
        session.clear_progress()

"""From an async function to a click command: ``@command(name, *params, show=...)``.

The function gets a Session and its options and returns plain data (rows, a dict, or None when ``session.say``
said all). ``show`` turns the data into the lines of a table; with ``--output json`` the data is printed as it
is. Here also stand the options that commands share, with RocketMQ's letters and long names.
"""

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import click

from common.errors import SkylarkError
from sdk.admin.failures import explain, first_of
from sdk.admin.render import to_json
from sdk.admin.session import Clients, SdkClients, Session, Settings

Work = Callable[..., Awaitable[Any]]
Show = Callable[[Any], Iterable[str]]

_ADDR = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\s:;/\[\]]+):(\d{1,5})")


class Text(click.ParamType):  # type: ignore[type-arg]  # generic in newer click only
    """Text without blanks around it; not empty."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value).strip()
        if not text:
            self.fail("must not be empty", param, ctx)
        return text


class Address(Text):
    """``host:port``, or several with ``;`` between them (commas do too)."""

    name = "host:port"

    def __init__(self, *, several: bool = False) -> None:
        self.several = several

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = super().convert(value, param, ctx)
        several = [part.strip() for part in text.replace(",", ";").split(";") if part.strip()]
        parts = several if self.several else [text]
        for part in parts:
            found = _ADDR.fullmatch(part)
            if found is None or not 0 < int(found[1]) < 65536:
                self.fail(f"{part!r} is not host:port, as in 127.0.0.1:9876", param, ctx)
        if not parts:
            self.fail("is not host:port, as in 127.0.0.1:9876", param, ctx)
        return ";".join(parts)


def option(letter: str, long: str, help: str, **settings: Any) -> click.Option:
    """An option with RocketMQ's letter and long name; the function's argument is the long name in snake_case."""
    argument = re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", long).lower()
    names = [f"-{letter}"] if letter else []
    kind = settings.setdefault("type", Text())
    if "metavar" not in settings and not settings.get("is_flag"):
        settings["metavar"] = "true|false" if kind is bool else "N" if isinstance(kind, click.IntRange) else None
    return click.Option([*names, f"--{long}", argument], help=help, **settings)


def broker_addr(help: str, **settings: Any) -> click.Option:
    """-b, the address of one broker."""
    return option("b", "brokerAddr", help, type=Address(), metavar="HOST:PORT", **settings)


def cluster_name(help: str, **settings: Any) -> click.Option:
    """-c, the name of a cluster."""
    return option("c", "clusterName", help, **settings)


def topic_option(help: str = "topic name") -> click.Option:
    """-t, required."""
    return option("t", "topic", help, required=True)


def _common() -> list[click.Parameter]:
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
) -> Callable[[Work], click.Command]:
    """Make a click command of an async function; of the arguments named by ``either`` exactly one must be given."""

    def make(work: Work) -> click.Command:
        def run(namesrv_addr: str | None, timeout: float, output: str, **options: Any) -> None:
            ctx = click.get_current_context()
            _check_either(ctx, either, options)
            if namesrv_addr is None:
                raise click.UsageError("no NameServer address: give -n HOST:PORT or set NAMESRV_ADDR", ctx)
            settings = Settings(namesrv_addr, round(timeout * 1000), output)
            clients = ctx.obj if ctx.obj is not None else SdkClients()
            if not run_work(clients, settings, work, options, show):
                ctx.exit(1)

        help_text = (work.__doc__ or "").strip()
        context = {"help_option_names": ["-h", "--help"]}
        return click.Command(name, context, run, [*params, *_common()], help=help_text)

    return make


def run_work(clients: Clients, settings: Settings, work: Work, options: dict[str, Any], show: Show | None) -> bool:
    """Run ``work`` with an opened Admin and print what it returns; False when anything failed."""
    import trio

    session: Session | None = None

    async def main() -> Any:
        nonlocal session
        async with clients.admin(settings) as admin:
            session = Session(clients, settings, admin)
            return await work(session, **options)

    try:
        result = trio.run(main)
    except BaseException as error:
        _clear(session)
        if (usage := first_of(error, click.ClickException)) is not None:
            raise usage from None
        if first_of(error, KeyboardInterrupt) is not None:
            raise click.Abort from None
        if (pipe := first_of(error, BrokenPipeError)) is not None:
            # the reader of our output went away: click knows how to end quietly
            raise pipe from None
        if (failure := first_of(error, SkylarkError)) is None:
            raise
        click.echo(f"mqadmin: {explain(failure)}", err=True)
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

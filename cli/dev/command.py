"""The command `skylark dev`: its options, its directory, its log, and what it prints."""

import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click
import trio

from skylark.cli.dev import HOST, NAMESRV_PORT
from skylark.cli.dev.servers import Addresses, Ports, serving
from skylark.mqcommon.addresses import format_address
from skylark.mqcommon.logs.options import LogOptions
from skylark.remoting.net.daemon import Ready, run_daemon

# Three lines that a user can paste into Python.
_PASTE = """\
    from skylark import Message, blocking
    with blocking.Producer("{namesrv}") as producer:
        print(producer.send(Message("orders", b"hello")))
"""


@click.command("dev", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="keep messages (for 72 hours) and logs in DIR; without it they are in a temporary directory that is removed "
    "at the end",
)
@click.option(
    "--port", default=NAMESRV_PORT, type=click.IntRange(0, 65535), show_default=True, help="port of the NameServer"
)
@click.option(
    "--broker-port", default=10911, type=click.IntRange(0, 65535), show_default=True, help="port of the broker"
)
@click.option(
    "--grpc-port",
    default=8081,
    type=click.IntRange(0, 65535),
    show_default=True,
    help="port for clients of RocketMQ 5",
)
@click.option(
    "--console-port", default=8088, type=click.IntRange(0, 65535), show_default=True, help="port for browsers"
)
@click.option("--demo", is_flag=True, help="keep a few topics busy, so that the console has something to show")
def dev(data: Path | None, port: int, broker_port: int, grpc_port: int, console_port: int, demo: bool) -> None:
    """Run NameServer, broker, gRPC proxy and console on this machine, in one process, until Ctrl-C.

    All ports are on loopback, without a login: every user of this machine can use them. Port 0 takes a free one. The
    first message to a topic creates it.
    """
    ports = Ports(port, broker_port, grpc_port, console_port)
    given = [each for each in (port, broker_port, grpc_port, console_port) if each]
    if len({*given}) < len(given):
        raise click.UsageError("Give each server a port of its own.")
    # Until the event loop handles signals, these end the command as Ctrl-C does: the directory is removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # SIGHUP says that the terminal was closed. nohup ignores the signal, so that a command outlives its terminal.
    stops_at_hangup = signal.getsignal(signal.SIGHUP) != signal.SIG_IGN
    if stops_at_hangup:
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    with _directory(data) as home:
        log = LogOptions(log_file=str(home / "logs" / "skylark.log"))
        main = partial(_serve, home, ports, demo, data is not None)
        code = run_daemon(main, name="skylark dev", logs=log, stops_at_hangup=stops_at_hangup)
    sys.exit(code)


@contextmanager
def _directory(data: Path | None) -> Iterator[Path]:
    """``data``, or a temporary directory that is removed after the block."""
    home = data
    try:
        try:
            home = home or Path(tempfile.mkdtemp(prefix="skylark-dev-"))
            (home / "logs").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            where = f"{error.filename}: {error.strerror}"
            raise click.ClickException(f"{where}; name a directory that you may write with --data") from None
        yield home
    finally:
        if data is None and home is not None:
            _remove(home)


def _remove(home: Path) -> None:
    """Remove the directory, also when signals come meanwhile; say what cannot be removed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        shutil.rmtree(home)
    except OSError as error:
        click.echo(f"{home} could not be removed: {error}", err=True)


async def _serve(home: Path, ports: Ports, demo: bool, is_kept: bool, stopping: trio.Event, ready: Ready) -> None:
    from skylark.cli.dev.first_answers import wait_for_answers

    with _warnings_on_stderr():
        async with serving(home, ports, partial(click.echo, err=True)) as addresses:
            await wait_for_answers(addresses)
            # All that is there now lives as long as the process.
            gc.freeze()
            click.echo(_greeting(addresses, home, is_kept))
            ready(f"serves at {addresses.namesrv}")
            async with trio.open_nursery() as nursery:
                if demo:
                    from skylark.cli.dev.demo import run_demo

                    nursery.start_soon(run_demo, addresses.namesrv)
                await stopping.wait()
                nursery.cancel_scope.cancel()


@contextmanager
def _warnings_on_stderr() -> Iterator[None]:
    """Show warnings and errors in the terminal, too, while the log of all goes to its file."""
    from skylark.mqcommon.logs.formats import LineFormatter
    from skylark.mqcommon.logs.writer import LogWriter, stderr_writer

    writer = LogWriter(stderr_writer(), LineFormatter(), place="stderr", complaints=None)
    writer.setLevel(logging.WARNING)
    root = logging.getLogger()
    root.addHandler(writer)
    try:
        yield
    finally:
        root.removeHandler(writer)
        writer.close()


def _greeting(addresses: Addresses, home: Path, is_kept: bool) -> str:
    doors = [
        ("NameServer", addresses.namesrv, "Skylark's and RocketMQ 4's clients, mqadmin"),
        ("gRPC", addresses.grpc, "clients of RocketMQ 5"),
        ("Console", addresses.console and f"http://{addresses.console}", "your browser"),
    ]
    is_found = addresses.namesrv == format_address(HOST, NAMESRV_PORT) and not os.environ.get("NAMESRV_ADDR")
    to = "" if is_found else f" -n {addresses.namesrv}"
    return "\n".join(
        (
            "Skylark is ready.",
            "",
            *(f"  {name:<11} {where:<22} for {whom}" for name, where, whom in doors if where),
            f"  {'Files':<11} {home}{'' if is_kept else '  (removed at the end; --data DIR keeps them)'}",
            "",
            "Send a message from Python:",
            "",
            _PASTE.format(namesrv=addresses.namesrv),
            f"or from a shell:        skylark send orders hello{to}",
            f"Read the messages with: skylark tail orders --from first{to}",
            "Ctrl-C ends all of it.",
        )
    )

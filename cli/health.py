"""The command `skylark health`: whether the daemon on this machine is ready, as probes of containers ask."""

import http.client
import sys

import click

from skylark.mqcommon.addresses import format_address

_ANY = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
_MAX_BYTES = 64 * 1024


@click.command("health", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--port",
    envvar="SKYLARK_HEALTH_PORT",
    type=click.IntRange(1, 65535),
    help="healthPort of the daemon  [environment: SKYLARK_HEALTH_PORT]",
)
@click.option(
    "--host",
    envvar="SKYLARK_HEALTH_HOST",
    default="127.0.0.1",
    show_default=True,
    help="healthHost of the daemon  [environment: SKYLARK_HEALTH_HOST]",
)
@click.option("--live", is_flag=True, help="ask /healthz, whether the daemon lives, instead of /readyz")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0.1, 600),
    default=5,
    show_default=True,
    metavar="SECONDS",
    help="how long to wait for the answer",
)
def health(port: int | None, host: str, live: bool, timeout_s: float) -> None:
    """Ask a daemon's health page, and exit with 0 when the daemon is ready: for HEALTHCHECK and exec probes.

    Prints what the page says: the reason when the daemon is not ready.
    """
    if port is None:
        raise click.UsageError("Give --port, or set SKYLARK_HEALTH_PORT: the healthPort of the daemon.")
    host = _ANY.get(host.strip(), host.strip())
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request("GET", "/healthz" if live else "/readyz")
        answer = connection.getresponse()
        text = answer.read(_MAX_BYTES).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as error:
        place = format_address(host, port)
        why = f"no answer from the health page at {place} ({error or type(error).__name__})"
        click.echo(f"{why}: the daemon is starting, has ended, or has another healthPort", err=True)
        sys.exit(1)
    finally:
        connection.close()
    click.echo(text)
    sys.exit(answer.status != http.client.OK)

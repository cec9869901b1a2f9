"""The command `skylark version`."""

import platform
import re
from importlib.metadata import PackageNotFoundError, distribution, version

import click

from skylark.mqcommon.extras import PACKAGE
from skylark.mqcommon.version import VERSION

#: The extras that a user installs, in the order in which they are printed.
EXTRAS = (
    *("console", "proxy", "celery", "faststream", "spark", "arrow", "values", "compression", "formats"),
    *("metrics", "health", "otel", "acl", "tls", "tier", "fast"),
)
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r"extra == ['\"]([A-Za-z0-9._-]+)['\"]")


@click.command("version", context_settings={"help_option_names": ["-h", "--help"]})
def show_version() -> None:
    """Print the versions of Skylark and of its libraries, and which extras are installed."""
    rows = [("skylark", VERSION), ("python", platform.python_version())]
    rows += [(name, _version(name) or "not installed by pip") for name in ("trio", "click", "orjson", "cbor2")]
    for name, text in rows:
        click.echo(f"{name:<8} {text}")
    try:
        packages = packages_of_extras()
    except PackageNotFoundError:
        click.echo("extras   unknown: Skylark was not installed by pip")
        return
    there = [extra for extra in EXTRAS if all(map(_version, packages[extra]))]
    click.echo(f"extras   {', '.join(there) or 'none'}")
    if missing := [extra for extra in EXTRAS if extra not in there]:
        click.echo(f"missing  {', '.join(missing)}")


def packages_of_extras() -> dict[str, list[str]]:
    """Extra → the packages that it installs. Raises PackageNotFoundError when Skylark runs uninstalled."""
    found: dict[str, list[str]] = {}
    for requirement in distribution(PACKAGE).requires or ():
        name, extra = _NAME.match(requirement), _EXTRA.search(requirement)
        if name is not None and extra is not None:
            found.setdefault(extra[1], []).append(name[0])
    return found


def _version(package: str) -> str | None:
    """The version of an installed package; None when pip has not installed it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None

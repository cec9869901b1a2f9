"""Options of a job that are given as ``NAME=VALUE``, and may be repeated: those of the connection to a cluster."""

from typing import Any, Final

import click

EXAMPLES = "credentialsFile=FILE, tls=true, tlsCaFile=FILE, ...; may be repeated"


def named_values(context: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """A callback of click."""
    found: dict[str, str] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", context, param)
        found[name.strip()] = value.strip()
    return found


CONNECTION: Final[dict[str, Any]] = {"multiple": True, "metavar": "NAME=VALUE", "callback": named_values}

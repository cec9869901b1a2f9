"""Daemons need Linux, and say so; clients do not."""

import sys


def why_not_here(what: str) -> str:
    """Why ``what`` cannot run on this system, and what to do; "" on Linux."""
    if sys.platform == "linux":
        return ""
    return (
        f"{what} needs Linux, and this system is {sys.platform}: run it in a container or a virtual machine, and give "
        "clients here its address. Producers, consumers and mqadmin need no Linux"
    )

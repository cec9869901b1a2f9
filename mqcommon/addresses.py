"""Addresses as text, ``host:port``, and who counts as one client where addresses are limited. Pure."""

from functools import lru_cache
from ipaddress import IPv6Address, IPv6Network, ip_address

# The smallest network that a provider gives to a customer, who can then connect from 2^64 addresses.
_IPV6_PREFIX_BITS = 64


def split_address(addr: str) -> tuple[str, int]:
    """(host, port) of ``host:port`` or ``[v6]:port``; ValueError with a clear text otherwise."""
    host, colon, port = addr.rpartition(":")
    is_number = port.isascii() and port.isdecimal() and len(port) <= 5
    if not colon or not host or not is_number or not 0 < int(port) < 65536:
        raise ValueError(f"{addr!r} is not an address of the form host:port")
    return host.strip("[]"), int(port)


def format_address(host: str, port: int) -> str:
    """``host:port``; a v6 address is put in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_address(text: str) -> bool:
    """Whether `split_address` accepts ``text``."""
    try:
        split_address(text)
    except ValueError:
        return False
    return True


def is_any_address(host: str) -> bool:
    """Whether a server that listens on ``host`` is reached on all interfaces of its machine."""
    return host in ("", "0.0.0.0", "::")


@lru_cache(maxsize=4_096)
def limited_network(host: str) -> str:
    """The network that limits "of one address" count for ``host``: an IPv4 address itself, the /64 of an IPv6 address.

    An IPv4 address within an IPv6 one (``::ffff:a.b.c.d``) counts as IPv4. Other texts are returned as they are.
    """
    plain, _, zone = host.partition("%")
    try:
        address = ip_address(plain)
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    network = str(IPv6Network((int(address), _IPV6_PREFIX_BITS), strict=False))
    # Each link has a network fe80::/64 of its own.
    return f"{network}%{zone}" if zone else network

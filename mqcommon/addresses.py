"""Addresses as text, ``host:port``; the address that a client is given; what limits count as one client. Pure."""

from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple

from skylark.mqcommon.errors import ConfigError

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


class AdvertisedAddress(NamedTuple):
    """Clients within ``network`` reach a server at ``addr``."""

    network: IPv4Network | IPv6Network
    addr: str


# The most advertised addresses of one broker.
MAX_ADVERTISED = 64


def parse_advertised(text: str, default_port: int) -> tuple[AdvertisedAddress, ...]:
    """``10.0.0.0/8=10.0.0.5:10911,fd00::/8=[fd00::5]``, the narrowest network first; ValueError with a clear text.

    An address without a port gets ``default_port``.
    """
    parts = [part.strip() for part in text.replace(";", ",").split(",") if part.strip()]
    if len(parts) > MAX_ADVERTISED:
        raise ValueError(f"there are {len(parts)} addresses, at most {MAX_ADVERTISED} are taken")
    found: dict[IPv4Network | IPv6Network, AdvertisedAddress] = {}
    for part in parts:
        network_text, equals, where = (each.strip() for each in part.partition("="))
        if not equals or not where:
            raise ValueError(f"{part!r} is not of the form network=host:port, as in 10.0.0.0/8=10.0.0.5:10911")
        network = ip_network(network_text)  # its ValueErrors name the text
        if network in found:
            raise ValueError(f"{network} has two addresses")
        found[network] = AdvertisedAddress(network, _with_port(where, default_port))
    return tuple(sorted(found.values(), key=lambda each: -each.network.prefixlen))


def _with_port(where: str, default_port: int) -> str:
    try:
        return format_address(str(ip_address(where.strip("[]"))), default_port)
    except ValueError:
        return format_address(*split_address(where if ":" in where else f"{where}:{default_port}"))


@lru_cache(maxsize=4_096)
def client_ip(host: str) -> IPv4Address | IPv6Address | None:
    """The address of a client; an IPv4 address within an IPv6 address counts as IPv4.

    None if ``host`` is no address.
    """
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def server_address(addr: str) -> str:
    """``ip:port`` of one end of a connection, spelled alike by both ends: without the name of a network interface."""
    host, _, port = addr.rpartition(":")
    address = client_ip(host.strip("[]"))
    return addr if address is None else format_address(str(address), int(port))


def is_any_address(host: str) -> bool:
    """Whether a server that listens on ``host`` is reached on all interfaces of its machine."""
    return host in ("", "0.0.0.0", "::")


@lru_cache(maxsize=4_096)
def limited_network(host: str) -> str:
    """The network that limits "of one address" count for ``host``: an IPv4 address itself, the /64 of an IPv6 address.

    An IPv4 address within an IPv6 address (``::ffff:a.b.c.d``) counts as IPv4. Other texts are returned as they are.
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


def parse_peers(text: str, key: str, members: str) -> dict[str, str]:
    """Addresses by id, of ``n0-10.0.0.1:9877;n1-10.0.0.2:9877``. ConfigError, about ``key``, when it is wrong.

    ``members``: what the option must list in full, for the error text.
    """
    peers: dict[str, str] = {}
    for part in filter(None, text.split(";")):
        name, dash, addr = part.strip().partition("-")
        if not (dash and name and is_address(addr)):
            raise ConfigError(f"{key}: {part!r} is not ID-HOST:PORT, as in n0-127.0.0.1:9877")
        if name in peers:
            raise ConfigError(f"{key}: {name} is there twice")
        peers[name] = addr
    if not peers:
        raise ConfigError(f"{key}: name all {members}, as in n0-127.0.0.1:9877;n1-127.0.0.1:9878")
    return peers

"""The addresses of clients, as access control compares them. Pure."""

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

from mqcommon.addresses import split_address

Address = IPv4Address | IPv6Address


@lru_cache(maxsize=4_096)
def host_of(remote: str) -> str:
    """The host of ``host:port``."""
    return split_address(remote)[0]


@lru_cache(maxsize=1_024)
def address_of(host: str) -> Address | None:
    """The address ``host``; an IPv4 address that came in an IPv6 one is itself. None if it is no address."""
    try:
        address = ip_address(host.partition("%")[0].strip("[]"))
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address

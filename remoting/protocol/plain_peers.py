"""Servers that may be given RocketMQ's signature, as the text of an option: ``10.0.0.5:10911,10.1.0.0/16``. Pure.

RocketMQ's signature does not cover the request code. A server that gets one request can send it to another server as
another request, so only trusted servers may get such a request.
"""

from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final

from skylark.mqcommon.addresses import client_ip, format_address, split_address

#: Every server.
EVERYWHERE: Final = "*"
_FORMS: Final = "give host:port or a network, as in 10.0.0.5:10911,10.1.0.0/16"


class PlainPeers:
    """The servers that the text of an option names: ``host:port`` as the client connects to it, or networks."""

    def __init__(self, text: str) -> None:
        self._is_everybody = text.strip() == EVERYWHERE
        self._addrs: set[str] = set()
        self._networks: list[IPv4Network | IPv6Network] = []
        if self._is_everybody:
            return
        for part in filter(None, (part.strip() for part in text.replace(";", ",").split(","))):
            if "/" in part:
                self._networks.append(_network(part))
            else:
                self._addrs.add(_address(part))

    def __contains__(self, addr: str) -> bool:
        """Whether the server at ``addr``, which is ``host:port``, is named."""
        if self._is_everybody:
            return True
        host, port = split_address(addr)
        if format_address(host.lower(), port) in self._addrs:
            return True
        # A host name is in no network: whoever answers for the name chooses the address.
        ip = client_ip(host)
        return ip is not None and any(ip in network for network in self._networks)


@lru_cache(maxsize=256)
def plain_peers(text: str) -> PlainPeers:
    """The servers that ``text`` names; none when it is empty. ValueError says what to give."""
    return PlainPeers(text)


def check_named(text: str) -> None:
    """ValueError unless ``text`` names servers one by one or by networks: ``*`` alone would trust all servers."""
    if text.strip() == EVERYWHERE:
        raise ValueError(f"{EVERYWHERE} would be every server that anybody registers: {_FORMS}")
    plain_peers(text)


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise ValueError(f"{error}: {_FORMS}") from None


def _address(text: str) -> str:
    try:
        host, port = split_address(text)
    except ValueError as error:
        raise ValueError(f"{error}: {_FORMS}") from None
    return format_address(host.lower(), port)

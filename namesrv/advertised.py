"""Which address of a broker a client is given: a broker may advertise other addresses to some networks. Pure.

Answers are otherwise the same for all clients, so the choice is a separate step after an answer is made. When no broker
advertises addresses there is no such step: `choice` returns None.
Neighbours: routes.py keeps this up to date; handlers.py applies the choice to 105 and 106.
"""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address

from skylark.mqcommon.addresses import AdvertisedAddress, client_ip
from skylark.remoting.protocol.requests.routes import BrokerData, TopicRouteData


class Advertised:
    """The addresses that the live brokers advertise, by the address that they registered."""

    def __init__(self) -> None:
        self._by_addr: dict[str, tuple[AdvertisedAddress, ...]] = {}

    def put(self, broker_addr: str, found: tuple[AdvertisedAddress, ...]) -> bool:
        """Store what a broker that registers advertises; returns whether anything has changed."""
        if self._by_addr.get(broker_addr, ()) == found:
            return False
        if found:
            self._by_addr[broker_addr] = found
        else:
            del self._by_addr[broker_addr]
        return True

    def drop(self, broker_addr: str) -> tuple[AdvertisedAddress, ...]:
        """Remove a broker that has gone; returns what it advertised."""
        return self._by_addr.pop(broker_addr, ())

    def choice(self, remote: str) -> "Choice | None":
        """The choice for a client at ``remote``, host:port; None when there is nothing to choose."""
        if not self._by_addr:
            return None
        ip = client_ip(remote.rpartition(":")[0].strip("[]"))
        return None if ip is None else Choice(self._by_addr, ip)


class Choice:
    """Puts the addresses for one client into an answer."""

    def __init__(self, by_addr: dict[str, tuple[AdvertisedAddress, ...]], ip: IPv4Address | IPv6Address) -> None:
        self._by_addr = by_addr
        self._ip = ip

    def _of(self, addr: str) -> str:
        found = self._by_addr.get(addr, ())
        return next((each.addr for each in found if self._ip in each.network), addr)

    def in_brokers(self, brokers: Iterable[BrokerData]) -> None:
        """Replace the addresses of members."""
        for data in brokers:
            data.broker_addrs = {number: self._of(addr) for number, addr in data.broker_addrs.items()}

    def in_route(self, route: TopicRouteData) -> None:
        """Replace all addresses of brokers."""
        self.in_brokers(route.broker_datas)
        route.filter_server_table = {self._of(addr): table for addr, table in route.filter_server_table.items()}

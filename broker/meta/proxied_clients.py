"""Clients of gRPC proxies, as the proxies name them (7140). In memory only.

They are kept apart from the members of groups in clients.py: they only pop messages, so they get no queues when members
share the queues, no notices, and no offset resets. Tools list them with other clients, and a tool's request to such a
consumer goes through its proxy.
Invariant: ``_consumers`` and ``_producers`` mirror ``_of_proxy``.
"""

from collections.abc import Callable, Iterator

from skylark.broker.options import BrokerOptions
from skylark.broker.part import Part
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler
from skylark.remoting.protocol.bounded_body import BodyLimits
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.clients import ConsumerData
from skylark.remoting.protocol.requests.proxied import PROXY_HEART_BEAT, ProxiedClient

# One heartbeat, which is handled in one piece.
HEARTBEAT = BodyLimits(max_bytes=512 * 1024, max_entries=20_000)
# Each client takes some 2 KB. Further clients are not listed; they send and receive all the same.
MAX_CLIENTS = 100_000
# Creating a group and its retry topic takes about 100 µs.
MAX_NEW_GROUPS = 50

_Key = tuple[Channel, str]


@lazy_dataclass(slots=True)
class Proxied:
    """One client; ``channel`` leads to its proxy."""

    channel: Channel
    client: ProxiedClient
    heard_ms: int

    @property
    def client_id(self) -> str:
        return self.client.client_id


class ProxiedClients:
    """All clients of gRPC proxies. Times are in ms, of one clock, preferably a monotonic one."""

    def __init__(self) -> None:
        self._of_proxy: dict[Channel, dict[str, Proxied]] = {}
        self._consumers: dict[str, dict[_Key, Proxied]] = {}
        self._producers: dict[str, dict[_Key, Proxied]] = {}
        self.count = 0

    def consumers(self, group: str) -> list[tuple[Proxied, ConsumerData]]:
        """The members of a consumer group, each with its part of the heartbeat; a client of two proxies counts once."""
        members = {one.client_id: one for one in self._consumers.get(group, {}).values()}
        return [
            (one, data) for one in members.values() for data in one.client.consumer_data_set if data.group_name == group
        ]

    def all_consumers(self) -> Iterator[tuple[str, Proxied, ConsumerData]]:
        """The members of all consumer groups, as `consumers`."""
        for group in list(self._consumers):
            for one, data in self.consumers(group):
                yield group, one, data

    def producers(self, group: str) -> list[Proxied]:
        """The members of a producer group; a client of two proxies counts once."""
        return list({one.client_id: one for one in self._producers.get(group, {}).values()}.values())

    def all_producers(self) -> Iterator[tuple[str, Proxied]]:
        """The members of all producer groups."""
        for group in list(self._producers):
            for one in self.producers(group):
                yield group, one

    def find(self, group: str, client_id: str) -> Proxied | None:
        """The member of a consumer group with this id."""
        return next((one for one in self._consumers.get(group, {}).values() if one.client_id == client_id), None)

    def register(self, channel: Channel, client: ProxiedClient, now_ms: int) -> bool:
        """Add a client of the proxy at ``channel``, or renew it. Returns False when there are too many clients."""
        known = self._of_proxy.get(channel, {}).get(client.client_id)
        if known is not None and known.client == client:
            known.heard_ms = now_ms
            return True
        if known is None and self.count >= MAX_CLIENTS:
            return False
        self.forget(channel, client.client_id)
        one = Proxied(channel, client, now_ms)
        self._of_proxy.setdefault(channel, {})[client.client_id] = one
        self.count += 1
        for data in client.consumer_data_set:
            self._consumers.setdefault(data.group_name, {})[channel, client.client_id] = one
        for group in client.producer_groups:
            self._producers.setdefault(group, {})[channel, client.client_id] = one
        return True

    def forget(self, channel: Channel, client_id: str) -> None:
        """Remove a client that has left the proxy."""
        clients = self._of_proxy.get(channel, {})
        one = clients.pop(client_id, None)
        if one is None:
            return
        self.count -= 1
        if not clients:
            del self._of_proxy[channel]
        for data in one.client.consumer_data_set:
            _leave(self._consumers, data.group_name, (channel, client_id))
        for group in one.client.producer_groups:
            _leave(self._producers, group, (channel, client_id))

    def close(self, channel: Channel) -> None:
        """Remove the clients of a proxy whose connection has closed; they will use another proxy."""
        for client_id in list(self._of_proxy.get(channel, ())):
            self.forget(channel, client_id)

    def expire(self, oldest_ms: int) -> None:
        """Forget the clients that no heartbeat has named since ``oldest_ms``."""
        for channel, clients in list(self._of_proxy.items()):
            for client_id, one in list(clients.items()):
                if one.heard_ms < oldest_ms:
                    self.forget(channel, client_id)


def _leave(table: dict[str, dict[_Key, Proxied]], group: str, key: _Key) -> None:
    # A heartbeat may name a group twice, so the client may have been removed from it already.
    members = table.get(group, {})
    members.pop(key, None)
    if not members:
        table.pop(group, None)


class ProxyHandlers(Part):
    """Takes the heartbeats of proxies. ``make_group``: creates a consumer group, where that is allowed."""

    tick_interval_ms = 10_000

    def __init__(
        self,
        proxied: ProxiedClients,
        make_group: Callable[[ConsumerData], object],
        is_known: Callable[[str], bool],
        options: BrokerOptions,
        clock: Clock,
    ) -> None:
        self._proxied = proxied
        self._make_group = make_group
        self._is_known = is_known
        self._options = options
        self._clock = clock

    def handlers(self) -> dict[int, Handler]:
        return {PROXY_HEART_BEAT.code: self.heartbeat}

    def heartbeat(self, channel: Channel, request: Command) -> Command:
        """7140: the clients that a proxy serves, and those that have left it."""
        data = PROXY_HEART_BEAT.body(request, HEARTBEAT)
        now_ms = self._clock.monotonic_ms()
        for client_id in data.left:
            self._proxied.forget(channel, client_id)
        if not all(client.client_id for client in data.clients):
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, "the heartbeat has a client without an id")
        listed = [client for client in data.clients if self._proxied.register(channel, client, now_ms)]
        self._make_groups(listed)
        if len(listed) < len(data.clients):
            text = f"this broker lists {MAX_CLIENTS} clients of proxies already"
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, text)
        return request.respond()

    def _make_groups(self, clients: list[ProxiedClient]) -> None:
        """Create missing groups, at most MAX_NEW_GROUPS; the next heartbeat creates more."""
        wanted = {data.group_name: data for client in clients for data in client.consumer_data_set}
        new = [data for name, data in wanted.items() if not self._is_known(name)]
        for data in new[:MAX_NEW_GROUPS]:
            self._make_group(data)

    def channel_closed(self, channel: Channel) -> None:
        """Remove the clients if the channel was a proxy's."""
        self._proxied.close(channel)

    def tick(self) -> None:
        """Forget the clients that their proxies do not name any more."""
        self._proxied.expire(self._clock.monotonic_ms() - self._options.channel_expired_timeout)

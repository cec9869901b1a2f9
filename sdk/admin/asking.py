"""Which servers `Admin` asks: one server, each NameServer, or the brokers of a topic, a group or a cluster."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from mqcommon.errors import RouteNotFound, UserError
from mqcommon.names import retry_topic
from remoting.protocol.requests.routes import BrokerData
from sdk import namesrv_api
from sdk.endpoint import Endpoint
from sdk.fanout import Answers, ask_all
from sdk.nameserver_source import check_nameservers
from sdk.routes import reader_of
from sdk.shared import ClientHandle

T = TypeVar("T")


class Asking:
    """Sends requests to servers. Of each broker set, the master is asked, or a slave if there is no master."""

    def __init__(self, client: ClientHandle) -> None:
        self._client = client

    def at(self, addr: str) -> Endpoint:
        return self._client.at(addr)

    async def namesrv(self, call: Callable[[Endpoint], Awaitable[T]]) -> T:
        return await self._client.name_servers.ask(call, self._client.timeout_ms)

    async def each_namesrv(
        self, call: Callable[[Endpoint], Awaitable[T]], addrs: Sequence[str] | None = None
    ) -> Answers[T]:
        given = check_nameservers(addrs or ())
        known = given or await self._client.name_servers.wait_known(self._client.timeout_ms)
        return await self.each(known, call)

    async def each(self, addrs: Iterable[str], call: Callable[[Endpoint], Awaitable[T]]) -> Answers[T]:
        return await ask_all(addrs, lambda addr: call(self.at(addr)))

    async def each_of_topic(
        self, topic: str, call: Callable[[Endpoint], Awaitable[T]], cluster: str | None = None
    ) -> Answers[T]:
        return await self.each(await self.readers_of(topic, cluster), call)

    async def each_of_group(
        self, group: str, topic: str | None, call: Callable[[Endpoint], Awaitable[T]], cluster: str | None = None
    ) -> Answers[T]:
        """Ask the brokers of ``topic``, else those of the group's retry topic (created by its heartbeats), else all."""
        try:
            return await self.each_of_topic(topic or retry_topic(group), call, cluster)
        except RouteNotFound:
            if topic:
                raise
        return await self.each(await self.all_readers(), call)

    async def readers_of(self, topic: str, cluster: str | None) -> dict[str, str]:
        """Address → name of the topic's brokers, or of all brokers of ``cluster`` if it is given.

        As in RocketMQ's tool, ``cluster`` may also be a topic, whose route is used then.
        """
        if cluster is None:
            return _readers((await self._client.fetch_route(topic)).broker_datas)
        info = await self.namesrv(namesrv_api.cluster_info)
        names = info.cluster_addr_table.get(cluster)
        if names is not None:
            return _readers([info.broker_addr_table[name] for name in sorted(names) if name in info.broker_addr_table])
        try:
            return _readers((await self._client.fetch_route(cluster)).broker_datas)
        except RouteNotFound:
            known = ", ".join(sorted(info.cluster_addr_table)) or "none"
            raise UserError(f"there is no cluster {cluster!r}; the NameServer knows: {known}") from None

    async def all_readers(self) -> dict[str, str]:
        return _readers((await self.namesrv(namesrv_api.cluster_info)).broker_addr_table.values())


def _readers(brokers: Iterable[BrokerData]) -> dict[str, str]:
    """Address → name of the master of each broker set, or of a slave if there is no master."""
    return {addr: one.broker_name for one in brokers if (addr := reader_of(one.broker_addrs))}

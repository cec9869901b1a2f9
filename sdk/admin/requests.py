"""The requests of `Admin`: to one server, each NameServer, or the brokers of a topic, a group or a cluster.

`AdminRequests.call` sends one request. `header_of` and `body_of` turn a request's description into a question for the
other methods: the answer's header or body, decoded while errors are still collected by server.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar, overload

from skylark.mqcommon.errors import RouteNotFound, UserError
from skylark.mqcommon.names import retry_topic
from skylark.remoting.net.address_server import check_nameservers
from skylark.remoting.net.call import call
from skylark.remoting.protocol.request import AB, AH, Answer, B, H, Request
from skylark.remoting.protocol.requests.routes import BrokerData
from skylark.sdk import namesrv_api
from skylark.sdk.client import ClientHandle
from skylark.sdk.endpoint import Answers, Endpoint, ask_all
from skylark.sdk.routes import reader_of

T = TypeVar("T")
Ask = Callable[[Endpoint], Awaitable[T]]


class AdminRequests:
    """Sends requests to servers. Of each broker set, the master is asked, or a slave if there is no master."""

    def __init__(self, client: ClientHandle) -> None:
        self._client = client

    def at(self, addr: str) -> Endpoint:
        return self._client.at(addr)

    # --- one server

    @overload
    async def call(self, addr: str, what: Request[None, None, AH, AB]) -> Answer[AH, AB]: ...

    @overload
    async def call(self, addr: str, what: Request[H, None, AH, AB], header: H) -> Answer[AH, AB]: ...

    @overload
    async def call(self, addr: str, what: Request[H, B, AH, AB], header: H, body: B) -> Answer[AH, AB]: ...

    async def call(
        self, addr: str, what: Request[Any, Any, AH, AB], header: Any = None, body: Any = None
    ) -> Answer[AH, AB]:
        """The answer of the server at ``addr``; BrokerError when it has a code that ``what`` does not accept."""
        return await call(self.at(addr), what, header, body)

    # --- NameServers

    async def namesrv(self, ask: Ask[T]) -> T:
        """The answer of one NameServer. The NameServer must know the request: NotNameServer otherwise."""
        return await self._client.name_servers.ask(namesrv_api.every_namesrv_knows(ask), self._client.timeout_ms)

    async def each_namesrv(self, ask: Ask[T], addrs: Sequence[str] | None = None) -> Answers[T]:
        """The answers of all NameServers, or of ``addrs``. Each must know the request: NotNameServer otherwise."""
        return await self.each(await self.namesrvs(addrs), namesrv_api.every_namesrv_knows(ask))

    async def namesrvs(self, addrs: Sequence[str] | None = None) -> Sequence[str]:
        """``addrs`` if they are given, else the addresses of all NameServers."""
        return check_nameservers(addrs or ()) or await self._client.name_servers.wait_known(self._client.timeout_ms)

    # --- brokers

    async def each(self, addrs: Iterable[str], ask: Ask[T]) -> Answers[T]:
        return await ask_all(addrs, lambda addr: ask(self.at(addr)))

    async def each_of_topic(self, topic: str, ask: Ask[T], cluster: str | None = None) -> Answers[T]:
        return await self.each(await self.readers_of(topic, cluster), ask)

    async def each_of_group(self, group: str, topic: str | None, ask: Ask[T], cluster: str | None = None) -> Answers[T]:
        """Ask the brokers of ``topic``, else of the group's retry topic (made by its heartbeats), else all brokers."""
        try:
            return await self.each_of_topic(topic or retry_topic(group), ask, cluster)
        except RouteNotFound:
            if topic:
                raise
            # A group that only pulls sends no heartbeats, so it has no retry topic: any broker may have its offsets.
        readers = await self.all_readers()
        if not readers:
            raise UserError(
                "no broker is registered: start one with the address of these NameServers as its namesrvAddr"
            )
        return await self.each(readers, ask)

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


def header_of(what: Request[H, None, AH, AB], header: H) -> Ask[AH]:
    """Asks a server for the header of its answer."""

    async def ask(at: Endpoint) -> AH:
        return (await call(at, what, header)).header()

    return ask


def body_of(what: Request[H, None, AH, AB], header: H) -> Ask[AB]:
    """Asks a server for the body of its answer."""

    async def ask(at: Endpoint) -> AB:
        return (await call(at, what, header)).body()

    return ask


def _readers(brokers: Iterable[BrokerData]) -> dict[str, str]:
    """Address → name of the master of each broker set, or of a slave if there is no master."""
    return {addr: one.broker_name for one in brokers if (addr := reader_of(one.broker_addrs))}

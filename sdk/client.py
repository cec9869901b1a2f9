"""`ClientInstance`: what producers, consumers and admin tools share.

It owns the connections, the NameServers, the route cache and the heartbeats, and two tasks: one asks for the routes in
use again every 30 s, one sends heartbeats every 30 s and at once when there is something new to tell. Both outlive any
failure of a server. Routes are asked for once however many tasks wait for them; what could not be refreshed stays.
"""

import logging
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from math import inf
from random import Random
from types import TracebackType
from typing import Self

import trio

from mqcommon.backoff import Backoff
from mqcommon.errors import (
    BrokerError,
    NoNameServer,
    RemotingError,
    RouteNotFound,
    SkylarkError,
)
from mqcommon.signal import Signal
from remoting.net.client import RemotingClient, open_client
from remoting.protocol.bodies.route import TopicRouteData
from remoting.protocol.codes import ResponseCode
from sdk import namesrv_api
from sdk.endpoint import DEFAULT_TIMEOUT_MS, Endpoint
from sdk.fanout import ask_all
from sdk.identity import make_client_id
from sdk.membership import Membership
from sdk.nameservers import NameServers, parse_nameservers
from sdk.routes import RouteCache, TopicRoute, make_route
from sdk.runtime import Home, check_trio, survived

logger = logging.getLogger(__name__)

ROUTE_POLL_INTERVAL_S = 30
HEARTBEAT_INTERVAL_S = 30
# Brokers register at a NameServer that has started, one after the other, within so long.
REGISTERING_S = 5
# Between the tries of what is tried until its time is over.
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 0.5
# After a heartbeat that a broker did not answer.
HEARTBEAT_RETRY_S = 5
GOODBYE_TIMEOUT_S = 1
# A NameServer that has just started knows no route yet, or says that it is not ready: another may.
_NOT_KNOWN = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SYSTEM_ERROR)


class _Flight:
    """One request for a route, and those who wait for its end."""

    __slots__ = ("done", "error", "route")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.route: TopicRoute | None = None
        self.error: Exception = SkylarkError("the client was closed")


class ClientInstance:
    """One client of a cluster; use it in ``async with``, from the task that opened it or from its children.

    ``routes`` may be read at any time; `route` and `refresh` ask. ``membership`` is told which groups are here. With
    ``needs_nameserver`` a client without NameServers is refused at once, else when it has to ask one.
    """

    def __init__(
        self,
        nameserver: str | None = None,
        *,
        request_timeout_ms: float = DEFAULT_TIMEOUT_MS,
        random: Random | None = None,
        needs_nameserver: bool = True,
    ) -> None:
        self.nameserver_addrs = parse_nameservers(nameserver, required=needs_nameserver)
        self.random = random or Random()
        self.backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S, self.random)
        self.timeout_ms = request_timeout_ms
        self._stack = AsyncExitStack()
        self._remoting: RemotingClient | None = None
        self._nursery: trio.Nursery | None = None
        self._home: Home | None = None
        self._name_servers: NameServers | None = None
        self._flights: dict[str, _Flight] = {}
        # Until then an unknown topic may be one whose broker is still registering.
        self._settled_at = -inf
        # What each topic's route was found to lack when that was last logged.
        self._skipped: dict[str, tuple[str, ...]] = {}
        self._news = Signal()
        self.routes = RouteCache()
        self.membership = Membership()
        # The home's, for the hot path; see `check_open`.
        self.forks = -1

    # --- life

    async def __aenter__(self) -> Self:
        if self._nursery is not None:
            raise RuntimeError("this client is open already; make another")
        check_trio()
        self._home = Home()
        self.forks = self._home.forks
        # Only now, since processes that were forked from the one that made this must not have the same.
        self.membership.client_id = make_client_id()
        remoting = open_client(self.membership.handlers(), on_lost=self.membership.lost)
        self._remoting = await self._stack.enter_async_context(remoting)
        self._name_servers = NameServers(self._remoting, self.nameserver_addrs, self.random)
        self._nursery = await self._stack.enter_async_context(trio.open_nursery())
        self._nursery.start_soon(self._poll_routes)
        self._nursery.start_soon(self._beat)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the groups and close. An error of the block stays as it is: it is not put into a group."""
        assert self._nursery is not None and self._home is not None
        if self._home.is_here:
            with self._goodbye():
                await self.membership.goodbye(self.routes.addrs(), self.at)
        self._nursery.cancel_scope.cancel()
        try:
            await self._stack.aclose()
        except BaseExceptionGroup as group:
            if error is None or group.split(trio.Cancelled)[1] is not None:
                raise
        finally:
            self.forks = -1

    # --- servers

    @property
    def client_id(self) -> str:
        """What brokers list this client under; empty before it is open."""
        return self.membership.client_id

    def check_open(self) -> None:
        """RuntimeError when this client is not open, or was opened before a fork; SkylarkError when it was closed."""
        if self._home is None:
            check_trio()
            raise RuntimeError("open the client with 'async with' first")
        self._home.check()
        if self.forks != self._home.forks:
            raise SkylarkError("the client was closed")

    @property
    def remoting(self) -> RemotingClient:
        """The connections."""
        self.check_open()
        assert self._remoting is not None
        return self._remoting

    @property
    def name_servers(self) -> NameServers:
        """The NameServers."""
        self.check_open()
        assert self._name_servers is not None
        return self._name_servers

    @property
    def nursery(self) -> trio.Nursery:
        """Where tasks live that end with this client."""
        self.check_open()
        assert self._nursery is not None
        return self._nursery

    def at(self, addr: str, timeout_ms: float | None = None, *, broker_name: str = "") -> Endpoint:
        """The server at ``addr``; with ``broker_name`` only if it is that broker."""
        return Endpoint(self.remoting, addr, self.timeout_ms if timeout_ms is None else timeout_ms, broker_name)

    # --- routes

    async def route(self, topic: str) -> TopicRoute:
        """The topic's route, from the cache if it is there; RouteNotFound when no NameServer knows it."""
        return self.routes.get(topic) or await self.refresh(topic)

    async def refresh(self, topic: str) -> TopicRoute:
        """The topic's route, asked for now; all who ask meanwhile share one request.

        Raises RouteNotFound, or NoNameServer when none answers; the cached route stays then.
        """
        flight = self._start_flight(topic)
        await flight.done.wait()
        if flight.route is None:
            raise flight.error
        return flight.route

    async def fetch_route(self, topic: str, timeout_ms: float | None = None) -> TopicRouteData:
        """What the NameServers say about the topic, not from the cache."""
        timeout_ms = self.timeout_ms if timeout_ms is None else timeout_ms
        try:
            return await self.name_servers.ask(
                lambda at: namesrv_api.topic_route(at, topic), timeout_ms, not_known=_NOT_KNOWN
            )
        except BrokerError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            reason = f"no NameServer of {self.name_servers.text} knows it; mqadmin updateTopic creates topics"
            raise RouteNotFound(topic, reason) from None

    def is_elsewhere(self, broker_name: str, addr: str) -> None:
        """Another broker listens at ``addr``: forget the address, and ask again for the routes that had it."""
        topics = self.routes.forget_address(broker_name, addr)
        if topics:
            found = self.remoting.broker_name_at(addr) or "another broker"
            logger.warning("%s listens at %s, where %s was; its routes are asked for again", found, addr, broker_name)
        for topic in topics:
            self._start_flight(topic)

    def _start_flight(self, topic: str) -> _Flight:
        nursery = self.nursery
        flight = self._flights.get(topic)
        if flight is None:
            flight = self._flights[topic] = _Flight()
            nursery.start_soon(self._fly, topic, flight)
        return flight

    def _is_elsewhere(self, broker_name: str, addr: str) -> bool:
        """Whether the connection to ``addr`` is known to lead to another broker."""
        return self.remoting.broker_name_at(addr) not in ("", broker_name)

    async def _fly(self, topic: str, flight: _Flight) -> None:
        try:
            flight.route = self.routes.put(make_route(topic, await self.fetch_route(topic), self._is_elsewhere))
            self._log_skipped(flight.route)
            self.tell_brokers()
        except RouteNotFound as error:
            error.is_passing = self.routes.get(topic) is not None or await self._are_starting()
            flight.error = error
        except BrokerError as error:
            # What a NameServer says that is not ready yet.
            is_starting = error.code == ResponseCode.SYSTEM_ERROR
            flight.error = RouteNotFound(topic, str(error), is_passing=True) if is_starting else error
        except RemotingError as error:
            self._settled_at = trio.current_time() + REGISTERING_S
            flight.error = NoNameServer(self.name_servers.text, str(error))
            flight.error.__cause__ = error
        except Exception as error:  # raised in those who wait; it must not end the client
            flight.error = error
        finally:
            del self._flights[topic]
            flight.done.set()

    async def _are_starting(self) -> bool:
        """Whether NameServers or brokers are just starting, so that an unknown topic may be known soon."""
        try:
            brokers = (await self.name_servers.ask(namesrv_api.cluster_info, self.timeout_ms)).broker_addr_table
        except SkylarkError:
            brokers = {}
        if not brokers:
            self._settled_at = trio.current_time() + REGISTERING_S
        return trio.current_time() < self._settled_at

    def _log_skipped(self, route: TopicRoute) -> None:
        if self._skipped.get(route.topic, ()) != route.skipped:
            self._skipped[route.topic] = route.skipped
            if route.skipped:
                logger.warning(
                    "the route of topic %s has what cannot be used: %s", route.topic, "; ".join(route.skipped)
                )

    async def _poll_routes(self) -> None:
        while True:
            await trio.sleep(ROUTE_POLL_INTERVAL_S)
            with survived("asking for routes"):
                answers = await ask_all(self.routes.topics(), self.refresh)
                for topic, error in answers.errors.items():
                    logger.warning("the route of topic %s stays as it was: %s", topic, error)

    # --- heartbeats

    def tell_brokers(self) -> None:
        """Send heartbeats now if a broker in the routes does not know what is true of this client's groups."""
        if self.membership.new_among(self._members_addrs()):
            self._news.set()

    async def leave_producer(self, group: str) -> None:
        """A producer of ``group`` has stopped; brokers are told when it was the last one here."""
        if self.membership.leave_producer(group):
            with self._goodbye():
                await self.membership.unregister(self.routes.addrs(), self.at, producer_group=group)

    async def leave_consumer(self, group: str) -> None:
        """The consumer of ``group`` has stopped; brokers are told."""
        self.membership.leave_consumer(group)
        with self._goodbye():
            await self.membership.unregister(self.routes.addrs(), self.at, consumer_group=group)

    @contextmanager
    def _goodbye(self) -> Iterator[None]:
        """Tell brokers, also when cancelled, as far as they answer in time."""
        with survived("leaving groups"), trio.CancelScope(shield=True) as scope:
            scope.deadline = trio.current_time() + GOODBYE_TIMEOUT_S
            yield

    def _members_addrs(self) -> list[str]:
        return self.membership.wanted_addrs(self.routes.masters(), self.routes.addrs())

    async def _beat(self) -> None:
        answered = True
        while True:
            with trio.move_on_after(HEARTBEAT_INTERVAL_S if answered else HEARTBEAT_RETRY_S):
                await self._news.wait()
            answered = False
            with survived("a heartbeat"):
                answered = await self.membership.beat(self._members_addrs(), self.at)

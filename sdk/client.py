"""The connections, routes and heartbeats that producers, consumers and admin tools share.

`ClientInstance` runs two tasks. One refreshes the cached routes every 30 s; a route that cannot be refreshed is kept.
The other sends heartbeats every 30 s, and at once after a change. Both tasks go on when servers fail. All tasks that
need the same route share one request for it. `Client` is one `ClientInstance` shared by producers, consumers and
admins. `ClientHandle` is one user of an instance: it owns the tasks, the timeout and the group of that user, and has
its own lifetime. Its tasks are children of one task of the instance. So the tasks end with the handle, or with the
instance if the instance closes first, and an unexpected error in a task ends the instance with all of its users.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import AsyncExitStack, contextmanager
from math import inf
from random import Random
from types import TracebackType
from typing import Any, Self, TypeVar

import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.errors import (
    BrokerError,
    ConnectFailed,
    InvalidArgument,
    NoNameServer,
    NotRocketMQ,
    RemotingError,
    RouteNotFound,
    SkylarkError,
    WrongBroker,
)
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import PERM_READ_WRITE, is_light
from skylark.mqcommon.shielded_nursery import shielded_nursery
from skylark.mqcommon.signal import Signal
from skylark.remoting.net import sockets
from skylark.remoting.net.address_server import AddressServer
from skylark.remoting.net.client import RemotingClient, open_client
from skylark.remoting.net.tls.settings import Tls
from skylark.remoting.net.transport import Connect, Shortcut
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.routes import TOPIC_IS_AWAY, QueueData, TopicRouteData
from skylark.remoting.protocol.signature import Credentials
from skylark.sdk import namesrv_api
from skylark.sdk.broker_requests import BrokerRequests, Replies
from skylark.sdk.checked import Milliseconds, checked_methods
from skylark.sdk.credentials import GivenCredentials, GivenTls, check_credentials, check_tls
from skylark.sdk.endpoint import DEFAULT_TIMEOUT_MS, Endpoint, ask_all
from skylark.sdk.loop_blocks import watch_trio
from skylark.sdk.loop_thread import closed
from skylark.sdk.membership import GroupMember, Membership, TransactionChecker
from skylark.sdk.nameservers import (
    NameServers,
    NameServerSource,
    find_nameservers,
    follow_address_server,
    none_given,
)
from skylark.sdk.namespaces import Names, Namespace
from skylark.sdk.route_watch import RouteWatch
from skylark.sdk.routes import RouteCache, TopicRoute, make_route, with_unheard
from skylark.sdk.runtime import FORKS, AsyncOnly, Home, check_loop, keep_freed_memory, make_client_id, survived
from skylark.sdk.topic_names import TopicNames

logger = logging.getLogger(__name__)

ROUTE_POLL_INTERVAL_S = 30
HEARTBEAT_INTERVAL_S = 30
# All brokers count as registered with a NameServer this long after its start; for a client that knew no broker before,
# this long after the first registration.
REGISTERING_S = 5
REGISTERING_WITH_FIRST_S = 0.5
# Pauses between retries grow from the first to the longest.
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 0.5
# How many topics without a route are remembered.
MOST_MISSING = 1_000
# How many queues' masters a handle remembers.
MOST_MASTERS = 1_000
# The pause after a heartbeat that a broker did not answer.
HEARTBEAT_RETRY_S = 5
# How long unregistering may take; afterwards the broker notices the closed connection.
LEAVE_TIMEOUT_S = 0.15
# The beginning of the reason why there is no route for a topic that exists.
_AWAY = "the brokers that have it are away: "
# Answers of a NameServer that has just started: it knows no route yet, or is not ready. Another NameServer is asked.
_NOT_KNOWN = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SYSTEM_ERROR)


class _RouteRequest:
    """One request for a route, which several tasks may wait for."""

    __slots__ = ("done", "error", "route")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.route: TopicRoute | None = None
        self.error: Exception = closed()


class ClientInstance:
    """One client of a cluster; use it in ``async with``, from the task that opened it or from its children.

    ``routes`` is the cache; `route` and `refresh` ask the NameServers. ``membership`` holds the groups of this client.
    Without NameServers, the constructor raises UserError if ``needs_nameserver``, else the first request to a
    NameServer does.
    """

    def __init__(
        self,
        nameserver: NameServerSource | None = None,
        *,
        request_timeout_ms: float = DEFAULT_TIMEOUT_MS,
        random: Random | None = None,
        needs_nameserver: bool = True,
        namespace: str = "",
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        shortcut: Shortcut | None = None,
    ) -> None:
        """``shortcut``: how a proxy in a broker's process reaches that broker."""
        # The NameServers as the caller gave them; an address server may list others later.
        self.given_nameservers = find_nameservers(nameserver, required=needs_nameserver)
        self.namespace = namespace
        self._credentials = credentials
        self._tls = tls
        self._shortcut = shortcut
        self.random = random or Random()
        self.backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S, self.random)
        self.timeout_ms = request_timeout_ms
        self._stack = AsyncExitStack()
        self._remoting: RemotingClient | None = None
        self._nursery: trio.Nursery | None = None
        self._home: Home | None = None
        self._name_servers: NameServers | None = None
        self._route_requests: dict[str, _RouteRequest] = {}
        # Until this time brokers may still be registering, so an unknown topic may become known.
        self._settled_at = -inf
        # After this time every broker that this client knew counts as registered again.
        self._are_back_at = inf
        # Topic → the unusable parts of its route that were logged last.
        self._skipped: dict[str, tuple[str, ...]] = {}
        # The latest topics that no NameServer knew; an ordered set.
        self._missing: dict[str, None] = {}
        self._watch: RouteWatch | None = None
        #: Called with each topic whose route has changed.
        self.on_new_route: list[Callable[[str], None]] = []
        self._heartbeat_due = Signal()
        # Whether a task looks for what blocks the event loop.
        self._is_watched = False
        self.routes = RouteCache()
        self.topic_names = TopicNames()
        self.membership = Membership()
        self.replies = Replies(SystemClock())
        self._broker_requests = BrokerRequests(self.membership, self.replies)
        # A copy of `Home.forks` while the client is open, for the hot path; see `check_open`.
        self.forks = -1

    # --- life

    @enable_ki_protection
    async def __aenter__(self) -> Self:
        if self._nursery is not None:
            raise RuntimeError("this client is open already; make another")
        check_loop("trio")
        keep_freed_memory()
        self._home = Home()
        self.forks = self._home.forks
        # Created here and not in the constructor: processes that were forked in between must not share an id.
        self.membership.client_id = make_client_id()
        connect = sockets.connect if self._tls is None else await trio.to_thread.run_sync(_encrypted, self._tls)
        remoting = open_client(
            self._broker_requests.handlers(),
            on_lost=self._lost,
            credentials=self._credentials,
            connect=connect if self._shortcut is None else self._shortcut(connect),
        )
        async with AsyncExitStack() as stack:
            self._remoting = await stack.enter_async_context(remoting)
            self._remoting.answers_at_once = self._shortcut is not None
            known = self.given_nameservers
            self._name_servers = NameServers(self._remoting, known, self.random)
            self._nursery = await stack.enter_async_context(shielded_nursery())
            if known.url:
                server = AddressServer(known.url)
                self._nursery.start_soon(follow_address_server, server, self._name_servers.replace, self.backoff)
            self._nursery.start_soon(self._poll_routes)
            self._watch = RouteWatch(
                self._name_servers, self._remoting, self._watched_topics, self.refresh, self.timeout_ms
            )
            self._nursery.start_soon(self._watch.run)
            self._nursery.start_soon(self._beat)
            self._broker_requests.nursery = self._nursery
            self._stack = stack.pop_all()
        return self

    @enable_ki_protection
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the groups and close. An error of the ``async with`` block is raised as it is, not in a group."""
        assert self._nursery is not None and self._home is not None
        try:
            if self._home.is_here:
                # Before the tasks end: brokers learn of the leave at once, and give the queues to other members.
                with self._leaving():
                    await self.membership.leave_all(self.routes.addrs(), self.at)
        finally:
            self._nursery.cancel_scope.cancel()
            await self._close(error)

    async def _close(self, error: BaseException | None) -> None:
        """Wait for the tasks, and close the connections. ``error``: what the user's block has raised."""
        try:
            await self._stack.aclose()
        except BaseExceptionGroup as group:
            # The client's tasks raise only bugs. When the block has raised an error, the caller needs to see that
            # error; a bug is logged in any case.
            if error is None or group.split(trio.Cancelled)[1] is not None:
                raise
        finally:
            self.forks = -1

    # --- servers

    @property
    def client_id(self) -> str:
        """The id under which brokers list this client; empty before it is open."""
        return self.membership.client_id

    def check_open(self) -> None:
        """Raise RuntimeError unless this client is open in this process; SkylarkError when it was closed."""
        if self._home is None:
            check_loop("trio")
            raise RuntimeError("open the client with 'async with' first")
        self._home.check()
        if self.forks != self._home.forks:
            raise closed()

    @property
    def remoting(self) -> RemotingClient:
        """The connections."""
        self.check_open()
        assert self._remoting is not None
        return self._remoting

    @property
    def nameserver_addrs(self) -> tuple[str, ...]:
        """The addresses of the NameServers, as far as they are known now."""
        servers = self._name_servers
        return self.given_nameservers.addrs if servers is None else servers.addrs

    @property
    def name_servers(self) -> NameServers:
        """The NameServers."""
        self.check_open()
        assert self._name_servers is not None
        return self._name_servers

    @property
    def nursery(self) -> trio.Nursery:
        """The nursery for tasks that end with this client."""
        self.check_open()
        assert self._nursery is not None
        return self._nursery

    def watch_loop(self) -> None:
        """Log from now on when something blocks this event loop, as handlers in it may do."""
        if not self._is_watched:
            self._is_watched = True
            self.nursery.start_soon(watch_trio)

    def at(self, addr: str, timeout_ms: float | None = None, *, broker_name: str = "") -> Endpoint:
        """The server at ``addr``; with ``broker_name``, requests fail when another broker listens there."""
        return Endpoint(self.remoting, addr, self.timeout_ms if timeout_ms is None else timeout_ms, broker_name)

    # --- routes

    async def route(self, topic: str) -> TopicRoute:
        """The topic's route, from the cache if it is there; RouteNotFound when no NameServer knows it."""
        return self.routes.get(topic) or await self.refresh(topic)

    async def refresh(self, topic: str) -> TopicRoute:
        """The topic's route from a NameServer; concurrent calls share one request.

        Raises RouteNotFound, or NoNameServer when no NameServer answers. The cached route is then kept.
        """
        request = self._request_route(topic)
        await request.done.wait()
        if request.route is None:
            raise request.error
        return request.route

    async def fetch_route(self, topic: str, timeout_ms: float | None = None) -> TopicRouteData:
        """The topic's route as a NameServer gives it, not from the cache."""
        timeout_ms = self.timeout_ms if timeout_ms is None else timeout_ms
        if is_light(topic):
            return await self._light_route(timeout_ms)
        try:
            return await self.name_servers.ask(
                lambda at: namesrv_api.topic_route(at, topic), timeout_ms, not_known=_NOT_KNOWN
            )
        except BrokerError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            reason = (
                f"no NameServer of {self.name_servers.text} knows it; mqadmin updateTopic creates topics, and so does "
                "the first send where brokers have autoCreateTopicEnable=true"
            )
            if away := error.remark.partition(TOPIC_IS_AWAY)[2]:
                reason = _AWAY + away
            raise RouteNotFound(topic, reason) from None

    async def _light_route(self, timeout_ms: float) -> TopicRouteData:
        """The route of a light queue, which no NameServer knows: every broker may have it."""
        brokers = (await self.name_servers.ask(namesrv_api.cluster_info, timeout_ms)).broker_addr_table
        return TopicRouteData([QueueData(name, 1, 1, PERM_READ_WRITE) for name in brokers], list(brokers.values()))

    def drop_address(self, broker_name: str, addr: str) -> None:
        """Drop the address ``addr`` of a broker, as another listens there, and refresh the routes that had it.

        Does nothing when ``broker_name`` is known to listen there: then it refused a queue, perhaps of a static topic.
        """
        if self.remoting.broker_name_at(addr) == broker_name:
            return
        # Addresses are reused, as in a cluster of containers: sends by an old route would reach another broker.
        topics = self.routes.forget_address(broker_name, addr)
        if topics:
            found = self.remoting.broker_name_at(addr) or "another broker"
            logger.warning(
                "%s listens at %s, the address of %s; refreshing the routes with it", found, addr, broker_name
            )
        for topic in topics:
            self._request_route(topic)

    def _request_route(self, topic: str) -> _RouteRequest:
        nursery = self.nursery
        request = self._route_requests.get(topic)
        if request is None:
            request = self._route_requests[topic] = _RouteRequest()
            nursery.start_soon(self._run_request, topic, request)
        return request

    def _is_other_broker(self, broker_name: str, addr: str) -> bool:
        """Whether the connection to ``addr`` is known to lead to another broker."""
        return self.remoting.broker_name_at(addr) not in ("", broker_name)

    @enable_ki_protection
    async def _run_request(self, topic: str, request: _RouteRequest) -> None:
        try:
            # A route that is equal to the cached one is not replaced, so callers can tell by ``is`` whether it has
            # changed.
            data = await self.fetch_route(topic)
            known = self.routes.get(topic)
            request.route = self.routes.put(with_unheard(make_route(topic, data, self._is_other_broker), known))
            self._log_skipped(request.route)
            self.tell_brokers()
            was_missing = topic in self._missing
            self._missing.pop(topic, None)
            # The first route of a topic is no change: the requesting task gets it as its answer.
            if request.route is not known and (known is not None or was_missing):
                for tell in self.on_new_route:
                    tell(topic)
        except RouteNotFound as unknown:
            known = self.routes.get(topic)
            self._missing[topic] = None
            if len(self._missing) > MOST_MISSING:
                del self._missing[next(iter(self._missing))]
            # "Unknown" is not final for a topic that was known before, or from servers that may be starting: callers
            # wait and ask again.
            brokers = await self._registered_brokers()
            is_starting = trio.current_time() < self._settled_at
            reason = unknown.reason
            # The names of brokers that are away say more.
            if brokers is not None and not brokers and not reason.startswith(_AWAY):
                reason = f"no broker is registered at {self.name_servers.text}: start one with that as its namesrvAddr"
            is_passing = is_starting or (known is not None and not known.is_guess)
            request.error = RouteNotFound(topic, reason, is_passing=is_passing)
        except BrokerError as error:
            # A NameServer that is not ready yet answers with SYSTEM_ERROR.
            is_starting = error.code == ResponseCode.SYSTEM_ERROR
            request.error = RouteNotFound(topic, str(error), is_passing=True) if is_starting else error
        except (NoNameServer, NotRocketMQ) as error:
            request.error = error
        except RemotingError as error:
            self._note_registered(())
            request.error = NoNameServer(self.name_servers.text, str(error))
            request.error.__cause__ = error
        except Exception as error:  # raised in the waiting tasks; the error must not end the client
            request.error = error
        finally:
            del self._route_requests[topic]
            request.done.set()
            if self._watch is not None:
                self._watch.add(topic)

    def _watched_topics(self) -> list[str]:
        """All topics that this client uses, or would use if they existed. Light queues have no routes."""
        return [topic for topic in dict.fromkeys([*self.routes.topics(), *self._missing]) if not is_light(topic)]

    async def _registered_brokers(self) -> Collection[str] | None:
        """The names of the brokers that the NameServers know now, which is noted; None when none of them says it."""
        try:
            brokers = (await self.name_servers.ask(namesrv_api.cluster_info, self.timeout_ms)).broker_addr_table
        except SkylarkError:
            brokers = None
        self._note_registered(brokers or ())
        return brokers

    def _note_registered(self, brokers: Collection[str]) -> None:
        now = trio.current_time()
        # Three cases: no broker yet, so the NameServers have just started; some brokers, for a client that knew none;
        # all brokers that this client knew are back, so a topic that is unknown now does not exist.
        if not brokers:
            self._settled_at, self._are_back_at = now + REGISTERING_S, inf
        elif not (known := self.routes.broker_names()):
            self._are_back_at = min(self._are_back_at, now + REGISTERING_WITH_FIRST_S)
        elif known <= set(brokers):
            self._are_back_at = min(self._are_back_at, now)

    def is_new(self, topic: str) -> bool:
        """Whether a topic that NameServers do not know is new, and not a topic whose brokers must register again."""
        return self.routes.get(topic) is None and trio.current_time() >= min(self._settled_at, self._are_back_at)

    def _log_skipped(self, route: TopicRoute) -> None:
        if self._skipped.get(route.topic, ()) != route.skipped:
            self._skipped[route.topic] = route.skipped
            if route.skipped:
                logger.warning("unusable parts in the route of topic %s: %s", route.topic, "; ".join(route.skipped))

    @enable_ki_protection
    async def _poll_routes(self) -> None:
        while True:
            await trio.sleep(ROUTE_POLL_INTERVAL_S)
            with survived("refreshing routes"):
                answers = await ask_all(self.routes.topics(), self.refresh)
                for topic, error in answers.errors.items():
                    logger.warning("the route of topic %s cannot be refreshed, keeping the old one: %s", topic, error)

    # --- heartbeats

    def tell_brokers(self) -> None:
        """Send heartbeats now if a broker in the routes has not been sent the current groups of this client."""
        if self.membership.new_among(self._members_addrs()):
            self._heartbeat_due.set()

    async def introduce(self, addrs: list[str]) -> None:
        """Return when the brokers at ``addrs`` know the groups of this client, as far as they answer."""
        if strangers := self.membership.strangers(addrs):
            await self.membership.beat(strangers, self.at)

    async def leave_producer(self, group: str, checking: TransactionChecker | None) -> None:
        """Count a producer of ``group`` out; after this client's last one unregister the group at the brokers."""
        if self.membership.leave_producer(group, checking):
            with self._leaving():
                await self.membership.unregister(self.routes.addrs(), self.at, producer_group=group)

    async def leave_consumer(self, group: str) -> None:
        """Remove the consumer of ``group``, which has stopped, and unregister the group at the brokers."""
        self.membership.leave_consumer(group)
        with self._leaving():
            await self.membership.unregister(self.routes.addrs(), self.at, consumer_group=group)

    @contextmanager
    def _leaving(self) -> Iterator[None]:
        """Let unregistering go on when the task is cancelled, for LEAVE_TIMEOUT_S at most."""
        with survived("leaving groups"), trio.CancelScope(shield=True) as scope:
            scope.deadline = trio.current_time() + LEAVE_TIMEOUT_S
            yield

    def _lost(self, addr: str) -> None:
        """Send a heartbeat soon, as a connection is lost: the broker treats this client as gone from its groups."""
        self.membership.lost(addr)
        if self.membership.is_asked and addr in self.routes.addrs():
            self._heartbeat_due.set()

    def _members_addrs(self) -> list[str]:
        return self.membership.wanted_addrs(self.routes.masters(), self.routes.addrs())

    @enable_ki_protection
    async def _beat(self) -> None:
        # A broker that did not answer gets the next heartbeat soon: until then it does not know this client's groups,
        # and gives the queues to other members.
        answered = True
        while True:
            with trio.move_on_after(HEARTBEAT_INTERVAL_S if answered else HEARTBEAT_RETRY_S):
                await self._heartbeat_due.wait()
            answered = False
            with survived("a heartbeat"):
                answered = await self.membership.beat(self._members_addrs(), self.at)


def _encrypted(tls: Tls) -> Connect:
    """A `Connect` with TLS. Reads certificates, so it blocks. Imports the TLS library only when called."""
    from skylark.remoting.net.tls.client import tls_connect

    return tls_connect(tls)


T = TypeVar("T")

_SHARED = "{0} cannot be given together with a shared Client: give {0} to the Client, whose connections are used"


@checked_methods
class Client(AsyncOnly):
    """Connections, routes and heartbeats that any number of Producers, PullConsumers and Admins share.

    ``async with Client("127.0.0.1:9876") as client, Producer(client) as producer, Admin(client) as admin: ...``

    ``nameserver`` is ``host:port;host:port``, a sequence of addresses, the Path of a conf file with ``namesrvAddr``, or
    the URL of an address server (``http://host:port/rocketmq/nsaddr``), which is asked every two minutes; by default
    $NAMESRV_ADDR. ``timeout_ms`` is the timeout of each request for a route. ``namespace`` is the namespace of all
    objects that share the client, unless they give their own. ``credentials`` sign all requests on its connections, and
    ``tls`` encrypts these. The objects have groups, options and timeouts of their own, and may be opened and closed at
    any time. After the client is closed, using one of them raises SkylarkError.
    """

    def __init__(
        self,
        nameserver: NameServerSource | None = None,
        *,
        timeout_ms: Milliseconds = DEFAULT_TIMEOUT_MS,
        namespace: Namespace = "",
        credentials: GivenCredentials = None,
        tls: GivenTls = None,
    ) -> None:
        self._instance = ClientInstance(
            nameserver,
            request_timeout_ms=timeout_ms,
            needs_nameserver=False,
            namespace=namespace,
            credentials=credentials,
            tls=tls,
        )

    @enable_ki_protection
    async def __aenter__(self) -> Self:
        await self._instance.__aenter__()
        return self

    @enable_ki_protection
    async def __aexit__(self, *error: Any) -> None:
        await self._instance.__aexit__(*error)

    @property
    def client_id(self) -> str:
        """The id under which brokers list this client; empty before it is open."""
        return self._instance.client_id


def sharing(instance: ClientInstance) -> Client:
    """A `Client` of an instance that another object opens and closes."""
    client = object.__new__(Client)
    client._instance = instance
    return client


class ClientHandle:
    """One user of a `ClientInstance`: of its own instance, or of the instance of the `Client` given as ``nameserver``.

    ``names`` converts topics and groups; groups that join are converted here.
    """

    def __init__(
        self,
        nameserver: NameServerSource | Client | None,
        timeout_ms: float = DEFAULT_TIMEOUT_MS,
        *,
        needs_nameserver: bool = True,
        namespace: str = "",
        credentials: GivenCredentials = None,
        tls: GivenTls = None,
    ) -> None:
        check_credentials("credentials", credentials)
        check_tls("tls", tls)
        self._owns_instance = not isinstance(nameserver, Client)
        if isinstance(nameserver, Client):
            self.instance = nameserver._instance
            for name, given in (("credentials", credentials), ("tls", tls)):
                if given is not None:
                    raise InvalidArgument(_SHARED.format(name))
            if needs_nameserver and not self.instance.given_nameservers:
                raise none_given()
        else:
            self.instance = ClientInstance(
                nameserver,
                request_timeout_ms=timeout_ms,
                needs_nameserver=needs_nameserver,
                credentials=credentials,
                tls=tls,
            )
        self.names = Names(namespace or self.instance.namespace)
        self.timeout_ms = timeout_ms
        self._stack = AsyncExitStack()
        self._nursery: trio.Nursery | None = None
        self._ended = trio.Event()
        self._leave: Callable[[], Awaitable[None]] | None = None
        # Queue → the route by which its master was found last, and the master.
        self._masters: dict[MessageQueue, tuple[TopicRoute, Endpoint | None]] = {}
        # A copy of the instance's value while the handle is open, for the hot path; see `check_open`.
        self.forks = -1

    # --- life

    @enable_ki_protection
    async def __aenter__(self) -> Self:
        if self._nursery is not None:
            raise RuntimeError("this client is open already; make another")
        async with AsyncExitStack() as stack:
            if self._owns_instance:
                await stack.enter_async_context(self.instance)
            self._nursery = await self.instance.nursery.start(self._run)
            self._stack = stack.pop_all()
        self.forks = self.instance.forks
        return self

    @enable_ki_protection
    async def __aexit__(self, *error: Any) -> None:
        """Leave the group and end the tasks. Closes the instance if it belongs to this handle."""
        assert self._nursery is not None
        try:
            if self._leave is not None and self.forks == FORKS.count:
                await self._leave()
        finally:
            # First leave the group, while the tasks still run; then end the tasks; connections are closed after all
            # their users.
            self._nursery.cancel_scope.cancel()
            try:
                with trio.CancelScope(shield=True):
                    await self._ended.wait()
            finally:
                await self._stack.__aexit__(*error)

    @enable_ki_protection
    async def _run(self, task_status: trio.TaskStatus[trio.Nursery]) -> None:
        """The parent of this handle's tasks."""
        try:
            async with trio.open_nursery() as nursery:
                task_status.started(nursery)
                await trio.sleep_forever()
        finally:
            self.forks = -1
            self._ended.set()

    def join_producer(self, group: str, checking: TransactionChecker | None = None) -> None:
        """Announce a producer of ``group`` in heartbeats until the handle is closed.

        ``checking`` answers for its transactions; InvalidArgument when another producer of the group does.
        """
        group = self.names.group(group)
        self.instance.membership.join_producer(group, checking)
        self._leave = lambda: self.instance.leave_producer(group, checking)

    def join_consumer(self, group: str, consumer: GroupMember) -> None:
        """Announce ``consumer`` in heartbeats until the handle is closed; InvalidArgument when the group has one."""
        group = self.names.group(group)
        self.instance.membership.join_consumer(group, consumer)
        self._leave = lambda: self.instance.leave_consumer(group)

    def check_open(self) -> None:
        """Raise RuntimeError unless open in this process; SkylarkError when this or its instance was closed."""
        if self._nursery is None:
            check_loop("trio")
            raise RuntimeError("open the client with 'async with' first")
        self.instance.check_open()
        if self.forks != FORKS.count:
            raise closed()

    @property
    def nursery(self) -> trio.Nursery:
        """The nursery for tasks that end with this handle."""
        self.check_open()
        assert self._nursery is not None
        return self._nursery

    # --- servers

    @property
    def name_servers(self) -> NameServers:
        """The NameServers."""
        self.check_open()
        return self.instance.name_servers

    def at(self, addr: str, *, broker_name: str = "") -> Endpoint:
        """The server at ``addr``; with ``broker_name``, requests fail when another broker listens there."""
        self.check_open()
        return self.instance.at(addr, self.timeout_ms, broker_name=broker_name)

    async def fetch_route(self, topic: str) -> TopicRouteData:
        """The topic's route as a NameServer gives it, not from the cache."""
        self.check_open()
        return await self.instance.fetch_route(topic, self.timeout_ms)

    def known_master(self, mq: MessageQueue) -> Endpoint | None:
        """The queue's master by the cached route; None when the cache has none."""
        self.check_open()
        route = self.instance.routes.get(mq.topic)
        if route is None:
            return None
        known = self._masters.get(mq)
        if known is None or known[0] is not route:
            addr = route.master_of(mq)
            master = None if addr is None else self.instance.at(addr, self.timeout_ms, broker_name=mq.broker_name)
            if len(self._masters) >= MOST_MASTERS:
                self._masters.clear()
            known = self._masters[mq] = route, master
        return known[1]

    async def ask_master(self, mq: MessageQueue, call: Callable[[Endpoint], Awaitable[T]]) -> T:
        """The answer of the queue's master. When it cannot be reached, the route is refreshed to find a new master."""
        self.check_open()
        addr = (await self.instance.route(mq.topic)).master_of(mq)
        # At most two masters are asked: the cached route's master, and a fresh route's master if it differs.
        failure: SkylarkError = RouteNotFound(
            mq.topic, f"broker {mq.broker_name} has no master in its route", is_passing=True
        )
        if addr is not None:
            try:
                return await call(self.at(addr, broker_name=mq.broker_name))
            except ConnectFailed as error:
                failure = error
                if isinstance(error, WrongBroker):
                    self.instance.drop_address(mq.broker_name, addr)
        moved = (await self.instance.refresh(mq.topic)).master_of(mq)
        # The NameServers have no other master either. The error of the first try says more than a second error would.
        if moved is None or moved == addr:
            raise failure
        return await call(self.at(moved, broker_name=mq.broker_name))

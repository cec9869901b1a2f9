"""`Client`: one `ClientInstance` shared by producers, consumers and admins. `ClientHandle`: one user of an instance.

A handle owns the tasks, the timeout and the group of one user, and has its own lifetime. Its tasks are children of one
task of the instance. So they end with the handle, or with the instance if that closes first, and an unexpected error in
one of them ends the instance with all of its users.
"""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self, TypeVar

import trio
from trio.lowlevel import enable_ki_protection

from mqcommon.errors import ConnectFailed, InvalidArgument, RouteNotFound, SkylarkError, WrongBroker
from mqcommon.message.queue import MessageQueue
from remoting.protocol.requests.routes import TopicRouteData
from sdk.checked import Milliseconds, checked_methods
from sdk.client import ClientInstance
from sdk.credentials import GivenCredentials, GivenTls, check_credentials, check_tls
from sdk.endpoint import DEFAULT_TIMEOUT_MS, Endpoint
from sdk.membership import GroupMember, TransactionChecker
from sdk.nameserver_source import NameServerSource, none_given
from sdk.nameservers import NameServers
from sdk.namespaces import Names, Namespace
from sdk.runtime import FORKS, check_trio

T = TypeVar("T")

_SHARED = "{0} cannot be given together with a shared Client: give {0} to the Client, whose connections are used"


@checked_methods
class Client:
    """Connections, routes and heartbeats that any number of Producers, PullConsumers and Admins share.

    ``async with Client("127.0.0.1:9876") as client, Producer(client) as producer, Admin(client) as admin: ...``

    ``nameserver`` is ``host:port;host:port``, a sequence of addresses, the Path of a conf file with ``namesrvAddr``, or
    the URL of an address server (``http://host:port/rocketmq/nsaddr``), which is asked every two minutes; by default
    $NAMESRV_ADDR. ``timeout_ms`` is the timeout of each request for a route. ``namespace`` is that of all objects that
    share the client, unless they give their own. ``credentials`` sign all requests on its connections, and ``tls``
    encrypts these. The objects have groups, options and timeouts of their own, and may be opened and closed at any
    time. After the client is closed, using one of them raises SkylarkError.
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

    async def __aenter__(self) -> Self:
        await self._instance.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._instance.__aexit__(kind, error, trace)

    @property
    def client_id(self) -> str:
        """The id under which brokers list this client; empty before it is open."""
        return self._instance.client_id


def sharing(instance: ClientInstance) -> Client:
    """A `Client` of an instance whose life is somebody else's."""
    client = object.__new__(Client)
    client._instance = instance
    return client


class ClientHandle:
    """One user of a `ClientInstance`: its own one, or that of the `Client` given as ``nameserver``.

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
        # A copy of the instance's value while the handle is open, for the hot path; see `check_open`.
        self.forks = -1

    # --- life

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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the group and end the tasks. Closes the instance if it belongs to this handle."""
        assert self._nursery is not None
        try:
            if self._leave is not None and self.forks == FORKS.count:
                await self._leave()
        finally:
            self._nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await self._ended.wait()
            await self._stack.__aexit__(kind, error, trace)

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
            check_trio()
            raise RuntimeError("open the client with 'async with' first")
        self.instance.check_open()
        if self.forks != FORKS.count:
            raise SkylarkError("the client was closed")

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

    async def ask_master(self, mq: MessageQueue, call: Callable[[Endpoint], Awaitable[T]]) -> T:
        """The answer of the queue's master. When it cannot be reached, the route is refreshed to find a new master."""
        self.check_open()
        addr = (await self.instance.route(mq.topic)).master(mq.broker_name)
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
        moved = (await self.instance.refresh(mq.topic)).master(mq.broker_name)
        if moved is None or moved == addr:
            raise failure
        return await call(self.at(moved, broker_name=mq.broker_name))

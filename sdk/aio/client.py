"""`Client` for asyncio."""

from sdk.aio.facade import Facade
from sdk.aio.portal import Portal
from sdk.checked import Milliseconds
from sdk.client import Client as TrioClient
from sdk.credentials import GivenCredentials, GivenTls
from sdk.endpoint import DEFAULT_TIMEOUT_MS
from sdk.nameservers import NameServerSource
from sdk.namespaces import Namespace


class Client(Facade[TrioClient]):
    """Connections, routes and heartbeats that any number of Producers, PullConsumers and Admins share.

    ``async with Client("127.0.0.1:9876") as client, Producer(client) as producer, Admin(client) as admin: ...``

    ``nameserver`` is ``host:port;host:port``, a sequence of addresses, the Path of a conf file with ``namesrvAddr``, or
    the URL of an address server (``http://host:port/rocketmq/nsaddr``), which is asked every two minutes; by default
    $NAMESRV_ADDR. ``timeout_ms`` is the timeout of each request for a route. ``namespace`` is that of all objects that
    share the client, unless they give their own. ``credentials`` sign all requests on its connections, and ``tls``
    encrypts these. The objects have groups, options and timeouts of their own, and may be opened and closed at any
    time. After the client is closed, using one of them raises SkylarkError.

    It has one thread, which runs the trio loop of all of them.
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
        super().__init__(
            Portal(
                lambda: TrioClient(
                    nameserver, timeout_ms=timeout_ms, namespace=namespace, credentials=credentials, tls=tls
                )
            )
        )

    @property
    def client_id(self) -> str:
        """The id under which brokers list this client; empty before it is open."""
        return self._loop.call_sync(lambda client: client.client_id)

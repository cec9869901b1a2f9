"""The blocking `Client`: producers, consumers and admins that share one event loop thread and its connections."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from sdk import shared
from sdk.blocking.facade import Facade
from sdk.blocking.loop import ClientLoop
from sdk.endpoint import DEFAULT_TIMEOUT_MS
from sdk.nameserver_source import NameServerSource

C = TypeVar("C")


class Client(Facade[shared.Client]):
    """Connections, routes, heartbeats and a thread that any number of Producers, PullConsumers and Admins share.

    ``with Client("127.0.0.1:9876") as client, Producer(client) as producer, Admin(client) as admin: ...``

    The arguments are those of the async class.
    """

    def __init__(
        self,
        nameserver: NameServerSource | None = None,
        *,
        timeout_ms: float = DEFAULT_TIMEOUT_MS,
        namespace: str = "",
    ) -> None:
        super().__init__(ClientLoop(lambda: shared.Client(nameserver, timeout_ms=timeout_ms, namespace=namespace)))

    @property
    def client_id(self) -> str:
        """The id under which brokers list this client."""

        async def client_id(client: shared.Client) -> str:
            return client.client_id

        return self._loop.call(client_id)


def loop_of(
    nameserver: NameServerSource | Client | None,
    make: Callable[[NameServerSource | shared.Client | None], AbstractAsyncContextManager[C]],
) -> ClientLoop[C]:
    """A loop for the client that ``make`` returns: the loop of the `Client` if one is given, else its own."""
    if not isinstance(nameserver, Client):
        return ClientLoop(lambda: make(nameserver))
    host = nameserver._loop

    def make_guest() -> AbstractAsyncContextManager[C]:
        assert isinstance(host.made, shared.Client)
        return make(host.made)

    return ClientLoop(make_guest, host)

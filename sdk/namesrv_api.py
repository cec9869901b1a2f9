"""Requests of clients to a NameServer, one function per request. `Admin` has the requests of tools.

As in `broker_api`, BrokerError is raised for codes that are errors. `NameServers` chooses which NameServer to ask.
A server that does not know a request that every NameServer knows is no NameServer: NotNameServer is raised.
"""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from skylark.mqcommon.errors import BrokerError, NotNameServer
from skylark.remoting.net.call import call
from skylark.remoting.protocol.requests import routes as requests
from skylark.remoting.protocol.requests.routes import (
    ClusterInfo,
    GetRouteInfoRequestHeader,
    TopicRouteData,
    WatchRoutesRequestHeader,
)
from skylark.remoting.protocol.requests.topics import TopicList
from skylark.sdk.endpoint import Endpoint

# NameServers hold a watch for 25 s.
WATCH_MS = 25_000

P = ParamSpec("P")
T = TypeVar("T")


def every_namesrv_knows(
    ask: Callable[Concatenate[Endpoint, P], Awaitable[T]],
) -> Callable[Concatenate[Endpoint, P], Coroutine[Any, Any, T]]:
    """Wrap ``ask`` so that it raises NotNameServer when the server does not know the request."""

    @wraps(ask)
    async def asking(namesrv: Endpoint, /, *args: P.args, **named: P.kwargs) -> T:
        try:
            return await ask(namesrv, *args, **named)
        except BrokerError as error:
            if isinstance(error, NotNameServer) or not error.is_unknown_request:
                raise
            raise NotNameServer(error, namesrv.client.broker_name_at(namesrv.addr)) from None

    return asking


@every_namesrv_knows
async def topic_route(namesrv: Endpoint, topic: str) -> TopicRouteData:
    """The topic's route: its queues and their brokers; code 17 when the topic is unknown."""
    header = GetRouteInfoRequestHeader(topic, accept_standard_json_only=True)
    return (await call(namesrv, requests.GET_ROUTEINFO_BY_TOPIC, header)).body()


@every_namesrv_knows
async def cluster_info(namesrv: Endpoint) -> ClusterInfo:
    """All clusters, their brokers, and the brokers' addresses."""
    return (await call(namesrv, requests.GET_BROKER_CLUSTER_INFO)).body()


async def topic_names(namesrv: Endpoint) -> list[str]:
    """The names of all topics."""
    return (await call(namesrv, requests.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).body().topic_list


class RouteNews(NamedTuple):
    """A NameServer's answer to a client that watches routes."""

    #: The version of the client's routes once the client has fetched the changed ones.
    version: str
    #: The topics whose routes changed; None: any of the client's topics.
    topics: Sequence[str] | None
    #: False: the NameServer does not hold the request, as too many clients wait there.
    is_held: bool


async def watch_routes(namesrv: Endpoint, topics: Sequence[str], version: str) -> RouteNews:
    """Wait until routes of ``topics`` have changed since ``version``, or for a while. For Skylark's NameServers."""
    header, body = WatchRoutesRequestHeader(version), TopicList(list(topics))
    answer = await call(namesrv, requests.WATCH_ROUTES, header, body, wait_ms=WATCH_MS)
    found = answer.header()
    return RouteNews(found.version, None if found.whole else answer.body().topic_list, found.held is not False)
